//! The simulator under the verifier that judges real evidence.
#![forbid(unsafe_code)]

mod bugs;
mod chain;
mod dcap;
mod flaws;
mod layout;
mod source;
mod statuses;
