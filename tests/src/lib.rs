//! End-to-end tests with the real binaries: daemons on free ports with mutual TLS, models small enough
//! for a test, and an evaluator that meddles with what it forwards.

#![forbid(unsafe_code)]

pub mod binaries;
pub mod enclave;
pub mod fixtures;
pub mod hosts;
pub mod http;
pub mod meddler;
pub mod stage;
pub mod world;
