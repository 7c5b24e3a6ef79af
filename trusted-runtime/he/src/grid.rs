//! Integers modulo t = 2^k inside residues modulo q: exact encoding and decoding, in constant time.

use crate::Error;
use kernels::Ring;

/// The maps x -> round(q·x/t) and c -> round(t·c/q) for one q and one t.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    q: u64,
    log2_t: u32,
    /// floor(2^114 / q), below 2^64 for q > 2^50; scaled by `2^shift` for smaller q.
    inverse: u64,
    /// `inverse = floor(2^shift / q)`.
    shift: u32,
}

impl Grid {
    /// # Errors
    /// [`Error::Misuse`] unless 1 <= k <= 32 and t < q/4.
    pub fn new(ring: &Ring, log2_t: u32) -> Result<Self, Error> {
        let q = ring.q();
        let bits = ring.params().bits();
        if !(1..=32).contains(&log2_t) || log2_t + 2 >= bits {
            return Err(Error::Misuse(format!("t = 2^{log2_t} in a ring with a q of {bits} bits")));
        }
        // 2^(bits-1) < q < 2^bits, so 2^63 / 1 > 2^shift / q > 2^62.
        let shift = 62 + bits;
        let inverse = u64::try_from((1u128 << shift) / u128::from(q))
            .map_err(|_| Error::Misuse(format!("the inverse of q = {q} does not fit a word")))?;
        Ok(Self { q, log2_t, inverse, shift })
    }

    /// log2 t.
    pub fn log2_t(&self) -> u32 {
        self.log2_t
    }

    /// `round(q·x/t) mod q`, halves up, in [0, q). `|x| < t`.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "|q·x/t| < q < 2^51")]
    pub fn encode(&self, x: i32) -> u64 {
        let scaled = i128::from(self.q) * i128::from(x) + (1 << (self.log2_t - 1));
        crate::sampler::residue((scaled >> self.log2_t) as i64, self.q)
    }

    /// `round(t·c/q)` for c in [0, q), as an integer in [-t/2, t/2).
    ///
    /// With `v = t·c + (q-1)/2` the result is `floor(v/q) mod t`. The first estimate `floor(c·inverse / 2^(shift-k))` is
    /// at most `t·c/q` and more than `t·c/q - 2` (each floor loses less than 1), so that `v - estimate·q` is in
    /// [0, 3q) and two conditional increments finish.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        reason = "wrapping arithmetic modulo 2^64 on values below 2^53"
    )]
    pub fn decode(&self, c: u64) -> i32 {
        let q = self.q;
        let mut y = ((u128::from(c) * u128::from(self.inverse)) >> (self.shift - self.log2_t)) as u64;
        let mut rest = (c << self.log2_t).wrapping_add((q - 1) / 2).wrapping_sub(y.wrapping_mul(q));
        for _ in 0..2 {
            let less = rest.wrapping_sub(q) >> 63;
            y += 1 ^ less;
            rest = rest.wrapping_sub(q & less.wrapping_sub(1));
        }
        let unused = 64 - self.log2_t;
        (((y << unused) as i64) >> unused) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{ParamsLiteral, params::DEFAULT};
    use proptest::prelude::*;

    fn naive(c: u64, q: u64, k: u32) -> i32 {
        let y = ((u128::from(c) << k) + u128::from((q - 1) / 2)) / u128::from(q) % (1 << k);
        let half = 1u128 << (k - 1);
        i32::try_from(y as i128 - if y >= half { 1 << k } else { 0 }).unwrap()
    }

    proptest! {
        #[test]
        fn decoding_is_exact(x in any::<u64>(), k in 1u32..=32, near in any::<bool>(), d in -3i64..=3) {
            let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
            let (q, grid) = (ring.q(), Grid::new(&ring, k).unwrap());
            // Uniform, or next to a boundary between two integers.
            let c = if near {
                let y = u128::from(x >> (64 - k));
                let boundary = ((2 * y + 1) * u128::from(q)) >> (k + 1);
                (u64::try_from(boundary).unwrap() + q).wrapping_add_signed(d) % q
            } else { x % q };
            prop_assert_eq!(grid.decode(c), naive(c, q, k));
        }

        #[test]
        fn encoding_rounds_and_decodes_back(x in any::<i32>(), k in 2u32..=32) {
            let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
            let (q, grid) = (ring.q(), Grid::new(&ring, k).unwrap());
            let x = x >> (32 - k);
            let c = grid.encode(x);
            prop_assert!(c < q);
            prop_assert_eq!(grid.decode(c), x);
            let error = (i128::from(c) << k) - i128::from(q) * i128::from(x);
            let wrapped = (error + (i128::from(q) << (k - 1))).rem_euclid(i128::from(q) << k) - (i128::from(q) << (k - 1));
            prop_assert!(2 * wrapped.abs() <= 1 << k);
        }
    }

    #[test]
    fn small_rings_and_refusals() {
        let ring = Ring::new(ParamsLiteral { log_n: 11, q: 1_032_193 }.check().unwrap()).unwrap();
        let grid = Grid::new(&ring, 10).unwrap();
        for c in 0..ring.q() {
            assert_eq!(grid.decode(c), naive(c, ring.q(), 10));
        }
        assert!(Grid::new(&ring, 18).is_err() && Grid::new(&ring, 0).is_err());
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        assert!(Grid::new(&ring, 33).is_err());
    }
}
