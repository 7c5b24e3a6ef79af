//! Linear layers by the evaluator, on encrypted activations (protocol `direct`).
//!
//! Every call is one job: the input blocks go out while later ones are still being encrypted, tiles come back
//! while later ones are still being computed, and are decrypted as they come. A call that fails is repeated
//! from the start, with fresh secrets and errors; it never yields numbers.

mod job;
#[cfg(test)]
mod tests;

use super::{
    Call, Linear, LinearId, helpers, integer,
    link::{EvaluatorConfig, Link, Residents},
};
use crate::{Error, planner::Plan};
use job::{Failure, Job};
use kernels::Ring;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;
use trusted_he::{MatrixCipher, Random};
use zeroize::Zeroizing;

/// Vectors of one job; the contract allows 64.
const MAX_VECTORS: usize = 64;
/// Failed attempts of one call after which it is given up, whatever time is left.
const MAX_ATTEMPTS: u32 = 12;

/// Delegates to one evaluator.
pub struct DirectLinear {
    plan: Arc<Plan>,
    /// In the plan's order.
    ciphers: Vec<MatrixCipher>,
    ids: Vec<[u8; 32]>,
    threads: usize,
    pool: Option<rayon::ThreadPool>,
    link: Link,
    retry_for: Duration,
    deadline: Duration,
}

impl DirectLinear {
    /// Draws A and computes A' for every matrix (about a second for 100 million weights), and starts to connect in the
    /// background of `handle`. Does not wait for the evaluator. Encryption and decryption use `threads` threads.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is not usable, [`Error::Platform`] without entropy or threads.
    pub fn new(
        config: &EvaluatorConfig,
        ring: &Ring,
        plan: Arc<Plan>,
        handle: Handle,
        threads: usize,
    ) -> Result<Self, Error> {
        config.endpoint()?;
        let threads = threads.max(1);
        let start = Instant::now();
        let mut random = Random::from_os().map_err(platform)?;
        let mut ciphers = Vec::with_capacity(plan.matrices.len());
        for m in &plan.matrices {
            let cipher = MatrixCipher::new(ring, m.tiling, m.log2_t, &m.matrix.int8, &mut random, threads)
                .map_err(|e| Error::Bug(format!("{}: {e}", m.matrix.id)))?;
            ciphers.push(cipher);
        }
        let bytes: usize = ciphers.iter().map(MatrixCipher::bytes).sum();
        let seconds = start.elapsed().as_secs_f64();
        tracing::info!(matrices = ciphers.len(), bytes, seconds, "encryption prepared");
        let ids: Vec<[u8; 32]> = plan.matrices.iter().map(|m| m.matrix.int8.id().0).collect();
        let residents =
            Residents { ring: ring.clone(), plan: plan.clone(), ids: ids.clone(), residency: config.residency };
        Ok(Self {
            plan,
            ciphers,
            ids,
            threads,
            pool: helpers(threads, "direct")?,
            link: Link::open(config, residents, handle)?,
            retry_for: config.retry_for,
            deadline: config.deadline,
        })
    }

    /// As [`DirectLinear::new`], and waits up to `retry_for` until the evaluator holds every matrix.
    ///
    /// # Errors
    /// As `new`, and [`Error::Evaluator`] with the reason if it is not there in time.
    pub fn connect(
        config: &EvaluatorConfig,
        ring: &Ring,
        plan: Arc<Plan>,
        handle: Handle,
        threads: usize,
    ) -> Result<Self, Error> {
        let direct = Self::new(config, ring, plan, handle, threads)?;
        direct.link.session(&Call::default(), Instant::now() + direct.retry_for)?;
        Ok(direct)
    }

    /// The evaluator, while one is connected.
    pub fn describe(&self) -> Option<proto::v1::EvaluatorInfo> {
        self.link.current().map(|s| s.info().clone())
    }

    /// At most [`MAX_VECTORS`] vectors: integers in, integers out ([vectors][int8 rows]).
    fn multiply(&self, call: &Call, index: usize, ints: &[i32], vectors: usize, sums: &mut [i32]) -> Result<(), Error> {
        let start = Instant::now();
        let mut attempts = 0;
        loop {
            let session = self.link.session(call, start + self.retry_for)?;
            let job = Job {
                session: &session,
                call,
                cipher: &self.ciphers[index],
                matrix_id: &self.ids[index],
                vectors,
                deadline: self.deadline,
                threads: self.threads,
                pool: self.pool.as_ref(),
            };
            let reason = match job.run(ints, sums) {
                Ok(()) => return Ok(()),
                Err(Failure::Cancelled) => return Err(Error::Cancelled),
                Err(Failure::Local(e)) => return Err(e),
                Err(Failure::Hostile(what)) => {
                    session.close("it has broken the protocol");
                    let name = self.plan.matrices[index].matrix.id;
                    return Err(Error::Evaluator(format!("at {} {what} ({name})", self.link.endpoint)));
                }
                Err(Failure::Again(reason)) => reason,
            };
            attempts += 1;
            let spent = start.elapsed();
            if spent >= self.retry_for || attempts >= MAX_ATTEMPTS {
                return Err(Error::Evaluator(format!(
                    "at {} failed {attempts} times in {:.1} s, last: {reason}",
                    self.link.endpoint,
                    spent.as_secs_f64()
                )));
            }
            tracing::warn!(matrix = %self.plan.matrices[index].matrix.id, attempts, reason = %reason, "repeating a linear call");
            call.meter.retries.fetch_add(1, Ordering::Relaxed);
            pause(call, Duration::from_millis(10) * 2u32.pow(attempts.min(7)))?;
        }
    }
}

/// Waits unless the call is cancelled.
fn pause(call: &Call, time: Duration) -> Result<(), Error> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(super::link::POLL);
    }
    Ok(())
}

fn platform(e: trusted_he::Error) -> Error {
    match e {
        trusted_he::Error::Entropy(_) => Error::Platform(e.to_string()),
        trusted_he::Error::Answer(what) => Error::Evaluator(what),
        trusted_he::Error::Misuse(what) => Error::Bug(what),
    }
}

impl Linear for DirectLinear {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let index = self.plan.position(id)?;
        let m = &self.plan.matrices[index];
        super::check_sizes(m, xs, vectors, ys)?;
        let (rows, cols, int8_rows) = (m.matrix.rows, m.matrix.int8.cols(), m.matrix.int8.rows());
        for (xs, ys) in xs.chunks(MAX_VECTORS * cols).zip(ys.chunks_mut(MAX_VECTORS * rows)) {
            let vectors = xs.len() / cols;
            let x = integer::quantize(m, xs, vectors)?;
            let mut sums = Zeroizing::new(vec![0i32; vectors * int8_rows]);
            self.multiply(call, index, &x.ints, vectors, &mut sums)?;
            let lo_plane = int8_rows - rows;
            for ((ys, sums), &step) in ys.chunks_exact_mut(rows).zip(sums.chunks_exact(int8_rows)).zip(&x.steps) {
                for (row, y) in ys.iter_mut().enumerate() {
                    *y = integer::dequantize(m, row, step, sums[row], sums[lo_plane + row]);
                }
            }
        }
        Ok(())
    }
}
