//! Encryption of masks in bulk, and decryption of what the evaluator makes of them.
//!
//! A_j, one for each column, uniform, common to every matrix and batch. For one matrix, once: `A'_i = sum_j W_ij·A_j`,
//! computed by the evaluator and verified. For one batch: a fresh ternary secret s, a fresh mask R_j of uniform
//! integers modulo t, one a lane, and `B_j = A_j·s + e_j + round(q/t·R_j)`; then
//! `sum_j W_ij·B_j - A'_i·s = q/t·U_i + noise` with `U = W·R mod t`, lane by lane.
//!
//! Samples of one batch are RLWE samples under one secret, those of different batches and matrices have independent
//! secrets: with a common A each batch is pseudorandom on its own (multi-secret RLWE).

use crate::{
    Error, Lane, LaneAnswer, LaneChallenge, LaneFolds, Random, Scratch, Secret, Verified, expand::PublicPolys,
    grid::Grid, lane::expand_mask, sampler,
};
use kernels::{Ring, rescale, transpose::transpose};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use zeroize::{Zeroize, Zeroizing};

/// Lanes whose masks are written together: two lines of memory.
const TOGETHER: usize = 32;
/// Rows that are decrypted and turned at a time.
const ROWS: usize = 32;

/// Everything about one matrix that its batches share: nothing in it is secret.
pub struct LaneCipher {
    ring: Ring,
    rows: usize,
    cols: usize,
    grid: Grid,
    common: Arc<PublicPolys>,
    /// A'_i in NTT form, [rows][N].
    companion: Vec<u64>,
}

impl LaneCipher {
    /// Lanes of a batch come in multiples of this.
    pub const STEP: usize = 32;

    /// For a `rows` by `cols` matrix with t = 2^`log2_t`, from its verified companion: the product of W with the first
    /// `cols` polynomials of `common`, N words each, shard by shard.
    ///
    /// # Errors
    /// [`Error::Misuse`] if something does not fit together.
    pub fn new(
        ring: &Ring,
        (rows, cols): (usize, usize),
        log2_t: u32,
        common: Arc<PublicPolys>,
        companion: Vec<Verified<LaneAnswer>>,
    ) -> Result<Self, Error> {
        let grid = Grid::new(ring, log2_t)?;
        let mut words = Vec::with_capacity(rows * ring.n());
        for shard in companion {
            let shard = shard.into_inner();
            if shard.rows().start * ring.n() != words.len() || shard.lanes() != ring.n() {
                return Err(Error::Misuse(format!("rows {:?} of {} words", shard.rows(), shard.lanes())));
            }
            // A single shard is taken over as it is.
            if words.is_empty() { words = shard.into_words() } else { words.extend(shard.into_words()) }
        }
        if words.len() != rows * ring.n() || common.blocks() < cols {
            return Err(Error::Misuse(format!(
                "{} words and {} polynomials for {rows}x{cols}",
                words.len(),
                common.blocks()
            )));
        }
        Ok(Self { ring: ring.clone(), rows, cols, grid, common, companion: words })
    }

    /// Memory of the companion of a matrix of so many rows.
    pub fn bytes_for(ring: &Ring, rows: usize) -> usize {
        8 * ring.n() * rows
    }

    /// Draws the secret and the masks of a batch of `lanes` lanes, a multiple of [`LaneCipher::STEP`] up to N.
    ///
    /// # Errors
    /// [`Error::Misuse`] on another number of lanes.
    pub fn batch(&self, lanes: usize, random: &mut Random) -> Result<Batch<'_>, Error> {
        if lanes == 0 || lanes > self.ring.n() || !lanes.is_multiple_of(Self::STEP) {
            return Err(Error::Misuse(format!("{lanes} lanes, expected a multiple of {} up to N", Self::STEP)));
        }
        let secret = Secret::random(&self.ring, random);
        let mut keys = Zeroizing::new(vec![0u8; 32 * lanes]);
        random.fill(&mut keys);
        let mut masks = Zeroizing::new(vec![0u32; self.cols * lanes]);
        let mut some = Zeroizing::new(vec![0u32; TOGETHER * self.cols]);
        let groups = masks.chunks_exact_mut(TOGETHER * self.cols).zip(keys.as_chunks::<32>().0.chunks(TOGETHER));
        for (group, keys) in groups {
            for (key, mask) in keys.iter().zip(some.chunks_exact_mut(self.cols)) {
                expand_mask(key, self.grid.log2_t(), mask);
            }
            transpose(self.ring.isa(), (TOGETHER, self.cols), (&some, self.cols), (group, TOGETHER));
        }
        let products = (0..lanes).map(|_| Zeroizing::new(vec![0; self.rows])).collect();
        let next = AtomicUsize::new(0);
        Ok(Batch { cipher: self, lanes, secret, keys, masks, next, products, decrypted: vec![false; self.rows] })
    }
}

/// One batch of masks: encrypted once, column by column, and turned into lanes. Zeroized on drop.
pub struct Batch<'a> {
    cipher: &'a LaneCipher,
    lanes: usize,
    secret: Secret,
    keys: Zeroizing<Vec<u8>>,
    /// R mod t, [lanes/TOGETHER][cols][TOGETHER]: written and read in runs.
    masks: Zeroizing<Vec<u32>>,
    next: AtomicUsize,
    /// W·R mod t, one vector a lane, and which rows of it are there.
    products: Vec<Zeroizing<Vec<u32>>>,
    decrypted: Vec<bool>,
}

