//! What the runtime counts, and the listener that Prometheus scrapes. No label ever holds a prompt.

mod track;

pub use track::{Answered, Load, Track};

use crate::{
    Error,
    engine::Finish,
    linear::{Cost, delegate::Check},
};
use axum::{Router, routing::get};
use metrics::{Counter, Gauge, Histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use std::{sync::Arc, time::Duration};
use tokio::net::TcpListener;

/// How a request ended; the label values of `bifrost_runtime_requests_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended its answer.
    Stop,
    /// `max_tokens` were made.
    Length,
    /// The client went away, or its deadline passed.
    Cancelled,
    /// The evaluator failed for good.
    Evaluator,
    /// Refused before it ran.
    Refused,
    /// Anything else.
    Failed,
}

const ENDED: [(Ended, &str); 6] = [
    (Ended::Stop, "stop"),
    (Ended::Length, "length"),
    (Ended::Cancelled, "cancelled"),
    (Ended::Evaluator, "evaluator"),
    (Ended::Refused, "refused"),
    (Ended::Failed, "failed"),
];

const OUTCOMES: [&str; 2] = ["refused", "ok"];

pub(crate) const CHECKS: [Check; 3] = [Check::Direct, Check::Bulk, Check::Online];

impl From<Finish> for Ended {
    fn from(finish: Finish) -> Self {
        match finish {
            Finish::Stop => Self::Stop,
            Finish::Length => Self::Length,
        }
    }
}

impl From<&Error> for Ended {
    fn from(error: &Error) -> Self {
        match error {
            Error::Cancelled => Self::Cancelled,
            Error::Evaluator(_) => Self::Evaluator,
            Error::Client(_) | Error::Busy(_) | Error::Config(_) => Self::Refused,
            Error::Model(_) | Error::Platform(_) | Error::Bug(_) => Self::Failed,
        }
    }
}

/// The runtime's instruments. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Instruments>);

struct Instruments {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    fixed: Fixed,
}

/// What does not depend on a protocol.
struct Fixed {
    requests: Vec<Counter>,
    tokens: Counter,
    ttft: Histogram,
    inter_token: Histogram,
    connected: Gauge,
    retries: Counter,
    bytes_up: Counter,
    bytes_down: Counter,
    forged: Vec<Counter>,
    lanes: Gauge,
    starved: Counter,
    refill: Histogram,
    attested: [Counter; 2],
    released: [Counter; 2],
    keys: Gauge,
}

impl Metrics {
    /// Instruments on a recorder of their own.
    ///
    /// # Errors
    /// [`Error::Bug`] if the recorder refuses its buckets.
    pub fn new() -> Result<Self, Error> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)
            .and_then(|b| b.set_buckets_for_metric(Matcher::Prefix("bifrost_runtime_step_".into()), &COUNTS))
            .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("_prompt_tokens".into()), &COUNTS))
            .and_then(|b| b.set_buckets_for_metric(Matcher::Suffix("_generation_tokens".into()), &COUNTS))
            .map_err(|e| Error::Bug(format!("metrics: {e}")))?
            .build_recorder();
        let handle = recorder.handle();
        let instruments = with_local_recorder(&recorder, || Fixed {
            requests: ENDED
                .iter()
                .map(|(_, l)| metrics::counter!("bifrost_runtime_requests_total", "ended" => *l))
                .collect(),
            tokens: metrics::counter!("bifrost_runtime_generation_tokens_total"),
            ttft: metrics::histogram!("bifrost_runtime_time_to_first_token_seconds"),
            inter_token: metrics::histogram!("bifrost_runtime_inter_token_latency_seconds"),
            connected: metrics::gauge!("bifrost_runtime_evaluator_connected"),
            retries: metrics::counter!("bifrost_runtime_evaluator_retries_total"),
            bytes_up: metrics::counter!("bifrost_runtime_ciphertext_bytes_sent_total"),
            bytes_down: metrics::counter!("bifrost_runtime_ciphertext_bytes_received_total"),
            forged: CHECKS
                .iter()
                .map(|c| metrics::counter!("bifrost_runtime_forged_answers_total", "check" => c.name()))
                .collect(),
            lanes: metrics::gauge!("bifrost_runtime_lanes_ready"),
            starved: metrics::counter!("bifrost_runtime_lanes_starved_total"),
            refill: metrics::histogram!("bifrost_runtime_lanes_refill_seconds"),
            attested: OUTCOMES.map(|o| metrics::counter!("bifrost_runtime_attestations_total", "outcome" => o)),
            released: OUTCOMES.map(|o| metrics::counter!("bifrost_runtime_key_releases_total", "outcome" => o)),
            keys: metrics::gauge!("bifrost_runtime_keys_held"),
        });
        Ok(Self(Arc::new(Instruments { handle, recorder, fixed: instruments })))
    }

    /// A request ended, having cost `cost`.
    pub fn ended(&self, how: Ended, cost: Cost) {
        let i = ENDED.iter().position(|(e, _)| *e == how).unwrap_or(0);
        self.0.fixed.requests[i].increment(1);
        self.0.fixed.retries.increment(cost.retries);
        self.0.fixed.bytes_up.increment(cost.bytes_up);
        self.0.fixed.bytes_down.increment(cost.bytes_down);
    }

    /// A token was made: the first of its sequence `seconds` after arrival, others in `seconds`.
    pub fn token(&self, first: bool, seconds: f64) {
        self.0.fixed.tokens.increment(1);
        if first { self.0.fixed.ttft.record(seconds) } else { self.0.fixed.inter_token.record(seconds) }
    }

    /// A connection asked for evidence.
    pub fn attested(&self, ok: bool) {
        self.0.fixed.attested[usize::from(ok)].increment(1);
    }

    /// Somebody released a key.
    pub fn released(&self, ok: bool) {
        self.0.fixed.released[usize::from(ok)].increment(1);
    }

    /// How many keys are held.
    pub fn keys(&self, count: usize) {
        self.0.fixed.keys.set(count as f64);
    }

    /// Whether an evaluator is connected and holds the model.
    pub fn connected(&self, yes: bool) {
        self.0.fixed.connected.set(f64::from(u8::from(yes)));
    }

    /// An answer of this evaluator about this matrix failed its check. This is an alarm.
    pub fn forged(&self, check: Check, evaluator: &str, matrix: &str) {
        let i = CHECKS.iter().position(|c| *c == check).unwrap_or(0);
        self.0.fixed.forged[i].increment(1);
        let labels = [("check", check.name().to_owned()), ("evaluator", evaluator.into()), ("matrix", matrix.into())];
        let alarms =
            with_local_recorder(&self.0.recorder, || metrics::counter!("bifrost_runtime_alarms_total", &labels));
        alarms.increment(1);
    }

    /// Lanes ready in every matrix.
    #[expect(clippy::cast_precision_loss, reason = "a count of lanes")]
    pub fn lanes(&self, ready: usize) {
        self.0.fixed.lanes.set(ready as f64);
    }

    /// A linear call found too few lanes.
    pub fn starved(&self) {
        self.0.fixed.starved.increment(1);
    }

    /// A matrix's lanes were refilled in so many seconds.
    pub fn refilled(&self, seconds: f64) {
        self.0.fixed.refill.record(seconds);
    }

    /// Everything in Prometheus' text format.
    pub fn render(&self) -> String {
        self.0.handle.run_upkeep();
        self.0.handle.render()
    }
}

