//! One error type for the runtime, its variants named by whose fault it is.

/// What went wrong, by culprit. Messages are lowercase, without a period, and never hold a prompt, a
/// token or an activation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The request cannot be served as it is.
    #[error("{0}")]
    Client(String),
    /// The queue is full; the same request may succeed later.
    #[error("{0}")]
    Busy(String),
    /// A model file is unknown, corrupt or does not fit this program.
    #[error("{0}")]
    Model(String),
    /// The evaluator is absent, refuses, or answers with something malformed.
    #[error("evaluator {0}")]
    Evaluator(String),
    /// This machine: files, ports, memory, entropy.
    #[error("{0}")]
    Platform(String),
    /// Bad configuration.
    #[error("configuration: {0}")]
    Config(String),
    /// The client went away.
    #[error("cancelled")]
    Cancelled,
    /// A broken invariant of this program.
    #[error("bug: {0}")]
    Bug(String),
}
