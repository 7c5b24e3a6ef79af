//! What can go wrong while simulating.

/// Why there is no certificate, quote or collateral.
#[derive(Debug, thiserror::Error)]
pub enum SimulatorError {
    /// A certificate or a revocation list could not be made.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// No key pair follows from the seed.
    #[error("key {name}: {reason}, expected a scalar of P-256")]
    Key {
        /// Which one.
        name: String,
        /// What the curve says.
        reason: String,
    },
    /// The system gives no random numbers.
    #[error("random numbers: {0}")]
    Random(getrandom::Error),
    /// A time that certificates and collateral cannot express.
    #[error("time {found}: expected seconds since 1970 before the year 10000")]
    Time {
        /// Seconds since 1970.
        found: u64,
    },
}
