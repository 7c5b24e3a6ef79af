//! The result of a request: one JSON object for programs, one table for people.

use std::io::{IsTerminal, Write};

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use proto::v1;
use serde::Serialize;

use crate::Error;
use crate::inference::Completion;

/// The object that `--json` prints. Its keys are a contract; times are medians in milliseconds.
#[derive(Serialize)]
pub struct Report {
    /// The generated text.
    pub text: String,
    /// Tokens of the prompt, template included.
    pub prompt_tokens: u32,
    /// The generated ids in order.
    pub token_ids: Vec<u32>,
    /// "stop" or "length".
    pub finish_reason: &'static str,
    /// Whether the local path gave the same ids; null when it was not run.
    pub identical_to_local: Option<bool>,
    /// "direct" or "local".
    pub protocol: &'static str,
    /// "w8" or "w16".
    pub weights: String,
    /// Time to first token.
    pub ttft_ms: f64,
    /// One decode step; null, like its parts, when the answer is one token and there was no such step.
    pub decode_ms_per_token: Option<f64>,
    /// One decode step on the local path; null when it was not run or had none.
    pub local_ms_per_token: Option<f64>,
    /// Where a decode step's time went.
    pub breakdown: Breakdown,
    /// Between runtime and evaluator.
    pub bytes_per_token: BytesPerToken,
    /// All null when none took part.
    pub evaluator: Evaluator,
    /// All null when nothing was encrypted.
    pub params: Params,
}

/// Parts of [`Report::decode_ms_per_token`].
#[derive(Serialize)]
pub struct Breakdown {
    /// Encryption and decryption in the runtime.
    pub enclave_crypto_ms: Option<f64>,
    /// Everything else in the runtime.
    pub enclave_other_ms: Option<f64>,
    /// The evaluator's own time.
    pub evaluator_ms: Option<f64>,
    /// Waiting for neither.
    pub wire_ms: Option<f64>,
}

/// Traffic of one decode step.
#[derive(Serialize)]
pub struct BytesPerToken {
    /// Runtime to evaluator.
    pub up: Option<u64>,
    /// Evaluator to runtime.
    pub down: Option<u64>,
}

/// The evaluator that took part.
#[derive(Serialize, Default)]
pub struct Evaluator {
    /// "cpu" or "cuda".
    pub backend: Option<String>,
    /// Instruction set of the kernels.
    pub isa: Option<String>,
    /// Memory it holds per weight.
    pub bytes_per_weight: Option<f64>,
    /// Matrices in NTT form.
    pub pinned_layers: Option<u32>,
    /// Matrices encoded on the fly.
    pub fallback_layers: Option<u32>,
}

/// The ring parameters.
#[derive(Serialize, Default)]
pub struct Params {
    /// Ring degree.
    pub n: Option<u32>,
    /// Bits of the modulus.
    pub log2_q: Option<f64>,
    /// Classical security.
    pub security_bits: Option<u32>,
}

