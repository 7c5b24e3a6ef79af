//! One attempt at one job: encrypt and send, receive and decrypt.

use crate::linear::{
    Call,
    delegate::{Check, Delegate, Failure},
    link::{Event, FRAME, POLL, Session},
};
use bytes::Bytes;
use kernels::{Params, wire};
use proto::v1::{JobCancel, JobHeader, JobPart, JobTiming, TileAnswer, TileJob, tile_answer, tile_job};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};
use trusted_he::{Answers, Decryptor, Encryptor, MatrixCipher, Scratch, Secret, Unverified, Verified};

/// Bytes of one part, at most: large enough that a message's own cost vanishes, small enough to overlap.
const PART_BYTES: usize = 192 << 10;
/// Parts that one vector is cut into for overlap, at least, if it has as many blocks.
const LEAST_PARTS: usize = 4;

/// Input blocks of one part of a vector of `blocks`, for an evaluator that takes messages of `max_message` bytes.
pub(crate) fn blocks_a_part(params: &Params, blocks: usize, max_message: usize) -> usize {
    let limit = PART_BYTES.min(max_message.saturating_sub(FRAME)) / wire::encoded_len(params, params.n());
    limit.min(blocks.div_ceil(LEAST_PARTS)).max(1)
}

impl From<trusted_he::Error> for Failure {
    fn from(e: trusted_he::Error) -> Self {
        Self::of(e, Check::Direct)
    }
}

/// What an attempt works with.
pub(super) struct Job<'a> {
    pub(super) delegate: &'a Delegate,
    pub(super) session: &'a Session,
    pub(super) call: &'a Call,
    pub(super) cipher: &'a MatrixCipher,
    pub(super) matrix_id: &'a [u8; 32],
    pub(super) vectors: usize,
    pub(super) pool: Option<&'a rayon::ThreadPool>,
}

/// What one thread works with: its buffers, and how long it has waited for room to send.
struct Hand {
    scratch: Scratch,
    blocked: Duration,
}

impl Hand {
    fn new() -> Result<Self, Failure> {
        Ok(Self { scratch: Scratch::new()?, blocked: Duration::ZERO })
    }
}

/// An announced job; forgotten on drop, and cancelled unless it was answered.
struct Announced<'a> {
    session: &'a Session,
    id: u64,
    ends: Instant,
    answered: bool,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        self.session.direct.forget(self.id);
        if !self.answered {
            self.session.direct.try_send(message(self.id, tile_job::Body::Cancel(JobCancel {})));
        }
    }
}

fn message(job_id: u64, body: tile_job::Body) -> TileJob {
    TileJob { job_id, body: Some(body) }
}

