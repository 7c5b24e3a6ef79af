//! A plan for people and for programs.

use super::run::Measured;
use crate::{
    engine::{Policy, Protocol, runner::Site},
    linear::{Group, LinearId},
    planner::{
        choice::{Choice, Pricing, Refreshes, StepPlan, Wanted},
        costs::{Costs, Place, Prediction},
    },
};
use serde::Serialize;
use std::{
    fmt::{self, Write as _},
    time::Duration,
};

/// Everything that is printed. The keys are a contract.
#[derive(Serialize)]
pub(super) struct Report {
    model: String,
    weights: &'static str,
    layers: usize,
    policy: String,
    protocol: String,
    ring: RingFigures,
    /// Bytes of the evaluator's memory that the plan may use; null where there is no bound.
    budget_bytes: Option<u64>,
    resident_bytes: u64,
    /// Layers whose four groups are pinned; those of which some are; those of which none is. `direct` only.
    layers_pinned: usize,
    layers_mixed: usize,
    layers_fallback: usize,
    groups: Vec<Kind>,
    windows: Windows,
    total: Step,
    prompt: Option<Prompt>,
    calibration: Option<Calibration>,
    /// Median of |predicted - measured| / measured over the kinds of groups and the windows; null without a run.
    median_error: Option<f64>,
}

#[derive(Serialize)]
struct RingFigures {
    n: usize,
    log2_q: f64,
}

/// Groups of one kind that are computed at the same place.
#[derive(Serialize)]
struct Kind {
    group: String,
    place: Place,
    matrices: usize,
    /// For example "0-22".
    layers: String,
    /// int8 rows: planes times rows of W.
    rows: usize,
    cols: usize,
    planes: usize,
    tile_rows: usize,
    tile_cols: usize,
    log2_t: [u32; 2],
    level: Option<u32>,
    log2_scale: Option<f64>,
    /// The least over the matrices.
    noise_headroom_bits: Option<f64>,
    /// In the enclave instead, all of them.
    local_ms: f64,
    #[serde(flatten)]
    cost: Step,
    #[serde(skip)]
    ids: Vec<LinearId>,
}

#[derive(Serialize)]
struct Windows {
    count: usize,
    /// Each is a DtE: it decrypts, computes, encrypts again.
    refreshes: Refreshes,
    #[serde(flatten)]
    cost: Step,
}

/// Predicted and, after a run, measured.
#[derive(Serialize, Clone, Copy)]
struct Step {
    predicted: Figures,
    measured: Option<Figures>,
}

/// Per token.
#[derive(Serialize, Clone, Copy)]
struct Figures {
    total_ms: f64,
    enclave_ms: f64,
    evaluator_ms: f64,
    wire_ms: f64,
    bytes_up: u64,
    bytes_down: u64,
}

#[derive(Serialize)]
struct Prompt {
    positions: usize,
    enclave_ms: f64,
    evaluator_ms: Option<f64>,
    /// Where the policy has it done, and where it is predicted to be done sooner.
    site: &'static str,
    sooner: &'static str,
}

#[derive(Serialize)]
struct Calibration {
    cached: bool,
    planned_ms: f64,
    costs: Costs,
}

impl From<Prediction> for Figures {
    fn from(p: Prediction) -> Self {
        Self {
            total_ms: p.total_s() * 1e3,
            enclave_ms: p.enclave_s * 1e3,
            evaluator_ms: p.evaluator_s * 1e3,
            wire_ms: p.wire_s * 1e3,
            bytes_up: p.bytes_up,
            bytes_down: p.bytes_down,
        }
    }
}

impl Step {
    fn predicted(p: Prediction) -> Self {
        Self { predicted: p.into(), measured: None }
    }

    /// |predicted - measured| / measured of the whole.
    fn error(&self) -> Option<f64> {
        let measured = self.measured?.total_ms;
        (measured > 0.0).then(|| (self.predicted.total_ms - measured).abs() / measured)
    }
}

fn name(site: Site) -> &'static str {
    match site {
        Site::Enclave => "enclave",
        Site::Evaluator => "evaluator",
    }
}

