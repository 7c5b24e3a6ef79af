//! The secret half of RLWE: keys, samplers, encryption, decryption.
//!
//! Everything here handles or protects secrets; no other crate does. Public arithmetic is `kernels`.
//! A vector's way: [`Secret`] -> [`Encryptor`] -> (the evaluator) -> [`Answers`] -> [`Verified`] -> [`Decryptor`].
//! A mask's way: [`Batch`] -> (the evaluator) -> [`LaneAnswer`] -> [`Verified`] -> [`Lane`] -> [`Masked`] -> [`Unproven`] -> integers.
//!
//! Once is right:
//!
//! ```
//! # use trusted_he::*;
//! # fn direct(cipher: &MatrixCipher, secret: Secret, x: &[i32], part: Part<'_>, scratch: &mut Scratch, out: &mut [u64]) {
//! let (encryptor, decryptor) = cipher.begin(secret, x).unwrap();
//! part.encrypt(scratch, out).unwrap();
//! # }
//! # fn decrypt(d: Decryptor<'_>, answers: &Verified<Answers>, s: &mut Scratch, y: &mut [i32]) {
//! d.decrypt_tile(answers, 0, 0, s, y);
//! # }
//! # fn offline(part: BatchPart<'_>, c: &LaneChallenge, f: &mut LaneFolds, s: &mut Scratch, out: &mut [u64]) {
//! part.encrypt(c, f, s, out).unwrap();
//! # }
//! # fn lanes(mut batch: Batch<'_>, answer: &Verified<LaneAnswer>, s: &mut Scratch) -> Vec<Lane> {
//! batch.decrypt(answer, 0..1, s).unwrap();
//! batch.finish().unwrap()
//! # }
//! # fn online(lane: Lane, c: &LaneChallenge, x: &[i32], out: &mut [u32], answer: &[u32], y: &mut [i32]) {
//! lane.mask(x, out).unwrap().unmask(answer).unwrap().verify(c, x, y).unwrap();
//! # }
//! ```
//!
//! Everything else does not compile:
//!
//! ```compile_fail,E0382
//! # fn f(cipher: &trusted_he::MatrixCipher, secret: trusted_he::Secret, x: &[i32], y: &[i32]) {
//! let first = cipher.begin(secret, x);
//! let second = cipher.begin(secret, y); // a secret encrypts one vector: it was moved
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn f(part: trusted_he::Part<'_>, scratch: &mut trusted_he::Scratch, out: &mut [u64]) {
//! let first = part.encrypt(scratch, out);
//! let again = part.encrypt(scratch, out); // a block is encrypted once
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn f(part: trusted_he::BatchPart<'_>, c: &trusted_he::LaneChallenge, f: &mut trusted_he::LaneFolds, s: &mut trusted_he::Scratch, out: &mut [u64]) {
//! let first = part.encrypt(c, f, s, out);
//! let again = part.encrypt(c, f, s, out); // a column of masks is encrypted once
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn f(lane: trusted_he::Lane, x: &[i32], y: &[i32], out: &mut [u32]) {
//! let first = lane.mask(x, out);
//! let second = lane.mask(y, out); // a lane masks one vector
//! # }
//! ```
//! ```compile_fail,E0382
//! # fn f(masked: trusted_he::Masked, one: &[u32], other: &[u32]) {
//! let first = masked.unmask(one);
//! let second = masked.unmask(other); // a mask comes off one answer
//! # }
//! ```
//! ```compile_fail,E0308
//! # fn f(decryptor: trusted_he::Decryptor<'_>, answers: &trusted_he::Answers, s: &mut trusted_he::Scratch, y: &mut [i32]) {
//! decryptor.decrypt_tile(answers, 0, 0, s, y); // nothing unverified is decrypted
//! # }
//! ```
//! ```compile_fail,E0308
//! # fn f(batch: &mut trusted_he::Batch<'_>, answer: &trusted_he::LaneAnswer, s: &mut trusted_he::Scratch) {
//! batch.decrypt(answer, 0..1, s); // nor is a lane
//! # }
//! ```
//! ```compile_fail,E0616
//! # fn f(unproven: trusted_he::Unproven) {
//! let integers = unproven.0; // integers are read after their check
//! # }
//! ```
//! ```compile_fail,E0423
//! # fn f(answers: trusted_he::Answers) {
//! let verified = trusted_he::Verified(answers); // only a check vouches
//! # }
//! ```
//! ```compile_fail,E0599
//! # fn f(batch: trusted_he::Batch<'_>) {
//! let again = batch.clone(); // a batch is not copied
//! # }
//! ```
//! ```compile_fail,E0308
//! # fn f(secret: &trusted_he::Secret) {
//! let copy: trusted_he::Secret = secret.clone(); // nor is a secret
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
