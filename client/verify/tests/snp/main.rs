//! SEV-SNP: recorded reports, and one thing wrong at a time.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod accepted;
#[path = "../amd/mod.rs"]
mod amd;
mod case;
mod chain;
mod refused;
mod shapes;
mod whole;
