//! Linear layers by the evaluator, on one-time-padded activations (protocols `masked` and `auto`).
//!
//! A call takes a lane of the matrix for each of its vectors. The lane is used up when its message is made, before it
//! is sent: whatever happens then, a repetition takes another one. Without lanes `masked` waits for the pool and `auto`
//! encrypts the activations instead.

use super::{
    Call, Linear, LinearId,
    delegate::{Check, Delegate, Failure, MAX_VECTORS},
    direct::{DirectLinear, in_chunks},
    link::{MaskedStreams, NoAnswer, Session},
};
use crate::{Error, pool::MaskPool};
use bytes::Bytes;
use kernels::words::{pack, packed_len, unpack};
use proto::v1::{JobTiming, OnlineAnswer, OnlineJob, online_answer};
use rayon::prelude::*;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};
use trusted_he::{Lane, Masked, Unproven};
use zeroize::Zeroizing;

/// Delegates to one evaluator, with masks from a pool.
pub struct MaskedLinear {
    delegate: Arc<Delegate>,
    pool: Arc<MaskPool>,
    /// For calls that find no lanes.
    direct: Option<Arc<DirectLinear>>,
}

impl MaskedLinear {
    /// Protocol `masked`, or `auto` if there is a `direct` to fall back to.
    pub fn new(delegate: Arc<Delegate>, pool: Arc<MaskPool>, direct: Option<Arc<DirectLinear>>) -> Self {
        Self { delegate, pool, direct }
    }

    fn attempt(
        &self,
        session: &Session,
        call: &Call,
        index: usize,
        ints: &[i32],
        sums: &mut [i32],
    ) -> Result<(), Failure> {
        let vectors = ints.len() / self.delegate.plan.matrices[index].matrix.int8.cols();
        let lanes = match (self.pool.take(index, vectors), &self.direct) {
            (Some(lanes), _) => lanes,
            (None, Some(direct)) => return direct.attempt(session, call, index, ints, sums),
            (None, None) => self.pool.wait(call, index, vectors, self.delegate.retry_for)?,
        };
        let Some(streams) = &session.masked else {
            return Err(Failure::Local(Error::Bug("a session without the streams of masked delegation".into())));
        };
        let result = Job { delegate: &self.delegate, session, streams, call, index }.run(lanes, &self.pool, ints, sums);
        match &result {
            Ok(()) => {
                call.meter.masked.fetch_add(1, Ordering::Relaxed);
            }
            Err(Failure::Forged(_)) => self.pool.distrust(index),
            Err(_) => {}
        }
        result
    }
}

impl Linear for MaskedLinear {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        let d = &self.delegate;
        let chunk = MAX_VECTORS.min(self.pool.capacity());
        in_chunks(d, call, id, (xs, vectors, ys), chunk, |index, ints, sums| {
            d.persist(call, index, |session| self.attempt(session, call, index, ints, sums))
        })
    }
}

/// One attempt at one job.
struct Job<'a> {
    delegate: &'a Delegate,
    session: &'a Session,
    streams: &'a MaskedStreams,
    call: &'a Call,
    index: usize,
}

