//! Between integers modulo t = 2^k and residues modulo q, many at a time.

use crate::{
    Ring,
    cpu::{self, Field, Kernel, Lanes, f64_of},
};

/// 1.5·2^52: adding and subtracting it rounds a number below 2^51.
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// `sums = sums + addend + round(q/t·x) mod q`; words in [0, q), x = the low k bits of `ints` in two's complement.
///
/// q/t is exact (t is a power of two), and so is the product as a sum of two numbers; what is rounded is at most 1/2 away.
///
/// # Panics
/// If the lengths differ or are no multiples of 8, or if k is not 1 to 32.
pub fn scale_up(ring: &Ring, log2_t: u32, ints: &[u32], addend: &[u64], sums: &mut [u64]) {
    check(log2_t, ints.len(), addend.len(), sums.len());
    cpu::dispatch(ring.isa(), ScaleUp { q: ring.q(), log2_t, ints, addend, sums });
}

/// `out = round(t/q·(a - b mod q)) mod t`, in [0, t); words in [0, q).
///
/// The product is computed in f64: it is off by at most 2^-19 beside the integer that it is rounded to, so that the
/// result is exact unless `a - b` is within q/t·2^-19 of a boundary between two integers.
///
/// # Panics
/// As [`scale_up`].
pub fn scale_down(ring: &Ring, log2_t: u32, a: &[u64], b: &[u64], out: &mut [u32]) {
    check(log2_t, a.len(), b.len(), out.len());
    cpu::dispatch(ring.isa(), ScaleDown { q: ring.q(), log2_t, a, b, out });
}

fn check(log2_t: u32, a: usize, b: usize, c: usize) {
    assert!((1..=32).contains(&log2_t), "t = 2^{log2_t}");
    assert!(a == b && b == c && a.is_multiple_of(8), "equal lengths, a multiple of 8");
}

struct ScaleUp<'a> {
    q: u64,
    log2_t: u32,
    ints: &'a [u32],
    addend: &'a [u64],
    sums: &'a mut [u64],
}

impl Kernel for ScaleUp<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.q);
        let unused = u32::BITS - self.log2_t;
        let scale = l.splat(f64_of(self.q) / f64_of(1 << self.log2_t));
        let magic = l.splat(MAGIC);
        let round = |v| l.sub(l.add(v, magic), magic);
        let (addend, sums): (&[L::Block], &mut [L::Block]) =
            (bytemuck::cast_slice(self.addend), bytemuck::cast_slice_mut(self.sums));
        let mut centred = [0i32; 8];
        for ((ints, addend), sums) in self.ints.chunks_exact(L::WIDTH).zip(addend).zip(sums) {
            for (c, &x) in centred.iter_mut().zip(ints) {
                *c = (x << unused).cast_signed() >> unused;
            }
            let x = l.load_i32(&centred);
            // h + rest = q/t·x exactly, |h| <= q/2; |h - r| <= 1/2 and |rest| <= 1/8.
            let h = l.mul_small(x, scale);
            let rest = l.fused(x, scale, l.sub(l.splat(0.0), h));
            let r = round(h);
            let r = l.add(r, round(l.add(l.sub(h, r), rest)));
            let sum = l.add(l.add(l.load_words(sums), l.load_words(addend)), r);
            l.store_words(&f, l.reduce(&f, sum), sums);
        }
    }
}

struct ScaleDown<'a> {
    q: u64,
    log2_t: u32,
    a: &'a [u64],
    b: &'a [u64],
    out: &'a mut [u32],
}

impl Kernel for ScaleDown<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.q);
        let mask = u32::MAX >> (u32::BITS - self.log2_t);
        let scale = l.splat(f64_of(1 << self.log2_t) / f64_of(self.q));
        let magic = l.splat(MAGIC);
        let (a, b): (&[L::Block], &[L::Block]) = (bytemuck::cast_slice(self.a), bytemuck::cast_slice(self.b));
        for ((a, b), out) in a.iter().zip(b).zip(self.out.chunks_exact_mut(L::WIDTH)) {
            let v = l.reduce(&f, l.sub(l.load_words(a), l.load_words(b)));
            let y = l.sub(l.add(l.mul_small(v, scale), magic), magic);
            l.store_low(y, out);
            out.iter_mut().for_each(|y| *y &= mask);
        }
    }
}
