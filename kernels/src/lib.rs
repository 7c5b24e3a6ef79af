//! Public ring arithmetic for Bifrost: everything that both sides of the trust boundary compute.
//!
//! No randomness, no I/O and no secrets: without a sampler nobody can make a key here. Every backend
//! (scalar, AVX2, AVX-512) computes the same integers; the scalar one is the readable oracle.

mod bits;
pub mod conformance;
mod cpu;
pub mod error;
pub mod fold;
pub mod gemm;
pub mod gemv;
pub mod isa;
pub mod matmul;
pub mod modulus;
pub mod ntt;
pub mod ones;
pub mod pack;
pub mod params;
pub mod poly;
pub mod product;
pub mod rescale;
pub mod ring;
mod selftest;
mod short;
mod slice;
mod transform;
pub mod transpose;
pub mod wire;
pub mod words;

pub use error::Error;
pub use fold::{Fold, Functional, IntFunctional};
pub use isa::Isa;
pub use matmul::Digits;
pub use pack::{Int8Matrix, MatrixId, Tiling};
pub use params::{Params, ParamsId, ParamsLiteral};
pub use poly::{Coeff, Ntt, Poly};
pub use product::{Inputs, PinnedTiles, answers_on_the_fly};
pub use ring::Ring;