impl Job<'_> {
    /// `sums` is [vectors][int8 rows], `ints` [vectors][cols]; one lane a vector.
    fn run(&self, lanes: Vec<Lane>, pool: &MaskPool, ints: &[i32], sums: &mut [i32]) -> Result<(), Failure> {
        let start = Instant::now();
        let (rows, cols, bits) = self.shape();
        let vectors = lanes.len();
        let pad = |(lane, x): (Lane, &[i32])| {
            let (mut padded, mut words) = (vec![0u32; cols], Vec::with_capacity(packed_len(bits, cols)));
            let masked = lane.mask(x, &mut padded).map_err(|e| Failure::of(e, Check::Online))?;
            pack(bits, &padded, &mut words);
            Ok((masked, words))
        };
        let padded: Result<Vec<(Masked, Vec<u8>)>, Failure> = if is_much(vectors, cols) {
            lanes.into_par_iter().zip(ints.par_chunks_exact(cols)).map(pad).collect()
        } else {
            lanes.into_iter().zip(ints.chunks_exact(cols)).map(pad).collect()
        };
        let (masked, words): (Vec<Masked>, Vec<Vec<u8>>) = padded?.into_iter().unzip();
        let words = words.concat();
        let job = OnlineJob {
            job_id: self.streams.online.job_id(),
            matrix_id: Bytes::copy_from_slice(&self.delegate.ids[self.index]),
            vectors: u32::try_from(vectors).unwrap_or(u32::MAX),
            words: words.into(),
            word_bits: bits,
        };
        let meter = &self.call.meter;
        meter.round_trips.fetch_add(1, Ordering::Relaxed);
        meter.bytes_up.fetch_add(job.words.len() as u64, Ordering::Relaxed);
        let ends = start + self.delegate.deadline;
        let wanted = || !self.call.is_cancelled() && Instant::now() < ends;
        let masking = start.elapsed();
        let sent = Instant::now();
        let answer = match self.streams.online.call(job, vectors * packed_len(bits, rows), wanted) {
            Ok(answer) => self.words(answer),
            Err(NoAnswer::Lost(reason)) => Err(Failure::Again(reason)),
            Err(NoAnswer::Unwanted) if self.call.is_cancelled() => Err(Failure::Cancelled),
            Err(NoAnswer::Unwanted) => {
                Err(Failure::Again(format!("no answer within {:.1} s", self.delegate.deadline.as_secs_f64())))
            }
        };
        let waited = sent.elapsed();
        let start = Instant::now();
        let result = answer.and_then(|(answer, timing)| {
            meter.bytes_down.fetch_add(answer.len() as u64, Ordering::Relaxed);
            self.open(masked, pool, &answer, ints, sums).map(|()| timing)
        });
        let opening = start.elapsed();
        let timing = result.as_ref().ok().copied().unwrap_or_default();
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let evaluator = timing.compute_ns.saturating_add(timing.queued_ns).min(ns(waited));
        meter.crypto_ns.fetch_add(ns(masking + opening), Ordering::Relaxed);
        meter.evaluator_ns.fetch_add(evaluator, Ordering::Relaxed);
        meter.wire_ns.fetch_add(ns(waited) - evaluator, Ordering::Relaxed);
        result.map(|_| ())
    }

    /// Int8 rows and columns of the matrix, and the bits of a word modulo t.
    fn shape(&self) -> (usize, usize, u32) {
        let m = &self.delegate.plan.matrices[self.index];
        (m.matrix.int8.rows(), m.matrix.int8.cols(), m.log2_t)
    }

    fn words(&self, answer: OnlineAnswer) -> Result<(Bytes, JobTiming), Failure> {
        match answer.body {
            Some(online_answer::Body::Words(words)) => Ok((words, answer.timing.unwrap_or_default())),
            Some(online_answer::Body::Failure(failure)) => Err(self.delegate.refused(self.session, &failure)),
            None => Err(Failure::Hostile("answers with nothing".into())),
        }
    }

    /// Takes the masks off and checks; every vector must pass.
    fn open(
        &self,
        masked: Vec<Masked>,
        pool: &MaskPool,
        answer: &Bytes,
        ints: &[i32],
        sums: &mut [i32],
    ) -> Result<(), Failure> {
        let (rows, cols, bits) = self.shape();
        let each = packed_len(bits, rows);
        let expected = masked.len() * each;
        if answer.len() != expected {
            return Err(Failure::Hostile(format!("answers {} bytes, expected {expected}", answer.len())));
        }
        let challenge = pool.challenge(self.index);
        let unmask = |(masked, bytes): (Masked, &[u8])| {
            let mut words = Zeroizing::new(vec![0u32; rows]);
            unpack(bits, bytes, &mut words).map_err(|e| Failure::Hostile(format!("answers {e}")))?;
            masked.unmask(&words).map_err(|e| Failure::of(e, Check::Online))
        };
        let verify = |((unproven, x), y): ((Unproven, &[i32]), &mut [i32])| {
            unproven.verify(&challenge, x, y).map_err(|e| Failure::of(e, Check::Online))
        };
        let much = is_much(masked.len(), rows);
        let unproven: Result<Vec<Unproven>, Failure> = if much {
            masked.into_par_iter().zip(answer.par_chunks_exact(each)).map(unmask).collect()
        } else {
            masked.into_iter().zip(answer.chunks_exact(each)).map(unmask).collect()
        };
        let (unproven, start) = (unproven?, Instant::now());
        let result = if much {
            let sums = sums.par_chunks_exact_mut(rows);
            unproven.into_par_iter().zip(ints.par_chunks_exact(cols)).zip(sums).try_for_each(verify)
        } else {
            unproven.into_iter().zip(ints.chunks_exact(cols)).zip(sums.chunks_exact_mut(rows)).try_for_each(verify)
        };
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.call.meter.verify_ns.fetch_add(spent, Ordering::Relaxed);
        result
    }
}

/// Whether vectors of so many words are worth several threads: some tens of microseconds of work.
fn is_much(vectors: usize, words: usize) -> bool {
    vectors > 3 && vectors * words >= 1 << 13
}

#[cfg(test)]
mod tests;
