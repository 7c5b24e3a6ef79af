//! The figures of a bench: one JSON object for programs, tables for people.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;
use serde::ser::SerializeMap;

use super::figures::Distribution;
use super::load::{Load, Outcome};
use super::memory::Resident;
use super::plot;
use crate::Error;
use crate::cli::OutputArgs;
use crate::report::print;

/// The object that `bench serve --json` prints. Its keys are a contract; times are milliseconds.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) bench: &'static str,
    /// An URL, or "started here".
    pub(super) endpoint: String,
    pub(super) model: String,
    /// Null, like the policy, where the endpoint was not started here.
    pub(super) protocol: Option<&'static str>,
    pub(super) policy: Option<&'static str>,
    /// Of each request.
    pub(super) prompt_tokens: u32,
    /// Of each request.
    pub(super) max_tokens: u32,
    pub(super) seed: u64,
    /// Whether every answer was compared with that to the same prompt alone.
    pub(super) verified: bool,
    /// One, or one for each concurrency of a sweep.
    pub(super) runs: Vec<Run>,
}

/// One load.
#[derive(Serialize)]
pub(super) struct Run {
    pub(super) load: Load,
    #[serde(flatten)]
    pub(super) summary: Summary,
    /// Output tokens a second, of the first run's; null without a sweep.
    pub(super) throughput_ratio: Option<f64>,
    /// Null where nothing is masked or known.
    pub(super) lanes: Option<Lanes>,
    /// The daemons; null where they were not started here.
    pub(super) memory: Option<Vec<Resident>>,
}

/// What clients saw.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) requests: usize,
    pub(super) answered: usize,
    /// By kind: connection, `status_429`, stream, malformed, length, different.
    pub(super) errors: BTreeMap<String, usize>,
    pub(super) first_error: Option<String>,
    pub(super) seconds: f64,
    pub(super) prompt_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) output_tokens_per_second: f64,
    pub(super) requests_per_second: f64,
    pub(super) ttft_ms: Distribution,
    /// All gaps between events with text.
    pub(super) inter_token_ms: Distribution,
    /// By request: the time after the first token, divided by the tokens after it.
    pub(super) per_token_ms: Distribution,
    pub(super) end_to_end_ms: Distribution,
    pub(super) each: Vec<Each>,
    /// For the drawing.
    #[serde(skip)]
    pub(super) gaps: Vec<f64>,
}

/// One request.
#[derive(Serialize)]
pub(super) struct Each {
    pub(super) began_seconds: f64,
    pub(super) ttft_ms: Option<f64>,
    pub(super) end_to_end_ms: Option<f64>,
    pub(super) tokens: u64,
    pub(super) error: Option<String>,
}

/// The mask pool around a run.
#[derive(Serialize)]
pub(super) struct Lanes {
    pub(super) ready_before: u64,
    /// Vectors that were masked.
    pub(super) used: u64,
    pub(super) ready_after: u64,
}

impl Each {
    pub(super) fn of(outcome: &Outcome) -> Self {
        let answer = outcome.result.as_ref().ok();
        Self {
            began_seconds: outcome.began,
            ttft_ms: answer.and_then(|answer| answer.first),
            end_to_end_ms: answer.map(|answer| answer.end),
            tokens: answer.map_or(0, |answer| answer.tokens),
            error: outcome.result.as_ref().err().map(super::http::Fault::kind),
        }
    }
}

impl Serialize for Load {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        let (kind, concurrency, rate) = match self {
            Self::Closed(concurrency) => ("closed", Some(concurrency), None),
            Self::Open(rate) => ("open", None, Some(rate)),
        };
        map.serialize_entry("kind", kind)?;
        map.serialize_entry("concurrency", &concurrency)?;
        map.serialize_entry("rate", &rate)?;
        map.end()
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed(concurrency) => write!(f, "{concurrency} at a time"),
            Self::Open(rate) => write!(f, "{rate} a second"),
        }
    }
}

impl Report {
    /// What failed, in one line; none if nothing did.
    pub(super) fn failed(&self) -> Option<String> {
        let failed: usize = self.runs.iter().map(|run| run.summary.requests - run.summary.answered).sum();
        let asked: usize = self.runs.iter().map(|run| run.summary.requests).sum();
        let example = self.runs.iter().find_map(|run| run.summary.first_error.as_deref()).unwrap_or("unknown");
        (failed > 0).then(|| format!("{failed} of {asked} requests failed; the first: {example}"))
    }
}

/// Prints what `bench serve` found, and draws it.
///
/// # Errors
/// A standard output or a file that cannot be written.
pub(super) fn serve(report: &Report, output: &OutputArgs) -> Result<(), Error> {
    if output.json {
        print(&format!("{}\n", json(report)))?;
    } else {
        for run in &report.runs {
            print(&format!("{}\n", run_table(report, run)))?;
        }
        if report.runs.len() > 1 {
            print(&format!("{}\n", sweep_table(report)))?;
        }
    }
    output.plot.as_deref().map_or(Ok(()), |path| plot::serve(report, path))
}

/// One line.
pub(super) fn json(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("strings, numbers, lists and maps with names always serialize")
}

/// A table whose first column alone is text.
pub(super) fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Three significant digits or so; "-" for what was not measured.
pub(super) fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".into(),
        Some(value) if value.abs() < 10.0 => format!("{value:.2}"),
        Some(value) if value.abs() < 100.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

