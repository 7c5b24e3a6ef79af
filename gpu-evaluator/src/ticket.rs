//! One job seen from outside: the way its answers take, and the single point where it ends.

use crate::metrics::{self, Outcome};
use proto::v1::{AnswerPart, FailureKind, JobFailure, JobTiming, TileAnswer, tile_answer::Body};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};
use tonic::Status;

/// An answer on its way to the socket. The permit of a job's last one returns when the transport takes it, so
/// a peer that does not read its answers holds no more than its jobs in flight.
pub type Outgoing = (Result<TileAnswer, Status>, Option<OwnedSemaphorePermit>);

/// A job in flight. It ends once: by its last part or by one failure; whatever comes later is dropped.
pub struct Ticket {
    id: u64,
    deadline: Instant,
    way: Mutex<Option<Way>>,
}

struct Way {
    answers: mpsc::UnboundedSender<Outgoing>,
    /// One of the stream's jobs in flight.
    place: OwnedSemaphorePermit,
    /// Tells the stream that a job ended.
    ended: Arc<Notify>,
}

impl Ticket {
    /// A job that has just arrived.
    pub fn new(
        id: u64,
        deadline: Instant,
        answers: mpsc::UnboundedSender<Outgoing>,
        place: OwnedSemaphorePermit,
        ended: Arc<Notify>,
    ) -> Arc<Self> {
        Arc::new(Self { id, deadline, way: Mutex::new(Some(Way { answers, place, ended })) })
    }

    /// When it is given up.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it has ended.
    pub fn ended(&self) -> bool {
        self.way().is_none()
    }

    /// Sends a part; `finish` says, under the job's lock, whether this was the last one, and its timing.
    pub fn deliver(&self, mut part: AnswerPart, finish: impl FnOnce() -> Option<JobTiming>) {
        let mut way = self.way();
        let Some(open) = way.as_ref() else { return };
        part.timing = finish();
        metrics::bytes_out(part.coefficients.len());
        let last = part.timing.is_some();
        let answer = TileAnswer { job_id: self.id, body: Some(Body::Part(part)) };
        if last {
            close(way.take(), answer);
            metrics::job(Outcome::Answered);
        } else {
            // A receiver that is gone has cancelled the job or is about to.
            let _ = open.answers.send((Ok(answer), None));
        }
    }

    /// Ends the job with a failure, unless it has ended.
    pub fn fail(&self, kind: FailureKind, message: impl Into<String>) {
        let way = self.way().take();
        if way.is_some() {
            close(way, failure(self.id, kind, message.into()));
            metrics::job(Outcome::Failed(kind));
        }
    }

    fn way(&self) -> MutexGuard<'_, Option<Way>> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn close(way: Option<Way>, answer: TileAnswer) {
    if let Some(Way { answers, place, ended }) = way {
        // As above.
        let _ = answers.send((Ok(answer), Some(place)));
        ended.notify_one();
    }
}

/// The message that ends a job badly.
pub fn failure(job_id: u64, kind: FailureKind, message: String) -> TileAnswer {
    TileAnswer { job_id, body: Some(Body::Failure(JobFailure { kind: kind.into(), message })) }
}
