//! Symmetric encryption of one vector against fixed uniform polynomials, and exact decryption.
//!
//! For one matrix, cut into tiles P_ij, and one process: `A_j` uniform, `A'_i = sum_j P_ij·A_j` computed here once.
//! For one vector: a fresh ternary secret s and
//!
//! `b_j = -A_j·s + e_j + round(q/t·x_j)`, sent;  `sum_j P_ij·b_j + A'_i·s = q/t·y_i + noise`.
//!
//! This is RLWE with a common A and independent secrets: each vector's b_j are an RLWE instance of their own,
//! pseudorandom whatever is encrypted. It holds for one use of a secret, which is what the types enforce: a
//! [`Secret`] is consumed by [`MatrixCipher::begin`], and an [`Encryptor`] hands out each block once.

use crate::{
    Answers, Error, Random, TileChallenge, Verified, expand::PublicPolys, grid::Grid, sampler, slices::Slices,
};
use kernels::{Int8Matrix, Ring, Tiling, modulus, product::product_on_the_fly};
use std::{
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};
use zeroize::{Zeroize, Zeroizing};

/// `A'_i = sum_j P_ij·A_j`, NTT form, for every output tile. Public like A and the weights.
pub struct Companion {
    n: usize,
    residues: Vec<u64>,
}

impl Companion {
    /// Computes all tiles on `threads` threads; the result does not depend on their number.
    ///
    /// # Errors
    /// [`Error::Misuse`] if matrix, tiling and polynomials do not fit together.
    pub fn compute(
        ring: &Ring,
        tiling: &Tiling,
        w: &Int8Matrix,
        a: &PublicPolys,
        threads: usize,
    ) -> Result<Self, Error> {
        let (n, tiles) = (ring.n(), tiling.tiles());
        let inputs = a.inputs(ring);
        let mut residues = vec![0; tiles * n];
        let share = tiles.div_ceil(threads.max(1)).next_multiple_of(4);
        std::thread::scope(|scope| {
            let work = |(k, out): (usize, &mut [u64])| {
                let range = k * share..k * share + out.len() / n;
                product_on_the_fly(ring, tiling, w, &inputs, range, out).map_err(|e| Error::Misuse(e.to_string()))
            };
            let mut parts = residues.chunks_mut(share * n).enumerate();
            let own = parts.next();
            let others: Vec<_> = parts.map(|p| scope.spawn(move || work(p))).collect();
            let mut result = own.map_or(Ok(()), work);
            for other in others {
                result = result.and(other.join().unwrap_or_else(|_| Err(Error::Misuse("a worker thread died".into()))));
            }
            result
        })?;
        Ok(Self { n, residues })
    }

    fn tile(&self, i: usize) -> &[u64] {
        &self.residues[i * self.n..(i + 1) * self.n]
    }
}

/// Everything about one matrix that encryption and decryption share. The challenge is secret.
pub struct MatrixCipher {
    ring: Ring,
    tiling: Tiling,
    grid: Grid,
    public: PublicPolys,
    /// Weighted for `slices` if there are any.
    companion: Companion,
    slices: Option<Slices>,
    /// Replaced on a schedule and after a failed check; a job keeps the one it began with.
    challenge: RwLock<Arc<TileChallenge>>,
}

impl MatrixCipher {
    /// Draws A and a challenge, and computes A' for matrix `w` with t = 2^`log2_t`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the sizes do not fit together or t does not fit the ring.
    pub fn new(
        ring: &Ring,
        tiling: Tiling,
        log2_t: u32,
        w: &Int8Matrix,
        random: &mut Random,
        threads: usize,
    ) -> Result<Self, Error> {
        let grid = Grid::new(ring, log2_t)?;
        let public = PublicPolys::random(ring, tiling.blocks(), random);
        let mut companion = Companion::compute(ring, &tiling, w, &public, threads)?;
        let slices = Slices::new(ring, tiling.tile_cols());
        if let Some(slices) = &slices {
            companion.residues.chunks_exact_mut(ring.n()).for_each(|tile| slices.weigh(ring, tile));
        }
        let challenge = RwLock::new(Arc::new(TileChallenge::draw(ring, &tiling, w, random, threads)));
        Ok(Self { ring: ring.clone(), tiling, grid, public, companion, slices, challenge })
    }

