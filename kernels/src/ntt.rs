//! The negacyclic number-theoretic transform: tables, and the scalar transform that is the oracle.

use crate::{
    cpu::{Field, Kernel, Lanes, f64_of},
    modulus,
    params::Params,
    short,
    transform::{self, Room},
};

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
    psi_inv: Vec<u64>,
    /// N^-1 mod q.
    n_inv: u64,
    /// (s, s·z, s·z^2, s·z^3) with z = psi^(N/4): see [`crate::short`].
    pub(crate) short: [f64; 4],
    /// (N·s)^-1 mod q.
    pub(crate) unscale: u64,
    /// `psi` for the lanes.
    pub(crate) forward: Twiddles,
    /// `psi_inv` for the lanes.
    pub(crate) inverse: Twiddles,
}

/// Powers of a root as centred numbers w, with w/q beside them.
#[derive(Clone)]
pub(crate) struct Twiddles {
    /// w of group i at stage m is at m + i.
    pub(crate) w: Vec<f64>,
    /// fl(w/q)
    pub(crate) wq: Vec<f64>,
    /// For the stages with t = 1, 2, 4: N/2 times (w and w/q of the x-th butterfly), each w repeated t times.
    pub(crate) spread: [Spread; 3],
}

/// A stage's factors, one per butterfly.
#[derive(Clone)]
pub(crate) struct Spread {
    pub(crate) w: Vec<f64>,
    pub(crate) wq: Vec<f64>,
}

/// A residue as a centred number and its quotient by q.
pub(crate) fn centred_pair(x: u64, q: u64) -> (f64, f64) {
    let w = if x > q / 2 { -f64_of(q - x) } else { f64_of(x) };
    (w, w / f64_of(q))
}

impl Twiddles {
    fn new(powers: &[u64], q: u64) -> Self {
        let (w, wq): (Vec<f64>, Vec<f64>) = powers.iter().map(|&x| centred_pair(x, q)).unzip();
        let half = powers.len() / 2;
        let spread = [1, 2, 4].map(|t| {
            let of = |v: &[f64]| (0..half).map(|x| v[half / t + x / t]).collect();
            Spread { w: of(&w), wq: of(&wq) }
        });
        Self { w, wq, spread }
    }
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
        let (psi, psi_inv) = (powers(psi), powers(inv));
        let (forward, inverse) = (Twiddles::new(&psi, q), Twiddles::new(&psi_inv, q));
        let n_inv = modulus::pow(n as u64, q - 2, q);
        let short = short::multiples(psi[2], q);
        let unscale = modulus::mul(n_inv, modulus::pow(modulus::from_signed(short[0], q), q - 2, q), q);
        let short = short.map(|x| f64_of(x.unsigned_abs()) * if x < 0 { -1.0 } else { 1.0 });
        Self { q, n, psi, psi_inv, n_inv, short, unscale, forward, inverse }
    }

    /// What the passes of the forward transform need.
    pub(crate) fn forward(&self) -> (Room, &Twiddles) {
        (Room::new(self.q), &self.forward)
    }

    /// What the passes of the inverse transform need.
    pub(crate) fn inverse(&self) -> (Room, &Twiddles) {
        (Room::new(self.q), &self.inverse)
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

/// The forward transform of N words in [0, q), in place.
pub(crate) struct Forward<'a> {
    pub(crate) table: &'a NttTable,
    pub(crate) words: &'a mut [u64],
}

impl Kernel for Forward<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.table.q);
        let data: &mut [L::Block] = bytemuck::cast_slice_mut(self.words);
        for block in data.iter_mut() {
            let v = l.load_words(block);
            l.store(v, block);
        }
        let top = self.table.n / L::WIDTH;
        transform::forward_rows(l, &f, self.table.forward(), data, 1..top, 1.0);
        transform::forward_lanes(l, &f, &self.table.forward, data);
        for block in data.iter_mut() {
            let v = l.reduce(&f, l.load(block));
            l.store_words(&f, v, block);
        }
    }
}

/// The inverse transform of N words in [0, q), in place.
pub(crate) struct Inverse<'a> {
    pub(crate) table: &'a NttTable,
    pub(crate) words: &'a mut [u64],
}

impl Kernel for Inverse<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.table.q);
        let data: &mut [L::Block] = bytemuck::cast_slice_mut(self.words);
        for block in data.iter_mut() {
            let v = l.load_words(block);
            l.store(v, block);
        }
        inverse(l, &f, self.table, data);
    }
}

/// The inverse transform of `a·b`, slot by slot, to `out`; words in [0, q).
pub(crate) struct InverseProduct<'a> {
    pub(crate) table: &'a NttTable,
    pub(crate) a: &'a [u64],
    pub(crate) b: &'a [u64],
    pub(crate) out: &'a mut [u64],
}

impl Kernel for InverseProduct<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.table.q);
        let (a, b): (&[L::Block], &[L::Block]) = (bytemuck::cast_slice(self.a), bytemuck::cast_slice(self.b));
        let data: &mut [L::Block] = bytemuck::cast_slice_mut(self.out);
        for ((out, a), b) in data.iter_mut().zip(a).zip(b) {
            // Centre one factor, as `Lanes::mul` wants; the product is below 1.
            let w = l.reduce(&f, l.load_words(b));
            l.store(l.mul(&f, l.load_words(a), w, l.quotient(&f, w)), out);
        }
        inverse(l, &f, self.table, data);
    }
}

/// The inverse transform of numbers below q in magnitude, to words in [0, q).
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn inverse<L: Lanes>(l: L, f: &Field<L::V>, table: &NttTable, data: &mut [L::Block]) {
    let bound = transform::inverse_lanes(l, f, table.inverse(), data, L::WIDTH);
    transform::inverse_rows(l, f, table.inverse(), data, 1..table.n / L::WIDTH, bound);
    let (w, wq) = centred_pair(table.n_inv, table.q);
    let (w, wq) = (l.splat(w), l.splat(wq));
    for block in data.iter_mut() {
        let v = l.mul(f, l.load(block), w, wq);
        l.store_words(f, v, block);
    }
}
