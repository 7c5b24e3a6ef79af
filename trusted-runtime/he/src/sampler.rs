//! Ternary secrets and centred binomial errors, without a branch or an index that depends on them.

use crate::Random;
use kernels::{Ring, ones};
use zeroize::{Zeroize, Zeroizing};

/// Half the number of coins of one error: e = (heads of 42 coins) - 21. Variance eta/2 = 10.5, a standard deviation
/// of 3.24, above the 3.19 that the security table assumes.
pub const ETA: u32 = 21;

/// Adds nothing and hides everything: fills `out` with errors as residues in [0, q).
///
/// `bytes` is scratch space that the caller zeroizes.
pub(crate) fn fill_errors(random: &mut Random, ring: &Ring, bytes: &mut Vec<u8>, out: &mut [u64]) {
    let needed = out.len().div_ceil(ones::GROUP) * ones::GROUP_BYTES;
    if bytes.len() < needed {
        // Not by growing, which would leave old coins behind.
        bytes.zeroize();
        *bytes = vec![0; needed];
    }
    random.fill(&mut bytes[..needed]);
    ones::centred_ones(ring, &bytes[..needed], out);
}

/// A uniform ternary polynomial as residues in [0, q).
///
/// A byte below 243 = 3^5 gives five digits. Which bytes are rejected is seen by timing, and is independent of the
/// digits of those that are not.
pub(crate) fn ternary(random: &mut Random, q: u64, n: usize) -> Zeroizing<Vec<u64>> {
    let mut out = Zeroizing::new(vec![0u64; n + 5]);
    let mut bytes = Zeroizing::new(vec![0u8; n / 4]);
    let mut at = 0;
    while at < n {
        random.fill(&mut bytes);
        for &byte in bytes.iter() {
            let mut rest = u32::from(byte);
            for o in &mut out[at..at + 5] {
                // floor(rest/3) for rest < 256.
                let third = (rest * 171) >> 9;
                *o = residue(i64::from(rest - 3 * third) - 1, q);
                rest = third;
            }
            at += 5 * usize::from(byte < 243);
            if at >= n {
                break;
            }
        }
    }
    out[n..].zeroize();
    out.truncate(n);
    out
}

/// The residue of a small signed number, in [0, q), without a branch.
#[inline]
#[expect(clippy::cast_sign_loss, reason = "two's complement; the mask adds q to negative numbers")]
pub(crate) fn residue(x: i64, q: u64) -> u64 {
    (x as u64).wrapping_add(q & ((x >> 63) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{modulus::centred, params::DEFAULT};

    const Q: u64 = DEFAULT.q;

    #[test]
    fn errors_are_centred_binomial() {
        let mut random = Random::from_key([1; 32]);
        let mut e = vec![0; 1 << 20];
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        fill_errors(&mut random, &ring, &mut Vec::new(), &mut e);
        // P(e = k) = C(42, 21 + k) / 2^42.
        let mut p = vec![1f64];
        for k in 0..42u32 {
            p.push(p[k as usize] * f64::from(42 - k) / f64::from(k + 1));
        }
        let mut seen = [0u32; 43];
        for &x in &e {
            seen[usize::try_from(centred(x, Q) + 21).unwrap()] += 1;
        }
        let mut chi = 0.0;
        for (k, &s) in seen.iter().enumerate() {
            let expected = p[k] / 2f64.powi(42) * f64::from(1 << 20);
            if expected > 10.0 {
                chi += (f64::from(s) - expected).powi(2) / expected;
            } else {
                assert!(s < 60);
            }
        }
        // About 29 degrees of freedom: mean 29, standard deviation 7.6.
        assert!(chi < 75.0, "{chi}");
        let variance = e.iter().map(|&x| (centred(x, Q) as f64).powi(2)).sum::<f64>() / f64::from(1 << 20);
        assert!((variance - 10.5).abs() < 0.1, "{variance}");
    }

    #[test]
    fn secrets_are_uniform_ternary() {
        let mut random = Random::from_key([2; 32]);
        let (mut seen, mut pairs) = ([0f64; 3], [[0f64; 3]; 3]);
        for _ in 0..64 {
            let s = ternary(&mut random, Q, 2048);
            assert_eq!(s.len(), 2048);
            let digit = |x: u64| usize::try_from(centred(x, Q) + 1).unwrap();
            s.iter().for_each(|&x| seen[digit(x)] += 1.0);
            s.windows(2).for_each(|w| pairs[digit(w[0])][digit(w[1])] += 1.0);
        }
        let total = 64.0 * 2048.0;
        for (a, row) in seen.iter().zip(&pairs) {
            assert!((a / total - 1.0 / 3.0).abs() < 0.006, "{seen:?}");
            row.iter().for_each(|x| assert!((x / total - 1.0 / 9.0).abs() < 0.005, "{pairs:?}"));
        }
    }
}
