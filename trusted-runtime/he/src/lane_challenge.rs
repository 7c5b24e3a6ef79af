//! The checks of `masked`, by Freivalds: secret r, and v = r^T·W computed once.
//!
//! Offline, modulo q, lane by lane and shard by shard of the rows: `sum_i r_i·Out_i = sum_j v_j·In_j`. Online, over the
//! integers modulo p = 2^61 - 1: `sum_i r_i·y_i = sum_j v_j·x_j`. A wrong answer passes with probability 1/q for
//! each wrong lane, and 1/p.

use crate::{Error, LaneAnswer, Random, Verified, expand};
use kernels::{Fold, Int8Matrix, IntFunctional, Isa, Ring, fold::MERSENNE_61 as P};
use std::ops::Range;
use zeroize::{Zeroize, Zeroizing};

/// Rows that are checked together, at most: what must be held before anything of it is decrypted.
pub const SHARD_ROWS: usize = 4096;

/// r and v of one matrix. Secret: who knows r can forge. Zeroized on drop.
pub struct LaneChallenge {
    /// r mod q, one a row.
    rows: Vec<u64>,
    /// v mod q, one a column, shard by shard.
    cols: Vec<Vec<u64>>,
    /// r mod p, one a row.
    int_rows: IntFunctional,
    /// v mod p, one a column.
    int_cols: IntFunctional,
    isa: Isa,
}

impl Drop for LaneChallenge {
    fn drop(&mut self) {
        self.rows.zeroize();
        self.cols.zeroize();
        for digits in self.int_rows.digits_mut().chain(self.int_cols.digits_mut()) {
            digits.zeroize();
        }
    }
}

impl LaneChallenge {
    /// Draws r and computes v.
    pub fn draw(ring: &Ring, w: &Int8Matrix, random: &mut Random) -> Self {
        let rows = expand::uniform(ring, random, w.rows());
        // 128 bits modulo p: uniform within 2^-67.
        let mut bytes = vec![0; 16 * w.rows()];
        random.fill(&mut bytes);
        let words = bytes.as_chunks::<16>().0.iter().map(|b| modulo_p(u128::from_le_bytes(*b)));
        let int_rows: Zeroizing<Vec<u64>> = Zeroizing::new(words.collect());
        bytes.zeroize();
        let cols = shards(w.rows()).map(|shard| transposed(w, shard, &rows, ring.q())).collect();
        let int_cols = Zeroizing::new(transposed(w, 0..w.rows(), &int_rows, P));
        let (int_rows, int_cols) = (IntFunctional::new(&int_rows), IntFunctional::new(&int_cols));
        Self { rows, cols, int_rows, int_cols, isa: ring.isa() }
    }

    /// The rows of each shard.
    pub fn shards(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        shards(self.rows.len())
    }

    /// Checks one shard's answer against what was sent.
    ///
    /// # Errors
    /// [`Error::Forged`] if it is not the product; [`Error::Misuse`] if something has not come or is of another shape.
    pub fn verify(&self, ring: &Ring, sums: &LaneSums, answer: LaneAnswer) -> Result<Verified<LaneAnswer>, Error> {
        let shard = self.shards().position(|s| s == answer.rows());
        let Some((shard, sent)) = shard.and_then(|s| Some((s, sums.0.get(s)?))) else {
            return Err(Error::Misuse(format!("rows {:?} are no shard", answer.rows())));
        };
        if !answer.complete() || sent.len() != answer.lanes() {
            return Err(Error::Misuse(format!("{} lanes were sent, {} came", sent.len(), answer.lanes())));
        }
        let mut fold = Fold::new(answer.lanes());
        let rows = self.shards().nth(shard).unwrap_or_default();
        fold.add(ring, &self.rows[rows], answer.words());
        if fold.finish(ring) == *sent {
            Ok(Verified::vouch(answer))
        } else {
            Err(Error::Forged("the product of encrypted masks"))
        }
    }

    /// Whether `y` is W·x over the integers.
    pub(crate) fn agrees(&self, x: &[i32], y: &[i32]) -> bool {
        x.len() == self.int_cols.len()
            && y.len() == self.int_rows.len()
            && self.int_cols.apply(self.isa, x) == self.int_rows.apply(self.isa, y)
    }
}

/// Builds `sum_j v_j·In_j` for every shard while rows are being sent; threads have one each and merge them.
pub struct LaneFolds {
    folds: Vec<Fold>,
}

/// `sum_j v_j·In_j` for every shard, lane by lane, complete.
pub struct LaneSums(Vec<Vec<u64>>);

