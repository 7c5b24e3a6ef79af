//! What can be wrong with the kernel's interface, and whose fault it is.

use super::{Errno, REPORTS, SourceError, Unfit};
use std::io;

/// Why there is no quote through configfs.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// No such interface.
    #[error("{REPORTS} does not exist: the kernel is older than 6.7, or configfs is not mounted")]
    Absent,
    /// The interface without anything behind it.
    #[error("{REPORTS} has no provider: not a TDX or SEV-SNP guest, or tdx_guest or sev_guest is not loaded")]
    NoProvider,
    /// Not for this user.
    #[error("{REPORTS} is for root: run bifrost-quote-helper, or this process as root")]
    Denied,
    /// A provider that is none of ours.
    #[error("provider is {0}, expected tdx_guest or sev_guest")]
    Provider(String),
    /// The provider was another one when the source was opened.
    #[error("provider is not the one that was found at start")]
    Changed,
    /// The provider went away in between.
    #[error("provider went away while {0} was read")]
    Gone(&'static str),
    /// Somebody else wrote to our entry.
    #[error("generation is {0}, expected 1: another process wrote to the entry")]
    Generation(String),
    /// The buffer is in use, to the end of our patience.
    #[error("still busy or interrupted after {seconds} s: an earlier quote has not been answered by the host ({last})")]
    Busy {
        /// How long it was tried.
        seconds: u64,
        /// The last error.
        last: io::Error,
    },
    /// The host did not answer.
    #[error(
        "the host's quoting service did not answer within 30 s: see qgsd on the host and the vsock port of the guest"
    )]
    Timeout,
    /// The hypervisor refused.
    #[error("the hypervisor refused to quote (EIO): see the host's quoting service and the hypervisor's log")]
    Refused,
    /// Any other error of the interface.
    #[error("{file} of the report entry: {source}")]
    Io {
        /// File of the entry.
        file: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A quote that is none, or not ours.
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

impl Fault {
    /// What an error of `file` means.
    pub(super) fn of(file: &'static str, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            // ENOTTY on kernels before 6.13.
            Some(Errno::NXIO | Errno::NOTTY) => Self::Gone(file),
            Some(Errno::TIMEDOUT) => Self::Timeout,
            Some(Errno::IO) => Self::Refused,
            _ => Self::Io { file, source },
        }
    }
}

impl From<Fault> for SourceError {
    fn from(fault: Fault) -> Self {
        let text = fault.to_string();
        match fault {
            Fault::Absent | Fault::NoProvider | Fault::Denied | Fault::Provider(_) => Self::NoTee(text),
            _ => Self::Quote(text),
        }
    }
}
