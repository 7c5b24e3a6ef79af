//! The secret half of RLWE: keys, samplers, encryption, decryption.
//!
//! Everything here handles or protects secrets; no other crate does. Public arithmetic is `kernels`.

#![forbid(unsafe_code)]

pub mod noise;

pub use noise::WeightNorms;
