//! Mutual TLS between runtime and evaluator: who the other end is, and nothing about whether it can be trusted.
//!
//! Read in this order: [`leaf`] (what a certificate says), [`pin`] (keys that are named one by one), [`files`] (what lies
//! on disk), [`verifier`] (authority and pins together), [`door`] (the evaluator's end), [`caller`] (the runtime's end),
//! [`words`] (what a refusal means).

#![forbid(unsafe_code)]

pub mod caller;
pub mod door;
pub mod error;
pub mod files;
pub mod leaf;
pub mod pin;
#[cfg(test)]
mod testing;
pub mod verifier;
pub mod words;

pub use caller::Caller;
pub use door::Door;
pub use error::Error;
pub use files::{Files, apart};
pub use leaf::{Leaf, Usage};
pub use pin::{Pin, Pins};

use rustls::crypto::{CryptoProvider, aws_lc_rs as provider};
use std::sync::Arc;

/// Post-quantum key exchange first: ciphertexts are safe by themselves, sizes and metadata are kept for later, too.
fn crypto() -> Arc<CryptoProvider> {
    use provider::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    Arc::new(CryptoProvider {
        kx_groups: vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
        ..provider::default_provider()
    })
}

/// HTTP/2, which gRPC needs.
const ALPN: &[u8] = b"h2";
