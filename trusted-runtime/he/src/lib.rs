//! The secret half of RLWE: keys, samplers, encryption, decryption.
//!
//! Everything here handles or protects secrets; no other crate does. Public arithmetic is `kernels`.
//! A vector's way: [`Secret`] -> [`Encryptor`] -> (the evaluator) -> [`Unverified`] -> [`Answer`] -> [`Decryptor`].
//!
//! ```compile_fail
//! # fn f(cipher: &trusted_he::MatrixCipher, secret: trusted_he::Secret, x: &[i32], y: &[i32]) {
//! let first = cipher.begin(secret, x);
//! let second = cipher.begin(secret, y); // a secret encrypts one vector: it was moved
//! # }
//! ```
//! ```compile_fail
//! # fn f(part: trusted_he::Part<'_>, scratch: &mut trusted_he::Scratch, out: &mut [u64]) {
//! let first = part.encrypt(scratch, out);
//! let again = part.encrypt(scratch, out); // a block is encrypted once
//! # }
//! ```
//! ```compile_fail
//! # fn f(secret: &trusted_he::Secret) -> trusted_he::Secret {
//! secret.clone() // secrets are not copied
//! # }
//! ```

#![forbid(unsafe_code)]

mod answer;
mod cipher;
mod error;
mod expand;
mod grid;
pub mod noise;
mod random;
mod sampler;
mod slices;

pub use answer::{Answer, Unverified};
pub use cipher::{Companion, Decryptor, Encryptor, MatrixCipher, Part, Scratch, Secret};
pub use error::Error;
pub use expand::{PublicPolys, expand_block};
pub use grid::Grid;
pub use noise::WeightNorms;
pub use random::Random;
pub use sampler::ETA;
