//! The process inside the enclave: the only place with a secret key.
//!
//! `model` knows architectures and files, `linear` the ways to compute `y = W·x`, `planner` who runs
//! what, `engine` sequences, `service` gRPC. Knowledge points in that order, left to right.

#![forbid(unsafe_code)]

pub mod attestation;
pub mod bench_ops;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod error;
pub mod inspect;
pub mod keys;
pub mod linear;
pub mod metrics;
pub mod model;
pub mod plan;
pub mod planner;
pub mod pool;
pub mod progress;
pub mod serve;
pub mod service;
pub mod tls;

pub use error::Error;
