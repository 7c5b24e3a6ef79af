//! One stream of jobs and answers: who waits for which answer, and what a peer may send at most.

use super::{POLL, session::Refusal};
use proto::v1::{BulkAnswer, TileAnswer, bulk_answer, tile_answer};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc as channel,
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

/// What the evaluator sends back on a stream.
pub(crate) trait Answer: Send + 'static {
    /// The job it is for.
    fn job_id(&self) -> u64;
    /// Bytes of numbers, 0 in a failure; `None` if it says nothing.
    fn payload(&self) -> Option<usize>;
}

impl Answer for TileAnswer {
    fn job_id(&self) -> u64 {
        self.job_id
    }

    fn payload(&self) -> Option<usize> {
        match self.body.as_ref()? {
            tile_answer::Body::Part(part) => Some(part.coefficients.len()),
            tile_answer::Body::Failure(_) => Some(0),
        }
    }
}

impl Answer for BulkAnswer {
    fn job_id(&self) -> u64 {
        self.job_id
    }

    fn payload(&self) -> Option<usize> {
        match self.body.as_ref()? {
            bulk_answer::Body::Part(part) => Some(part.words.len()),
            bulk_answer::Body::Failure(_) => Some(0),
        }
    }
}

/// What happens to a job.
pub(crate) enum Event<A> {
    /// An answer, as it came.
    Answer(A),
    /// The session is gone.
    Lost(String),
}

/// The runtime's end of a stream.
pub(crate) struct JobStream<J, A> {
    outgoing: mpsc::Sender<J>,
    jobs: Arc<Jobs<A>>,
    handle: Handle,
}

/// The jobs in flight.
pub(super) struct Jobs<A> {
    next: AtomicU64,
    table: Mutex<Table<A>>,
}

struct Table<A> {
    closed: Option<String>,
    waiting: HashMap<u64, Waiting<A>>,
}

/// Where a job's answers go, and how many may come.
struct Waiting<A> {
    events: channel::Sender<Event<A>>,
    parts_left: usize,
    bytes_left: usize,
}

impl<J, A: Answer> JobStream<J, A> {
    pub(super) fn new(outgoing: mpsc::Sender<J>, handle: Handle) -> Self {
        let table = Mutex::new(Table { closed: None, waiting: HashMap::new() });
        Self { outgoing, jobs: Arc::new(Jobs { next: AtomicU64::new(0), table }), handle }
    }

    pub(super) fn jobs(&self) -> Arc<Jobs<A>> {
        self.jobs.clone()
    }

    /// A new job that may be answered by at most `parts` messages of `bytes` bytes of numbers together.
    ///
    /// # Errors
    /// Why the session is closed.
    pub(crate) fn register(&self, parts: usize, bytes: usize) -> Result<(u64, channel::Receiver<Event<A>>), String> {
        let mut table = self.jobs.lock();
        if let Some(reason) = &table.closed {
            return Err(reason.clone());
        }
        let id = self.jobs.next.fetch_add(1, Ordering::Relaxed);
        let (events, receiver) = channel::channel();
        table.waiting.insert(id, Waiting { events, parts_left: parts, bytes_left: bytes });
        Ok((id, receiver))
    }

    /// Forgets a job; answers that still come for it are dropped.
    pub(crate) fn forget(&self, id: u64) {
        self.jobs.lock().waiting.remove(&id);
    }

    pub(crate) fn is_open(&self) -> bool {
        self.jobs.lock().closed.is_none()
    }

    /// Queues a message, waiting for room in slices of [`POLL`] while `go_on` says so; false if it was not
    /// queued. Adds the time it waited to `blocked`.
    pub(crate) fn send(&self, job: J, blocked: &mut Duration, go_on: impl Fn() -> bool) -> bool {
        let mut job = job;
        loop {
            job = match self.outgoing.try_send(job) {
                Ok(()) => return true,
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
                Err(mpsc::error::TrySendError::Full(job)) => job,
            };
            if !go_on() || !self.is_open() {
                return false;
            }
            let start = Instant::now();
            let _ = self.handle.block_on(async { timeout(POLL, self.outgoing.reserve()).await.map(drop) });
            *blocked += start.elapsed();
        }
    }

    /// Queues a message if there is room.
    pub(crate) fn try_send(&self, job: J) {
        let _ = self.outgoing.try_send(job);
    }
}

impl<A: Answer> Jobs<A> {
    fn lock(&self) -> MutexGuard<'_, Table<A>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self, reason: &str) {
        let mut table = self.lock();
        table.closed.get_or_insert_with(|| reason.to_owned());
        for (_, job) in table.waiting.drain() {
            let _ = job.events.send(Event::Lost(reason.to_owned()));
        }
    }

    /// Hands one answer to its job.
    ///
    /// # Errors
    /// What the evaluator did that ends the session.
    fn deliver(&self, answer: A) -> Result<(), String> {
        let id = answer.job_id();
        let mut table = self.lock();
        let Some(job) = table.waiting.get_mut(&id) else {
            // Late answers to a job that was cancelled are lawful; to one that never was, not.
            let known = id < self.next.load(Ordering::Relaxed);
            return if known { Ok(()) } else { Err(format!("it answers job {id}, which was never sent")) };
        };
        let Some(bytes) = answer.payload() else { return Err(format!("it answers job {id} with nothing")) };
        let Some(left) = job.bytes_left.checked_sub(bytes).zip(job.parts_left.checked_sub(1)) else {
            return Err(format!("it answers more than job {id} asks for"));
        };
        (job.bytes_left, job.parts_left) = left;
        let _ = job.events.send(Event::Answer(answer));
        Ok(())
    }

    /// Hands out answers until the stream breaks or `stop`; then everybody who waits hears why.
    pub(super) async fn read(self: Arc<Self>, mut answers: Streaming<A>, stop: CancellationToken) -> String {
        let reason = loop {
            let message = tokio::select! {
                () = stop.cancelled() => break "closed by the runtime".to_owned(),
                message = answers.message() => message,
            };
            match message {
                Ok(Some(answer)) => {
                    if let Err(reason) = self.deliver(answer) {
                        break reason;
                    }
                }
                Ok(None) => break "it has ended the stream".into(),
                Err(status) => break Refusal::from(status).reason,
            }
        };
        self.close(&reason);
        stop.cancel();
        reason
    }
}