impl LaneFolds {
    /// Nothing was sent yet.
    pub fn new(challenge: &LaneChallenge, lanes: usize) -> Self {
        Self { folds: challenge.cols.iter().map(|_| Fold::new(lanes)).collect() }
    }

    /// Rows of words for columns from `first` on, as they are sent: [count][lanes], in [0, q).
    ///
    /// # Panics
    /// If there are no such columns.
    pub fn add(&mut self, ring: &Ring, challenge: &LaneChallenge, first: usize, count: usize, words: &[u64]) {
        for (fold, cols) in self.folds.iter_mut().zip(&challenge.cols) {
            fold.add(ring, &cols[first..first + count], words);
        }
    }

    /// Adds what another thread sent.
    pub fn merge(&mut self, ring: &Ring, other: Self) {
        for (mine, theirs) in self.folds.iter_mut().zip(other.folds) {
            mine.merge(ring, theirs);
        }
    }

    /// Everything was sent.
    pub fn finish(self, ring: &Ring) -> LaneSums {
        LaneSums(self.folds.into_iter().map(|f| f.finish(ring)).collect())
    }
}

fn shards(rows: usize) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
    (0..rows.div_ceil(SHARD_ROWS)).map(move |s| s * SHARD_ROWS..((s + 1) * SHARD_ROWS).min(rows))
}

/// `sum over the rows of r_i·W_i`, modulo `modulus` (at most 61 bits), one a column.
fn transposed(w: &Int8Matrix, rows: Range<usize>, r: &[u64], modulus: u64) -> Vec<u64> {
    const DIGIT: u32 = 21;
    // Three digits below 2^21 times weights of 8 bits: 2^34 rows add up inside 63 bits.
    let mut sums = Zeroizing::new(vec![[0i64; 3]; w.cols()]);
    for i in rows {
        let digits = [0, DIGIT, 2 * DIGIT].map(|shift| ((r[i] >> shift) & ((1 << DIGIT) - 1)).cast_signed());
        for (sum, &w) in sums.iter_mut().zip(w.row(i)) {
            let w = i64::from(w);
            for (s, d) in sum.iter_mut().zip(digits) {
                *s += d * w;
            }
        }
    }
    let value = |s: &[i64; 3]| i128::from(s[0]) + (i128::from(s[1]) << DIGIT) + (i128::from(s[2]) << (2 * DIGIT));
    sums.iter().map(|s| u64::try_from(value(s).rem_euclid(i128::from(modulus))).unwrap_or(0)).collect()
}

/// 2^61 = 1 modulo p.
fn modulo_p(x: u128) -> u64 {
    u64::try_from(x % u128::from(P)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{conformance::Numbers, modulus, params::DEFAULT};

    #[test]
    fn the_columns_are_the_definition() {
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        let w = Numbers(1).matrix(SHARD_ROWS + 3, 5);
        let c = LaneChallenge::draw(&ring, &w, &mut Random::from_os().unwrap());
        assert_eq!(c.shards().collect::<Vec<_>>(), [0..SHARD_ROWS, SHARD_ROWS..SHARD_ROWS + 3]);
        let at = |row: usize, col: usize, m: u64| modulus::from_signed(w.row(row)[col].into(), m);
        for col in 0..5 {
            for (shard, rows) in c.shards().enumerate() {
                let terms = rows.map(|i| modulus::mul(c.rows[i], at(i, col, ring.q()), ring.q()));
                assert_eq!(c.cols[shard][col], terms.fold(0, |s, x| modulus::add(s, x, ring.q())));
            }
        }
        assert!(c.rows.iter().all(|&r| r < ring.q()));
    }

    #[test]
    fn a_wrong_integer_is_seen_wherever_it_is() {
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        let w = Numbers(2).matrix(60, 33);
        let c = LaneChallenge::draw(&ring, &w, &mut Random::from_os().unwrap());
        let x: Vec<i32> = (0..33).map(|i| i * 1_000_003 % 77_777 - 30_000).collect();
        let dot = |r: usize| w.row(r).iter().zip(&x).map(|(&w, &x)| i32::from(w) * x).sum::<i32>();
        let y: Vec<i32> = (0..60).map(dot).collect();
        assert!(c.agrees(&x, &y));
        for row in 0..60 {
            for bit in 0..32 {
                let mut bad = y.clone();
                bad[row] ^= 1 << bit;
                assert!(!c.agrees(&x, &bad), "row {row}, bit {bit}");
            }
        }
        assert!(!c.agrees(&x, &y[1..]) && !c.agrees(&x[1..], &y));
    }
}
