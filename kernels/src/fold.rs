//! Linear functionals, for checking a product without repeating it: `sum_i f_i·row_i` lane by lane and `sum_k f_k·word_k`
//! modulo q, and `sum_k f_k·x_k` of integers modulo 2^61 - 1.

use crate::{
    Ring,
    cpu::{self, Field, Kernel, Lanes},
    modulus,
    ntt::centred_pair,
};

const LOW: u64 = (1 << 26) - 1;
const WORD: u64 = (1 << 32) - 1;
/// Products of halves, the largest below 2^54, that may be added up in 64 bits.
const LIMIT: usize = 1000;
/// Rows in one pass over the sums.
const ROWS: usize = 8;

/// `sum_i f_i·row_i mod q` over rows of the same number of words, lane by lane.
pub struct Fold {
    /// low·low, (low + high)·(low + high) and high·high of halves of 26 bits, not reduced.
    sums: [Vec<u64>; 3],
    /// Products in `sums` since they were last reduced.
    held: usize,
    /// Reduced, in [0, q).
    total: Vec<u64>,
}

impl Fold {
    /// Zero.
    pub fn new(lanes: usize) -> Self {
        Self { sums: std::array::from_fn(|_| vec![0; lanes]), held: 0, total: vec![0; lanes] }
    }

    /// Adds `sum_i factors[i]·rows[i]`; all in [0, q), `rows` is [factors.len()][lanes].
    ///
    /// # Panics
    /// If `rows` is not so long.
    pub fn add(&mut self, ring: &Ring, factors: &[u64], rows: &[u64]) {
        let lanes = self.total.len();
        assert_eq!(rows.len(), factors.len() * lanes, "one factor a row");
        for (factors, rows) in factors.chunks(ROWS).zip(rows.chunks(ROWS * lanes)) {
            if self.held + factors.len() > LIMIT {
                self.reduce(ring);
            }
            self.held += factors.len();
            cpu::dispatch(ring.isa(), AddRows { sums: &mut self.sums, factors, rows });
        }
    }

    /// Adds what another one holds.
    ///
    /// # Panics
    /// If it has another number of lanes.
    pub fn merge(&mut self, ring: &Ring, mut other: Self) {
        assert_eq!(self.total.len(), other.total.len(), "the same lanes");
        other.reduce(ring);
        for (a, b) in self.total.iter_mut().zip(&other.total) {
            *a = modulus::add(*a, *b, ring.q());
        }
    }

    /// The sums, in [0, q).
    pub fn finish(mut self, ring: &Ring) -> Vec<u64> {
        self.reduce(ring);
        self.total
    }

    fn reduce(&mut self, ring: &Ring) {
        let q = u128::from(ring.q());
        let [low, both, high] = &mut self.sums;
        for (((low, both), high), total) in low.iter_mut().zip(both).zip(high).zip(&mut self.total) {
            // Karatsuba's middle is not negative.
            let middle = *both - *low - *high;
            let sum = u128::from(*low) + (u128::from(middle) << 26) + (u128::from(*high) << 52) + u128::from(*total);
            #[expect(clippy::cast_possible_truncation, reason = "reduced modulo a u64")]
            {
                *total = (sum % q) as u64;
            }
            (*low, *both, *high) = (0, 0, 0);
        }
        self.held = 0;
    }
}

/// Up to eight rows into the sums.
struct AddRows<'a> {
    sums: &'a mut [Vec<u64>; 3],
    factors: &'a [u64],
    rows: &'a [u64],
}

impl Kernel for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, _: L) {
        let lanes = self.rows.len() / self.factors.len();
        let [low, both, high] = self.sums.each_mut().map(|s| &mut s[..lanes]);
        // Missing rows count nothing.
        let mut factors = [[0u64; 3]; ROWS];
        let mut rows = [&self.rows[..lanes]; ROWS];
        for (i, &f) in self.factors.iter().enumerate() {
            let (l, h) = (f & LOW, f >> 26);
            factors[i] = [l, l + h, h];
            rows[i] = &self.rows[i * lanes..(i + 1) * lanes];
        }
        for k in 0..lanes {
            let (mut a, mut b, mut c) = (low[k], both[k], high[k]);
            for i in 0..ROWS {
                let x = rows[i][k];
                let (l, h) = (x & LOW, (x >> 26) & LOW);
                // Factors below 2^32, said so that one instruction multiplies them.
                a += l * (factors[i][0] & WORD);
                b += (l + h) * (factors[i][1] & WORD);
                c += h * (factors[i][2] & WORD);
            }
            (low[k], both[k], high[k]) = (a, b, c);
        }
    }
}

/// A fixed functional `x -> sum_k f_k·x_k mod q`.
pub struct Functional {
    /// Centred.
    factors: Vec<f64>,
}

