//! A thread that makes lanes: whichever matrix has fewest gets the next batch.

use super::{MaskPool, Stats};
use crate::{
    Error,
    linear::{
        Call,
        delegate::{Check, Failure, platform},
        link::{Event, FRAME, MaskedStreams, POLL, Session},
    },
};
use bytes::Bytes;
use kernels::wire;
use proto::v1::{BulkAnswer, BulkHeader, BulkJob, BulkRows, JobCancel, bulk_answer, bulk_job};
use std::{
    sync::{Arc, PoisonError, Weak, atomic::Ordering, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};
use trusted_he::{Batch, Lane, LaneAnswer, LaneAnswers, LaneChallenge, LaneCipher, LaneFolds, Scratch, Verified};

/// Columns encrypted at a time: as many as one pass of the check takes.
const COLUMNS: usize = 8;
/// Bytes of one message, at most.
const MESSAGE: usize = 512 << 10;
/// Rows decrypted at a time.
const ROWS: usize = 32;
/// A live request keeps refilling threads waiting while the pool is not nearly empty.
const LIVE: Duration = Duration::from_millis(20);
/// Between attempts that fail, and between looks at a pool that is full.
const PAUSE: Duration = Duration::from_millis(200);
/// What happened to a refill that is thrown away.
const DISTRUSTED: &str = "an answer about the matrix failed its check while masks were being made";

/// One refilling thread.
pub(super) struct Refiller {
    pool: Weak<MaskPool>,
    scratch: Scratch,
}

/// Rows of words on their way to the evaluator.
struct Message {
    first: usize,
    count: usize,
    bytes: Bytes,
}

/// What a refill works on.
struct Task<'a> {
    pool: &'a MaskPool,
    session: &'a Session,
    streams: &'a MaskedStreams,
    index: usize,
    /// The matrix's when the refill began.
    epoch: u64,
    challenge: Arc<LaneChallenge>,
    scratch: &'a mut Scratch,
    cost: Stats,
}

impl Refiller {
    pub(super) fn new(pool: Weak<MaskPool>) -> Result<Self, Error> {
        Ok(Self { pool, scratch: Scratch::new().map_err(platform)? })
    }

    /// Refills until the pool is closed or gone.
    pub(super) fn work(&mut self) {
        lowest_priority();
        while let Some(pool) = self.pool.upgrade() {
            if pool.closed.load(Ordering::Relaxed) {
                return;
            }
            // Connecting takes as long as uploading the weights does; that is no trouble yet.
            if pool.delegate.link.is_starting() {
                pool.rest();
                continue;
            }
            let Some((index, lanes)) = pool.poorest() else {
                pool.rest();
                continue;
            };
            let result = self.refill(&pool, index, lanes);
            pool.queues().busy[index] = false;
            match result {
                Ok(()) => {}
                Err(reason) => {
                    let name = pool.delegate.plan.matrices[index].matrix.id;
                    let news = pool.queues().trouble.replace(reason.clone()).is_none_or(|before| before != reason);
                    if news {
                        tracing::warn!(matrix = %name, reason = %reason, "masks cannot be refilled; trying again");
                    }
                    pool.rest();
                }
            }
        }
    }

