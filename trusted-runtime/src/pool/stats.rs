//! What filling the pool has cost.

use std::time::Duration;

/// Figures of the pool; times and bytes are sums over all matrices and batches, companions apart.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Fewest lanes ready over all matrices.
    pub ready: usize,
    /// Lanes of a full pool.
    pub capacity: usize,
    /// Most lanes used over all matrices.
    pub used: u64,
    /// Bytes of a full pool.
    pub memory: u64,
    /// Why it does not fill.
    pub trouble: Option<String>,
    /// Sum over batches: a matrix's lanes made, divided by the number of matrices.
    pub made: f64,
    /// Time the refilling threads took, waiting included.
    pub wall: Duration,
    /// The enclave's cryptography: encryption, checks, decryption.
    pub crypto: Duration,
    /// The evaluator's products, as it says.
    pub evaluator: Duration,
    /// Bytes sent and received.
    pub up: u64,
    /// Bytes received.
    pub down: u64,
    /// Threads that refill.
    pub threads: usize,
}

impl Stats {
    /// Milliseconds per lane of one of the times.
    pub fn per_lane(&self, time: Duration) -> f64 {
        if self.made > 0.0 { time.as_secs_f64() * 1e3 / self.made } else { 0.0 }
    }

    /// Bytes per lane.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a figure for people"
    )]
    pub fn bytes_per_lane(&self, bytes: u64) -> u64 {
        if self.made > 0.0 { (bytes as f64 / self.made) as u64 } else { 0 }
    }
}