impl Report {
    /// Puts together a completion, what served it, and the local path's completion of the same prompt.
    #[must_use]
    pub fn new(completion: Completion, model: &v1::DescribeResponse, local: Option<&Completion>) -> Self {
        let timing = completion.timing;
        let encrypted = completion.protocol == v1::Protocol::Direct;
        let evaluator = model.evaluator.as_ref().filter(|_| encrypted).map(|evaluator| Evaluator {
            backend: Some(evaluator.backend.clone()),
            isa: Some(evaluator.isa.clone()),
            bytes_per_weight: Some(evaluator.bytes_per_weight),
            pinned_layers: Some(evaluator.pinned_layers),
            fallback_layers: Some(evaluator.fallback_layers),
        });
        let params = model.ring.as_ref().filter(|_| encrypted).map(|ring| Params {
            n: Some(ring.n),
            log2_q: Some(ring.log2_q),
            security_bits: Some(ring.security_bits),
        });
        let step = |ms| per_step(&completion, ms);
        let bytes = |count| per_step(&completion, count);
        Self {
            decode_ms_per_token: step(timing.decode_ms_per_token),
            breakdown: Breakdown {
                enclave_crypto_ms: step(timing.enclave_crypto_ms),
                enclave_other_ms: step(timing.enclave_other_ms),
                evaluator_ms: step(timing.evaluator_ms),
                wire_ms: step(timing.wire_ms),
            },
            bytes_per_token: BytesPerToken {
                up: bytes(timing.bytes_up_per_token),
                down: bytes(timing.bytes_down_per_token),
            },
            identical_to_local: local.map(|local| local.token_ids == completion.token_ids),
            local_ms_per_token: local.and_then(|local| per_step(local, local.timing.decode_ms_per_token)),
            text: completion.text,
            prompt_tokens: completion.prompt_tokens,
            token_ids: completion.token_ids,
            finish_reason: completion.finish_reason,
            protocol: if encrypted { "direct" } else { "local" },
            weights: model.weights.clone(),
            ttft_ms: timing.ttft_ms,
            evaluator: evaluator.unwrap_or_default(),
            params: params.unwrap_or_default(),
        }
    }

    /// The object as one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists always serialize")
    }

    /// The table, without a trailing newline. `local` fills the second column.
    #[must_use]
    pub fn to_table(&self, timing: &v1::Timing, model: &v1::DescribeResponse, local: Option<&v1::Timing>) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        let mut row = |label: &str, ours: String, local: Option<String>, has_local: bool| {
            let mut cells = vec![label.to_owned(), ours];
            if has_local {
                cells.push(local.unwrap_or_default());
            }
            table.add_row(cells);
        };
        let both = local.is_some();
        let ms_of =
            |pick: fn(&v1::Timing) -> f64| (milliseconds(pick(timing)), local.map(|timing| milliseconds(pick(timing))));
        for (label, pick) in ROWS {
            let (ours, local) = ms_of(*pick);
            row(label, ours, local, both);
        }
        if let (Some(ms), Some(local_ms @ f64::MIN_POSITIVE..)) = (self.decode_ms_per_token, self.local_ms_per_token) {
            row("ratio to local", format!("{:.1} x", ms / local_ms), Some("1 x".into()), both);
        }
        let encrypted = self.protocol == "direct";
        if let Some(evaluator) = model.evaluator.as_ref().filter(|_| encrypted) {
            if let BytesPerToken { up: Some(up), down: Some(down) } = self.bytes_per_token {
                row("bytes per token, up", grouped(up), Some("0".into()), both);
                row("bytes per token, down", grouped(down), Some("0".into()), both);
            }
            row("round trips per token", format!("{:.0}", timing.round_trips_per_token), Some("0".into()), both);
            row("evaluator bytes per weight", format!("{:.2}", evaluator.bytes_per_weight), None, both);
            let residency = format!("{} pinned, {} fallback", evaluator.pinned_layers, evaluator.fallback_layers);
            row("evaluator matrices", residency, None, both);
            row("evaluator", format!("{}, {}", evaluator.backend, evaluator.isa), None, both);
        }
        row("enclave", format!("{}, {} threads", model.isa, model.threads), Some(model.isa.clone()), both);
        if let Some(params) = model.ring.as_ref().filter(|_| encrypted) {
            let ring = format!("N = {}, log2 q = {:.1}", params.n, params.log2_q);
            row("ring", ring, None, both);
            row("security", format!("{}-bit", params.security_bits), None, both);
        }
        if timing.retries > 0 {
            row("linear calls repeated", timing.retries.to_string(), None, both);
        }
        let mut header = vec![format!("{} ({})", model.model, model.weights), self.protocol.to_owned()];
        if both {
            header.push("local".into());
        }
        table.set_header(header);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string()
    }
}

/// A figure of the median decode step; nothing when one token left no such step.
fn per_step<T>(completion: &Completion, figure: T) -> Option<T> {
    (completion.token_ids.len() > 1).then_some(figure)
}

