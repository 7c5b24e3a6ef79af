//! The result of a request as a table for people, at most 80 columns wide.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use indicatif::HumanBytes;
use proto::v1;

use super::{BytesPerToken, Report};
use crate::cli::Policy;

/// Columns of the narrowest terminal the table is meant for; longer names are wrapped.
const WIDTH: u16 = 80;

/// A label and the figure of a [`v1::Timing`] it shows.
type TimeRow = (&'static str, fn(&v1::Timing) -> f64);

/// The time rows of the table; indented ones are parts of the one above.
const ROWS: &[TimeRow] = &[
    ("time to first token", |timing| timing.ttft_ms),
    ("time per token", |timing| timing.decode_ms_per_token),
    ("  enclave crypto", |timing| timing.enclave_crypto_ms),
    ("    verification", |timing| timing.verify_ms),
    ("  enclave other", |timing| timing.enclave_other_ms),
    ("  evaluator", |timing| timing.evaluator_ms),
    ("  wire", |timing| timing.wire_ms),
];

/// A label column, the request's column, and the local path's where that was run.
struct Rows {
    table: Table,
    local: bool,
}

impl Rows {
    fn row(&mut self, label: &str, ours: String, local: &str) {
        let mut cells = vec![label.to_owned(), ours];
        if self.local {
            cells.push(local.to_owned());
        }
        self.table.add_row(cells);
    }
}

impl Report {
    /// The table, without a trailing newline. `local` fills the second column.
    #[must_use]
    pub fn to_table(&self, timing: &v1::Timing, model: &v1::DescribeResponse, local: Option<&v1::Timing>) -> String {
        let mut rows = Rows { table: Table::new(), local: local.is_some() };
        rows.table.load_preset(UTF8_FULL_CONDENSED);
        rows.table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        let mut header = vec![format!("{} ({})", model.model, model.weights), self.protocol.to_owned()];
        if local.is_some() {
            header.push("local".into());
        }
        rows.table.set_header(header);
        if let Some(attestation) = self.attestation {
            rows.row("attestation", attestation.to_owned(), "");
        }
        if self.delegated {
            let prompt = if self.policy == Policy::HybridUnified.name() { "evaluator" } else { "enclave" };
            rows.row("prompt multiplied by", prompt.to_owned(), "enclave");
        }
        for (label, pick) in ROWS {
            let local = local.map(|timing| milliseconds(pick(timing))).unwrap_or_default();
            rows.row(label, milliseconds(pick(timing)), &local);
        }
        if let (Some(ms), Some(local_ms @ f64::MIN_POSITIVE..)) = (self.decode_ms_per_token, self.local_ms_per_token) {
            rows.row("ratio to local", format!("{:.1} x", ms / local_ms), "1 x");
        }
        if let Some(evaluator) = model.evaluator.as_ref().filter(|_| self.delegated) {
            self.wire_rows(&mut rows, timing);
            if let Some(lanes) = model.lanes.as_ref().filter(|_| self.masked) {
                self.lane_rows(&mut rows, lanes);
            }
            rows.row("evaluator bytes per weight", format!("{:.2}", evaluator.bytes_per_weight), "");
            let residency = format!("{} pinned, {} fallback", evaluator.pinned_layers, evaluator.fallback_layers);
            rows.row("evaluator matrices", residency, "");
            rows.row("evaluator", format!("{}, {}", evaluator.backend, evaluator.isa), "");
        }
        rows.row("enclave", format!("{}, {} threads", model.isa, model.threads), &model.isa);
        if let Some(params) = model.ring.as_ref().filter(|_| self.delegated) {
            rows.row("ring", format!("N = {}, log2 q = {:.1}", params.n, params.log2_q), "");
            rows.row("security", format!("{}-bit", params.security_bits), "");
        }
        if timing.retries > 0 {
            rows.row("linear calls repeated", timing.retries.to_string(), "");
        }
        for column in rows.table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        rows.table.to_string()
    }

    /// What a token costs between runtime and evaluator while it is waited for.
    fn wire_rows(&self, rows: &mut Rows, timing: &v1::Timing) {
        if let BytesPerToken { up: Some(up), down: Some(down) } = self.bytes_per_token {
            rows.row("bytes per token, up", grouped(up), "0");
            rows.row("bytes per token, down", grouped(down), "0");
        }
        rows.row("round trips per token", format!("{:.0}", timing.round_trips_per_token), "0");
        if timing.round_trips_per_token > 0.0 {
            let each = timing.wire_ms * 1e3 / timing.round_trips_per_token;
            rows.row("  wire, each", format!("{each:.0} us"), "");
        }
    }

    /// What went which way, and what was done beforehand for it.
    fn lane_rows(&self, rows: &mut Rows, lanes: &v1::Lanes) {
        rows.row("tokens, masked / direct", format!("{} / {}", self.tokens.masked, self.tokens.direct), "");
        let offline = lanes.enclave_ms_per_lane + lanes.evaluator_ms_per_lane;
        rows.row("offline work per masked token", milliseconds(offline), "-");
        rows.row("  enclave", milliseconds(lanes.enclave_ms_per_lane), "-");
        rows.row("  evaluator", milliseconds(lanes.evaluator_ms_per_lane), "-");
        rows.row("offline bytes per masked token, up", grouped(lanes.bytes_up_per_lane), "0");
        rows.row("offline bytes per masked token, down", grouped(lanes.bytes_down_per_lane), "0");
        rows.row("lanes, ready / used", format!("{} / {}", grouped(lanes.ready), grouped(lanes.used)), "");
        rows.row("  refill, each", milliseconds(lanes.refill_ms_per_lane), "");
        rows.row("  memory of a full pool", HumanBytes(lanes.memory_bytes).to_string(), "");
    }
}

/// Milliseconds with three significant digits or so; "-" for a step that never happened.
fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms <= 0.0 => "-".into(),
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 100.0 => format!("{ms:.1} ms"),
        ms => format!("{ms:.0} ms"),
    }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::report::tests::{completion, description};

    use super::*;

    fn table(protocol: v1::Protocol, model: &v1::DescribeResponse) -> String {
        let local = completion(v1::Protocol::Local, vec![1, 2]);
        let ours = completion(protocol, vec![1, 2]);
        let timing = ours.timing;
        Report::new(ours, model, Some(&local)).to_table(&timing, model, Some(&local.timing))
    }

    /// The cells of the row `label`, without the label.
    fn cells<'a>(table: &'a str, label: &str) -> Option<Vec<&'a str>> {
        table.lines().find_map(|line| {
            let mut cells = line.trim_matches('│').split('┆').map(str::trim);
            (cells.next() == Some(label)).then(|| cells.collect())
        })
    }

    #[test]
    fn it_shows_both_columns() {
        let direct = table(v1::Protocol::Direct, &description());
        for (label, both) in [
            ("tiny (w8)", ["direct", "local"]),
            ("time to first token", ["1500 ms", "1500 ms"]),
            ("time per token", ["240 ms", "240 ms"]),
            ("verification", ["3.00 ms", "3.00 ms"]),
            ("ratio to local", ["1.0 x", "1 x"]),
            ("bytes per token, up", ["1,234,567", "0"]),
            ("round trips per token", ["121", "0"]),
            ("wire, each", ["74 us", ""]),
            ("evaluator matrices", ["4 pinned, 0 fallback", ""]),
            ("ring", ["N = 2048, log2 q = 50.9", ""]),
        ] {
            assert_eq!(cells(&direct, label).as_deref(), Some(&both[..]), "{label} in\n{direct}");
        }
        assert!(!direct.contains("lanes") && !direct.contains("offline"), "nothing was masked\n{direct}");
    }

    #[test]
    fn a_masked_run_shows_its_lanes_and_the_work_beforehand() {
        for (protocol, name) in [(v1::Protocol::Masked, "masked"), (v1::Protocol::Auto, "auto")] {
            let masked = table(protocol, &description());
            for (label, both) in [
                ("tiny (w8)", [name, "local"]),
                ("tokens, masked / direct", ["30 / 1", ""]),
                ("offline work per masked token", ["6.00 ms", "-"]),
                ("offline bytes per masked token, up", ["600,000", "0"]),
                ("offline bytes per masked token, down", ["700,000", "0"]),
                ("lanes, ready / used", ["2,010 / 38", ""]),
                ("refill, each", ["7.25 ms", ""]),
                ("memory of a full pool", ["1.50 GiB", ""]),
                ("round trips per token", ["121", "0"]),
            ] {
                assert_eq!(cells(&masked, label).as_deref(), Some(&both[..]), "{label} in\n{masked}");
            }
        }
    }

    #[test]
    fn eighty_columns_are_enough() {
        let mut model = description();
        for name in
            ["tiny", "Smollm2 135M 8k Lc100K Mix1 Ep2", "a name that goes on and on, as those of merged models do"]
        {
            model.model = name.into();
            let masked = table(v1::Protocol::Masked, &model);
            let widest = masked.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(80), "{widest:?}\n{masked}");
            assert!(masked.contains("│     verification"), "parts are not indented\n{masked}");
        }
    }

    #[test]
    fn a_local_run_shows_nothing_of_an_evaluator() {
        let local = table(v1::Protocol::Local, &description());
        for absent in ["evaluator bytes", "round trips", "lanes", "ring", "offline"] {
            assert!(!local.contains(absent), "{absent} in\n{local}");
        }
    }
}
