//! Every metric of the daemon, by name, in one place; and the listener that shows them to Prometheus.

use crate::Error;
use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use proto::v1::{FailureKind, Residency};
use std::{net::SocketAddr, time::Duration};

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every part was sent.
    Answered,
    /// It failed, for this reason.
    Failed(FailureKind),
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Failed(FailureKind::Malformed) => "malformed",
            Self::Failed(FailureKind::MatrixAbsent) => "matrix_absent",
            Self::Failed(FailureKind::Deadline) => "deadline",
            Self::Failed(FailureKind::Unavailable) => "unavailable",
            Self::Failed(FailureKind::Cancelled) => "cancelled",
            Self::Failed(FailureKind::Internal | FailureKind::Unspecified) => "internal",
        }
    }
}

/// A job ended.
pub fn job(outcome: Outcome) {
    counter!("bifrost_evaluator_jobs_total", "outcome" => outcome.label()).increment(1);
}

/// A job waited and computed for so long.
pub fn job_time(queued: Duration, compute: Duration) {
    histogram!("bifrost_evaluator_job_queued_seconds").record(queued.as_secs_f64());
    histogram!("bifrost_evaluator_job_compute_seconds").record(compute.as_secs_f64());
}

/// Complete jobs waiting for a thread.
pub fn queue_depth(jobs: usize) {
    gauge!("bifrost_evaluator_queue_depth").set(f64::from(u32::try_from(jobs).unwrap_or(u32::MAX)));
}

/// Ciphertext bytes received.
pub fn bytes_in(bytes: usize) {
    counter!("bifrost_evaluator_ciphertext_bytes_total", "direction" => "in").increment(bytes as u64);
}

/// Ciphertext bytes sent.
pub fn bytes_out(bytes: usize) {
    counter!("bifrost_evaluator_ciphertext_bytes_total", "direction" => "out").increment(bytes as u64);
}

/// A matrix became resident.
#[expect(clippy::cast_precision_loss, reason = "a gauge; sizes are below 2^53")]
pub fn resident(residency: Residency, bytes: u64) {
    let label = if residency == Residency::Pinned { "pinned" } else { "fallback" };
    gauge!("bifrost_evaluator_resident_bytes", "residency" => label).increment(bytes as f64);
    gauge!("bifrost_evaluator_resident_matrices", "residency" => label).increment(1.0);
}

/// An upload ended.
pub fn upload(accepted: bool, bytes: usize) {
    let outcome = if accepted { "accepted" } else { "refused" };
    counter!("bifrost_evaluator_uploads_total", "outcome" => outcome).increment(1);
    counter!("bifrost_evaluator_upload_bytes_total").increment(bytes as u64);
}

/// A matrix came from the disk cache.
pub fn cache_loaded(bytes: usize) {
    counter!("bifrost_evaluator_cache_loads_total").increment(1);
    counter!("bifrost_evaluator_cache_bytes_total").increment(bytes as u64);
}

/// A cache file was corrupt and deleted.
pub fn cache_corrupt() {
    counter!("bifrost_evaluator_cache_corrupt_total").increment(1);
}

/// Serves `/metrics` at `address` until the process ends.
///
/// # Errors
/// [`Error::Platform`] if the address cannot be bound.
pub async fn serve(address: SocketAddr) -> Result<SocketAddr, Error> {
    let seconds = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0];
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &seconds)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|e| Error::Bug(format!("metrics recorder: {e}")))?;
    queue_depth(0);
    let at = |e: std::io::Error| Error::Platform(format!("metrics_listen {address}: {e}"));
    let listener = tokio::net::TcpListener::bind(address).await.map_err(at)?;
    let bound = listener.local_addr().map_err(at)?;
    let upkeep = recorder.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;
            upkeep.run_upkeep();
        }
    });
    let app = axum::Router::new().route("/metrics", axum::routing::get(async move || recorder.render()));
    tokio::spawn(async move {
        if let Err(e) = axum::serve(listener, app).await {
            tracing::error!("metrics listener: {e}");
        }
    });
    Ok(bound)
}
