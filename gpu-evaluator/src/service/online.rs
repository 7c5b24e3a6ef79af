//! One online stream. The transport's own task reads the jobs, computes them and takes the answers: no other task
//! stands between a message and its product.

use super::{Parts, Refusal, remembered::Remembered};
use crate::{
    Error,
    drain::Draining,
    metrics::{self, Outcome, Stream},
    timing::timing,
};
use bytes::Bytes;
use futures::FutureExt;
use kernels::{
    Int8Matrix,
    words::{self, pack, packed_len, unpack},
};
use proto::v1::{FailureKind, JobFailure, OnlineAnswer, OnlineJob, online_answer::Body};
use std::{collections::VecDeque, sync::Arc, time::Instant};
use tokio::{sync::OwnedSemaphorePermit, task::block_in_place};
use tonic::{Status, Streaming};

/// Vectors in one pass over the weights at most.
const PASS: usize = super::MAX_VECTORS as usize;
/// Products with fewer multiply-adds than this (some 100 us) are computed without telling the runtime, which would
/// start another thread for its tasks.
const BRIEF: usize = 2 << 20;
/// Bytes of a word.
const WORD: usize = size_of::<u32>();

/// A stream with what has been read from it and what has been computed for it.
pub(super) struct Online {
    parts: Arc<Parts>,
    inbound: Streaming<OnlineJob>,
    draining: Draining,
    waiting: VecDeque<Job>,
    answers: VecDeque<OnlineAnswer>,
    seen: Remembered,
    /// How the stream ends once everything is answered.
    end: Option<Result<(), Status>>,
    _stream: OwnedSemaphorePermit,
}

/// A job that was found good.
struct Job {
    id: u64,
    weights: Arc<Int8Matrix>,
    vectors: usize,
    /// Bits of a word, 1 to 32.
    bits: u32,
    /// [vectors][cols], packed.
    words: Bytes,
    arrived: Instant,
}

impl Online {
    pub(super) fn new(parts: Arc<Parts>, inbound: Streaming<OnlineJob>, stream: OwnedSemaphorePermit) -> Self {
        Self {
            draining: parts.draining.clone(),
            parts,
            inbound,
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            seen: Remembered::default(),
            end: None,
            _stream: stream,
        }
    }

    /// The next answer: all of them until the peer has closed the stream, or it breaks, or the daemon leaves.
    pub(super) async fn next(&mut self) -> Option<Result<OnlineAnswer, Status>> {
        loop {
            if let Some(answer) = self.answers.pop_front() {
                return Some(Ok(answer));
            }
            self.read_what_is_there();
            if !self.waiting.is_empty() {
                self.product();
            } else if self.answers.is_empty() {
                match self.end.take() {
                    None => self.read().await,
                    Some(end) => {
                        self.end = Some(Ok(()));
                        return end.err().map(Err);
                    }
                }
            }
        }
    }

    /// Waits for a message or the end.
    async fn read(&mut self) {
        let message = tokio::select! {
            biased;
            message = self.inbound.message() => message,
            () = self.draining.wait() => Err(Status::unavailable("the evaluator is draining")),
        };
        self.message(message);
    }

    /// Takes all messages that have arrived, as far as a stream may have jobs in flight.
    fn read_what_is_there(&mut self) {
        let (mut bytes, config) = (0, &self.parts.config);
        let (most, limit) = (config.max_message, config.max_jobs_per_stream);
        while self.end.is_none() && self.waiting.len() + self.answers.len() < limit && bytes < most {
            let Some(message) = self.inbound.message().now_or_never() else { return };
            bytes += self.message(message);
        }
    }

    /// Takes a message; how many bytes it had.
    fn message(&mut self, message: Result<Option<OnlineJob>, Status>) -> usize {
        let job = match message {
            Ok(Some(job)) => job,
            Ok(None) => {
                self.end = Some(Ok(()));
                return 0;
            }
            Err(status) => {
                tracing::debug!("online stream ends: {}", status.message());
                self.end = Some(Err(status));
                return 0;
            }
        };
        let (id, bytes) = (job.job_id, job.words.len());
        metrics::bytes_in(Stream::Online, bytes);
        match self.check(job) {
            Ok(job) => self.waiting.push_back(job),
            Err(refusal) => self.fail(id, refusal),
        }
        bytes
    }

