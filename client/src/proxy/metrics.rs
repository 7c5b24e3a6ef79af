//! What the proxy counts. No label ever holds a prompt, a key or a name.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, with_local_recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::Error;
use crate::attested::Kind;

/// How an answer ended; the values of `finished_reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, or by a stop text or token.
    Stop,
    /// By the bound on tokens.
    Length,
    /// The client went away.
    Abort,
    /// The runtime refused or failed.
    Error,
}

const ENDED: [(Ended, &str); 4] =
    [(Ended::Stop, "stop"), (Ended::Length, "length"), (Ended::Abort, "abort"), (Ended::Error, "error")];

/// How an attestation went; the values of `outcome`. The first is success, the others are [`Kind`]'s.
const ATTESTED: &str = "accepted";

/// The proxy's instruments. Cheap to clone.
#[derive(Clone)]
pub(super) struct Metrics(Arc<Instruments>);

struct Instruments {
    handle: PrometheusHandle,
    running: Gauge,
    ended: Vec<Counter>,
    refused: Counter,
    first_token: Histogram,
    inter_token: Histogram,
    latency: Histogram,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    accepted: Counter,
    failed: Vec<Counter>,
    blocked: Gauge,
    since_accepted: Gauge,
    last_accepted: Mutex<Option<Instant>>,
}

impl Metrics {
    /// Instruments on a recorder of their own.
    ///
    /// # Errors
    /// [`Error::Platform`] if the recorder refuses its buckets.
    pub(super) fn new() -> Result<Self, Error> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS)
            .map_err(|error| Error::Platform(format!("metrics: {error}")))?
            .build_recorder();
        let handle = recorder.handle();
        Ok(Self(Arc::new(with_local_recorder(&recorder, || Instruments {
            handle,
            running: metrics::gauge!("bifrost_proxy_num_requests_running"),
            ended: ENDED
                .iter()
                .map(|(_, name)| metrics::counter!("bifrost_proxy_request_success_total", "finished_reason" => *name))
                .collect(),
            refused: metrics::counter!("bifrost_proxy_requests_refused_total"),
            first_token: metrics::histogram!("bifrost_proxy_time_to_first_token_seconds"),
            inter_token: metrics::histogram!("bifrost_proxy_inter_token_latency_seconds"),
            latency: metrics::histogram!("bifrost_proxy_e2e_request_latency_seconds"),
            prompt_tokens: metrics::counter!("bifrost_proxy_prompt_tokens_total"),
            generation_tokens: metrics::counter!("bifrost_proxy_generation_tokens_total"),
            accepted: metrics::counter!("bifrost_proxy_attestations_total", "outcome" => ATTESTED),
            failed: Kind::ALL
                .iter()
                .map(|kind| metrics::counter!("bifrost_proxy_attestations_total", "outcome" => kind.name()))
                .collect(),
            blocked: metrics::gauge!("bifrost_proxy_attestation_blocked"),
            since_accepted: metrics::gauge!("bifrost_proxy_attestation_age_seconds"),
            last_accepted: Mutex::new(None),
        }))))
    }

    /// A request has begun, until the guard is dropped.
    pub(super) fn running(&self) -> Running {
        self.0.running.increment(1.0);
        Running(self.clone())
    }

    /// A request was refused before it was asked of the runtime.
    pub(super) fn refused(&self) {
        self.0.refused.increment(1);
    }

    /// An answer ended, `latency` after its request began.
    pub(super) fn ended(&self, how: Ended, latency: Duration) {
        let at = ENDED.iter().position(|(ended, _)| *ended == how).unwrap_or(0);
        self.0.ended[at].increment(1);
        self.0.latency.record(latency.as_secs_f64());
    }

    /// An answer's first token came.
    pub(super) fn first_token(&self, after: Duration) {
        self.0.first_token.record(after.as_secs_f64());
    }

    /// A further token came.
    pub(super) fn next_token(&self, after: Duration) {
        self.0.inter_token.record(after.as_secs_f64());
    }

    /// Tokens of a request that is over.
    pub(super) fn tokens(&self, prompt: u64, completion: u64) {
        self.0.prompt_tokens.increment(prompt);
        self.0.generation_tokens.increment(completion);
    }

    /// An attestation went well, and requests may pass.
    pub(super) fn accepted(&self, now: Instant) {
        self.0.accepted.increment(1);
        self.0.blocked.set(0.0);
        *self.0.last_accepted.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// An attestation failed, and requests are blocked.
    pub(super) fn blocked(&self, kind: Kind) {
        let at = Kind::ALL.iter().position(|known| *known == kind).unwrap_or(0);
        self.0.failed[at].increment(1);
        self.0.blocked.set(1.0);
    }

    /// Everything in Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let last = *self.0.last_accepted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last {
            self.0.since_accepted.set(last.elapsed().as_secs_f64());
        }
        self.0.handle.run_upkeep();
        self.0.handle.render()
    }

    /// Folds samples in while nobody scrapes.
    pub(super) fn upkeep(&self) {
        self.0.handle.run_upkeep();
    }
}

/// A request that runs.
pub(super) struct Running(Metrics);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.decrement(1.0);
    }
}

/// Upper bounds in seconds: from a local token to a long encrypted prompt.
const BUCKETS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_show_in_the_text() {
        let metrics = Metrics::new().unwrap();
        let running = metrics.running();
        metrics.ended(Ended::Abort, Duration::from_millis(3));
        metrics.tokens(5, 7);
        let text = metrics.render();
        for line in [
            "bifrost_proxy_num_requests_running 1",
            "bifrost_proxy_request_success_total{finished_reason=\"abort\"} 1",
            "bifrost_proxy_generation_tokens_total 7",
            "bifrost_proxy_e2e_request_latency_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        metrics.blocked(Kind::Rejected);
        let text = metrics.render();
        assert!(text.contains("bifrost_proxy_attestation_blocked 1"), "{text}");
        assert!(text.contains("bifrost_proxy_attestations_total{outcome=\"rejected\"} 1"), "{text}");
        metrics.accepted(Instant::now());
        let text = metrics.render();
        assert!(text.contains("bifrost_proxy_attestation_blocked 0"), "{text}");
        assert!(text.contains("bifrost_proxy_attestations_total{outcome=\"accepted\"} 1"), "{text}");
        drop(running);
        assert!(metrics.render().contains("bifrost_proxy_num_requests_running 0"));
    }
}
