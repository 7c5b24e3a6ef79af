//! One stream of jobs whose inputs come in parts: parts in, answers out as they finish, and nothing of it outlives
//! the peer. What the kinds of such streams have in common is here, what each has of its own behind [`Receiving`].

use super::{Parts, Refusal, remembered::Remembered};
use crate::{
    metrics::{self, Outcome},
    ticket::{Answer, Outgoing, Ticket, Way, failure},
};
use proto::v1::FailureKind;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Status, Streaming};

/// Refusals that may wait for a peer that does not read.
const REFUSALS: usize = 256;
/// Answer parts of a stream on their way, for jobs that ask for room.
const ROOM: usize = 16;

/// A half-received job.
pub(super) trait Receiving: Sized + Send + 'static {
    /// The messages of the stream.
    type Message: Send + 'static;
    /// What begins a job, and what brings its inputs.
    type Header: Send;
    type Part: Send;
    /// The answers of the stream.
    type Answer: Answer;
    /// What a good header asks for.
    type Request: Send;

    /// Takes a message apart: the job's id and the body, if there is one.
    fn open(message: Self::Message) -> (u64, Option<Body<Self>>);

    /// Checks a header.
    fn check(parts: &Parts, header: &Self::Header) -> Result<Asked<Self::Request>, Refusal>;

    /// Begins a job within its limits.
    fn begin(
        parts: &Parts,
        request: Self::Request,
        ticket: Arc<Ticket<Self::Answer>>,
        memory: OwnedSemaphorePermit,
    ) -> Result<Self, Refusal>;

    /// The job as its peer sees it.
    fn ticket(&self) -> &Arc<Ticket<Self::Answer>>;

    /// Takes one part. What is wrong with it makes the job malformed.
    fn part(&mut self, parts: &Parts, part: &Self::Part) -> Result<(), String>;

    /// Bytes of inputs in a part.
    fn bytes(part: &Self::Part) -> usize;

    /// Whether every input has arrived.
    fn complete(&self) -> bool;

    /// Hands a complete job to the threads that compute it.
    fn submit(self, parts: &Parts);
}

/// The body of a message.
pub(super) enum Body<R: Receiving> {
    Header(R::Header),
    Part(R::Part),
    Cancel,
}

/// A good header.
pub(super) struct Asked<T> {
    pub(super) request: T,
    /// Memory that the inputs take.
    pub(super) bytes: usize,
    /// As in the header.
    pub(super) deadline_ms: u32,
}

/// The jobs of one stream.
pub(super) struct Jobs<R: Receiving> {
    parts: Arc<Parts>,
    way: Way<R::Answer>,
    /// Jobs in flight, bytes of their inputs (in KiB), and refusals on their way.
    places: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    jobs: HashMap<u64, Job<R>>,
    /// Failed jobs, whose late parts are dropped.
    failed: Remembered,
}

enum Job<R: Receiving> {
    Receiving(Box<R>),
    /// Queued or being computed.
    Running(Arc<Ticket<R::Answer>>),
}

impl<R: Receiving> Job<R> {
    fn ticket(&self) -> &Arc<Ticket<R::Answer>> {
        match self {
            Self::Receiving(receiving) => receiving.ticket(),
            Self::Running(ticket) => ticket,
        }
    }
}

