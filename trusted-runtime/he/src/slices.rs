//! Every n_w-th coefficient of a product in NTT form, without a whole inverse transform.
//!
//! If n_w is a power of two, the slots of a polynomial f form R = N/n_w slices, each over the n_w roots x of
//! X^n_w = z_k. The coefficients r·n_w + n_w - 1 of f are the coefficients r·n_w of g = X^-(n_w - 1)·f, that is, a
//! polynomial h(Y) of degree below R in Y = X^n_w, and the sum of g over slice k is n_w·h(z_k). So they are a sum of
//! weighted slots a slice, and an inverse transform of length R over the points z_k.
//!
//! The weights, `x^-(n_w-1) / N` with all factors of the inverse transforms, go into a fixed operand once.

use kernels::{Ring, modulus};

/// Residues below 2^51 that add up inside 64 bits.
const MAX_WIDTH: usize = 1 << 12;

/// The short transform of one ring and one n_w.
pub(crate) struct Slices {
    q: u64,
    width: usize,
    /// x^-(n_w - 1) / N for every slot.
    weights: Vec<u64>,
    /// Stage by stage, block by block: the inverse of the first of the two points that a butterfly joins.
    twiddles: Vec<Shoup>,
    one: Shoup,
}

/// A fixed factor in [0, q) and `floor(factor·2^64 / q)` (Shoup's method, as in Harvey, "Faster arithmetic for
/// number-theoretic transforms", 2014, section 2).
#[derive(Clone, Copy)]
struct Shoup {
    factor: u64,
    quotient: u64,
}

impl Shoup {
    #[expect(clippy::cast_possible_truncation, reason = "factor < q, so the quotient is below 2^64")]
    fn new(factor: u64, q: u64) -> Self {
        Self { factor, quotient: ((u128::from(factor) << 64) / u128::from(q)) as u64 }
    }

    /// `a·factor mod q` in [0, q) for any `a`, without a branch: the estimate leaves a remainder in [0, 2q).
    #[inline]
    fn mul(self, a: u64, q: u64) -> u64 {
        let estimate = ((u128::from(a) * u128::from(self.quotient)) >> 64) as u64;
        reduce(a.wrapping_mul(self.factor).wrapping_sub(estimate.wrapping_mul(q)), q)
    }
}

/// From [0, 2q) to [0, q), without a branch.
#[inline]
fn reduce(x: u64, q: u64) -> u64 {
    crate::sampler::residue(x.wrapping_sub(q).cast_signed(), q)
}

impl Slices {
    /// `None` unless `width` (n_w) is a power of two that divides N, or if the ring does not keep slices together.
    pub(crate) fn new(ring: &Ring, width: usize) -> Option<Self> {
        let (n, q) = (ring.n(), ring.q());
        if !width.is_power_of_two() || width > n || width > MAX_WIDTH {
            return None;
        }
        let power = |exponent: usize, factor: u64| {
            let mut p = vec![0; n];
            // X^N = -1.
            p[exponent % n] = if (exponent / n).is_multiple_of(2) { factor } else { q - factor };
            ring.forward_residues(&mut p);
            p
        };
        let weights = power(2 * n + 1 - width, modulus::pow(n as u64, q - 2, q));
        let slots = power(width, 1);
        let slices = slots.chunks_exact(width);
        if slices.clone().any(|s| s.iter().any(|z| *z != s[0])) {
            return None;
        }
        let mut points: Vec<u64> = slices.map(|s| s[0]).collect();
        let mut twiddles = Vec::with_capacity(n / width);
        while points.len() > 1 {
            let pairs = points.as_chunks::<2>().0;
            if pairs.iter().any(|[a, b]| modulus::add(*a, *b, q) != 0) {
                return None;
            }
            twiddles.extend(pairs.iter().map(|[a, _]| Shoup::new(modulus::pow(*a, q - 2, q), q)));
            points = pairs.iter().map(|[a, _]| modulus::mul(*a, *a, q)).collect();
        }
        Some(Self { q, width, weights, twiddles, one: Shoup::new(1, q) })
    }

    /// `fixed = fixed·weights`, slot by slot.
    pub(crate) fn weigh(&self, ring: &Ring, fixed: &mut [u64]) {
        let mut out = vec![0; fixed.len()];
        ring.mul_add(&mut out, fixed, &self.weights);
        fixed.copy_from_slice(&out);
    }

    /// Turns a weighted polynomial in NTT form into its coefficients r·n_w + n_w - 1, r < R, at the front of `poly`.
    pub(crate) fn useful<'a>(&self, poly: &'a mut [u64]) -> &'a mut [u64] {
        let (q, r) = (self.q, poly.len() / self.width);
        for k in 0..r {
            // At most MAX_WIDTH residues.
            let sum = poly[k * self.width..(k + 1) * self.width].iter().sum::<u64>();
            poly[k] = self.one.mul(sum, q);
        }
        let out = &mut poly[..r];
        let (mut half, mut at) = (1, 0);
        while half < r {
            for (block, w) in out.chunks_exact_mut(2 * half).zip(&self.twiddles[at..]) {
                let (a, b) = block.split_at_mut(half);
                for (a, b) in a.iter_mut().zip(b) {
                    let (u, v) = (*a, *b);
                    *a = reduce(u + v, q);
                    *b = w.mul(u + q - v, q);
                }
            }
            at += r / (2 * half);
            half *= 2;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{ParamsLiteral, params::DEFAULT};

    #[test]
    fn useful_coefficients_are_those_of_the_whole_inverse_transform() {
        for log_n in [11, 12] {
            let ring = Ring::new(ParamsLiteral { log_n, ..DEFAULT }.check().unwrap()).unwrap();
            let n = ring.n();
            let words = |seed: u64| -> Vec<u64> {
                (0..n as u64).map(|i| (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) % ring.q()).collect()
            };
            let (a, s) = (words(1), words(77));
            let mut whole = vec![0; n];
            ring.mul_add(&mut whole, &a, &s);
            ring.inverse_residues(&mut whole);
            for width in (0..=log_n).map(|k| 1 << k) {
                let slices = Slices::new(&ring, width).unwrap();
                let (mut weighted, mut out) = (a.clone(), vec![0; n]);
                slices.weigh(&ring, &mut weighted);
                ring.mul_add(&mut out, &weighted, &s);
                let want: Vec<u64> = (0..n / width).map(|r| whole[r * width + width - 1]).collect();
                assert_eq!(slices.useful(&mut out), want, "N = {n}, n_w = {width}");
            }
            assert!(Slices::new(&ring, 3).is_none() && Slices::new(&ring, 2 * n).is_none());
        }
    }
}
