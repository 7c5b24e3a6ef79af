//! What this process says of itself, and what it does once a key was released to it.

mod decrypted_model;
pub mod local;
mod model_file;
mod process;
mod unlock;

pub use model_file::model_digest;
pub use process::harden;
pub use unlock::Unlock;

use crate::{Error, config::AttestationSection};
use attest::{
    Domain, Hardware,
    source::{Source, SourceError},
};
use aws_lc_rs::digest::{Context, SHA256};
use kernels::params::RINGS;
use proto::v1::RuntimeEvent;

/// The world that a build of the runtime lives in: where it gets its evidence.
pub trait World: Domain {
    /// Opens the source of evidence, with `events` in the runtime's measurement register where the platform has one. There
    /// is nothing weaker to fall back to. May block for seconds.
    ///
    /// # Errors
    /// [`SourceError`] saying what was looked at.
    fn source(section: &AttestationSection, events: &[RuntimeEvent]) -> Result<Box<dyn Source>, SourceError>;

    /// Whether an address other than loopback may be listened on.
    fn anywhere(section: &AttestationSection) -> bool;
}

impl World for Hardware {
    fn source(section: &AttestationSection, events: &[RuntimeEvent]) -> Result<Box<dyn Source>, SourceError> {
        evidence::open(&section.evidence, events)
    }

    fn anywhere(_: &AttestationSection) -> bool {
        true
    }
}

/// SHA-256 over the ids of all parameter sets that this build may use, and the revision of the protocol that they
/// are used in. A key says which it is for.
///
/// # Errors
/// [`Error::Bug`] if a built-in set is outside the security table.
pub fn params_digest() -> Result<[u8; 32], Error> {
    let mut hash = Context::new(&SHA256);
    hash.update(&proto::PROTOCOL.to_be_bytes());
    for literal in RINGS {
        let params = literal.check().map_err(|e| Error::Bug(format!("built-in parameters: {e}")))?;
        hash.update(&params.id().0);
    }
    Ok(finish(hash))
}

fn finish(hash: Context) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(hash.finish().as_ref());
    out
}
