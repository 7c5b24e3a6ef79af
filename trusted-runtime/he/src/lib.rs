//! The secret half of RLWE: keys, samplers, encryption, decryption.
//!
//! Everything here handles or protects secrets; no other crate does. Public arithmetic is `kernels`.
//! A vector's way: [`Secret`] -> [`Encryptor`] -> (the evaluator) -> [`Answers`] -> [`Verified`] -> [`Decryptor`].
//! A mask's way: [`Batch`] -> (the evaluator) -> [`LaneAnswer`] -> [`Verified`] -> [`Lane`] -> [`Masked`] -> [`Unproven`] -> integers.
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
//! # fn f(lane: trusted_he::Lane, x: &[i32], y: &[i32], out: &mut [u32]) {
//! let first = lane.mask(x, out);
//! let second = lane.mask(y, out); // a lane masks one vector
//! # }
//! ```
//! ```compile_fail
//! # fn f(decryptor: trusted_he::Decryptor<'_>, answers: &trusted_he::Answers, s: &mut trusted_he::Scratch, y: &mut [i32]) {
//! decryptor.decrypt_tile(answers, 0, 0, s, y); // nothing unverified is decrypted
//! # }
//! ```
//! ```compile_fail
//! # fn f(answers: trusted_he::Answers) -> trusted_he::Verified<trusted_he::Answers> {
//! trusted_he::Verified(answers) // only a check vouches
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
mod lane;
mod lane_answer;
mod lane_challenge;
mod lanes;
pub mod noise;
mod random;
mod sampler;
mod slices;
mod stream;
mod tile_challenge;
mod verified;

pub use answer::{Answers, Unverified};
pub use cipher::{Companion, Decryptor, Encryptor, MatrixCipher, Part, Scratch, Secret};
pub use error::Error;
pub use expand::{PublicPolys, expand_block};
pub use grid::Grid;
pub use lane::{Lane, Masked, Unproven};
pub use lane_answer::{LaneAnswer, LaneAnswers};
pub use lane_challenge::{LaneChallenge, LaneFolds, LaneSums, SHARD_ROWS};
pub use lanes::{Batch, BatchPart, LaneCipher};
pub use noise::WeightNorms;
pub use random::{Random, contribute};
pub use sampler::ETA;
pub use tile_challenge::TileChallenge;
pub use verified::Verified;
