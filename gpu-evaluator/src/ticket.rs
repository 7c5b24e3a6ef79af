//! One job seen from outside: the way its answers take, and the single point where it ends.

use crate::metrics::{self, Outcome, Stream};
use proto::v1::{FailureKind, JobFailure, JobTiming};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::Status;

/// A message that answers a job, wholly or in part.
pub trait Answer: Sized + Send + 'static {
    /// What it carries of the result.
    type Part;
    /// On which kind of stream it travels.
    const STREAM: Stream;

    /// The message with a part of the result; the last one has the timing.
    fn part(job_id: u64, part: Self::Part, timing: Option<JobTiming>) -> Self;

    /// The message that ends a job badly.
    fn failure(job_id: u64, failure: JobFailure) -> Self;

    /// Bytes of the result in a part.
    fn bytes(part: &Self::Part) -> usize;
}

/// An answer on its way to the socket, with what it occupies until the transport takes it: a job's last one the
/// job's place, a part its room. So a peer that does not read its answers holds no more than it may have in flight.
pub struct Outgoing<A> {
    answer: Result<A, Status>,
    _place: Option<OwnedSemaphorePermit>,
    _room: Option<OwnedSemaphorePermit>,
}

impl<A> Outgoing<A> {
    /// An answer that gives `place` back when it leaves.
    pub fn new(answer: Result<A, Status>, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { answer, _place: place, _room: None }
    }

    /// The answer; what it occupied is free.
    pub fn leave(self) -> Result<A, Status> {
        self.answer
    }
}

/// What the jobs of a stream have in common.
pub struct Way<A> {
    /// Where answers go.
    pub answers: mpsc::UnboundedSender<Outgoing<A>>,
    /// Tells the stream that a job ended.
    pub ended: Arc<Notify>,
    /// Parts that may be on their way, for jobs that ask before they compute one.
    pub room: Arc<Semaphore>,
}

impl<A> Clone for Way<A> {
    fn clone(&self) -> Self {
        Self { answers: self.answers.clone(), ended: Arc::clone(&self.ended), room: Arc::clone(&self.room) }
    }
}

/// A job in flight. It ends once: by its last part or by one failure; whatever comes later is dropped.
pub struct Ticket<A> {
    id: u64,
    deadline: Instant,
    /// The stream, and one of its jobs in flight.
    open: Mutex<Option<(Way<A>, OwnedSemaphorePermit)>>,
}

impl<A: Answer> Ticket<A> {
    /// A job that has just arrived.
    pub fn new(id: u64, deadline: Instant, way: Way<A>, place: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self { id, deadline, open: Mutex::new(Some((way, place))) })
    }

    /// When it is given up.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it has ended.
    pub fn ended(&self) -> bool {
        self.open().is_none()
    }

    /// Room for one more part on its way, if the stream has any now.
    pub fn room(&self) -> Option<OwnedSemaphorePermit> {
        let open = self.open();
        open.as_ref().and_then(|(way, _)| Arc::clone(&way.room).try_acquire_owned().ok())
    }

    /// Sends a part, which occupies `room` until it leaves; `finish` says, under the job's lock, whether this was
    /// the last one, and its timing.
    pub fn deliver(
        &self,
        part: A::Part,
        room: Option<OwnedSemaphorePermit>,
        finish: impl FnOnce() -> Option<JobTiming>,
    ) {
        let mut open = self.open();
        let Some((way, _)) = open.as_ref() else { return };
        let timing = finish();
        metrics::bytes_out(A::STREAM, A::bytes(&part));
        let last = timing.is_some();
        let mut outgoing = Outgoing::new(Ok(A::part(self.id, part, timing)), None);
        outgoing._room = room;
        if last {
            close(open.take(), outgoing);
            metrics::job(A::STREAM, Outcome::Answered);
        } else {
            // A receiver that is gone has cancelled the job or is about to.
            let _ = way.answers.send(outgoing);
        }
    }

    /// Ends the job with a failure, unless it has ended.
    pub fn fail(&self, kind: FailureKind, message: impl Into<String>) {
        let open = self.open().take();
        if open.is_some() {
            close(open, Outgoing::new(Ok(failure(self.id, kind, message.into())), None));
            metrics::job(A::STREAM, Outcome::Failed(kind));
        }
    }

    fn open(&self) -> MutexGuard<'_, Option<(Way<A>, OwnedSemaphorePermit)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close<A>(open: Option<(Way<A>, OwnedSemaphorePermit)>, mut outgoing: Outgoing<A>) {
    if let Some((way, place)) = open {
        outgoing._place = Some(place);
        // As above.
        let _ = way.answers.send(outgoing);
        way.ended.notify_one();
    }
}

/// The message that ends a job badly.
pub fn failure<A: Answer>(job_id: u64, kind: FailureKind, message: String) -> A {
    A::failure(job_id, JobFailure { kind: kind.into(), message })
}