/// The contract's integers; every size here has passed the contract's limits when the matrix was uploaded.
fn small(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

impl Job<'_> {
    /// `sums` is [vectors][int8 rows], `ints` [vectors][cols].
    pub(super) fn run(&self, ints: &[i32], sums: &mut [i32]) -> Result<(), Failure> {
        let tiling = self.cipher.tiling();
        let params = self.cipher.ring().params();
        let bytes = tiling.tiles() * (wire::HEADER + 1) + wire::encoded_len(params, self.vectors * tiling.rows());
        let (id, events) = self.session.direct.register(tiling.tiles(), bytes).map_err(Failure::Again)?;
        let mut job =
            Announced { session: self.session, id, ends: Instant::now() + self.delegate.deadline, answered: false };
        self.call.meter.round_trips.fetch_add(1, Ordering::Relaxed);

        let start = Instant::now();
        let mut hand = Hand::new()?;
        let (mut encryptors, mut decryptors) = (Vec::new(), Vec::new());
        for x in ints.chunks_exact(tiling.cols()) {
            let secret = Secret::random(self.cipher.ring(), hand.scratch.random());
            let (encryptor, decryptor) = self.cipher.begin(secret, x)?;
            encryptors.push(encryptor);
            decryptors.push(decryptor);
        }
        let sent = self.encrypt(&job, &encryptors, &mut hand);
        drop(encryptors);
        // The caller's own waiting stands for every thread's: they wait for the same socket at the same time.
        let blocked = hand.blocked;
        let mut crypto = start.elapsed().saturating_sub(blocked);
        if let Err(failure) = sent {
            self.account(crypto, blocked, Duration::ZERO, JobTiming::default());
            return Err(failure);
        }
        let mut waited = Duration::ZERO;
        let mut answers = Answers::new(self.cipher, self.vectors);
        let timing = self.collect(&job, &events, &mut answers, &mut waited);
        job.answered = timing.is_ok();
        let start = Instant::now();
        let result = timing.as_ref().map_or(Ok(()), |_| {
            let answers = answers.verify(&decryptors)?;
            let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.call.meter.verify_ns.fetch_add(ns, Ordering::Relaxed);
            self.decrypt(&decryptors, &answers, &mut hand, sums)
        });
        crypto += start.elapsed();
        self.account(crypto, blocked, waited, timing.as_ref().ok().copied().unwrap_or_default());
        timing.and(result)
    }

    /// The evaluator's own time counts as far as the enclave waited for answers; the rest of that waiting and the
    /// waiting for room to send (`blocked`) are the wire.
    fn account(&self, crypto: Duration, blocked: Duration, waited: Duration, timing: JobTiming) {
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let evaluator = timing.compute_ns.saturating_add(timing.queued_ns).min(ns(waited));
        let meter = &self.call.meter;
        let add = |to: &AtomicU64, x: u64| to.fetch_add(x, Ordering::Relaxed);
        add(&meter.crypto_ns, ns(crypto));
        add(&meter.evaluator_ns, evaluator);
        add(&meter.wire_ns, ns(waited) - evaluator + ns(blocked));
    }

    fn wanted(&self, job: &Announced<'_>) -> Result<(), Failure> {
        if self.call.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        if Instant::now() >= job.ends {
            return Err(Failure::Again(format!("no answer within {:.1} s", self.delegate.deadline.as_secs_f64())));
        }
        Ok(())
    }

    /// Adds to `blocked` how long the queue was full.
    fn send(&self, job: &Announced<'_>, body: tile_job::Body, blocked: &mut Duration) -> Result<(), Failure> {
        if self.session.direct.send(message(job.id, body), blocked, || self.wanted(job).is_ok()) {
            return Ok(());
        }
        self.wanted(job)?;
        Err(Failure::Again("the session closed while sending".into()))
    }

    /// Encrypts every block of every vector and sends it, on all threads.
    fn encrypt(&self, job: &Announced<'_>, vectors: &[Encryptor<'_>], hand: &mut Hand) -> Result<(), Failure> {
        let deadline_ms = u32::try_from(self.delegate.deadline.as_millis()).unwrap_or(u32::MAX).max(1);
        let matrix_id = Bytes::copy_from_slice(self.matrix_id);
        let header = JobHeader { matrix_id, vectors: small(vectors.len()), deadline_ms };
        self.send(job, tile_job::Body::Header(header), &mut hand.blocked)?;
        let params = self.cipher.ring().params();
        let blocks = self.cipher.tiling().blocks();
        let share = blocks_a_part(params, blocks, self.session.max_message);
        let work = |hand: &mut Hand| -> Result<(), Failure> {
            let mut words = Vec::new();
            for (v, encryptor) in vectors.iter().enumerate() {
                while let Some(part) = encryptor.take(share) {
                    self.wanted(job)?;
                    let (first_block, len) = (small(part.first()), part.len());
                    words.resize(len * self.cipher.ring().n(), 0);
                    part.encrypt(&mut hand.scratch, &mut words)?;
                    let mut bytes = Vec::with_capacity(wire::encoded_len(params, words.len()));
                    wire::encode(params, wire::Kind::Ntt, &words, &mut bytes);
                    self.call.meter.bytes_up.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    let part = JobPart { vector: small(v), first_block, blocks: bytes.into() };
                    self.send(job, tile_job::Body::Part(part), &mut hand.blocked)?;
                }
            }
            Ok(())
        };
        let pool = self.pool.filter(|_| vectors.len() * blocks > share);
        self.everywhere(pool, hand, work)
    }

    /// Runs `work` on the caller and on every helper of the pool; the first failure wins.
    fn everywhere(
        &self,
        pool: Option<&rayon::ThreadPool>,
        hand: &mut Hand,
        work: impl Fn(&mut Hand) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let Some(pool) = pool else { return work(hand) };
        let failed: Mutex<Option<Failure>> = Mutex::new(None);
        let note = |result: Result<(), Failure>| {
            if let Err(f) = result {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(f);
            }
        };
        pool.in_place_scope(|scope| {
            for _ in 1..self.delegate.threads {
                scope.spawn(|_| note(Hand::new().and_then(|mut hand| work(&mut hand))));
            }
            note(work(hand));
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Receives until every tile has come once.
    fn collect(
        &self,
        job: &Announced<'_>,
        events: &Receiver<Event<TileAnswer>>,
        answers: &mut Answers,
        waited: &mut Duration,
    ) -> Result<JobTiming, Failure> {
        let mut timing = JobTiming::default();
        while !answers.complete() {
            let start = Instant::now();
            let event = loop {
                match events.recv_timeout(POLL) {
                    Ok(event) => break event,
                    Err(RecvTimeoutError::Timeout) => self.wanted(job)?,
                    Err(RecvTimeoutError::Disconnected) => return Err(Failure::Again("the session closed".into())),
                }
            };
            *waited += start.elapsed();
            let part = match event {
                Event::Answer(TileAnswer { body: Some(tile_answer::Body::Part(part)), .. }) => part,
                Event::Answer(TileAnswer { body: Some(tile_answer::Body::Failure(failure)), .. }) => {
                    return Err(self.delegate.refused(self.session, &failure));
                }
                Event::Answer(_) => return Err(Failure::Hostile("answers with nothing".into())),
                Event::Lost(reason) => return Err(Failure::Again(reason)),
            };
            self.call.meter.bytes_down.fetch_add(part.coefficients.len() as u64, Ordering::Relaxed);
            let unverified =
                Unverified { first_tile: part.first_tile, tiles: part.tiles, coefficients: &part.coefficients };
            answers.take(self.cipher, &unverified)?;
            timing = part.timing.unwrap_or(timing);
            if self.call.is_cancelled() {
                return Err(Failure::Cancelled);
            }
        }
        Ok(timing)
    }

    /// Decrypts into `sums`, on all threads if there is enough of it.
    fn decrypt(
        &self,
        vectors: &[Decryptor<'_>],
        answers: &Verified<Answers>,
        hand: &mut Hand,
        sums: &mut [i32],
    ) -> Result<(), Failure> {
        let tiling = self.cipher.tiling();
        let mut pieces = Vec::with_capacity(vectors.len() * tiling.tiles());
        for (v, sums) in sums.chunks_exact_mut(tiling.rows()).enumerate() {
            pieces.extend(sums.chunks_mut(tiling.tile_rows()).enumerate().map(|(tile, out)| (v, tile, out)));
        }
        let pool = self.pool.filter(|_| pieces.len() >= 2 * self.delegate.threads);
        let pieces = Mutex::new(pieces.into_iter());
        self.everywhere(pool, hand, |hand| {
            loop {
                let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((v, tile, out)) = next else { return Ok(()) };
                vectors[v].decrypt_tile(answers, v, tile, &mut hand.scratch, out)?;
            }
        })
    }
}