    fn check(&mut self, job: OnlineJob) -> Result<Job, Refusal> {
        let OnlineJob { job_id, matrix_id, vectors, words, word_bits: bits } = job;
        let arrived = Instant::now();
        let malformed = |what: String| Err((FailureKind::Malformed, what));
        if !self.seen.insert(job_id) {
            return malformed(format!("job id {job_id} is used twice"));
        }
        let vectors = super::vectors(vectors)?;
        let (_, weights) = self.parts.weights(&matrix_id)?;
        let cols = weights.cols();
        if !(1..=u32::BITS).contains(&bits) {
            return malformed(format!("{bits} bits a word, allowed are 1 to 32"));
        }
        let expected = vectors * packed_len(bits, cols);
        if words.len() != expected {
            return malformed(format!(
                "{} bytes, {vectors} vectors of {cols} words of {bits} bits are {expected}",
                words.len()
            ));
        }
        let vector = |bytes| words::check(bits, bytes, cols);
        if let Err(e) = words.chunks(packed_len(bits, cols)).try_for_each(vector) {
            return malformed(e.to_string());
        }
        self.parts.allow(vectors * (cols + weights.rows()) * WORD)?;
        Ok(Job { id: job_id, weights, vectors, bits, words, arrived })
    }

    /// One pass over the weights of the oldest job, for all waiting jobs that want them.
    fn product(&mut self) {
        let jobs = pass(&mut self.waiting);
        let Some(Job { weights, .. }) = jobs.first() else { return };
        let (started, _urgent) = (Instant::now(), self.parts.precedence.urgent());
        let vectors = jobs.iter().map(|j| j.vectors).sum();
        let (cols, team) = (weights.cols(), &self.parts.team);
        let mut xs = vec![0u32; vectors * cols];
        let unpacked = unpack_all(&jobs, cols, &mut xs);
        let product = match weights.data().len().saturating_mul(vectors) < BRIEF {
            true => team.multiply(weights, &xs, vectors),
            false => block_in_place(|| team.multiply(weights, &xs, vectors)),
        };
        let product = unpacked.and(product);
        let (mut first, mut rows) = (0, Vec::with_capacity(weights.rows()));
        for job in &jobs {
            let taken = first..first + job.vectors;
            first = taken.end;
            match &product {
                Ok(product) => {
                    let mut words = Vec::with_capacity(job.vectors * packed_len(job.bits, weights.rows()));
                    for vector in taken {
                        rows.clear();
                        product.append(vector, &mut rows);
                        pack(job.bits, &rows, &mut words);
                    }
                    metrics::bytes_out(Stream::Online, words.len());
                    metrics::job(Stream::Online, Outcome::Answered);
                    let timing = timing(Stream::Online, started - job.arrived, started.elapsed());
                    self.answers.push_back(OnlineAnswer {
                        job_id: job.id,
                        body: Some(Body::Words(words.into())),
                        timing: Some(timing),
                    });
                }
                Err(e) => self.fail(job.id, (FailureKind::Internal, e.to_string())),
            }
        }
    }

    fn fail(&mut self, job_id: u64, (kind, message): Refusal) {
        tracing::debug!(job = job_id, kind = kind.as_str_name(), "{message}");
        metrics::job(Stream::Online, Outcome::Failed(kind));
        let failure = JobFailure { kind: kind.into(), message };
        self.answers.push_back(OnlineAnswer { job_id, body: Some(Body::Failure(failure)), timing: None });
    }
}

/// The words of all vectors, [vectors][cols].
fn unpack_all(jobs: &[Job], cols: usize, xs: &mut [u32]) -> Result<(), Error> {
    let packed =
        jobs.iter().flat_map(|job| job.words.chunks(packed_len(job.bits, cols)).map(|bytes| (job.bits, bytes)));
    // They were checked when the jobs came.
    packed.zip(xs.chunks_exact_mut(cols)).try_for_each(|((bits, bytes), x)| Ok(unpack(bits, bytes, x)?))
}

/// Takes the oldest waiting job and those that can share its pass over the weights.
fn pass(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let Some(oldest) = waiting.pop_front() else { return Vec::new() };
    let mut vectors = oldest.vectors;
    let mut jobs = vec![oldest];
    for job in std::mem::take(waiting) {
        if Arc::ptr_eq(&jobs[0].weights, &job.weights) && vectors + job.vectors <= PASS {
            vectors += job.vectors;
            jobs.push(job);
        } else {
            waiting.push_back(job);
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_matrix_share_a_pass_as_far_as_it_goes() {
        let [a, b] = [1, 2].map(|w| Arc::new(Int8Matrix::new(1, 1, vec![w]).expect("shape")));
        let job = |id, weights: &Arc<Int8Matrix>, vectors| Job {
            id,
            weights: Arc::clone(weights),
            vectors,
            bits: 32,
            words: Bytes::new(),
            arrived: Instant::now(),
        };
        let mut waiting: VecDeque<_> =
            [job(1, &a, 1), job(2, &b, 2), job(3, &a, 60), job(4, &a, 4), job(5, &a, 3), job(6, &b, 1)].into();
        let mut passes = Vec::new();
        while !waiting.is_empty() {
            passes.push(pass(&mut waiting).iter().map(|j| j.id).collect::<Vec<_>>());
        }
        assert_eq!(passes, [vec![1, 3, 5], vec![2, 6], vec![4]]);
    }
}