impl Report {
    pub(super) fn new(pricing: &Pricing<'_>, wanted: &Wanted, step: &StepPlan) -> Self {
        let c = pricing.config;
        let mut groups: Vec<Kind> = Vec::new();
        for choice in &step.choices {
            let group = group_name(choice.id.group);
            match groups.iter_mut().find(|k| k.group == group && k.place == choice.place) {
                Some(kind) => kind.add(choice),
                None => groups.push(Kind::new(group, choice)),
            }
        }
        groups.iter_mut().for_each(|k| k.layers = ranges(&k.ids));
        let pinned = |layer: usize| {
            let of = |c: &&Choice| c.id.layer as usize == layer && c.id.group != Group::Head;
            step.choices.iter().filter(of).filter(|c| c.place == Place::Pinned).count()
        };
        let direct = wanted.policy.protocol(wanted.protocol) == Protocol::Direct;
        let layers = |range: std::ops::RangeInclusive<usize>| {
            if direct { (0..c.layers).filter(|l| range.contains(&pinned(*l))).count() } else { 0 }
        };
        Self {
            model: c.name.clone(),
            weights: pricing.weights.name(),
            layers: c.layers,
            policy: wanted.policy.to_string(),
            protocol: wanted.policy.protocol(wanted.protocol).to_string(),
            ring: RingFigures { n: pricing.ring.n(), log2_q: pricing.ring.params().log2_q() },
            budget_bytes: (wanted.budget != u64::MAX).then_some(wanted.budget),
            resident_bytes: step.resident_bytes,
            layers_pinned: layers(4..=4),
            layers_mixed: layers(1..=3),
            layers_fallback: layers(0..=0),
            groups,
            windows: Windows {
                count: step.window_count,
                refreshes: step.refreshes,
                cost: Step::predicted(step.windows),
            },
            total: Step::predicted(step.total()),
            prompt: None,
            calibration: None,
            median_error: None,
        }
    }

    pub(super) fn prompt(&mut self, positions: usize, inside: f64, delegated: Option<f64>, sooner: Site) {
        let site = self.policy.parse::<Policy>().map_or(Site::Enclave, Policy::prefill);
        let site = if delegated.is_some() { site } else { Site::Enclave };
        self.prompt = Some(Prompt {
            positions,
            enclave_ms: inside * 1e3,
            evaluator_ms: delegated.map(|s| s * 1e3),
            site: name(site),
            sooner: name(sooner),
        });
    }

    pub(super) fn calibration(&mut self, cached: bool, costs: &Costs, planned: Duration) {
        self.calibration = Some(Calibration { cached, planned_ms: planned.as_secs_f64() * 1e3, costs: *costs });
    }

    /// Writes what a run cost beside what was predicted.
    pub(super) fn measured(&mut self, run: &Measured) {
        for kind in &mut self.groups {
            let sum: Prediction = kind.ids.iter().filter_map(|id| run.linears.get(id)).copied().sum();
            kind.cost.measured = Some(sum.into());
        }
        self.windows.cost.measured = Some(run.windows.into());
        self.total.measured = Some(run.step.into());
        let mut errors: Vec<f64> = self.groups.iter().filter_map(|k| k.cost.error()).collect();
        errors.extend(self.windows.cost.error());
        errors.sort_by(f64::total_cmp);
        self.median_error = errors.get(errors.len() / 2).copied();
    }
}

impl Kind {
    fn new(group: String, c: &Choice) -> Self {
        let tiling = &c.shape.tiling;
        Self {
            group,
            place: c.place,
            matrices: 1,
            layers: String::new(),
            rows: tiling.rows(),
            cols: tiling.cols(),
            planes: c.shape.planes,
            tile_rows: tiling.tile_rows(),
            tile_cols: tiling.tile_cols(),
            log2_t: [c.shape.log2_t; 2],
            level: c.state.map(|s| s.level),
            log2_scale: c.state.map(|s| s.log2_scale),
            noise_headroom_bits: c.state.map(|s| s.headroom()),
            local_ms: c.local.total_s() * 1e3,
            cost: Step::predicted(c.prediction),
            ids: vec![c.id],
        }
    }

    fn add(&mut self, c: &Choice) {
        let p = Figures::from(c.prediction);
        let sum = &mut self.cost.predicted;
        for (to, add) in [
            (&mut sum.total_ms, p.total_ms),
            (&mut sum.enclave_ms, p.enclave_ms),
            (&mut sum.evaluator_ms, p.evaluator_ms),
            (&mut sum.wire_ms, p.wire_ms),
        ] {
            *to += add;
        }
        sum.bytes_up += p.bytes_up;
        sum.bytes_down += p.bytes_down;
        self.matrices += 1;
        self.local_ms += c.local.total_s() * 1e3;
        let [least, most] = self.log2_t;
        self.log2_t = [least.min(c.shape.log2_t), most.max(c.shape.log2_t)];
        self.noise_headroom_bits = self.noise_headroom_bits.zip(c.state).map(|(h, s)| h.min(s.headroom()));
        self.log2_scale = self.log2_scale.zip(c.state).map(|(h, s)| h.min(s.log2_scale));
        self.ids.push(c.id);
    }
}

/// "qkv" from "blk.0.qkv".
fn group_name(group: Group) -> String {
    let name = LinearId { layer: 0, group }.to_string();
    name.rsplit_once('.').map_or(name.clone(), |(_, group)| group.to_owned())
}

/// Layers in order, runs by their ends: "0-3,7". Empty for the head, which is in none.
fn ranges(ids: &[LinearId]) -> String {
    let mut out = String::new();
    let layers: Vec<u32> = ids.iter().filter(|id| id.group != Group::Head).map(|id| id.layer).collect();
    for run in layers.chunk_by(|a, b| a + 1 == *b) {
        let separator = if out.is_empty() { "" } else { "," };
        // Writing into a string does not fail.
        let _ = match run {
            [one] => write!(out, "{separator}{one}"),
            [first, .., last] => write!(out, "{separator}{first}-{last}"),
            [] => Ok(()),
        };
    }
    out
}