/// Some consecutive columns of a batch, to be encrypted once.
pub struct BatchPart<'a> {
    batch: &'a Batch<'a>,
    cols: Range<usize>,
}

impl<'a> Batch<'a> {
    /// Lanes it will give.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// The next columns that nobody has taken, at most `count` of them.
    pub fn take(&'a self, count: usize) -> Option<BatchPart<'a>> {
        let total = self.cipher.cols;
        let start = self.next.fetch_add(count.min(total), Ordering::Relaxed);
        (start < total).then(|| BatchPart { batch: self, cols: start..(start + count).min(total) })
    }

    /// Decrypts rows `rows` of a verified answer into the lanes.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the answer does not hold them.
    pub fn decrypt(
        &mut self,
        answer: &Verified<LaneAnswer>,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<(), Error> {
        let (c, lanes, answer) = (self.cipher, self.lanes, answer.get());
        if rows.start < answer.rows().start || rows.end > answer.rows().end || answer.lanes() != lanes {
            return Err(Error::Misuse(format!("rows {rows:?} of an answer with {:?}", answer.rows())));
        }
        let n = c.ring.n();
        let Scratch { poly, ints, .. } = scratch;
        poly.resize(n, 0);
        // Some rows at a time, so that they are turned while a cache has them; a stride that is no power of two, so
        // that it can have them all.
        let stride = lanes + TOGETHER;
        let (before, after) = wiped(ints, ROWS * (stride + lanes)).split_at_mut(ROWS * stride);
        for first in rows.clone().step_by(ROWS) {
            let some = first..(first + ROWS).min(rows.end);
            for (row, out) in some.clone().zip(before.chunks_exact_mut(stride)) {
                c.ring.inverse_product(poly, &c.companion[row * n..(row + 1) * n], &self.secret.ntt);
                let out = &mut out[..lanes];
                rescale::scale_down(&c.ring, c.grid.log2_t(), answer.row(row), &poly[..lanes], out);
            }
            transpose(c.ring.isa(), (some.len(), lanes), (before, stride), (after, ROWS));
            for (product, words) in self.products.iter_mut().zip(after.chunks_exact(ROWS)) {
                product[some.clone()].copy_from_slice(&words[..some.len()]);
            }
        }
        self.decrypted[rows].fill(true);
        Ok(())
    }

    /// The lanes.
    ///
    /// # Errors
    /// [`Error::Misuse`] if rows were never decrypted or columns never encrypted.
    pub fn finish(self) -> Result<Vec<Lane>, Error> {
        let Self { cipher: c, keys, next, products, decrypted, .. } = self;
        if decrypted.contains(&false) || next.load(Ordering::Relaxed) < c.cols {
            return Err(Error::Misuse("a batch that is not complete".into()));
        }
        let lane = |(from, product): (&[u8; 32], _)| {
            Lane::new(c.grid.log2_t(), c.cols, Zeroizing::new(from.to_vec()), product)
        };
        Ok(keys.as_chunks::<32>().0.iter().zip(products).map(lane).collect())
    }
}

/// At least `len` words; a buffer that must grow is wiped and not copied.
fn wiped(ints: &mut Vec<u32>, len: usize) -> &mut [u32] {
    if ints.len() < len {
        ints.zeroize();
        *ints = vec![0; len];
    }
    ints
}

impl BatchPart<'_> {
    /// Index of the first column.
    pub fn first(&self) -> usize {
        self.cols.start
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.cols.len()
    }

    /// Never: a part has at least one column.
    pub fn is_empty(&self) -> bool {
        self.cols.is_empty()
    }

    /// Writes the lanes of `B_j`, [len()][lanes] words in [0, q), to `out`, and adds them to `folds`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if `out` has another size; the columns are lost then.
    pub fn encrypt(
        self,
        challenge: &LaneChallenge,
        folds: &mut LaneFolds,
        scratch: &mut Scratch,
        out: &mut [u64],
    ) -> Result<(), Error> {
        let Batch { cipher, lanes, secret, masks, .. } = self.batch;
        let (ring, lanes, count) = (&cipher.ring, *lanes, self.cols.len());
        if out.len() != count * lanes {
            return Err(Error::Misuse(format!("{count} columns of {lanes} lanes into {} words", out.len())));
        }
        let mut row = Zeroizing::new(vec![0u32; lanes]);
        for (j, out) in self.cols.clone().zip(out.chunks_exact_mut(lanes)) {
            let Scratch { random, bytes, poly, .. } = &mut *scratch;
            poly.resize(ring.n(), 0);
            ring.inverse_product(poly, cipher.common.block(j), &secret.ntt);
            sampler::fill_errors(random, ring, bytes, out);
            for (row, group) in row.chunks_exact_mut(TOGETHER).zip(masks.chunks_exact(TOGETHER * cipher.cols)) {
                row.copy_from_slice(&group[j * TOGETHER..(j + 1) * TOGETHER]);
            }
            rescale::scale_up(ring, cipher.grid.log2_t(), &row, &poly[..lanes], out);
        }
        folds.add(ring, challenge, self.cols.start, count, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
