//! What can go wrong between TCP and the first RPC.

/// Why a connection was not made. Details are for the own log; the peer learns an [`proto::v1::Admission`] at most.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The peer, or the network: broken off, malformed, too long, too late.
    #[error("{0}")]
    Wire(String),
    /// The peer speaks another revision, suite or domain.
    #[error("{0}")]
    Version(String),
    /// The runtime would not let us on, or has no evidence.
    #[error("{0}")]
    Refused(String),
    /// The evidence was judged and rejected, with the judge's words.
    #[error("{0}")]
    Rejected(String),
    /// No evidence from this machine's hardware.
    #[error(transparent)]
    Source(#[from] crate::source::SourceError),
    /// A key that does not open, is not signed as it should be, or is not what was asked for.
    #[error("{0}")]
    Key(String),
    /// This machine: no entropy, no key.
    #[error("{0}")]
    Platform(String),
}