fn millis(ms: f64) -> String {
    match ms {
        ms if ms <= 0.0 => "-".into(),
        ms if ms < 0.01 => format!("{ms:.4}"),
        ms if ms < 10.0 => format!("{ms:.2}"),
        ms => format!("{ms:.1}"),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".into(), |e| format!("{:.0} %", 100.0 * e))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} ({}): policy {}, protocol {}, N = {}, log2 q = {:.1}",
            self.model, self.weights, self.policy, self.protocol, self.ring.n, self.ring.log2_q
        )?;
        let budget = self.budget_bytes.map_or("no bound".to_owned(), |b| format!("of {b}"));
        writeln!(f, "evaluator memory: {} bytes ({budget})", self.resident_bytes)?;
        if self.protocol == Protocol::Direct.to_string() {
            writeln!(
                f,
                "layers: {} of {} pinned, {} in part, {} fall back",
                self.layers_pinned, self.layers, self.layers_mixed, self.layers_fallback
            )?;
        }
        writeln!(f)?;
        let mut rows = vec![
            [
                "group",
                "layers",
                "where",
                "shape",
                "tile",
                "log2 t",
                "room",
                "enclave",
                "evaluator",
                "wire",
                "total ms",
                "up B",
                "down B",
                "measured",
                "error",
            ]
            .map(str::to_owned),
        ];
        for k in &self.groups {
            let [least, most] = k.log2_t;
            let where_ = match k.place {
                Place::Enclave => "enclave",
                Place::Masked => "masked",
                Place::Pinned => "pinned",
                Place::Fallback => "fallback",
            };
            let head = [
                k.group.clone(),
                k.layers.clone(),
                where_.into(),
                format!("{}x{}", k.rows, k.cols),
                format!("{}x{}", k.tile_rows, k.tile_cols),
                if least == most { least.to_string() } else { format!("{least}-{most}") },
                k.noise_headroom_bits.map_or("-".into(), |h| format!("{h:.1}")),
            ];
            rows.push(row(head, &k.cost));
        }
        let none = || "".to_owned();
        let windows =
            ["windows".into(), self.windows.count.to_string(), "enclave".into(), none(), none(), none(), none()];
        rows.push(row(windows, &self.windows.cost));
        rows.push(row(["a token".into(), none(), none(), none(), none(), none(), none()], &self.total));
        let shown = if self.total.measured.is_some() { 15 } else { 13 };
        let widths: Vec<usize> =
            (0..shown).map(|c| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0)).collect();
        for row in &rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if column < 4 {
                    write!(line, "{cell:<width$}  ")?;
                } else {
                    write!(line, "{cell:>width$}  ")?;
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f)?;
        let Refreshes { at_windows, inserted } = self.windows.refreshes;
        writeln!(
            f,
            "ciphertexts have one product; {at_windows} windows decrypt and encrypt again, {inserted} refreshes had to be inserted"
        )?;
        if let Some(m) = &self.total.measured {
            writeln!(
                f,
                "measured: enclave {}, evaluator {}, wire {} ms, {} B up, {} B down; median error of the rows {}",
                millis(m.enclave_ms),
                millis(m.evaluator_ms),
                millis(m.wire_ms),
                m.bytes_up,
                m.bytes_down,
                percent(self.median_error)
            )?;
        }
        if let Some(p) = &self.prompt {
            let there = p.evaluator_ms.map_or("-".into(), millis);
            writeln!(
                f,
                "a prompt of {} positions: {} ms in the enclave, {there} ms delegated; by policy in the {}, sooner in the {}",
                p.positions,
                millis(p.enclave_ms),
                p.site,
                p.sooner
            )?;
        }
        if let Some(c) = &self.calibration {
            let from = if c.cached { "from an earlier calibration" } else { "measured now" };
            writeln!(f, "costs {from}; planned in {:.1} ms, once a start", c.planned_ms)?;
        }
        Ok(())
    }
}

fn row(head: [String; 7], step: &Step) -> [String; 15] {
    let p = step.predicted;
    let [a, b, c, d, e, f, g] = head;
    [
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        millis(p.enclave_ms),
        millis(p.evaluator_ms),
        millis(p.wire_ms),
        millis(p.total_ms),
        p.bytes_up.to_string(),
        p.bytes_down.to_string(),
        step.measured.map_or("-".into(), |m| millis(m.total_ms)),
        percent(step.error()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_runs() {
        let ids = |layers: &[u32]| -> Vec<LinearId> {
            layers.iter().map(|layer| LinearId { layer: *layer, group: Group::Down }).collect()
        };
        assert_eq!(ranges(&ids(&[0, 1, 2, 7, 9, 10])), "0-2,7,9-10");
        assert_eq!(ranges(&[LinearId { layer: 0, group: Group::Head }]), "");
        assert_eq!(group_name(Group::GateUp), "gate_up");
        assert_eq!(group_name(Group::Head), "head");
    }
}
