//! What an instruction set must offer, and how a kernel written once runs on each of them.
//!
//! Residues travel through the kernels as `f64` integers, signed and not fully reduced. Integers up to 2^53 are exact,
//! which is 4q for q < 2^51 and more for smaller ones, and fused multiply-adds give exact products:
//! for |x| <= 2^52 and |w| <= q/2 < 2^50, h = fl(x·w), l = fma(x, w, -h) is the exact rest, c = round(x·(w/q)),
//! and fma(-c, q, h) + l is x·w - c·q. Every intermediate is an integer below 2^53, hence exact:
//! the true quotient is off from c by at most 1/2 + |x|·2^-54 <= 3/4, so the result is below 3q/4, and
//! |l| <= 2^48 because |h| <= 2^102. (Dekker, "A floating-point technique for extending the available
//! precision", 1971, section 5; the modular form is that of the NTL and FLINT libraries.)

use crate::isa::{Isa, Kind};

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(any(target_arch = "x86_64", emulated_avx512))]
pub(crate) mod avx512;
pub(crate) mod scalar;

/// One signed 16-bit digit of two columns of eight lanes: lane l, column c at `2·l + c`. As many of them as a word has
/// digits lie side by side, the lowest first.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct DigitPlane(pub(crate) [i16; 16]);

/// Constants of one modulus, spread over the lanes.
#[derive(Clone, Copy)]
pub(crate) struct Field<V> {
    /// q
    pub(crate) q: V,
    /// fl(1/q)
    pub(crate) q_inv: V,
}

impl<V> Field<V> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    pub(crate) fn new<L: Lanes<V = V>>(l: L, q: u64) -> Self {
        let q = f64_of(q);
        Self { q: l.splat(q), q_inv: l.splat(1.0 / q) }
    }
}

/// The exact `f64` of an integer below 2^53.
#[expect(clippy::cast_precision_loss, reason = "callers pass integers below 2^53")]
pub(crate) fn f64_of(x: u64) -> f64 {
    debug_assert!(x < 1 << 53);
    x as f64
}

/// A vector of residues. Holding a value proves that the processor has the instructions.
pub(crate) trait Lanes: Copy {
    /// Residues side by side.
    type V: Copy;
    /// Wrapping 64-bit sums side by side.
    type Acc: Copy;
    /// Sums of products of pinned weights: what is added up is the backend's own affair.
    type Sum: Copy;
    /// An input vector made ready for [`Lanes::sum_add`].
    type Fixed: Copy;
    /// `[f64; WIDTH]`, how a vector lies in memory.
    type Block: bytemuck::Pod;
    /// Lanes of a vector.
    const WIDTH: usize;
    /// What [`Lanes::mac`] adds to each sum besides the product.
    const DRIFT: i64;