    fn refill(&mut self, pool: &MaskPool, index: usize, lanes: usize) -> Result<(), String> {
        let began = Instant::now();
        let session = pool.delegate.link.session(&Call::default(), began).map_err(|e| e.to_string())?;
        let Some(streams) = &session.masked else { return Err("the session has no bulk stream".into()) };
        let (epoch, challenge) = {
            let queues = pool.queues();
            (queues.epoch[index], pool.challenge(index))
        };
        let scratch = &mut self.scratch;
        let cost = Stats::default();
        let mut task = Task { pool, session: &session, streams, index, epoch, challenge, scratch, cost };
        let name = pool.delegate.plan.matrices[index].matrix.id;
        let made = task.cipher().and_then(|cipher| {
            // The companion is made once; a lane's price is without it.
            let began = Instant::now();
            task.cost = Stats::default();
            let lanes = task.batch(&cipher, lanes)?;
            task.cost.wall = began.elapsed();
            Ok(lanes)
        });
        match made {
            Ok(lanes) => {
                let count = lanes.len();
                let mut queues = pool.queues();
                if queues.epoch[index] != epoch {
                    return Err(DISTRUSTED.into());
                }
                queues.lanes[index].extend(lanes);
                queues.trouble = None;
                let ready = queues.lanes.iter().map(std::collections::VecDeque::len).min().unwrap_or(0);
                drop(queues);
                pool.account(&task.cost, count);
                pool.delegate.metrics.lanes(ready);
                pool.delegate.metrics.refilled(began.elapsed().as_secs_f64());
                tracing::debug!(matrix = %name, lanes = count, seconds = began.elapsed().as_secs_f64(), "masks refilled");
                pool.changed.notify_all();
                Ok(())
            }
            Err(Failure::Forged(check)) => {
                pool.distrust(index);
                Err(pool.delegate.alarm(&session, index, check).to_string())
            }
            Err(Failure::Hostile(what)) => {
                session.close("it has broken the protocol");
                Err(format!("evaluator at {} {what} ({name})", pool.delegate.link.endpoint()))
            }
            Err(Failure::Again(reason)) => Err(reason),
            Err(Failure::Local(e)) => Err(e.to_string()),
            Err(Failure::Cancelled) => Err("cancelled".into()),
        }
    }
}

impl MaskPool {
    /// The matrix that needs lanes most, now marked busy, and how many.
    fn poorest(&self) -> Option<(usize, usize)> {
        let mut queues = self.queues();
        let scarce = (0..self.matrices.len()).filter(|&i| !queues.busy[i] && self.scarce(&queues, i));
        let index = scarce.min_by_key(|&i| queues.lanes[i].len())?;
        let ready = queues.lanes[index].len();
        let room = (self.memory.lanes - ready) / LaneCipher::STEP * LaneCipher::STEP;
        queues.busy[index] = true;
        Some((index, room.clamp(LaneCipher::STEP, self.delegate.ring.n())))
    }

    /// Waits until something changes, but not for long.
    fn rest(&self) {
        let queues = self.queues();
        drop(self.changed.wait_timeout(queues, PAUSE));
    }

