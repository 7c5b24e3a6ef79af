//! Everything that can go wrong at the user's side, by culprit.

use std::path::PathBuf;

use crate::attested::Failure;

/// An error of the client. Each variant renders as one line that names the thing at fault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line asks for something that does not exist or does not fit.
    #[error("{0}")]
    Usage(String),
    /// A file or directory of this machine.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file or directory at fault.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// This machine in general: no cache directory, no certificates, no loopback.
    #[error("{0}")]
    Platform(String),
    /// A model that could not be had from any of its sources.
    #[error("model `{name}` could not be fetched: {reasons}")]
    Fetch {
        /// Name in the catalogue.
        name: String,
        /// One reason per source, joined.
        reasons: String,
    },
    /// A daemon that this process started.
    #[error("{name} {reason}")]
    Daemon {
        /// Name of the program.
        name: String,
        /// What happened, with the last lines it wrote.
        reason: String,
    },
    /// The runtime refused, or could not be reached.
    #[error("{0}")]
    Runtime(String),
    /// The runtime did not prove what it is, or does not let us on.
    #[error(transparent)]
    Attestation(#[from] Failure),
    /// SIGINT or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// An error about a file, from what the operating system says.
    pub fn file(path: impl Into<PathBuf>, reason: impl std::fmt::Display) -> Self {
        Self::File { path: path.into(), reason: reason.to_string() }
    }

    /// Exit status of the process: 64 for a bad command line (sysexits `EX_USAGE`), 130 when interrupted, else 1.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 64,
            Self::Interrupted => 130,
            _ => 1,
        }
    }

    /// Exit status of the commands that judge a runtime: 1 when the answer is no, 2 for a command line or file of this
    /// side that is not as it must be, 3 when there is no answer, 130 when interrupted.
    #[must_use]
    pub fn verdict_code(&self) -> u8 {
        match self {
            Self::Attestation(failure) => failure.kind().exit_code(),
            Self::Runtime(_) => 1,
            Self::Usage(_) | Self::File { .. } => 2,
            Self::Interrupted => 130,
            Self::Platform(_) | Self::Fetch { .. } | Self::Daemon { .. } => 3,
        }
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Self {
        match status.message() {
            "" => Self::Runtime(format!("the runtime answered {:?} without a reason", status.code())),
            message => Self::Runtime(message.to_owned()),
        }
    }
}