impl Functional {
    /// From factors in [0, q), a multiple of 8 of them.
    ///
    /// # Panics
    /// If it is not.
    pub fn new(ring: &Ring, factors: &[u64]) -> Self {
        assert!(factors.len().is_multiple_of(8), "a multiple of 8");
        Self { factors: factors.iter().map(|&f| centred_pair(f, ring.q()).0).collect() }
    }

    /// `sum_k f_{first + k}·words_k mod q`, words in [0, q), a multiple of 8 of them from a multiple of 8 on.
    ///
    /// # Panics
    /// If there are no such factors.
    pub fn apply(&self, ring: &Ring, first: usize, words: &[u64]) -> u64 {
        assert!(first.is_multiple_of(8) && words.len().is_multiple_of(8), "multiples of 8");
        cpu::dispatch(ring.isa(), Apply { q: ring.q(), factors: &self.factors[first..first + words.len()], words })
    }
}

struct Apply<'a> {
    q: u64,
    factors: &'a [f64],
    words: &'a [u64],
}

impl Kernel for Apply<'_> {
    type Output = u64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u64 {
        /// Blocks whose products, below 2^51 each, add up inside 63 bits over all lanes.
        const BLOCKS: usize = 256;
        let f = Field::new(l, self.q);
        let (factors, words): (&[L::Block], &[L::Block]) =
            (bytemuck::cast_slice(self.factors), bytemuck::cast_slice(self.words));
        let mut total = 0i128;
        for (factors, words) in factors.chunks(BLOCKS).zip(words.chunks(BLOCKS)) {
            let mut acc = l.zero();
            for (w, x) in factors.iter().zip(words) {
                let w = l.load(w);
                acc = l.mac(&f, acc, l.load_words(x), w, l.quotient(&f, w));
            }
            let steps = i64::try_from(factors.len() * L::WIDTH).expect("a short chunk");
            total += i128::from(l.total(acc).wrapping_sub(L::DRIFT.wrapping_mul(steps)));
        }
        u64::try_from(total.rem_euclid(i128::from(self.q))).expect("below q")
    }
}

/// 2^61 - 1, a Mersenne prime.
pub const MERSENNE_61: u64 = (1 << 61) - 1;

/// A fixed functional `x -> sum_k f_k·x_k mod 2^61 - 1` of signed 32-bit integers.
pub struct IntFunctional {
    /// Three digits of 21 bits, plane by plane.
    digits: [Vec<i32>; 3],
}

impl IntFunctional {
    /// From factors below 2^63.
    pub fn new(factors: &[u64]) -> Self {
        let plane = |d: u32| factors.iter().map(|f| ((f >> (21 * d)) & ((1 << 21) - 1)) as i32).collect();
        Self { digits: [plane(0), plane(1), plane(2)] }
    }

    /// Number of factors.
    pub fn len(&self) -> usize {
        self.digits[0].len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.digits[0].is_empty()
    }

    /// The factors' memory, to be overwritten.
    pub fn digits_mut(&mut self) -> impl Iterator<Item = &mut [i32]> {
        self.digits.iter_mut().map(Vec::as_mut_slice)
    }

    /// `sum_k f_k·x_k mod 2^61 - 1`, in [0, 2^61 - 1).
    ///
    /// # Panics
    /// Unless there is one integer a factor.
    pub fn apply(&self, isa: crate::Isa, x: &[i32]) -> u64 {
        assert_eq!(x.len(), self.len(), "one integer a factor");
        let sums = cpu::dispatch(isa, IntDot { digits: &self.digits, x });
        let sum = sums[0] + (sums[1] << 21) + (sums[2] << 42);
        u64::try_from(sum.rem_euclid(i128::from(MERSENNE_61))).expect("below the modulus")
    }
}

struct IntDot<'a> {
    digits: &'a [Vec<i32>; 3],
    x: &'a [i32],
}

impl Kernel for IntDot<'_> {
    type Output = [i128; 3];

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) -> [i128; 3] {
        /// Products below 2^52 that add up inside 63 bits.
        const CHUNK: usize = 1024;
        let mut totals = [0i128; 3];
        for (start, x) in (0..).step_by(CHUNK).zip(self.x.chunks(CHUNK)) {
            let [a, b, c] = self.digits.each_ref().map(|d| &d[start..start + x.len()]);
            let mut sums = [0i64; 3];
            for k in 0..x.len() {
                let x = i64::from(x[k]);
                sums[0] += i64::from(a[k]) * x;
                sums[1] += i64::from(b[k]) * x;
                sums[2] += i64::from(c[k]) * x;
            }
            for (total, sum) in totals.iter_mut().zip(sums) {
                *total += i128::from(sum);
            }
        }
        totals
    }
}