    /// Lets live requests go first while there are lanes for them.
    fn yield_to_requests(&self) -> Result<(), Failure> {
        loop {
            if self.closed.load(Ordering::Relaxed) {
                return Err(Failure::Cancelled);
            }
            let scarce = || {
                let queues = self.queues();
                queues.lanes.iter().zip(&queues.wanted).any(|(l, &w)| l.len() <= self.memory.low / 2 || l.len() < w)
            };
            if !self.delegate.busy_within(LIVE) || scarce() {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
    }

    fn account(&self, cost: &Stats, lanes: usize) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        {
            stats.made += lanes as f64 / self.matrices.len() as f64;
        }
        stats.wall += cost.wall;
        stats.crypto += cost.crypto;
        stats.evaluator += cost.evaluator;
        stats.up += cost.up;
        stats.down += cost.down;
    }
}

impl Task<'_> {
    /// The cipher of the matrix; its companion is computed by the evaluator if it is not there.
    fn cipher(&mut self) -> Result<Arc<LaneCipher>, Failure> {
        let slot = &self.pool.matrices[self.index].cipher;
        if let Some(cipher) = slot.read().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(cipher);
        }
        let (ring, m) = (&self.pool.delegate.ring, &self.pool.delegate.plan.matrices[self.index]);
        let (rows, cols, n) = (m.matrix.int8.rows(), m.matrix.int8.cols(), ring.n());
        let mut folds = LaneFolds::new(&self.challenge, n);
        let mut messages = Vec::new();
        let mut words = Vec::new();
        let per_message = (MESSAGE / (8 * n)).max(1);
        for first in (0..cols).step_by(per_message) {
            let count = per_message.min(cols - first);
            words.clear();
            (first..first + count).for_each(|j| words.extend_from_slice(self.pool.common.block(j)));
            folds.add(ring, &self.challenge, first, count, &words);
            messages.push(self.message(first, count, &words));
        }
        let sums = folds.finish(ring);
        let mut companion = Vec::new();
        let challenge = self.challenge.clone();
        self.multiply((rows, n), &messages, |_, answer| {
            companion.push(challenge.verify(ring, &sums, answer).map_err(|e| Failure::of(e, Check::Bulk))?);
            Ok(())
        })?;
        companion.sort_by_key(Verified::first_row);
        let cipher = LaneCipher::new(ring, (rows, cols), m.log2_t, self.pool.common.clone(), companion);
        let cipher = Arc::new(cipher.map_err(|e| Failure::of(e, Check::Bulk))?);
        let queues = self.pool.queues();
        if queues.epoch[self.index] != self.epoch {
            return Err(Failure::Again(DISTRUSTED.into()));
        }
        *slot.write().unwrap_or_else(PoisonError::into_inner) = Some(cipher.clone());
        drop(queues);
        Ok(cipher)
    }

    /// One batch, from fresh randomness to lanes.
    fn batch(&mut self, cipher: &LaneCipher, lanes: usize) -> Result<Vec<Lane>, Failure> {
        let bulk = |e| Failure::of(e, Check::Bulk);
        let ring = self.pool.delegate.ring.clone();
        let start = own_time();
        let mut batch = cipher.batch(lanes, self.scratch.random()).map_err(bulk)?;
        let mut folds = LaneFolds::new(&self.challenge, lanes);
        let mut messages = Vec::new();
        let mut words = vec![0; COLUMNS * lanes];
        self.cost.crypto += own_time() - start;
        while let Some(part) = batch.take(COLUMNS) {
            self.pool.yield_to_requests()?;
            let start = own_time();
            let (first, count) = (part.first(), part.len());
            let words = &mut words[..count * lanes];
            part.encrypt(&self.challenge, &mut folds, self.scratch, words).map_err(bulk)?;
            messages.push(self.message(first, count, words));
            self.cost.crypto += own_time() - start;
        }
        let sums = folds.finish(&ring);
        let challenge = self.challenge.clone();
        let rows = self.pool.delegate.plan.matrices[self.index].matrix.int8.rows();
        self.multiply((rows, lanes), &messages, |task, answer| {
            let start = own_time();
            let answer = challenge.verify(&ring, &sums, answer).map_err(bulk)?;
            task.cost.crypto += own_time() - start;
            task.decrypt(&mut batch, &answer)
        })?;
        let start = own_time();
        let lanes = batch.finish().map_err(bulk);
        self.cost.crypto += own_time() - start;
        lanes
    }

    fn decrypt(&mut self, batch: &mut Batch<'_>, answer: &Verified<LaneAnswer>) -> Result<(), Failure> {
        let shard = answer.rows();
        for first in shard.clone().step_by(ROWS) {
            self.pool.yield_to_requests()?;
            let start = own_time();
            let rows = first..(first + ROWS).min(shard.end);
            batch.decrypt(answer, rows, self.scratch).map_err(|e| Failure::of(e, Check::Bulk))?;
            self.cost.crypto += own_time() - start;
        }
        Ok(())
    }

    fn message(&self, first: usize, count: usize, words: &[u64]) -> Message {
        let params = self.pool.delegate.ring.params();
        let mut bytes = Vec::with_capacity(wire::encoded_len(params, words.len()));
        wire::encode(params, wire::Kind::Lanes, words, &mut bytes);
        Message { first, count, bytes: bytes.into() }
    }

    /// Has the evaluator multiply the matrix of `rows` rows with what `messages` hold; `done` gets each shard of the answer
    /// when it is complete, to check it. The messages are sent once.
    fn multiply(
        &mut self,
        (rows, lanes): (usize, usize),
        messages: &[Message],
        mut done: impl FnMut(&mut Self, LaneAnswer) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let d = &self.pool.delegate;
        let bytes = rows * (wire::HEADER + 1) + wire::encoded_len(d.ring.params(), rows * lanes);
        let (job_id, events) = self.streams.bulk.register(rows, bytes).map_err(Failure::Again)?;
        let small = |x: usize| u32::try_from(x).unwrap_or(u32::MAX);
        let ends = Instant::now() + d.deadline;
        let send = |body| {
            let job = BulkJob { job_id, body: Some(body) };
            let wanted = || !self.pool.closed.load(Ordering::Relaxed) && Instant::now() < ends;
            if self.streams.bulk.send(job, &mut Duration::default(), wanted) {
                return Ok(());
            }
            Err(Failure::Again("the session closed, or took nothing, while masks were being sent".into()))
        };
        let _job = Pending { streams: self.streams, job_id };
        send(bulk_job::Body::Header(BulkHeader {
            matrix_id: Bytes::copy_from_slice(&d.ids[self.index]),
            first_row: 0,
            rows: small(rows),
            lanes: small(lanes),
            deadline_ms: small(usize::try_from(d.deadline.as_millis()).unwrap_or(usize::MAX)),
        }))?;
        let mut up = 0;
        for Message { first, count, bytes } in messages {
            if bytes.len() + FRAME > self.session.max_message {
                return Err(Failure::Local(Error::Evaluator(format!(
                    "at {} takes messages of {} bytes, masks need {}",
                    d.link.endpoint(),
                    self.session.max_message,
                    bytes.len() + FRAME
                ))));
            }
            up += bytes.len() as u64;
            let rows = BulkRows { first_col: small(*first), cols: small(*count), words: bytes.clone() };
            send(bulk_job::Body::Rows(rows))?;
        }
        self.cost.up += up;
        let mut answers = LaneAnswers::new(rows, lanes);
        while !answers.complete() {
            let part = match events.recv_timeout(POLL) {
                Ok(Event::Answer(BulkAnswer { body: Some(bulk_answer::Body::Part(part)), .. })) => part,
                Ok(Event::Answer(BulkAnswer { body: Some(bulk_answer::Body::Failure(failure)), .. })) => {
                    return Err(d.refused(self.session, &failure));
                }
                Ok(Event::Answer(_)) => return Err(Failure::Hostile("answers with nothing".into())),
                Ok(Event::Lost(reason)) => return Err(Failure::Again(reason)),
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::Again("the session closed".into())),
                Err(RecvTimeoutError::Timeout) if self.pool.closed.load(Ordering::Relaxed) => {
                    return Err(Failure::Cancelled);
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= ends => {
                    return Err(Failure::Again(format!("no masks within {:.1} s", d.deadline.as_secs_f64())));
                }
                Err(RecvTimeoutError::Timeout) => continue,
            };
            let start = own_time();
            self.cost.down += part.words.len() as u64;
            // Its own word, which may be anything.
            let spent = Duration::from_nanos(part.timing.map_or(0, |t| t.compute_ns));
            self.cost.evaluator = self.cost.evaluator.saturating_add(spent);
            let complete = answers.take(&d.ring, part.first_row, part.rows, &part.words);
            let complete = complete.map_err(|e| Failure::of(e, Check::Bulk))?;
            self.cost.crypto += own_time() - start;
            for answer in complete {
                done(self, answer)?;
            }
        }
        Ok(())
    }
}

/// A job in flight; forgotten and cancelled on drop.
struct Pending<'a> {
    streams: &'a MaskedStreams,
    job_id: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let bulk = &self.streams.bulk;
        bulk.forget(self.job_id);
        // Of no effect on a job that was answered.
        bulk.try_send(BulkJob { job_id: self.job_id, body: Some(bulk_job::Body::Cancel(JobCancel {})) });
    }
}

/// Live requests come first; without the right to say so, the pool still yields to them.
fn lowest_priority() {
    let thread = rustix::thread::gettid();
    if let Err(e) = rustix::process::setpriority_process(Some(thread), 19) {
        tracing::warn!("refilling threads keep their priority: {e}");
    }
}

/// The time this thread has run: what the cryptography costs, whoever else is running.
fn own_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let part = |x: i64| u64::try_from(x).unwrap_or(0);
    Duration::from_secs(part(now.tv_sec)) + Duration::from_nanos(part(now.tv_nsec))
}
