//! Verifies evidence: who signed it, what it measures, whether a policy accepts that, and whether it speaks of this
//! connection.
//!
//! What comes out is a report of named factors and, only if every factor holds, a [`Verified`] value without which no
//! key can be released. Nothing here has a clock or a network of its own: the time and the collateral are handed in.

#![forbid(unsafe_code)]

// Tests share what is in `tests/support`, which names the crate.
#[cfg(test)]
extern crate self as attest_verify;

mod anchor;
pub mod azure;
pub mod collateral;
pub mod eventlog;
pub mod explain;
pub mod factor;
pub mod hex;
pub mod log;
pub mod policy;
mod recorded;
pub mod report;
pub mod snp;
pub mod tdx;
mod time;
mod verify;

pub use anchor::Anchor;
pub use factor::Factor;
pub use log::{Floor, Log};
pub use policy::{Policy, PolicyError};
pub use recorded::Recorded;
pub use report::{Report, Verdict};
pub use verify::{Outcome, Verified, verify};
