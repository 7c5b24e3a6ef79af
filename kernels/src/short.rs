//! Short multiples of an eighth root of unity: the first two stages of a tile's transform without reductions.
//!
//! The first two stages of a negacyclic transform multiply by 1, z, z^2 and z^3 only, z a primitive 8th root
//! of unity mod q. The lattice { (s, s·z, s·z^2, s·z^3) mod q } has determinant q^3, so it holds a vector with
//! entries near q^(3/4). With such an s, s times the transform of a tile of int8 weights is computed with
//! plain exact products; s^-1 is put into the last factor of the inverse transform.

/// (s, s·z, s·z^2, s·z^3) mod q, each as a small signed integer; s is not 0 mod q.
///
/// LLL (Lenstra, Lenstra, Lovasz 1982, proposition 1.6) promises a first vector of length at most
/// 2^(3/4)·q^(3/4): entries below 2^39 for q < 2^51.
pub(crate) fn multiples(z: u64, q: u64) -> [i64; 4] {
    let q = i128::from(q);
    let z = i128::from(z);
    let mut b = [[0; 4]; 4];
    b[0] = [1, z, z * z % q, z * z % q * z % q];
    for (i, row) in b.iter_mut().enumerate().skip(1) {
        row[i] = q;
    }
    let mut k = 1;
    while k < 4 {
        for j in (0..k).rev() {
            let m = round(orthogonal(&b).1[k][j]);
            let other = b[j];
            for (x, y) in b[k].iter_mut().zip(other) {
                *x -= m * y;
            }
        }
        let (norm, mu) = orthogonal(&b);
        if norm[k] >= (0.75 - mu[k][k - 1] * mu[k][k - 1]) * norm[k - 1] {
            k += 1;
        } else {
            b.swap(k, k - 1);
            k = (k - 1).max(1);
        }
    }
    b[0].map(|x| i64::try_from(x).expect("LLL bounds the entries by 2^39"))
}

/// Gram-Schmidt: squared lengths and coefficients.
fn orthogonal(b: &[[i128; 4]; 4]) -> ([f64; 4], [[f64; 4]; 4]) {
    let mut star = b.map(|row| row.map(float));
    let (mut norm, mut mu) = ([0.0; 4], [[0.0; 4]; 4]);
    for i in 0..4 {
        for j in 0..i {
            mu[i][j] = dot(&b[i].map(float), &star[j]) / norm[j];
            let other = star[j];
            for (x, y) in star[i].iter_mut().zip(other) {
                *x -= mu[i][j] * y;
            }
        }
        norm[i] = dot(&star[i], &star[i]);
    }
    (norm, mu)
}

fn dot(a: &[f64; 4], b: &[f64; 4]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[expect(clippy::cast_precision_loss, reason = "the reduction is a search; its result is checked by its size")]
fn float(x: i128) -> f64 {
    x as f64
}

#[expect(clippy::cast_possible_truncation, reason = "ratios of entries below 2^104")]
fn round(x: f64) -> i128 {
    x.round() as i128
}

#[cfg(test)]
mod tests {
    use crate::{modulus, params};

    #[test]
    fn multiples_are_short_and_true() {
        for q in [params::DEFAULT.q, 786_433, 1_125_899_906_629_633] {
            if !modulus::is_prime(q) || q % 8 != 1 {
                continue;
            }
            let z = (2..).map(|g| modulus::pow(g, (q - 1) / 8, q)).find(|&z| modulus::pow(z, 4, q) == q - 1).unwrap();
            let s = super::multiples(z, q);
            assert!(s[0] != 0 && s.iter().all(|x| x.unsigned_abs() < 1 << 39), "{s:?}");
            let residues = s.map(|x| modulus::from_signed(x, q));
            for i in 0..3 {
                assert_eq!(modulus::mul(residues[i], z, q), residues[i + 1]);
            }
        }
    }
}
