//! One job stream: parts in, answers out as they finish, and nothing of it outlives the peer.

use super::{Parts, job::Receiving};
use crate::{
    header::{parse_id, short},
    metrics::{self, Outcome},
    ticket::{Outgoing, Ticket, failure},
};
use proto::v1::{FailureKind, JobHeader, JobPart, TileJob, tile_job::Body};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{Notify, Semaphore, mpsc};
use tonic::{Status, Streaming};

/// Vectors in one job at most.
const MAX_VECTORS: u32 = 64;
/// Failed jobs whose late parts are recognized and dropped.
const REMEMBERED: usize = 4096;
/// Refusals that may wait for a peer that does not read.
const REFUSALS: usize = 256;

/// The jobs of one stream.
pub(super) struct Jobs {
    parts: Arc<Parts>,
    answers: mpsc::UnboundedSender<Outgoing>,
    /// Jobs in flight, bytes of their inputs (in KiB), and refusals on their way.
    places: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    ended: Arc<Notify>,
    jobs: HashMap<u64, Job>,
    /// Ids of failed jobs, oldest first.
    failed: VecDeque<u64>,
}

enum Job {
    Receiving(Box<Receiving>),
    /// Queued or being computed.
    Running(Arc<Ticket>),
}

impl Job {
    fn ticket(&self) -> &Arc<Ticket> {
        match self {
            Self::Receiving(receiving) => receiving.ticket(),
            Self::Running(ticket) => ticket,
        }
    }
}

/// What is wrong with a job.
type Refusal = (FailureKind, String);

impl Jobs {
    pub(super) fn new(parts: Arc<Parts>, answers: mpsc::UnboundedSender<Outgoing>) -> Self {
        let kib = usize::try_from(parts.config.max_stream_memory >> 10).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(parts.config.max_jobs_per_stream)),
            memory: Arc::new(Semaphore::new(kib.min(Semaphore::MAX_PERMITS))),
            refusals: Arc::new(Semaphore::new(REFUSALS)),
            ended: Arc::new(Notify::new()),
            jobs: HashMap::new(),
            failed: VecDeque::new(),
            parts,
            answers,
        }
    }

    /// Serves the stream until the peer has closed it and its jobs are answered, or it breaks, or the daemon leaves.
    pub(super) async fn serve(mut self, mut inbound: Streaming<TileJob>) {
        let mut draining = self.parts.draining.clone();
        let (mut open, mut leaving) = (true, false);
        let ended = Arc::clone(&self.ended);
        let answers = self.answers.clone();
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
                message = inbound.message(), if open => match message {
                    Ok(Some(TileJob { job_id, body: Some(body) })) => {
                        self.forget_ended();
                        self.message(job_id, body, leaving).await;
                    }
                    Ok(Some(TileJob { job_id, body: None })) => {
                        self.cancel_all();
                        self.end(Status::invalid_argument(format!("message for job {job_id} without a body")));
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

    async fn message(&mut self, id: u64, body: Body, leaving: bool) {
        let result = match body {
            Body::Header(header) => self.header(id, &header, leaving),
            Body::Part(part) => self.part(id, &part),
            Body::Cancel(_) => match self.jobs.contains_key(&id) {
                true => Err((FailureKind::Cancelled, "cancelled by the runtime".to_owned())),
                false => Ok(()),
            },
        };
        let Err((kind, message)) = result else { return };
        tracing::debug!(job = id, kind = kind.as_str_name(), "{message}");
        if self.failed.len() == REMEMBERED {
            self.failed.pop_front();
        }
        self.failed.push_back(id);
        if let Some(job) = self.jobs.remove(&id) {
            job.ticket().fail(kind, message);
        } else if let Ok(place) = Arc::clone(&self.refusals).acquire_owned().await {
            metrics::job(Outcome::Failed(kind));
            // A receiver that is gone is noticed in `serve`.
            let _ = self.answers.send((Ok(failure(id, kind, message)), Some(place)));
        }
    }

    fn header(&mut self, id: u64, header: &JobHeader, leaving: bool) -> Result<(), Refusal> {
        let config = &self.parts.config;
        let malformed = |what: String| Err((FailureKind::Malformed, what));
        let unavailable = |what: String| Err((FailureKind::Unavailable, what));
        if leaving {
            return unavailable("the evaluator is draining".into());
        }
        if self.jobs.contains_key(&id) || self.failed.contains(&id) {
            return malformed(format!("job id {id} is used twice"));
        }
        if !(1..=MAX_VECTORS).contains(&header.vectors) {
            return malformed(format!("{} vectors, allowed are 1 to {MAX_VECTORS}", header.vectors));
        }
        let matrix_id = parse_id(&header.matrix_id).map_err(|e| (FailureKind::Malformed, e.to_string()))?;
        let Some(matrix) = self.parts.store.matrix(&matrix_id) else {
            return Err((FailureKind::MatrixAbsent, format!("matrix {}.. is not resident", short(&matrix_id))));
        };
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return unavailable(format!("{} jobs of this stream are in flight", config.max_jobs_per_stream));
        };
        let vectors = header.vectors as usize;
        let bytes = self.parts.pool.bytes_for(vectors, matrix.tiling());
        if bytes as u64 > config.max_stream_memory {
            return malformed(format!("the job needs {bytes} bytes, a stream may hold {}", config.max_stream_memory));
        }
        let kib = u32::try_from(bytes.div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let Ok(memory) = Arc::clone(&self.memory).try_acquire_many_owned(kib) else {
            return unavailable(format!(
                "the job needs {bytes} bytes, this stream's jobs hold too many of {}",
                config.max_stream_memory
            ));
        };
        let allowed = match header.deadline_ms {
            0 => config.default_deadline,
            ms => Duration::from_millis(ms.into()).min(config.max_deadline),
        };
        let ticket = Ticket::new(id, Instant::now() + allowed, self.answers.clone(), place, Arc::clone(&self.ended));
        let inputs = self.parts.pool.take(vectors, matrix.tiling(), memory);
        self.jobs.insert(id, Job::Receiving(Box::new(Receiving::new(ticket, matrix, inputs))));
        Ok(())
    }

    fn part(&mut self, id: u64, part: &JobPart) -> Result<(), Refusal> {
        metrics::bytes_in(part.blocks.len());
        let malformed = |what: String| (FailureKind::Malformed, what);
        match self.jobs.get_mut(&id) {
            None if self.failed.contains(&id) => Ok(()),
            None => Err(malformed(format!("a part of job {id} without its header"))),
            Some(Job::Running(_)) => Err(malformed(format!("job {id} is complete, one more part came"))),
            Some(Job::Receiving(receiving)) => {
                receiving.part(&self.parts.ring, part).map_err(malformed)?;
                if receiving.complete() {
                    let running = Job::Running(Arc::clone(receiving.ticket()));
                    if let Some(Job::Receiving(receiving)) = self.jobs.insert(id, running) {
                        self.parts.executor.submit(receiving.into_work());
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
                self.failed.push_back(*id);
            }
        }
        let surplus = self.failed.len().saturating_sub(REMEMBERED);
        self.failed.drain(..surplus);
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
        let _ = self.answers.send((Err(status), None));
    }
}

impl Drop for Jobs {
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
