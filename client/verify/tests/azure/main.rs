//! Azure: recorded HCL reports and TPM quotes, and one thing wrong at a time.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "../amd/mod.rs"]
mod amd;
mod made;
mod recorded;
mod refused;
mod shapes;
mod whole;
