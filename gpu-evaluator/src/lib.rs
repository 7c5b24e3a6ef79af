//! The untrusted accelerator daemon: it holds weights, multiplies ciphertexts by them, and owns no key.
//!
//! Read in this order: [`service`] (the contract), [`header`] (the door), [`residency`] with [`backend`] and
//! [`cache`] (weights), [`executor`] with [`ticket`] and [`pool`] (jobs), [`tiles`], [`bulk`] and [`team`] (the three
//! kinds of products), [`server`] with [`reception`] (the process).

#![forbid(unsafe_code)]

pub mod allocator;
pub mod backend;
pub mod bulk;
pub mod cache;
pub mod config;
pub mod drain;
pub mod error;
pub mod executor;
pub mod header;
pub mod metrics;
pub mod pool;
pub mod precedence;
pub mod reception;
pub mod residency;
pub mod rings;
pub mod server;
pub mod service;
pub mod team;
pub mod ticket;
pub mod tiles;
pub mod timing;
pub mod tls;

pub use error::Error;
