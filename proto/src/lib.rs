//! The contract between the three processes: messages and services, generated from `v1/*.proto`.
//!
//! What the processes tell their supervisor is here too ([`readiness`]).
//!
//! This crate knows no mathematics: ciphertexts are `bytes` whose format is `kernels::wire`.

#![forbid(unsafe_code)]

pub mod readiness;
mod secret;

pub use secret::SECRET;

/// Messages, clients and servers of package `bifrost.v1`.
#[expect(missing_docs, clippy::all, reason = "generated code; the .proto files carry the documentation")]
pub mod v1 {
    include!("gen/bifrost.v1.rs");
}

/// Revision of the evaluator protocol; both sides must hold the same.
pub const PROTOCOL: u32 = 3;

/// Version of this build, as exchanged in `Hello`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
