//! Event logs: what was measured into the four runtime registers, and in which order.
//!
//! A log comes from the guest and proves nothing by itself. It is replayed to see whether it explains the registers of a
//! quote, whose expected values come from the policy alone.

mod ccel;
mod runtime;

pub use ccel::{EventLog, EventLogError, Extension, MAX_EVENT_LOG};
pub use runtime::{MAX_RUNTIME_EVENTS, RuntimeLogError, digest, replay};

use crate::hex::{Hex, Sha384};
use sha2::Digest as _;

/// `register = SHA-384(register || digest)`. Intel TDX module specification, TDG.MR.RTMR.EXTEND.
pub(crate) fn extend(register: &mut Sha384, digest: &Sha384) {
    let hash = sha2::Sha384::new().chain_update(register.0).chain_update(digest.0);
    *register = Hex(hash.finalize().into());
}
