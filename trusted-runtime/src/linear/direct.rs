//! Linear layers by the evaluator, on encrypted activations (protocol `direct`).
//!
//! Every call is one job: the input blocks go out while later ones are still being encrypted, and tiles come back while
//! later ones are still being computed. When all have come they are checked, and then decrypted. A call that fails is
//! repeated from the start, with fresh secrets and errors; it never yields numbers.

mod job;
#[cfg(test)]
mod tests;

use super::{
    Call, Linear, LinearId,
    delegate::{Delegate, Failure, MAX_VECTORS, platform},
    helpers, integer,
    link::Session,
};
use crate::Error;
use job::Job;
pub(crate) use job::blocks_a_part;
use std::{
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Instant,
};
use trusted_he::{MatrixCipher, Random};
use zeroize::Zeroizing;

/// Delegates to one evaluator.
pub struct DirectLinear {
    delegate: Arc<Delegate>,
    /// In the plan's order; made when first needed.
    ciphers: Vec<OnceLock<MatrixCipher>>,
    pool: Option<rayon::ThreadPool>,
}

impl DirectLinear {
    /// Over an evaluator. What encryption needs is prepared matrix by matrix when it is first used, or all at once by
    /// [`DirectLinear::prepare`].
    ///
    /// # Errors
    /// [`Error::Platform`] without threads.
    pub fn new(delegate: Arc<Delegate>) -> Result<Self, Error> {
        let ciphers = delegate.plan.matrices.iter().map(|_| OnceLock::new()).collect();
        let pool = helpers(delegate.threads, "direct")?;
        Ok(Self { delegate, ciphers, pool })
    }

    /// Draws A and the challenge and computes A' and V for every matrix: some seconds for 100 million weights.
    ///
    /// # Errors
    /// [`Error::Platform`] without entropy.
    pub fn prepare(&self) -> Result<(), Error> {
        let start = Instant::now();
        let mut bytes = 0;
        for index in 0..self.ciphers.len() {
            bytes += self.cipher(index)?.bytes();
        }
        let seconds = start.elapsed().as_secs_f64();
        tracing::info!(matrices = self.ciphers.len(), bytes, seconds, "encryption prepared");
        Ok(())
    }

    /// Draws new challenges for every matrix that is prepared.
    ///
    /// # Errors
    /// [`Error::Platform`] without entropy.
    pub fn refresh(&self) -> Result<(), Error> {
        (0..self.ciphers.len()).try_for_each(|index| self.refresh_one(index))
    }

    fn refresh_one(&self, index: usize) -> Result<(), Error> {
        let Some(cipher) = self.ciphers[index].get() else { return Ok(()) };
        let mut random = Random::from_os().map_err(platform)?;
        cipher.refresh(&self.delegate.plan.matrices[index].matrix.int8, &mut random, self.delegate.threads);
        Ok(())
    }

    fn cipher(&self, index: usize) -> Result<&MatrixCipher, Error> {
        if let Some(cipher) = self.ciphers[index].get() {
            return Ok(cipher);
        }
        let (d, m) = (&self.delegate, &self.delegate.plan.matrices[index]);
        let mut random = Random::from_os().map_err(platform)?;
        let cipher = MatrixCipher::new(&d.ring, m.tiling, m.log2_t, &m.matrix.int8, &mut random, d.threads)
            .map_err(|e| Error::Bug(format!("{}: {e}", m.matrix.id)))?;
        Ok(self.ciphers[index].get_or_init(|| cipher))
    }

    /// One attempt at at most [`MAX_VECTORS`] vectors: integers in, integers out ([vectors][int8 rows]).
    pub(super) fn attempt(
        &self,
        session: &Session,
        call: &Call,
        index: usize,
        ints: &[i32],
        sums: &mut [i32],
    ) -> Result<(), Failure> {
        let cipher = self.cipher(index).map_err(Failure::Local)?;
        let job = Job {
            delegate: &self.delegate,
            session,
            call,
            cipher,
            matrix_id: &self.delegate.ids[index],
            vectors: ints.len() / cipher.tiling().cols(),
            pool: self.pool.as_ref(),
        };
        let result = job.run(ints, sums);
        match &result {
            Ok(()) => {
                call.meter.direct.fetch_add(1, Ordering::Relaxed);
            }
            Err(Failure::Forged(_)) => self.refresh_one(index).map_err(Failure::Local)?,
            Err(_) => {}
        }
        result
    }
}

impl Linear for DirectLinear {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        let d = &self.delegate;
        in_chunks(d, call, id, (xs, vectors, ys), MAX_VECTORS, |index, ints, sums| {
            d.persist(call, index, |session| self.attempt(session, call, index, ints, sums))
        })
    }
}

/// Quantizes at most `chunk` vectors at a time, has `multiply` compute their integers (matrix index, ints, sums
/// [vectors][int8 rows]), and scales these.
pub(super) fn in_chunks(
    delegate: &Delegate,
    call: &Call,
    id: LinearId,
    (xs, vectors, ys): (&[f32], usize, &mut [f32]),
    chunk: usize,
    mut multiply: impl FnMut(usize, &[i32], &mut [i32]) -> Result<(), Error>,
) -> Result<(), Error> {
    if call.is_cancelled() {
        return Err(Error::Cancelled);
    }
    let index = delegate.plan.position(id)?;
    let m = &delegate.plan.matrices[index];
    super::check_sizes(m, xs, vectors, ys)?;
    let (rows, cols, int8_rows) = (m.matrix.rows, m.matrix.int8.cols(), m.matrix.int8.rows());
    for (xs, ys) in xs.chunks(chunk * cols).zip(ys.chunks_mut(chunk * rows)) {
        let vectors = xs.len() / cols;
        let x = integer::quantize(m, xs, vectors)?;
        let mut sums = Zeroizing::new(vec![0i32; vectors * int8_rows]);
        multiply(index, &x.ints, &mut sums)?;
        integer::dequantize_all(m, &x.steps, &sums, ys);
    }
    Ok(())
}
