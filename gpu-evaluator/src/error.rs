//! One error type for the daemon, its variants named by whose fault it is, and its one mapping to gRPC.

use tonic::Status;

/// What went wrong, by culprit. Messages are lowercase, name what was found and what was expected, and end
/// without a period.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bad configuration: the daemon does not start.
    #[error("configuration: {0}")]
    Config(String),
    /// This machine: files, ports, memory.
    #[error("{0}")]
    Platform(String),
    /// The peer is of another version or uses other ring parameters.
    #[error("{0}")]
    Mismatch(String),
    /// The peer sent something malformed or out of limits.
    #[error("{0}")]
    Peer(String),
    /// A budget or limit does not admit the request.
    #[error("{0}")]
    Exhausted(String),
    /// The daemon is draining; another one may serve the request.
    #[error("{0}")]
    Unavailable(String),
    /// A broken invariant of this program.
    #[error("bug: {0}")]
    Bug(String),
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Mismatch(_) => Self::failed_precondition(message),
            Error::Peer(_) => Self::invalid_argument(message),
            Error::Exhausted(_) => Self::resource_exhausted(message),
            Error::Unavailable(_) => Self::unavailable(message),
            Error::Config(_) | Error::Platform(_) | Error::Bug(_) => Self::internal(message),
        }
    }
}

impl From<kernels::Error> for Error {
    /// Shapes and messages reach the kernels only after they were checked here, so what is left is the peer's.
    fn from(error: kernels::Error) -> Self {
        Self::Peer(error.to_string())
    }
}