/// Serves `/metrics` until the process ends.
///
/// # Errors
/// [`Error::Platform`] if the listener breaks.
pub async fn serve(listener: TcpListener, metrics: Metrics) -> Result<(), Error> {
    let app = Router::new().route("/metrics", get(move || std::future::ready(metrics.render())));
    axum::serve(listener, app).await.map_err(|e| Error::Platform(format!("metrics listener: {e}")))
}

/// Folds histogram samples in while nobody scrapes, so that they do not pile up.
pub async fn upkeep(metrics: Metrics) {
    let mut every = tokio::time::interval(Duration::from_secs(10));
    loop {
        every.tick().await;
        metrics.0.handle.run_upkeep();
    }
}

/// Upper bounds in seconds: a local token takes milliseconds, a long encrypted prompt minutes.
const BUCKETS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// Upper bounds of batch sizes and of tokens.
const COUNTS: [f64; 14] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_show_in_the_text() {
        let m = Metrics::new().expect("fixed buckets");
        m.ended(Ended::Length, Cost { bytes_up: 7, ..Default::default() });
        m.token(true, 0.2);
        m.token(false, 0.02);
        let track = m.track("local".into());
        track.load(Load { waiting: 3, running: 1, preemptions: 2, pages: (8, 2), reused: (32, 16) });
        track.step(4, 9);
        let (prompt, made) = (40, 7);
        let finish = Finish::Length;
        track.answered(Answered { finish, prompt, made, whole: 2.0, queued: 0.5, prefill: 1.0 });
        let text = m.render();
        for line in [
            "bifrost_runtime_requests_total{ended=\"length\"} 1",
            "bifrost_runtime_ciphertext_bytes_sent_total 7",
            "bifrost_runtime_num_requests_waiting{protocol=\"local\"} 3",
            "bifrost_runtime_kv_cache_usage_perc{protocol=\"local\"} 0.75",
            "bifrost_runtime_num_preemptions_total{protocol=\"local\"} 2",
            "bifrost_runtime_prefix_cache_hits_total{protocol=\"local\"} 16",
            "bifrost_runtime_request_success_total{protocol=\"local\",finished_reason=\"length\"} 1",
            "bifrost_runtime_request_prompt_tokens_bucket{protocol=\"local\",le=\"64\"} 1",
            "bifrost_runtime_request_decode_time_seconds_bucket{protocol=\"local\",le=\"0.5\"} 1",
            "bifrost_runtime_step_sequences_bucket{protocol=\"local\",le=\"4\"} 1",
            "bifrost_runtime_generation_tokens_total 2",
            "bifrost_runtime_time_to_first_token_seconds_bucket{le=\"0.25\"} 1",
            "bifrost_runtime_inter_token_latency_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
