//! The result of a request: one JSON object for programs, one table for people.

use std::io::{IsTerminal, Write};

use proto::v1;
use serde::Serialize;

use crate::Error;
use crate::cli::{Policy, Protocol};
use crate::inference::Completion;

mod table;

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
    /// "masked", "auto", "direct" or "local"; "unknown" when the runtime did not say.
    pub protocol: &'static str,
    /// Where prompts and answers were computed, "hybrid_pd_split" and so on; "unknown" when the runtime did not say.
    pub policy: &'static str,
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
    /// Times that one decode step waited for the evaluator.
    pub round_trips_per_token: Option<f64>,
    /// Part of [`Breakdown::enclave_crypto_ms`]: the checks of answers.
    pub verify_ms_per_token: Option<f64>,
    /// Work of enclave and evaluator beforehand for one masked token, its lane; 0 when nothing was masked.
    pub offline_ms_per_token: Option<f64>,
    /// The same by who did it, and what it sent.
    pub offline: Offline,
    /// The mask pool after the answer; all null when nothing was masked.
    pub lanes: Lanes,
    /// Decode steps by what their linear calls were; both 0 when no evaluator took part.
    pub tokens: Tokens,
    /// What the runtime proved to be: `hardware`, or the banner of another world; absent where nothing was attested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attestation: Option<&'static str>,
    /// Whether an evaluator took part.
    #[serde(skip)]
    delegated: bool,
    /// Whether lanes were used.
    #[serde(skip)]
    masked: bool,
}

/// Parts of [`Report::decode_ms_per_token`].
#[derive(Serialize)]
pub struct Breakdown {
    /// Encryption, checks and decryption in the runtime.
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

/// What filling the lane of one masked token took, before the token was asked for.
#[derive(Serialize)]
pub struct Offline {
    /// Encryption, checks and decryption in the runtime.
    pub enclave_ms: Option<f64>,
    /// The evaluator's products.
    pub evaluator_ms: Option<f64>,
    /// Runtime to evaluator.
    pub bytes_up: Option<u64>,
    /// Evaluator to runtime.
    pub bytes_down: Option<u64>,
}

/// The mask pool.
#[derive(Serialize, Default)]
pub struct Lanes {
    /// Lanes ready.
    pub ready: Option<u64>,
    /// Lanes used since the runtime's start.
    pub used: Option<u64>,
    /// Wall time of filling one.
    pub refill_ms_per_lane: Option<f64>,
}

/// Decode steps, all tokens but the first.
#[derive(Serialize)]
pub struct Tokens {
    /// Those whose linear calls were all masked.
    pub masked: u32,
    /// The others.
    pub direct: u32,
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
    /// Matrices held as int8.
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
        let protocol = Protocol::of(completion.protocol);
        let (delegated, masked) = (protocol.is_some_and(Protocol::delegates), protocol.is_some_and(Protocol::masks));
        let evaluator = model.evaluator.as_ref().filter(|_| delegated).map(|evaluator| Evaluator {
            backend: Some(evaluator.backend.clone()),
            isa: Some(evaluator.isa.clone()),
            bytes_per_weight: Some(evaluator.bytes_per_weight),
            pinned_layers: Some(evaluator.pinned_layers),
            fallback_layers: Some(evaluator.fallback_layers),
        });
        let params = model.ring.as_ref().filter(|_| delegated).map(|ring| Params {
            n: Some(ring.n),
            log2_q: Some(ring.log2_q),
            security_bits: Some(ring.security_bits),
        });
        let pool = model.lanes.clone().filter(|_| masked);
        let lanes = pool.as_ref().map(|lanes| Lanes {
            ready: Some(lanes.ready),
            used: Some(lanes.used),
            refill_ms_per_lane: Some(lanes.refill_ms_per_lane),
        });
        // Where nothing was masked, nothing was done beforehand.
        let lane = if masked { pool } else { Some(v1::Lanes::default()) };
        let lane = lane.and_then(|lane| per_step(&completion, lane));
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
            round_trips_per_token: step(timing.round_trips_per_token),
            verify_ms_per_token: step(timing.verify_ms),
            identical_to_local: local.map(|local| local.token_ids == completion.token_ids),
            local_ms_per_token: local.and_then(|local| per_step(local, local.timing.decode_ms_per_token)),
            text: completion.text,
            prompt_tokens: completion.prompt_tokens,
            token_ids: completion.token_ids,
            finish_reason: completion.finish_reason,
            protocol: protocol.map_or("unknown", Protocol::name),
            policy: Policy::of(model.default_policy()).map_or("unknown", Policy::name),
            weights: model.weights.clone(),
            ttft_ms: timing.ttft_ms,
            evaluator: evaluator.unwrap_or_default(),
            params: params.unwrap_or_default(),
            offline_ms_per_token: lane.as_ref().map(|lane| lane.enclave_ms_per_lane + lane.evaluator_ms_per_lane),
            offline: Offline {
                enclave_ms: lane.as_ref().map(|lane| lane.enclave_ms_per_lane),
                evaluator_ms: lane.as_ref().map(|lane| lane.evaluator_ms_per_lane),
                bytes_up: lane.as_ref().map(|lane| lane.bytes_up_per_lane),
                bytes_down: lane.as_ref().map(|lane| lane.bytes_down_per_lane),
            },
            lanes: lanes.unwrap_or_default(),
            tokens: Tokens { masked: completion.masked_steps, direct: completion.direct_steps },
            attestation: None,
            delegated,
            masked,
        }
    }

    /// The object as one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings, numbers and lists always serialize")
    }
}

