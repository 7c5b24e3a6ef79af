//! A simulated TEE.
#![forbid(unsafe_code)]