impl<R: Receiving> Jobs<R> {
    pub(super) fn new(parts: Arc<Parts>, answers: mpsc::UnboundedSender<Outgoing<R::Answer>>) -> Self {
        let kib = usize::try_from(parts.config.max_stream_memory >> 10).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(parts.config.max_jobs_per_stream)),
            memory: Arc::new(Semaphore::new(kib.min(Semaphore::MAX_PERMITS))),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            jobs: HashMap::new(),
            failed: Remembered::default(),
            parts,
            way: Way { answers, ended: Arc::new(Notify::new()), room: Arc::new(Semaphore::new(ROOM)) },
        }
    }

    /// Serves the stream until the peer has closed it and its jobs are answered, or it breaks, or the daemon leaves.
    pub(super) async fn serve(mut self, mut inbound: Streaming<R::Message>) {
        let mut draining = self.parts.draining.clone();
        let (mut open, mut leaving) = (true, false);
        let Way { answers, ended, .. } = self.way.clone();
        while open || !self.jobs.is_empty() {
            if leaving && self.jobs.is_empty() {
                self.end(Status::unavailable("the evaluator is draining"));
                return;
            }
            let deadline = self.jobs.values().map(|j| j.ticket().deadline()).min();
            tokio::select! {
                () = answers.closed() => return self.cancel_all(),
                () = ended.notified() => self.forget_ended(),
                () = sleep_until(deadline) => self.expire(),
                () = draining.wait(), if !leaving => leaving = true,
                message = inbound.message(), if open => match message.map(|m| m.map(R::open)) {
                    Ok(Some((id, Some(body)))) => {
                        self.forget_ended();
                        self.message(id, body, leaving).await;
                    }
                    Ok(Some((id, None))) => {
                        self.cancel_all();
                        self.end(Status::invalid_argument(format!("message for job {id} without a body")));
                        return;
                    }
                    Ok(None) => open = false,
                    Err(status) => {
                        tracing::debug!("job stream broke: {}", status.message());
                        self.cancel_all();
                        self.end(status);
                        return;
                    }
                },
            }
        }
    }

    async fn message(&mut self, id: u64, body: Body<R>, leaving: bool) {
        let result = match body {
            Body::Header(header) => self.header(id, &header, leaving),
            Body::Part(part) => self.part(id, &part),
            Body::Cancel => match self.jobs.contains_key(&id) {
                true => Err((FailureKind::Cancelled, "cancelled by the runtime".to_owned())),
                false => Ok(()),
            },
        };
        let Err((kind, message)) = result else { return };
        tracing::debug!(job = id, kind = kind.as_str_name(), "{message}");
        self.failed.insert(id);
        if let Some(job) = self.jobs.remove(&id) {
            job.ticket().fail(kind, message);
        } else if let Ok(place) = Arc::clone(&self.refusals).acquire_owned().await {
            metrics::job(R::Answer::STREAM, Outcome::Failed(kind));
            // A receiver that is gone is noticed in `serve`.
            let _ = self.way.answers.send(Outgoing::new(Ok(failure(id, kind, message)), Some(place)));
        }
    }

    fn header(&mut self, id: u64, header: &R::Header, leaving: bool) -> Result<(), Refusal> {
        let config = &self.parts.config;
        let malformed = |what: String| Err((FailureKind::Malformed, what));
        let unavailable = |what: String| Err((FailureKind::Unavailable, what));
        if leaving {
            return unavailable("the evaluator is draining".into());
        }
        if self.jobs.contains_key(&id) || self.failed.contains(id) {
            return malformed(format!("job id {id} is used twice"));
        }
        let Asked { request, bytes, deadline_ms } = R::check(&self.parts, header)?;
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return unavailable(format!("{} jobs of this stream are in flight", config.max_jobs_per_stream));
        };
        self.parts.allow(bytes)?;
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let Ok(memory) = Arc::clone(&self.memory).try_acquire_many_owned(kib) else {
            return unavailable(format!(
                "the job needs {bytes} bytes, this stream's jobs hold too many of {}",
                config.max_stream_memory
            ));
        };
        let allowed = match deadline_ms {
            0 => config.default_deadline,
            ms => Duration::from_millis(ms.into()).min(config.max_deadline),
        };
        let ticket = Ticket::new(id, Instant::now() + allowed, self.way.clone(), place);
        let receiving = R::begin(&self.parts, request, ticket, memory)?;
        self.jobs.insert(id, Job::Receiving(Box::new(receiving)));
        Ok(())
    }

    fn part(&mut self, id: u64, part: &R::Part) -> Result<(), Refusal> {
        metrics::bytes_in(R::Answer::STREAM, R::bytes(part));
        let malformed = |what: String| (FailureKind::Malformed, what);
        match self.jobs.get_mut(&id) {
            None if self.failed.contains(id) => Ok(()),
            None => Err(malformed(format!("a part of job {id} without its header"))),
            Some(Job::Running(_)) => Err(malformed(format!("job {id} is complete, one more part came"))),
            Some(Job::Receiving(receiving)) => {
                receiving.part(&self.parts, part).map_err(malformed)?;
                if receiving.complete() {
                    let running = Job::Running(Arc::clone(receiving.ticket()));
                    if let Some(Job::Receiving(receiving)) = self.jobs.insert(id, running) {
                        receiving.submit(&self.parts);
                    }
                }
                Ok(())
            }
        }
    }

    fn forget_ended(&mut self) {
        self.jobs.retain(|_, job| !job.ticket().ended());
    }

    fn expire(&mut self) {
        let now = Instant::now();
        for (id, job) in &self.jobs {
            if job.ticket().deadline() <= now {
                let stage =
                    if matches!(job, Job::Receiving(_)) { "while parts were missing" } else { "before it was done" };
                job.ticket().fail(FailureKind::Deadline, format!("the deadline passed {stage}"));
                self.failed.insert(*id);
            }
        }
        self.forget_ended();
    }

    fn cancel_all(&mut self) {
        for (_, job) in self.jobs.drain() {
            job.ticket().fail(FailureKind::Cancelled, "the stream ended");
        }
    }

    /// Ends the stream with a status, after the answers that are on their way.
    fn end(&self, status: Status) {
        // A receiver that is gone needs no status.
        let _ = self.way.answers.send(Outgoing::new(Err(status), None));
    }
}

impl<R: Receiving> Drop for Jobs<R> {
    fn drop(&mut self) {
        self.cancel_all();
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
