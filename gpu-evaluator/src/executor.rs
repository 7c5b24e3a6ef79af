//! The threads that multiply. A job is cut into groups of tiles; every thread takes the next group of the
//! oldest job that has one, so a job uses all threads and the next one starts as soon as a thread is free.
//!
//! The cut depends on the job only, and ring arithmetic is exact: answers do not depend on the threads.

use crate::{Error, backend::Matrix, metrics, pool::Loan, ticket::Ticket};
use bytes::Bytes;
use kernels::{Ring, wire};
use proto::v1::{AnswerPart, FailureKind, JobTiming};
use std::{
    collections::VecDeque,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Tiles are handed to the kernels in multiples of this where it matters.
const QUANTUM: usize = kernels::PinnedTiles::GROUP;
/// A job is cut into about this many groups.
const GROUPS: usize = 8;
/// Tiles in a group at most.
const MAX_GROUP: usize = 64;
/// Coefficients in one answer message at most, unless a single tile has more: 209 KB.
const MAX_COEFFICIENTS: usize = 1 << 15;

/// A complete job.
pub struct Work {
    matrix: Arc<Matrix>,
    inputs: Loan,
    ticket: Arc<Ticket>,
    /// Tiles per group.
    group: usize,
    /// The next group to take, and how many are still to be delivered.
    next: AtomicUsize,
    left: AtomicUsize,
    arrived: Instant,
    started: OnceLock<Instant>,
    unpacking: Duration,
}

/// A fixed set of threads and a bounded queue.
pub struct Executor {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    ring: Ring,
    limit: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Arc<Work>>,
    stopped: bool,
}

impl Work {
    /// A job whose inputs are all there. `unpacking` is the time that took.
    pub fn new(matrix: Arc<Matrix>, inputs: Loan, ticket: Arc<Ticket>, unpacking: Duration) -> Self {
        let tiling = matrix.tiling();
        let fair = tiling.tiles().div_ceil(GROUPS).next_multiple_of(QUANTUM);
        let sendable = MAX_COEFFICIENTS / (tiling.tile_rows() * inputs.vectors());
        let group = match fair.min(MAX_GROUP).min(sendable) {
            few @ 0..QUANTUM => few.max(1),
            many => many / QUANTUM * QUANTUM,
        };
        let groups = tiling.tiles().div_ceil(group);
        Self {
            matrix,
            inputs,
            ticket,
            group,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(groups),
            arrived: Instant::now(),
            started: OnceLock::new(),
            unpacking,
        }
    }

    /// The tiles to do next, if there are any and anybody still wants them.
    fn take(&self) -> Option<Range<usize>> {
        let first = self.next.fetch_add(1, Ordering::Relaxed).checked_mul(self.group)?;
        let tiles = self.matrix.tiling().tiles();
        (first < tiles && !self.ticket.ended()).then(|| first..(first + self.group).min(tiles))
    }

    /// Computes and delivers one group.
    fn run(&self, ring: &Ring, tiles: Range<usize>, words: &mut Vec<u64>) {
        let started = *self.started.get_or_init(Instant::now);
        match self.coefficients(ring, tiles.clone(), words) {
            Err(e) => self.ticket.fail(FailureKind::Internal, e.to_string()),
            Ok(coefficients) => {
                let [first_tile, tiles] = [tiles.start, tiles.len()].map(|x| u32::try_from(x).unwrap_or(u32::MAX));
                let part = AnswerPart { first_tile, tiles, coefficients, timing: None };
                self.ticket.deliver(part, || {
                    (self.left.fetch_sub(1, Ordering::Relaxed) == 1).then(|| {
                        let (queued, compute) = (started - self.arrived, started.elapsed() + self.unpacking);
                        metrics::job_time(queued, compute);
                        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
                        JobTiming { queued_ns: ns(queued), compute_ns: ns(compute) }
                    })
                });
            }
        }
    }

    /// The useful coefficients of `tiles` for every vector, packed for the wire.
    fn coefficients(&self, ring: &Ring, tiles: Range<usize>, words: &mut Vec<u64>) -> Result<Bytes, kernels::Error> {
        let (tiling, vectors) = (self.matrix.tiling(), self.inputs.vectors());
        let rows = tiling.tile_row_range(tiles.end - 1).end - tiling.tile_row_range(tiles.start).start;
        words.resize(vectors * rows, 0);
        self.matrix.answers(ring, &self.inputs, tiles, words)?;
        let mut message = Vec::with_capacity(wire::encoded_len(ring.params(), words.len()));
        wire::encode(ring.params(), wire::Kind::Coefficients, words, &mut message);
        Ok(message.into())
    }
}

impl Executor {
    /// Starts `threads` threads behind a queue of at most `limit` jobs.
    ///
    /// # Errors
    /// [`Error::Platform`] if a thread cannot be started.
    pub fn start(ring: &Ring, threads: usize, limit: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared { ring: ring.clone(), limit, queue: Mutex::default(), wake: Condvar::new() });
        let threads = (0..threads)
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("multiply-{i}"))
                    .spawn(move || shared.work())
                    .map_err(|e| Error::Platform(format!("thread {i} of {threads}: {e}")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Queues a job; if the queue is full, the job fails.
    pub fn submit(&self, work: Work) {
        let mut queue = self.shared.lock();
        if queue.jobs.len() >= self.shared.limit || queue.stopped {
            drop(queue);
            work.ticket.fail(FailureKind::Unavailable, format!("the queue of {} jobs is full", self.shared.limit));
            return;
        }
        queue.jobs.push_back(Arc::new(work));
        metrics::queue_depth(queue.jobs.len());
        drop(queue);
        self.shared.wake.notify_all();
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread's panics were caught and reported.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        // [vectors][rows of one group], reused from group to group.
        let mut words = Vec::new();
        while let Some(work) = self.oldest() {
            while let Some(tiles) = work.take() {
                if catch_unwind(AssertUnwindSafe(|| work.run(&self.ring, tiles, &mut words))).is_err() {
                    tracing::error!(matrix = work.matrix.name(), "bug: a multiply thread panicked");
                    work.ticket.fail(FailureKind::Internal, "bug in the evaluator, see its log");
                }
            }
            self.retire(&work);
        }
    }

    /// The oldest job, waiting for one; nothing once the executor stops.
    fn oldest(&self) -> Option<Arc<Work>> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            if let Some(work) = queue.jobs.front() {
                return Some(Arc::clone(work));
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes a job that has no group left to take.
    fn retire(&self, work: &Arc<Work>) {
        let mut queue = self.lock();
        if queue.jobs.front().is_some_and(|front| Arc::ptr_eq(front, work)) {
            queue.jobs.pop_front();
            metrics::queue_depth(queue.jobs.len());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is consistent after every step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
