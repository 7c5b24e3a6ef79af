//! Threads that compute jobs. A job is cut into units; every thread takes the next unit of the oldest job that has
//! one, so a job uses all threads and the next one starts as soon as a thread is free.
//!
//! The cut depends on the job only, and ring arithmetic is exact: answers do not depend on the threads.

use crate::Error;
use proto::v1::FailureKind;
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::Duration,
};

/// How often threads look again at jobs whose answers the peer has yet to read.
const LOOK: Duration = Duration::from_millis(1);

/// A complete job.
pub trait Work: Send + Sync + 'static {
    /// A share of it that one thread computes.
    type Unit;
    /// Buffers that a thread reuses from unit to unit.
    type Scratch: Default;

    /// What to do next.
    fn take(&self) -> Next<Self::Unit>;

    /// Computes and delivers one unit.
    fn run(&self, unit: Self::Unit, scratch: &mut Self::Scratch);

    /// Ends the job with a failure.
    fn fail(&self, kind: FailureKind, message: String);

    /// Says how many jobs of this kind wait for a thread.
    fn queued(jobs: usize);
}

/// What a job has to do.
pub enum Next<U> {
    /// This.
    Unit(U),
    /// Nothing until the peer has read some answers.
    Later,
    /// Nothing any more, or nobody wants it any more.
    Nothing,
}

/// A fixed set of threads and a bounded queue.
pub struct Executor<W: Work> {
    shared: Arc<Shared<W>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared<W> {
    limit: usize,
    queue: Mutex<Queue<W>>,
    wake: Condvar,
}

struct Queue<W> {
    jobs: VecDeque<Arc<W>>,
    stopped: bool,
}

impl<W: Work> Executor<W> {
    /// Starts `threads` threads called `name` behind a queue of at most `limit` jobs; each calls `begin` first.
    ///
    /// # Errors
    /// [`Error::Platform`] if a thread cannot be started.
    pub fn start(name: &str, threads: usize, limit: usize, begin: fn()) -> Result<Self, Error> {
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), stopped: false });
        let shared = Arc::new(Shared { limit, queue, wake: Condvar::new() });
        let threads = (0..threads)
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("{name}-{i}"))
                    .spawn(move || {
                        begin();
                        shared.work();
                    })
                    .map_err(|e| Error::Platform(format!("{name} thread {i} of {threads}: {e}")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Queues a job; if the queue is full, the job fails.
    pub fn submit(&self, work: W) {
        let mut queue = self.shared.lock();
        if queue.jobs.len() >= self.shared.limit || queue.stopped {
            drop(queue);
            work.fail(FailureKind::Unavailable, format!("the queue of {} jobs is full", self.shared.limit));
            return;
        }
        queue.jobs.push_back(Arc::new(work));
        W::queued(queue.jobs.len());
        drop(queue);
        self.shared.wake.notify_all();
    }
}

impl<W: Work> Drop for Executor<W> {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread's panics were caught and reported.
            let _ = thread.join();
        }
    }
}

impl<W: Work> Shared<W> {
    fn work(&self) {
        let mut scratch = W::Scratch::default();
        while let Some((work, mut unit)) = self.next() {
            loop {
                if catch_unwind(AssertUnwindSafe(|| work.run(unit, &mut scratch))).is_err() {
                    tracing::error!("bug: a thread panicked in a job");
                    work.fail(FailureKind::Internal, "bug in the evaluator, see its log".into());
                }
                match work.take() {
                    Next::Unit(next) => unit = next,
                    Next::Later | Next::Nothing => break,
                }
            }
        }
    }

    /// A unit of the oldest job that has one, waiting for one; nothing once the executor stops. Jobs that have
    /// nothing left to take leave the queue.
    fn next(&self) -> Option<(Arc<W>, W::Unit)> {
        let mut queue = self.lock();
        loop {
            if queue.stopped {
                return None;
            }
            let before = queue.jobs.len();
            let (mut found, mut at) = (None, 0);
            while found.is_none()
                && let Some(work) = queue.jobs.get(at)
            {
                match work.take() {
                    Next::Unit(unit) => found = Some((Arc::clone(work), unit)),
                    Next::Later => at += 1,
                    Next::Nothing => drop(queue.jobs.remove(at)),
                }
            }
            if queue.jobs.len() < before {
                W::queued(queue.jobs.len());
            }
            if found.is_some() {
                return found;
            }
            queue = if queue.jobs.is_empty() {
                self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner)
            } else {
                self.wake.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<W>> {
        // The queue is consistent after every step.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
