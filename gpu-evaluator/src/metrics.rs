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

/// A kind of job stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Encrypted tile products.
    Multiply,
    /// Products with one-time-padded vectors.
    Online,
    /// Products with encrypted lanes.
    Bulk,
}

impl Stream {
    /// Of three names, the one of this kind.
    fn name(self, [multiply, online, bulk]: [&'static str; 3]) -> &'static str {
        match self {
            Self::Multiply => multiply,
            Self::Online => online,
            Self::Bulk => bulk,
        }
    }
}

/// A job ended.
pub fn job(stream: Stream, outcome: Outcome) {
    let name = stream.name([
        "bifrost_evaluator_jobs_total",
        "bifrost_evaluator_online_jobs_total",
        "bifrost_evaluator_bulk_jobs_total",
    ]);
    counter!(name, "outcome" => outcome.label()).increment(1);
}

/// A job waited and computed for so long.
pub fn job_time(stream: Stream, queued: Duration, compute: Duration) {
    let waited = stream.name([
        "bifrost_evaluator_job_queued_seconds",
        "bifrost_evaluator_online_queued_seconds",
        "bifrost_evaluator_bulk_queued_seconds",
    ]);
    let computed = stream.name([
        "bifrost_evaluator_job_compute_seconds",
        "bifrost_evaluator_online_compute_seconds",
        "bifrost_evaluator_bulk_compute_seconds",
    ]);
    histogram!(waited).record(queued.as_secs_f64());
    histogram!(computed).record(compute.as_secs_f64());
}

/// Rows of a bulk product were computed.
pub fn bulk_rows(rows: usize) {
    counter!("bifrost_evaluator_bulk_rows_total").increment(rows as u64);
}

/// Complete jobs waiting for a thread. Online jobs have no queue.
pub fn queue_depth(stream: Stream, jobs: usize) {
    let name = stream.name([
        "bifrost_evaluator_queue_depth",
        "bifrost_evaluator_online_queue_depth",
        "bifrost_evaluator_bulk_queue_depth",
    ]);
    gauge!(name).set(f64::from(u32::try_from(jobs).unwrap_or(u32::MAX)));
}

/// Bytes of vectors, padded or encrypted, received.
pub fn bytes_in(stream: Stream, bytes: usize) {
    payload(stream, "in", bytes);
}

/// Bytes of products, padded or encrypted, sent.
pub fn bytes_out(stream: Stream, bytes: usize) {
    payload(stream, "out", bytes);
}

fn payload(stream: Stream, direction: &'static str, bytes: usize) {
    let name = stream.name([
        "bifrost_evaluator_ciphertext_bytes_total",
        "bifrost_evaluator_online_bytes_total",
        "bifrost_evaluator_bulk_bytes_total",
    ]);
    counter!(name, "direction" => direction).increment(bytes as u64);
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
    queue_depth(Stream::Multiply, 0);
    queue_depth(Stream::Bulk, 0);
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