/// A label and the figure of a [`v1::Timing`] it shows.
type TimeRow = (&'static str, fn(&v1::Timing) -> f64);

/// The time rows of the table; indented ones are parts of the one above.
const ROWS: &[TimeRow] = &[
    ("time to first token", |timing| timing.ttft_ms),
    ("time per token", |timing| timing.decode_ms_per_token),
    ("  enclave crypto", |timing| timing.enclave_crypto_ms),
    ("  enclave other", |timing| timing.enclave_other_ms),
    ("  evaluator", |timing| timing.evaluator_ms),
    ("  wire", |timing| timing.wire_ms),
];

/// Writes to standard output at once.
///
/// # Errors
/// [`Error::Platform`] when nobody reads it any more.
pub fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Error::Platform(format!("standard output: {error}")))
}

/// Generated text as it may be shown: on a terminal, control characters other than line breaks and tabs would
/// let a model rewrite the screen, so they are replaced.
#[must_use]
pub fn printable(text: &str) -> String {
    if !std::io::stdout().is_terminal() {
        return text.to_owned();
    }
    text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
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
    use super::*;

    fn completion(protocol: v1::Protocol, token_ids: Vec<u32>) -> Completion {
        let timing = v1::Timing {
            ttft_ms: 1500.0,
            decode_ms_per_token: 240.0,
            enclave_crypto_ms: 100.0,
            bytes_up_per_token: 1_234_567,
            ..Default::default()
        };
        Completion { text: "Paris.".into(), token_ids, prompt_tokens: 9, finish_reason: "stop", protocol, timing }
    }

    fn description() -> v1::DescribeResponse {
        v1::DescribeResponse {
            model: "tiny".into(),
            weights: "w8".into(),
            ring: Some(v1::RingParams { n: 2048, log2_q: 50.9, security_bits: 128, ..Default::default() }),
            evaluator: Some(v1::EvaluatorInfo { backend: "cpu".into(), pinned_layers: 4, ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn json_has_exactly_the_promised_keys() {
        let local = completion(v1::Protocol::Local, vec![1, 2]);
        let report = Report::new(completion(v1::Protocol::Direct, vec![1, 2]), &description(), Some(&local));
        let value: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&value),
            "breakdown bytes_per_token decode_ms_per_token evaluator finish_reason identical_to_local \
             local_ms_per_token params prompt_tokens protocol text token_ids ttft_ms weights"
        );
        assert_eq!(keys(&value["breakdown"]), "enclave_crypto_ms enclave_other_ms evaluator_ms wire_ms");
        assert_eq!(keys(&value["bytes_per_token"]), "down up");
        assert_eq!(keys(&value["evaluator"]), "backend bytes_per_weight fallback_layers isa pinned_layers");
        assert_eq!(keys(&value["params"]), "log2_q n security_bits");
        assert_eq!(value["identical_to_local"], true);
        assert!(!report.to_json().contains('\n'));
    }

    #[test]
    fn a_different_token_is_not_identical_and_an_unencrypted_run_has_no_parameters() {
        let local = completion(v1::Protocol::Local, vec![1, 3]);
        let report = Report::new(completion(v1::Protocol::Local, vec![1, 2]), &description(), Some(&local));
        assert_eq!(report.identical_to_local, Some(false));
        assert!(report.evaluator.backend.is_none() && report.params.n.is_none());
    }

    #[test]
    fn the_table_shows_both_columns() {
        let local = completion(v1::Protocol::Local, vec![1, 2]);
        let direct = completion(v1::Protocol::Direct, vec![1, 2]);
        let timing = direct.timing;
        let report = Report::new(direct, &description(), Some(&local));
        let table = report.to_table(&timing, &description(), Some(&local.timing));
        for expected in ["1,234,567", "1500 ms", "240 ms", "1.0 x", "N = 2048", "4 pinned, 0 fallback"] {
            assert!(table.contains(expected), "{expected} is missing in\n{table}");
        }
    }
}