/// A figure of the median decode step; nothing when one token left no such step.
fn per_step<T>(completion: &Completion, figure: T) -> Option<T> {
    (completion.token_ids.len() > 1).then_some(figure)
}

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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    pub(super) fn completion(protocol: v1::Protocol, token_ids: Vec<u32>) -> Completion {
        let timing = v1::Timing {
            ttft_ms: 1500.0,
            decode_ms_per_token: 240.0,
            enclave_crypto_ms: 100.0,
            verify_ms: 3.0,
            wire_ms: 9.0,
            bytes_up_per_token: 1_234_567,
            round_trips_per_token: 121.0,
            ..Default::default()
        };
        let (masked_steps, direct_steps) = match protocol {
            v1::Protocol::Masked | v1::Protocol::Auto => (30, 1),
            v1::Protocol::Direct => (0, 31),
            _ => (0, 0),
        };
        let text = "Paris.".into();
        let (prompt_tokens, finish_reason) = (9, "stop");
        Completion { text, token_ids, prompt_tokens, finish_reason, protocol, timing, masked_steps, direct_steps }
    }

    pub(super) fn description() -> v1::DescribeResponse {
        v1::DescribeResponse {
            model: "tiny".into(),
            weights: "w8".into(),
            ring: Some(v1::RingParams { n: 2048, log2_q: 50.9, security_bits: 128, ..Default::default() }),
            evaluator: Some(v1::EvaluatorInfo { backend: "cpu".into(), pinned_layers: 4, ..Default::default() }),
            lanes: Some(v1::Lanes {
                ready: 2010,
                capacity: 2048,
                used: 38,
                refill_ms_per_lane: 7.25,
                enclave_ms_per_lane: 1.5,
                evaluator_ms_per_lane: 4.5,
                bytes_up_per_lane: 600_000,
                bytes_down_per_lane: 700_000,
                memory_bytes: 3 << 29,
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn object(protocol: v1::Protocol, token_ids: Vec<u32>) -> serde_json::Value {
        let report = Report::new(completion(protocol, token_ids), &description(), None);
        serde_json::from_str(&report.to_json()).unwrap()
    }

    #[test]
    fn json_has_exactly_the_promised_keys() {
        let local = completion(v1::Protocol::Local, vec![1, 2]);
        let report = Report::new(completion(v1::Protocol::Masked, vec![1, 2]), &description(), Some(&local));
        let value: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(
            keys(&value),
            "breakdown bytes_per_token decode_ms_per_token evaluator finish_reason identical_to_local lanes \
             local_ms_per_token offline offline_ms_per_token params policy prompt_tokens protocol round_trips_per_token text \
             token_ids tokens ttft_ms verify_ms_per_token weights"
        );
        assert_eq!(keys(&value["breakdown"]), "enclave_crypto_ms enclave_other_ms evaluator_ms wire_ms");
        assert_eq!(keys(&value["bytes_per_token"]), "down up");
        assert_eq!(keys(&value["evaluator"]), "backend bytes_per_weight fallback_layers isa pinned_layers");
        assert_eq!(keys(&value["params"]), "log2_q n security_bits");
        assert_eq!(keys(&value["lanes"]), "ready refill_ms_per_lane used");
        assert_eq!(keys(&value["offline"]), "bytes_down bytes_up enclave_ms evaluator_ms");
        assert_eq!(keys(&value["tokens"]), "direct masked");
        assert_eq!(value["identical_to_local"], true);
        assert!(!report.to_json().contains('\n'));
    }

    #[test]
    fn a_masked_run_says_what_its_lanes_took() {
        for (protocol, name) in [(v1::Protocol::Masked, "masked"), (v1::Protocol::Auto, "auto")] {
            let value = object(protocol, vec![1, 2]);
            assert_eq!(value["protocol"], name);
            assert_eq!((&value["round_trips_per_token"], &value["verify_ms_per_token"]), (&json!(121.0), &json!(3.0)));
            assert_eq!(value["offline_ms_per_token"], 6.0);
            let offline = json!({"enclave_ms": 1.5, "evaluator_ms": 4.5, "bytes_up": 600_000, "bytes_down": 700_000});
            assert_eq!(value["offline"], offline);
            assert_eq!(value["lanes"], json!({"ready": 2010, "used": 38, "refill_ms_per_lane": 7.25}));
            assert_eq!(value["tokens"], json!({"masked": 30, "direct": 1}));
        }
    }

    #[test]
    fn where_nothing_is_masked_nothing_was_done_beforehand() {
        for (protocol, name, direct) in [(v1::Protocol::Direct, "direct", 31), (v1::Protocol::Local, "local", 0)] {
            let value = object(protocol, vec![1, 2]);
            assert_eq!((&value["protocol"], &value["offline_ms_per_token"]), (&json!(name), &json!(0.0)));
            let nothing = json!({"enclave_ms": 0.0, "evaluator_ms": 0.0, "bytes_up": 0, "bytes_down": 0});
            assert_eq!(value["offline"], nothing);
            assert_eq!(value["lanes"], json!({"ready": null, "used": null, "refill_ms_per_lane": null}));
            assert_eq!(value["tokens"], json!({"masked": 0, "direct": direct}));
        }
    }

    #[test]
    fn a_single_token_has_no_figures_per_token() {
        let value = object(v1::Protocol::Masked, vec![1]);
        for key in ["decode_ms_per_token", "round_trips_per_token", "verify_ms_per_token", "offline_ms_per_token"] {
            assert!(value[key].is_null(), "{key} in {value}");
        }
        assert_eq!(value["lanes"]["ready"], 2010, "the pool is there all the same");
    }

    #[test]
    fn a_different_token_is_not_identical_and_an_unencrypted_run_has_no_parameters() {
        let local = completion(v1::Protocol::Local, vec![1, 3]);
        let report = Report::new(completion(v1::Protocol::Local, vec![1, 2]), &description(), Some(&local));
        assert_eq!(report.identical_to_local, Some(false));
        assert!(report.evaluator.backend.is_none() && report.params.n.is_none());
    }
}
