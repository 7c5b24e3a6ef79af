//! What a person runs: `bifrost demo`, `generate`, `proxy`, `bench`, `model fetch` and `model inspect`.
//!
//! The library half is what the binary is made of and what the end-to-end tests reuse: certificates made on
//! the spot ([`certificates`]), daemons started and always ended ([`daemon`], [`deployment`]), the gRPC client
//! of a runtime ([`inference`]). It holds no key material of the encryption and links no arithmetic.

#![forbid(unsafe_code)]

pub mod bench;
pub mod certificates;
pub mod cli;
pub mod daemon;
pub mod demo;
pub mod deployment;
pub mod error;
pub mod generate;
pub mod inference;
pub mod lanes;
pub mod model;
pub mod pki;
pub mod plan;
pub mod progress;
pub mod proxy;
pub mod report;
pub mod stop;
pub mod top;

pub use error::Error;