    /// The same number in each lane.
    fn splat(self, x: f64) -> Self::V;
    /// From memory.
    fn load(self, at: &Self::Block) -> Self::V;
    /// To memory.
    fn store(self, v: Self::V, at: &mut Self::Block);
    /// From u64 words below 2^52 that lie in a block.
    fn load_words(self, at: &Self::Block) -> Self::V;
    /// To u64 words in [0, q); |v| < q.
    fn store_words(self, f: &Field<Self::V>, v: Self::V, at: &mut Self::Block);
    /// WIDTH signed bytes.
    fn load_i8(self, at: &[i8]) -> Self::V;
    /// `a + b`
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a·b` for products below 2^53.
    fn mul_small(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a·b + c` for sums below 2^53.
    fn mul_add_small(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a·b + c`, rounded once.
    fn fused(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The low 32 bits of integers below 2^51 in magnitude, two's complement, to WIDTH words.
    fn store_low(self, v: Self::V, at: &mut [u32]);
    /// `x·w mod q`, |result| <= q/2 + q·|x|·2^-54 (at most 3q/4), for |x| <= 2^52, |w| <= q/2 and wq = fl(w/q).
    fn mul(self, f: &Field<Self::V>, x: Self::V, w: Self::V, wq: Self::V) -> Self::V;
    /// fl(w/q), for use with [`Lanes::mul`] when it was not computed before (then |result| < q).
    fn quotient(self, f: &Field<Self::V>, w: Self::V) -> Self::V;
    /// `x mod q`, |result| <= q/2 and one unit, for |x| <= 2^53.
    fn reduce(self, f: &Field<Self::V>, x: Self::V) -> Self::V;
    /// Sums of zero.
    fn zero(self) -> Self::Acc;
    /// `acc + (x·w mod q) + DRIFT`, the product below q in magnitude; |x| <= 0.95·2^52, |w| <= q/2, wq = quotient(w).
    fn mac(self, f: &Field<Self::V>, acc: Self::Acc, x: Self::V, w: Self::V, wq: Self::V) -> Self::Acc;
    /// The sums of all lanes, modulo 2^64.
    fn total(self, acc: Self::Acc) -> i64;
    /// A residue, |v| <= q/2 and one unit, in the form in which pinned weights and their inputs are kept.
    fn pack(self, f: &Field<Self::V>, v: Self::V) -> Self::V;
    /// A packed input, made ready.
    fn fix(self, input: &Self::Block) -> Self::Fixed;
    /// Sums of zero.
    fn sum_zero(self) -> Self::Sum;
    /// `sum + weight·input`, both packed; at most 1016 columns may be added up in one sum.
    fn sum_add(self, sum: Self::Sum, weight: &Self::Block, input: Self::Fixed) -> Self::Sum;
    /// The sums of all lanes: x0 + 2^26·x1 + 2^52·x2 modulo q.
    fn sum_total(self, sum: Self::Sum) -> [u64; 3];
    /// Two vectors (2·WIDTH neighbours) dealt into those whose index has the bit WIDTH/2 clear and set.
    fn deal(self, pair: &[Self::Block]) -> (Self::V, Self::V);
    /// The inverse of [`Lanes::deal`].
    fn undeal(self, u: Self::V, v: Self::V, pair: &mut [Self::Block]);
    /// From vectors dealt by bit `t` to vectors dealt by bit `t/2`; `t` is a power of two, 2 <= t <= WIDTH/2.
    fn turn(self, t: usize, u: Self::V, v: Self::V) -> (Self::V, Self::V);
    /// The inverse of [`Lanes::turn`].
    fn unturn(self, t: usize, u: Self::V, v: Self::V) -> (Self::V, Self::V);
    /// Asks for the cache line at `at[index]`, which may lie behind the end.
    fn prefetch(self, at: &[Self::Block], index: usize);
    /// WIDTH signed words.
    fn load_i32(self, at: &[i32]) -> Self::V;
    /// `acc[r][p][lane] = sum_k weights[r][k]·digits[k][p]`, plane by plane and lane by lane, for four rows of pairs
    /// of weights; at most 255 pairs, so that |acc| < 2^31.
    fn digit_rows<const P: usize>(
        self,
        weights: [&[[i16; 2]]; 4],
        digits: &[[DigitPlane; P]],
        acc: &mut [[[i32; 8]; P]; 4],
    );
    /// For four rows of the same length as `high` and `low`: (sum row·high, sum row·low) modulo 2^32.
    fn dot4(self, rows: [&[i8]; 4], high: &[i16], low: &[i16]) -> [(i32, i32); 4];
}

/// A kernel that is written once for all instruction sets. `run` must be `inline(always)`.
pub(crate) trait Kernel {
    /// What it computes.
    type Output;
    /// The computation.
    fn run<L: Lanes>(self, l: L) -> Self::Output;
}

/// Runs a kernel on an instruction set.
pub(crate) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa.kind() {
        #[cfg(any(target_arch = "x86_64", emulated_avx512))]
        Kind::Avx512 => {
            avx512::Avx512::detect().expect("this Isa is only made where detection succeeds").vectorize(kernel)
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => avx2::Avx2::detect().expect("this Isa is only made where detection succeeds").vectorize(kernel),
        _ => kernel.run(scalar::Scalar),
    }
}