fn run_table(report: &Report, run: &Run) -> Table {
    let summary = &run.summary;
    let title = format!("{}, {}", report.model, run.load);
    let mut table = table(&[&title, "mean", "p50", "p90", "p95", "p99", "max"]);
    for (label, d) in [
        ("time to first token, ms", summary.ttft_ms),
        ("between tokens, ms", summary.inter_token_ms),
        ("per token of a request, ms", summary.per_token_ms),
        ("end to end, ms", summary.end_to_end_ms),
    ] {
        let cells = [d.mean, d.p50, d.p90, d.p95, d.p99, d.max].map(figure);
        table.add_row(std::iter::once(label.to_owned()).chain(cells));
    }
    let mut row = |label: &str, value: String| {
        table.add_row(vec![label.to_owned(), value]);
    };
    row("output tokens a second", figure(Some(summary.output_tokens_per_second)));
    row("requests a second", figure(Some(summary.requests_per_second)));
    let checked = if report.verified { ", as alone" } else { "" };
    row(&format!("answered{checked} / asked"), format!("{} / {}", summary.answered, summary.requests));
    for (kind, count) in &summary.errors {
        row(&format!("  errors: {kind}"), count.to_string());
    }
    row("output tokens", summary.output_tokens.to_string());
    row("seconds", figure(Some(summary.seconds)));
    if let Some(protocol) = report.protocol {
        row(&format!("protocol, {}", report.policy.unwrap_or_default()), protocol.to_owned());
    }
    if let Some(lanes) = &run.lanes {
        row("tokens masked", lanes.used.to_string());
        row("lanes before / after", format!("{} / {}", lanes.ready_before, lanes.ready_after));
    }
    for resident in run.memory.iter().flatten() {
        row(&format!("{}, MiB at the end", resident.process), figure(resident.last_mib));
        row("  slope, MiB a minute", figure(resident.slope_mib_per_minute));
        row("  slope of the second half", figure(resident.slope_of_second_half));
    }
    table
}

fn sweep_table(report: &Report) -> Table {
    let header = ["at a time", "tokens/s", "ratio", "TTFT p50", "p99", "between p50", "p99", "masked"];
    let mut table = table(&header);
    for run in &report.runs {
        let summary = &run.summary;
        let Load::Closed(concurrency) = run.load else { continue };
        table.add_row([
            concurrency.to_string(),
            figure(Some(summary.output_tokens_per_second)),
            run.throughput_ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2} x")),
            figure(summary.ttft_ms.p50),
            figure(summary.ttft_ms.p99),
            figure(summary.inter_token_ms.p50),
            figure(summary.inter_token_ms.p99),
            run.lanes.as_ref().map_or_else(|| "-".into(), |lanes| lanes.used.to_string()),
        ]);
    }
    table
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::http::Fault;
    use crate::bench::load::{Measured, Streamed};

    /// A sweep of two runs with one answer and one failure each.
    pub(in crate::bench) fn report() -> Report {
        let run = |concurrency| {
            let streamed =
                Streamed { text: "ab".into(), first: Some(10.0), gaps: vec![5.0, 7.0], end: 22.0, tokens: 3 };
            let outcomes = vec![
                Outcome { began: 0.0, result: Ok(streamed) },
                Outcome { began: 0.1, result: Err(Fault::Different("it differs".into())) },
            ];
            let resident = Resident {
                process: "trusted-runtime",
                first_mib: Some(10.0),
                last_mib: Some(11.0),
                max_mib: Some(11.0),
                slope_mib_per_minute: Some(60.0),
                slope_of_second_half: None,
                samples: vec![(0.0, 10.0), (1.0, 11.0)],
            };
            Run {
                load: Load::Closed(concurrency),
                summary: Summary::of(&Measured { outcomes, seconds: 1.5 }, 4),
                throughput_ratio: Some(1.0),
                lanes: Some(Lanes { ready_before: 64, used: 3, ready_after: 61 }),
                memory: Some(vec![resident]),
            }
        };
        Report {
            bench: "serve",
            endpoint: "started here".into(),
            model: "tiny".into(),
            protocol: Some("masked"),
            policy: Some("hybrid_pd_split"),
            prompt_tokens: 4,
            max_tokens: 3,
            seed: 1,
            verified: true,
            runs: vec![run(1), run(2)],
        }
    }

    #[test]
    fn json_has_its_keys_and_no_text() {
        let text = json(&report());
        assert!(!text.contains("\"ab\""), "generated text is in {text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in
            ["bench", "endpoint", "model", "protocol", "policy", "prompt_tokens", "max_tokens", "seed", "verified"]
        {
            assert!(!value[key].is_null(), "{key}");
        }
        for at in [
            "load/kind",
            "load/concurrency",
            "requests",
            "answered",
            "errors/different",
            "first_error",
            "seconds",
            "output_tokens",
            "output_tokens_per_second",
            "requests_per_second",
            "ttft_ms/p99",
            "inter_token_ms/mean",
            "per_token_ms/p50",
            "end_to_end_ms/max",
            "each/0/tokens",
            "throughput_ratio",
            "lanes/used",
            "memory/0/slope_mib_per_minute",
            "memory/0/samples/1/1",
        ] {
            assert!(value.pointer(&format!("/runs/1/{at}")).is_some_and(|v| !v.is_null()), "{at} in {text}");
        }
        assert_eq!(report().failed().as_deref(), Some("2 of 4 requests failed; the first: it differs"));
    }

    #[test]
    fn tables_have_the_figures() {
        let report = report();
        let table = run_table(&report, &report.runs[0]).to_string();
        for part in ["tiny, 1 at a time", "between tokens", "p99", "tokens masked", "errors: different", "slope"] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
        assert!(sweep_table(&report).to_string().contains("1.00 x"));
    }
}
