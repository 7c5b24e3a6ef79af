//! The mask pool: lanes made in advance, in bulk, off the latency path, and handed out once.
//!
//! Every matrix has a queue of lanes. Threads of the lowest priority refill whichever has fewest: they draw a batch,
//! have the evaluator multiply it, check and decrypt. Nothing of the pool is ever written anywhere, and after a restart
//! nothing of it exists.

mod refill;
mod settings;
mod stats;

pub use settings::{Memory, Settings};
pub use stats::Stats;

use crate::{
    Error,
    linear::{
        Call,
        delegate::{Delegate, Failure, platform},
        link::POLL,
    },
};
use refill::Refiller;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use trusted_he::{Lane, LaneChallenge, LaneCipher, PublicPolys, Random};

/// Lanes of every matrix of a model.
pub struct MaskPool {
    delegate: Arc<Delegate>,
    memory: Memory,
    /// A_j, common to all matrices.
    common: Arc<PublicPolys>,
    /// In the plan's order.
    matrices: Vec<MatrixLanes>,
    queues: Mutex<Queues>,
    /// Lanes arrived, were taken, or the pool is closed.
    changed: Condvar,
    closed: AtomicBool,
    stats: Mutex<Stats>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a matrix has besides its lanes.
struct MatrixLanes {
    challenge: RwLock<Arc<LaneChallenge>>,
    /// Once the companion is there; dropped when the evaluator was caught lying about this matrix.
    cipher: RwLock<Option<Arc<LaneCipher>>>,
    used: AtomicU64,
}

#[derive(Default)]
struct Queues {
    /// Ready lanes of each matrix.
    lanes: Vec<VecDeque<Lane>>,
    /// Matrices that a thread is refilling.
    busy: Vec<bool>,
    /// Raised when a matrix's lanes are distrusted: a refill that began before is thrown away.
    epoch: Vec<u64>,
    /// Most lanes that somebody waits for, of each matrix.
    wanted: Vec<usize>,
    /// Why refilling fails, since when.
    trouble: Option<String>,
}

impl MaskPool {
    /// Draws A and the challenges, says what the pool will take, and starts `threads` refilling threads.
    ///
    /// # Errors
    /// [`Error::Config`] with the figures if the memory is not enough for one batch, [`Error::Platform`] without
    /// entropy or threads.
    pub fn start(delegate: Arc<Delegate>, settings: &Settings, threads: usize) -> Result<Arc<Self>, Error> {
        let (ring, plan) = (&delegate.ring, &delegate.plan);
        let memory = settings.fit(ring, plan)?;
        memory.announce();
        let began = Instant::now();
        let mut random = Random::from_os().map_err(platform)?;
        let widest = plan.matrices.iter().map(|m| m.matrix.int8.cols()).max().unwrap_or(0);
        let common = Arc::new(PublicPolys::random(ring, widest, &mut random));
        let matrices: Vec<MatrixLanes> = plan
            .matrices
            .iter()
            .map(|m| MatrixLanes {
                challenge: RwLock::new(Arc::new(LaneChallenge::draw(ring, &m.matrix.int8, &mut random))),
                cipher: RwLock::new(None),
                used: AtomicU64::new(0),
            })
            .collect();
        tracing::info!(matrices = matrices.len(), seconds = began.elapsed().as_secs_f64(), "challenges drawn");
        let count = matrices.len();
        let queues = Queues {
            lanes: (0..count).map(|_| VecDeque::new()).collect(),
            busy: vec![false; count],
            epoch: vec![0; count],
            wanted: vec![0; count],
            trouble: None,
        };
        let pool = Arc::new(Self {
            delegate,
            memory,
            common,
            matrices,
            queues: Mutex::new(queues),
            changed: Condvar::new(),
            closed: AtomicBool::new(false),
            stats: Mutex::default(),
            threads: Mutex::default(),
        });
        for i in 0..threads.max(1) {
            let mut refiller = Refiller::new(Arc::downgrade(&pool))?;
            let thread = std::thread::Builder::new().name(format!("refill-{i}")).spawn(move || refiller.work());
            let thread = thread.map_err(|e| Error::Platform(format!("thread {i} that refills masks: {e}")))?;
            pool.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(pool)
    }

    /// Lanes of a full pool.
    pub fn capacity(&self) -> usize {
        self.memory.lanes
    }

    /// `count` lanes of matrix `index`, if there are so many; they are the caller's to use up.
    pub(crate) fn take(&self, index: usize, count: usize) -> Option<Vec<Lane>> {
        let mut queues = self.queues();
        let lanes = &mut queues.lanes[index];
        if lanes.len() < count {
            drop(queues);
            self.delegate.metrics.starved();
            return None;
        }
        let taken: Vec<Lane> = lanes.drain(..count).collect();
        let low = lanes.len() <= self.memory.low;
        drop(queues);
        self.matrices[index].used.fetch_add(count as u64, Ordering::Relaxed);
        if low {
            self.changed.notify_all();
        }
        Some(taken)
    }

    /// [`MaskPool::take`], waiting for them up to `patience`.
    ///
    /// # Errors
    /// Why there are none.
    pub(crate) fn wait(
        &self,
        call: &Call,
        index: usize,
        count: usize,
        patience: Duration,
    ) -> Result<Vec<Lane>, Failure> {
        let began = Instant::now();
        let mut queues = self.queues();
        loop {
            if queues.lanes[index].len() >= count {
                let taken = queues.lanes[index].drain(..count).collect();
                queues.wanted[index] = 0;
                drop(queues);
                self.matrices[index].used.fetch_add(count as u64, Ordering::Relaxed);
                self.changed.notify_all();
                return Ok(taken);
            }
            let closed = self.closed.load(Ordering::Relaxed);
            let failure = if call.is_cancelled() {
                Some(Failure::Cancelled)
            } else if closed || began.elapsed() >= patience {
                let name = self.delegate.plan.matrices[index].matrix.id;
                let why = match &queues.trouble {
                    _ if closed => "the pool is closed",
                    Some(trouble) => trouble,
                    None => "they are being made",
                };
                let (ready, waited) = (queues.lanes[index].len(), began.elapsed().as_secs_f64());
                Some(Failure::Local(Error::Evaluator(format!(
                    "at {}: {ready} of {count} masks for {name} are ready after {waited:.1} s: {why}",
                    self.delegate.link.endpoint()
                ))))
            } else {
                None
            };
            if let Some(failure) = failure {
                queues.wanted[index] = 0;
                return Err(failure);
            }
            // Again in every round: another call that waited for fewer may have reset it.
            if queues.wanted[index] < count {
                queues.wanted[index] = count;
                self.changed.notify_all();
            }
            queues = self.changed.wait_timeout(queues, POLL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Whether a matrix should get lanes: it is at the low mark, or somebody waits for more than it has.
    fn scarce(&self, queues: &Queues, index: usize) -> bool {
        let ready = queues.lanes[index].len();
        ready <= self.memory.low || ready < queues.wanted[index]
    }

    /// The challenge of a matrix.
    pub(crate) fn challenge(&self, index: usize) -> Arc<LaneChallenge> {
        self.matrices[index].challenge.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The evaluator lied about this matrix: its lanes, its companion and its challenge are thrown away.
    pub(crate) fn distrust(&self, index: usize) {
        let fresh = self.draw(index);
        // All at once: nobody meets the new epoch with the old challenge.
        let mut queues = self.queues();
        queues.lanes[index].clear();
        queues.epoch[index] += 1;
        *self.matrices[index].cipher.write().unwrap_or_else(PoisonError::into_inner) = None;
        match fresh {
            Ok(fresh) => self.replace(index, fresh),
            Err(e) => {
                tracing::error!("no new challenge: {e}");
                self.close();
            }
        }
    }

    /// Draws a new challenge for every matrix; refills that are under way keep theirs.
    ///
    /// # Errors
    /// [`Error::Platform`] without entropy.
    pub fn refresh(&self) -> Result<(), Error> {
        (0..self.matrices.len()).try_for_each(|index| self.draw(index).map(|fresh| self.replace(index, fresh)))
    }

    fn draw(&self, index: usize) -> Result<Arc<LaneChallenge>, Error> {
        let mut random = Random::from_os().map_err(platform)?;
        let w = &self.delegate.plan.matrices[index].matrix.int8;
        Ok(Arc::new(LaneChallenge::draw(&self.delegate.ring, w, &mut random)))
    }

    fn replace(&self, index: usize, fresh: Arc<LaneChallenge>) {
        *self.matrices[index].challenge.write().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    /// Figures as of now.
    pub fn stats(&self) -> Stats {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let queues = self.queues();
        stats.ready = queues.lanes.iter().map(VecDeque::len).min().unwrap_or(0);
        stats.trouble = queues.trouble.clone();
        drop(queues);
        stats.used = self.matrices.iter().map(|m| m.used.load(Ordering::Relaxed)).max().unwrap_or(0);
        stats.capacity = self.memory.lanes;
        stats.memory = self.memory.bytes();
        stats
    }

    /// Ends the refilling threads.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // Every step leaves the queues consistent.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MaskPool {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
