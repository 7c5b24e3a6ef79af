//! Where a runtime gets its evidence from: sources of statements by the hardware over 64 bytes of report data.
//!
//! [`open`] is the way in. It returns a source that has already made one statement over random report data, or an error
//! that says what was looked at. There is no sample source and no simulated one: a machine without a TEE gets an error.
//!
//! Every source checks, before it hands out a statement, that the report data in it is what was asked for
//! ([`statement`]). Nothing here checks signatures; that is the client's business.

#![forbid(unsafe_code)]

pub mod azure;
pub mod choose;
pub mod command;
pub mod configfs;
pub mod fs;
pub mod helper;
pub mod rtmr;
pub mod statement;

pub use choose::{Choice, Settings, open};

/// Most bytes taken as one quote, event log or certificate table, here and from helpers and commands. Kernels return
/// 128 KiB at most.
pub const MAX_BLOB: usize = 1 << 20;

#[cfg(test)]
mod testing;
