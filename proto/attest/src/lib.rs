//! What both ends of an attested connection agree on: the binding, the frames, the handshake, key release.
//!
//! A connection is TLS 1.3, then one exchange ([`client::attest`], [`server::Acceptor`]) in which the runtime
//! proves what it is on this very connection, then gRPC. Nothing here judges evidence; that is `attest-verify`.

#![forbid(unsafe_code)]

mod attested;
pub mod binding;
pub mod client;
pub mod domain;
mod error;
mod frame;
pub mod release;
pub mod secrets;
pub mod server;
pub mod source;
pub mod tls;
mod waiting;

pub use binding::{Binding, Opening};
pub use domain::{Domain, Hardware};
pub use error::Error;

/// Revision of the exchange; both sides must hold the same.
pub const VERSION: u32 = 2;
