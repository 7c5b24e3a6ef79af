//! A job of the offline half of masked delegation: rows of W·B mod q, lane by lane, on threads that stand back for
//! everything else.

use crate::{
    executor::{Next, Work},
    metrics::{self, Stream},
    precedence::Precedence,
    ticket::{Answer, Ticket},
    timing::Clock,
};
use bytes::Bytes;
use kernels::{Digits, Int8Matrix, Ring, matmul::matmul, wire};
use proto::v1::{BulkAnswer, BulkPart, FailureKind, JobFailure, JobTiming, bulk_answer::Body};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::OwnedSemaphorePermit;

/// Rows of one answer part: up to 836 KB for 2048 lanes. The digits of eight lanes are read once for so many rows.
const ROWS: usize = 64;
/// Lanes between two looks at who else wants the processor.
const LANES: usize = 256;
/// How long a thread stands back at each look, at most.
const STAND_BACK: Duration = Duration::from_millis(20);
/// The lowest priority there is.
const NICE: i32 = 19;

/// A complete job.
pub struct Bulk {
    /// The ring of the words.
    pub ring: Ring,
    /// W.
    pub weights: Arc<Int8Matrix>,
    /// Rows of W asked for.
    pub rows: Range<usize>,
    /// B.
    pub digits: Digits,
    /// The share of its stream's memory that B takes.
    pub memory: OwnedSemaphorePermit,
    /// The job as its peer sees it.
    pub ticket: Arc<Ticket<BulkAnswer>>,
    /// Started when B was complete.
    pub clock: Clock,
    /// Who goes before it.
    pub precedence: Arc<Precedence>,
    /// How far it is.
    pub progress: Progress,
}

/// Groups of rows taken, and delivered.
#[derive(Default)]
pub struct Progress {
    taken: AtomicUsize,
    delivered: AtomicUsize,
}

/// Words of one group of rows, all its lanes, and of a few lanes of it.
#[derive(Default)]
pub struct Words {
    all: Vec<u64>,
    few: Vec<u64>,
}

impl Bulk {
    /// W[rows]·B, packed for the wire; nothing if the job ended before it was done.
    fn product(&self, rows: Range<usize>, words: &mut Words) -> Result<Option<Bytes>, kernels::Error> {
        let width = self.digits.lanes();
        words.all.resize(rows.len() * width, 0);
        for first in (0..width).step_by(LANES) {
            self.precedence.stand_back(STAND_BACK);
            if self.ticket.ended() {
                return Ok(None);
            }
            let lanes = first..(first + LANES).min(width);
            words.few.resize(rows.len() * lanes.len(), 0);
            matmul(&self.ring, &self.weights, rows.clone(), &self.digits, lanes.clone(), &mut words.few)?;
            for (all, few) in words.all.chunks_exact_mut(width).zip(words.few.chunks_exact(lanes.len())) {
                all[lanes.clone()].copy_from_slice(few);
            }
        }
        let mut message = Vec::with_capacity(wire::encoded_len(self.ring.params(), words.all.len()));
        wire::encode(self.ring.params(), wire::Kind::Lanes, &words.all, &mut message);
        Ok(Some(message.into()))
    }

    fn groups(&self) -> usize {
        self.rows.len().div_ceil(ROWS)
    }
}

impl Work for Bulk {
    /// Rows, and room for their answer.
    type Unit = (Range<usize>, OwnedSemaphorePermit);
    type Scratch = Words;

    fn take(&self) -> Next<Self::Unit> {
        if self.progress.taken.load(Ordering::Relaxed) >= self.groups() || self.ticket.ended() {
            return Next::Nothing;
        }
        let Some(room) = self.ticket.room() else { return Next::Later };
        let first = self.rows.start + self.progress.taken.fetch_add(1, Ordering::Relaxed) * ROWS;
        if first >= self.rows.end {
            return Next::Nothing;
        }
        Next::Unit((first..(first + ROWS).min(self.rows.end), room))
    }

    fn run(&self, (rows, room): Self::Unit, words: &mut Words) {
        self.clock.start();
        match self.product(rows.clone(), words) {
            Err(e) => self.ticket.fail(FailureKind::Internal, e.to_string()),
            Ok(None) => {}
            Ok(Some(message)) => {
                metrics::bulk_rows(rows.len());
                let [first_row, count] = [rows.start, rows.len()].map(|x| u32::try_from(x).unwrap_or(u32::MAX));
                let part = BulkPart { first_row, rows: count, words: message, timing: None };
                self.ticket.deliver(part, Some(room), || {
                    let delivered = self.progress.delivered.fetch_add(1, Ordering::Relaxed) + 1;
                    (delivered == self.groups()).then(|| self.clock.timing(Stream::Bulk))
                });
            }
        }
    }

    fn fail(&self, kind: FailureKind, message: String) {
        self.ticket.fail(kind, message);
    }

    fn queued(jobs: usize) {
        metrics::queue_depth(Stream::Bulk, jobs);
    }
}

impl Answer for BulkAnswer {
    type Part = BulkPart;
    const STREAM: Stream = Stream::Bulk;

    fn part(job_id: u64, part: BulkPart, timing: Option<JobTiming>) -> Self {
        Self { job_id, body: Some(Body::Part(BulkPart { timing, ..part })) }
    }

    fn failure(job_id: u64, failure: JobFailure) -> Self {
        Self { job_id, body: Some(Body::Failure(failure)) }
    }

    fn bytes(part: &BulkPart) -> usize {
        part.words.len()
    }
}

/// Gives the calling thread the lowest priority. Without it bulk work competes with the rest as an equal.
pub fn lower_priority() {
    // On Linux "this process" is the calling thread.
    if let Err(e) = rustix::process::setpriority_process(None, NICE) {
        static TOLD: std::sync::Once = std::sync::Once::new();
        TOLD.call_once(|| tracing::warn!("bulk threads keep their priority: {e}"));
    }
}