    /// Draws a new challenge for the matrix `w`; jobs that have begun keep theirs.
    pub fn refresh(&self, w: &Int8Matrix, random: &mut Random, threads: usize) {
        let fresh = Arc::new(TileChallenge::draw(&self.ring, &self.tiling, w, random, threads));
        *self.challenge.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// How the matrix is cut.
    pub fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// The ring.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Memory held by A, A' and the challenge.
    pub fn bytes(&self) -> usize {
        8 * (2 * self.public.blocks() * self.ring.n() + self.companion.residues.len() + self.tiling.rows())
    }

    /// Binds a secret to the one vector it will ever encrypt: `x` has one integer a column, `|x| < t/2`.
    ///
    /// # Errors
    /// [`Error::Misuse`] on a wrong length or an integer outside the plaintext space.
    pub fn begin<'a>(&'a self, secret: Secret, x: &'a [i32]) -> Result<(Encryptor<'a>, Decryptor<'a>), Error> {
        if x.len() != self.tiling.cols() {
            return Err(Error::Misuse(format!("a vector of {} for {} columns", x.len(), self.tiling.cols())));
        }
        let widest = x.iter().fold(0u32, |a, &x| a.max(x.unsigned_abs()));
        if u64::from(widest) >= 1 << (self.grid.log2_t() - 1) {
            return Err(Error::Misuse(format!("an integer outside t = 2^{}", self.grid.log2_t())));
        }
        let secret = Arc::new(secret);
        let challenge = self.challenge.read().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = Arc::new(Sent { challenge, so_far: Mutex::new((0, 0)) });
        let next = AtomicUsize::new(0);
        Ok((
            Encryptor { cipher: self, secret: secret.clone(), x, next, sent: sent.clone() },
            Decryptor { cipher: self, secret, sent },
        ))
    }
}

/// What a vector's blocks come to under the challenge.
struct Sent {
    challenge: Arc<TileChallenge>,
    /// Blocks, and their sum in [0, q).
    so_far: Mutex<(usize, u64)>,
}

impl Sent {
    fn add(&self, blocks: usize, sum: u64, q: u64) {
        let mut so_far = self.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        *so_far = (so_far.0 + blocks, modulus::add(so_far.1, sum, q));
    }
}

/// A ternary secret in NTT form, for one vector. Not `Clone`, not `Debug`; zeroized on drop.
pub struct Secret {
    pub(crate) ntt: Zeroizing<Vec<u64>>,
}

impl Secret {
    /// A uniform one.
    pub fn random(ring: &Ring, random: &mut Random) -> Self {
        let mut ntt = sampler::ternary(random, ring.q(), ring.n());
        ring.forward_residues(&mut ntt);
        Self { ntt }
    }
}

/// Buffers of one thread; zeroized on drop. Holds the thread's random generator.
pub struct Scratch {
    pub(crate) random: Random,
    pub(crate) bytes: Vec<u8>,
    pub(crate) poly: Vec<u64>,
    pub(crate) ints: Vec<u32>,
}

impl Scratch {
    /// # Errors
    /// [`Error::Entropy`] if the operating system gives no randomness.
    pub fn new() -> Result<Self, Error> {
        Ok(Self { random: Random::from_os()?, bytes: Vec::new(), poly: Vec::new(), ints: Vec::new() })
    }

    /// The generator, to draw secrets from.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.bytes.zeroize();
        self.poly.zeroize();
        self.ints.zeroize();
    }
}

/// Encrypts one vector, every block once. Threads may share it.
pub struct Encryptor<'a> {
    cipher: &'a MatrixCipher,
    secret: Arc<Secret>,
    x: &'a [i32],
    next: AtomicUsize,
    sent: Arc<Sent>,
}

/// Some consecutive blocks of one vector, to be encrypted once.
pub struct Part<'a> {
    encryptor: &'a Encryptor<'a>,
    blocks: Range<usize>,
}

impl Encryptor<'_> {
    /// The next blocks that nobody has taken, at most `count` of them.
    pub fn take(&self, count: usize) -> Option<Part<'_>> {
        let total = self.cipher.tiling.blocks();
        let start = self.next.fetch_add(count.min(total), Ordering::Relaxed);
        // A counter that ran past the end stays there: it grows by at most `total` a call.
        (start < total).then(|| Part { encryptor: self, blocks: start..(start + count).min(total) })
    }
}

