//! Sources of evidence.
#![forbid(unsafe_code)]
