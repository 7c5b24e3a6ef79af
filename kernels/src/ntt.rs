//! The negacyclic number-theoretic transform: tables, and the scalar transform that is the oracle.

use crate::{modulus, params::Params};

/// Twiddle factors of one ring, in bit-reversed order.
///
/// Forward: Cooley-Tukey with merged powers of psi; inverse: Gentleman-Sande (Longa and Naehrig,
/// "Speeding up the Number Theoretic Transform", ePrint 2016/504, algorithms 1 and 2). The output of
/// the forward transform is in bit-reversed order on every backend.
#[derive(Clone)]
pub struct NttTable {
    pub(crate) q: u64,
    pub(crate) n: usize,
    /// psi^bitrev(i).
    pub(crate) psi: Vec<u64>,
    /// psi^-bitrev(i).
    pub(crate) psi_inv: Vec<u64>,
    /// N^-1 mod q.
    pub(crate) n_inv: u64,
}

impl NttTable {
    /// Tables for checked parameters.
    pub fn new(params: &Params) -> Self {
        let (q, n) = (params.q(), params.n());
        let order = 2 * n as u64;
        // The first generator candidate whose N-th power is -1 is a primitive 2N-th root of unity.
        let psi = (2..)
            .map(|g| modulus::pow(g, (q - 1) / order, q))
            .find(|&c| modulus::pow(c, n as u64, q) == q - 1)
            .unwrap_or(1);
        let inv = modulus::pow(psi, q - 2, q);
        let powers = |base: u64| -> Vec<u64> {
            let mut out = vec![0; n];
            let mut p = 1;
            for i in 0..n {
                out[i.reverse_bits() >> (usize::BITS - params.log_n())] = p;
                p = modulus::mul(p, base, q);
            }
            out
        };
        Self { q, n, psi: powers(psi), psi_inv: powers(inv), n_inv: modulus::pow(n as u64, q - 2, q) }
    }

    /// In place, natural to bit-reversed order; input and output in [0, q).
    pub fn forward_scalar(&self, a: &mut [u64]) {
        let q = self.q;
        let (mut t, mut m) = (self.n / 2, 1);
        while m < self.n {
            for i in 0..m {
                let w = self.psi[m + i];
                for j in 2 * i * t..2 * i * t + t {
                    let (u, v) = (a[j], modulus::mul(a[j + t], w, q));
                    a[j] = modulus::add(u, v, q);
                    a[j + t] = modulus::sub(u, v, q);
                }
            }
            t /= 2;
            m *= 2;
        }
    }

    /// In place, bit-reversed to natural order; input and output in [0, q).
    pub fn inverse_scalar(&self, a: &mut [u64]) {
        let q = self.q;
        let (mut t, mut m) = (1, self.n / 2);
        while m >= 1 {
            for i in 0..m {
                let w = self.psi_inv[m + i];
                for j in 2 * i * t..2 * i * t + t {
                    let (u, v) = (a[j], a[j + t]);
                    a[j] = modulus::add(u, v, q);
                    a[j + t] = modulus::mul(modulus::sub(u, v, q), w, q);
                }
            }
            t *= 2;
            m /= 2;
        }
        for x in a {
            *x = modulus::mul(*x, self.n_inv, q);
        }
    }
}