impl Part<'_> {
    /// Index of the first block.
    pub fn first(&self) -> usize {
        self.blocks.start
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Never: a part has at least one block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Writes `b_j` in NTT form, N residues in [0, q) a block, to `out`.
    ///
    /// # Errors
    /// [`Error::Misuse`] if `out` is not `len()` polynomials long; the blocks are lost then.
    pub fn encrypt(self, scratch: &mut Scratch, out: &mut [u64]) -> Result<(), Error> {
        let Encryptor { cipher, secret, x, sent, .. } = self.encryptor;
        let (ring, n) = (&cipher.ring, cipher.ring.n());
        if out.len() != self.blocks.len() * n {
            return Err(Error::Misuse(format!("{} blocks into {} words", self.blocks.len(), out.len())));
        }
        let (blocks, mut sum) = (self.blocks.len(), 0);
        for (j, out) in self.blocks.zip(out.chunks_exact_mut(n)) {
            sampler::fill_errors(&mut scratch.random, ring, &mut scratch.bytes, out);
            for (o, &x) in out.iter_mut().zip(&x[cipher.tiling.block_cols(j)]) {
                *o = add(*o, cipher.grid.encode(x), ring.q());
            }
            ring.forward_residues(out);
            ring.mul_sub(out, cipher.public.block(j), &secret.ntt);
            sum = modulus::add(sum, sent.challenge.sent(ring, j, out), ring.q());
        }
        sent.add(blocks, sum, ring.q());
        Ok(())
    }
}

/// Decrypts the answers for one vector.
pub struct Decryptor<'a> {
    cipher: &'a MatrixCipher,
    secret: Arc<Secret>,
    sent: Arc<Sent>,
}

impl Decryptor<'_> {
    /// Whether `words`, every useful coefficient of an answer, are those of the product with what was sent.
    pub(crate) fn agrees(&self, words: &[u64]) -> Result<bool, Error> {
        let (blocks, sum) = *self.sent.so_far.lock().unwrap_or_else(PoisonError::into_inner);
        if blocks != self.cipher.tiling.blocks() || words.len() != self.cipher.tiling.rows().next_multiple_of(8) {
            return Err(Error::Misuse(format!(
                "{blocks} of {} blocks were sent, {} words came",
                self.cipher.tiling.blocks(),
                words.len()
            )));
        }
        Ok(self.sent.challenge.received(&self.cipher.ring, words) == sum)
    }

    /// Writes the integers `y mod t` in [-t/2, t/2) of output tile `tile` of vector `vector` of `answer`, one a row.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the answer does not hold this tile, or `out` is not as long as the tile has rows.
    pub fn decrypt_tile(
        &self,
        answer: &Verified<Answers>,
        vector: usize,
        tile: usize,
        scratch: &mut Scratch,
        out: &mut [i32],
    ) -> Result<(), Error> {
        let c = self.cipher;
        let received = answer.get().tile(vector, tile)?;
        if out.len() != received.len() {
            return Err(Error::Misuse(format!("{} rows into {} integers", received.len(), out.len())));
        }
        for ((o, &b), &m) in out.iter_mut().zip(received).zip(self.mask(tile, scratch)) {
            *o = c.grid.decode(add(b, m, c.ring.q()));
        }
        Ok(())
    }

    /// The useful coefficients of `A'_i·s`, one a row of the tile.
    fn mask<'s>(&self, tile: usize, scratch: &'s mut Scratch) -> &'s [u64] {
        let MatrixCipher { ring, tiling, .. } = self.cipher;
        scratch.poly.clear();
        scratch.poly.resize(ring.n(), 0);
        ring.mul_add(&mut scratch.poly, self.cipher.companion.tile(tile), &self.secret.ntt);
        if let Some(slices) = &self.cipher.slices {
            return slices.useful(&mut scratch.poly);
        }
        ring.inverse_residues(&mut scratch.poly);
        // In ascending order, so that no coefficient is overwritten before it is moved: r <= r·n_w + n_w - 1.
        for r in 0..tiling.tile_rows() {
            scratch.poly[r] = scratch.poly[tiling.output_coefficient(r)];
        }
        &scratch.poly
    }
}

/// `a + b mod q` without a branch.
#[inline]
pub(crate) fn add(a: u64, b: u64, q: u64) -> u64 {
    sampler::residue((a + b).wrapping_sub(q).cast_signed(), q)
}

#[cfg(test)]
mod tests;
