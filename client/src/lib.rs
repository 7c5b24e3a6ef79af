//! What a person runs: `bifrost demo`, `generate`, `proxy`, `verify`, `release-key`, `bench`, `model` and the rest.
//!
//! The library half is what the binary is made of and what the end-to-end tests reuse: certificates made on
//! the spot ([`certificates`]), daemons started and always ended ([`daemon`], [`deployment`]), the gRPC client
//! of a runtime ([`inference`]), attested connections ([`attested`]) and the release of keys on them ([`release`]). It
//! holds no key material of the encryption and links no arithmetic.

#![forbid(unsafe_code)]

pub mod attested;
pub mod bench;
pub mod certificates;
pub mod cli;
pub mod collateral;
pub mod daemon;
pub mod demo;
pub mod deployment;
pub mod error;
pub mod explain;
mod file;
pub mod generate;
pub mod inference;
pub mod key;
pub mod keygen;
pub mod lanes;
pub mod model;
pub mod pki;
pub mod plan;
pub mod progress;
pub mod proxy;
pub mod release;
pub mod report;
mod run;
pub mod stop;
pub mod top;
pub mod trust;
pub mod verify;
mod way;

pub use error::Error;
pub use run::main;
pub use trust::Trust;
