//! Verifies evidence.
#![forbid(unsafe_code)]

pub mod factor;
