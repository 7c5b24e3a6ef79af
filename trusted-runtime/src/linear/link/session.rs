//! One session: hello, lookup, upload of what is missing, then one stream of jobs until it breaks.

use super::{Residents, chain, clean};
use crate::planner::residency::Wish;
use bytes::Bytes;
use proto::v1::{
    AnswerPart, EvaluatorInfo, HelloRequest, HelloResponse, JobFailure, LookupRequest, MatrixHeader, MatrixState,
    Residency, TileAnswer, TileJob, UploadChunk, evaluator_client::EvaluatorClient, tile_answer, upload_chunk,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
        mpsc as channel,
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Status, Streaming,
    transport::{Channel, Endpoint},
};

/// Largest message accepted from the evaluator: 64 vectors of 49,152 rows are 20 MB.
const MAX_MESSAGE: usize = 32 << 20;
/// Bytes of one upload message, at most.
const UPLOAD_CHUNK: usize = 1 << 20;
/// Room in a message for everything but the bytes it carries.
pub(crate) const FRAME: usize = 1024;
/// Job messages queued towards the socket.
const QUEUE: usize = 32;
/// For calls that answer at once. Looking up may load matrices from the evaluator's disk.
const PATIENCE: Duration = Duration::from_secs(60);

type Client = EvaluatorClient<Channel>;

/// Why a session did not come about; `fatal` if trying again soon cannot help.
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) fatal: bool,
}

impl From<Status> for Refusal {
    fn from(s: Status) -> Self {
        use tonic::Code::{
            FailedPrecondition, InvalidArgument, OutOfRange, PermissionDenied, ResourceExhausted, Unimplemented,
        };
        let fatal = matches!(
            s.code(),
            FailedPrecondition | InvalidArgument | OutOfRange | PermissionDenied | ResourceExhausted | Unimplemented
        );
        Self { reason: format!("{:?}: {}", s.code(), clean(s.message())), fatal }
    }
}

fn fatal(reason: String) -> Refusal {
    Refusal { reason, fatal: true }
}

/// What happens to a job.
pub(crate) enum Event {
    /// Some tiles, as they came.
    Part(AnswerPart),
    /// The evaluator gives up this job.
    Failed(JobFailure),
    /// The session is gone.
    Lost(String),
}

/// A live job stream to an evaluator that holds every matrix of the plan.
pub(crate) struct Session {
    outgoing: mpsc::Sender<TileJob>,
    jobs: Arc<Jobs>,
    stop: CancellationToken,
    handle: Handle,
    info: EvaluatorInfo,
    pub(crate) max_message: usize,
}

/// The jobs in flight.
#[derive(Default)]
struct Jobs {
    next: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    closed: Option<String>,
    waiting: HashMap<u64, Waiting>,
}

/// Where a job's answers go, and how many may come.
struct Waiting {
    events: channel::Sender<Event>,
    parts_left: usize,
    bytes_left: usize,
}

impl Session {
    /// Connects and prepares everything; `quiet` says less about it, after a refusal. The task returned ends with the session and says why.
    pub(super) async fn open(
        endpoint: &Endpoint,
        residents: &Residents,
        handle: Handle,
        quiet: bool,
    ) -> Result<(Arc<Self>, JoinHandle<String>), Refusal> {
        let channel = endpoint.connect().await.map_err(|e| Refusal { reason: clean(&chain(&e)), fatal: false })?;
        let mut client = Client::new(channel).max_decoding_message_size(MAX_MESSAGE);
        let hello = hello(&mut client, residents).await?;
        let max_message = usize::try_from(hello.max_message_bytes).unwrap_or(usize::MAX);
        let states = reside(&mut client, residents, hello.memory_budget_bytes, max_message, quiet).await?;
        let (outgoing, incoming) = mpsc::channel(QUEUE);
        let answers = client.multiply(ReceiverStream::new(incoming)).await?.into_inner();
        let count = |r| u32::try_from(states.iter().filter(|s| s.residency() == r).count()).unwrap_or(u32::MAX);
        let weights: usize = residents.plan.matrices.iter().map(|m| m.matrix.int8.data().len()).sum();
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let bytes_per_weight = states.iter().map(|s| s.bytes).sum::<u64>() as f64 / weights.max(1) as f64;
        let info = EvaluatorInfo {
            endpoint: endpoint.uri().to_string(),
            version: clean(&hello.version),
            backend: clean(&hello.backend),
            isa: clean(&hello.isa),
            bytes_per_weight,
            pinned_layers: count(Residency::Pinned),
            fallback_layers: count(Residency::Fallback),
        };
        tracing::info!(
            evaluator = info.endpoint,
            backend = info.backend,
            isa = info.isa,
            pinned = info.pinned_layers,
            fallback = info.fallback_layers,
            bytes_per_weight,
            "evaluator is ready"
        );
        let (jobs, stop) = (Arc::new(Jobs::default()), CancellationToken::new());
        let end = handle.spawn(read(answers, jobs.clone(), stop.clone()));
        Ok((Arc::new(Self { outgoing, jobs, stop, handle, info, max_message }), end))
    }

    pub(crate) fn info(&self) -> &EvaluatorInfo {
        &self.info
    }

    pub(crate) fn is_open(&self) -> bool {
        self.jobs.lock().closed.is_none()
    }

    /// Ends the session; every job in flight hears it.
    pub(crate) fn close(&self, reason: &str) {
        self.jobs.close(reason);
        self.stop.cancel();
    }

    /// A new job that may be answered by at most `parts` parts of `bytes` bytes together.
    ///
    /// # Errors
    /// Why the session is closed.
    pub(crate) fn register(&self, parts: usize, bytes: usize) -> Result<(u64, channel::Receiver<Event>), String> {
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

    /// Queues a message, waiting for room in slices of [`super::POLL`] while `go_on` says so; false if it was not
    /// queued. Adds the time it waited to `blocked`.
    pub(crate) fn send(&self, job: TileJob, blocked: &mut Duration, go_on: impl Fn() -> bool) -> bool {
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
            let _ = self.handle.block_on(async { timeout(super::POLL, self.outgoing.reserve()).await.map(drop) });
            *blocked += start.elapsed();
        }
    }

    /// Queues a message if there is room.
    pub(crate) fn try_send(&self, job: TileJob) {
        let _ = self.outgoing.try_send(job);
    }
}

impl Jobs {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, reason: &str) {
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
    fn deliver(&self, answer: TileAnswer) -> Result<(), String> {
        let id = answer.job_id;
        let mut table = self.lock();
        let Some(job) = table.waiting.get_mut(&id) else {
            // Late answers to a job that was cancelled are lawful; to one that never was, not.
            let known = id < self.next.load(Ordering::Relaxed);
            return if known { Ok(()) } else { Err(format!("it answers job {id}, which was never sent")) };
        };
        let event = match answer.body {
            Some(tile_answer::Body::Part(part)) => {
                let left = job.bytes_left.checked_sub(part.coefficients.len()).zip(job.parts_left.checked_sub(1));
                let Some((bytes, parts)) = left else {
                    return Err(format!("it answers more than job {id} asks for"));
                };
                (job.bytes_left, job.parts_left) = (bytes, parts);
                Event::Part(part)
            }
            Some(tile_answer::Body::Failure(failure)) => Event::Failed(failure),
            None => return Err(format!("it answers job {id} with nothing")),
        };
        let _ = job.events.send(event);
        Ok(())
    }
}

async fn read(mut answers: Streaming<TileAnswer>, jobs: Arc<Jobs>, stop: CancellationToken) -> String {
    let reason = loop {
        let message = tokio::select! {
            () = stop.cancelled() => break "closed by the runtime".to_owned(),
            message = answers.message() => message,
        };
        match message {
            Ok(Some(answer)) => {
                if let Err(reason) = jobs.deliver(answer) {
                    break reason;
                }
            }
            Ok(None) => break "it has ended the stream".into(),
            Err(status) => break Refusal::from(status).reason,
        }
    };
    jobs.close(&reason);
    reason
}

async fn hello(client: &mut Client, residents: &Residents) -> Result<HelloResponse, Refusal> {
    let params_id = Bytes::copy_from_slice(&residents.ring.params().id().0);
    let request =
        HelloRequest { version: proto::VERSION.into(), protocol: proto::PROTOCOL, params_id: params_id.clone() };
    let theirs = patience(client.hello(request)).await?;
    let compare = |what: &str, theirs: String, ours: String| {
        if theirs == ours { Ok(()) } else { Err(fatal(format!("it has {what} {theirs}, this runtime has {ours}"))) }
    };
    compare("protocol", theirs.protocol.to_string(), proto::PROTOCOL.to_string())?;
    compare("version", clean(&theirs.version), proto::VERSION.into())?;
    compare("ring parameters", hex(&theirs.params_id), hex(&params_id))?;
    let block = kernels::wire::encoded_len(residents.ring.params(), residents.ring.n()) as u64;
    if theirs.max_message_bytes < block + FRAME as u64 {
        let reason = format!("it takes messages of {} bytes, one block has {block}", theirs.max_message_bytes);
        return Err(fatal(reason));
    }
    Ok(theirs)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(8).map(|b| format!("{b:02x}")).collect()
}

async fn patience<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, Refusal> {
    match timeout(PATIENCE, call).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Refusal { reason: format!("it says nothing for {} s", PATIENCE.as_secs()), fatal: false }),
    }
}

/// Makes every matrix resident; uploads only what the evaluator lacks.
async fn reside(
    client: &mut Client,
    residents: &Residents,
    budget: u64,
    max_message: usize,
    quiet: bool,
) -> Result<Vec<MatrixState>, Refusal> {
    let headers = residents.headers(budget)?;
    let mut states = patience(client.lookup(LookupRequest { matrices: headers.clone() })).await?.states;
    if states.len() != headers.len() {
        return Err(fatal(format!("it describes {} matrices, asked were {}", states.len(), headers.len())));
    }
    for (header, state) in headers.iter().zip(&states) {
        check_state(header, state)?;
    }
    let missing: Vec<usize> = (0..states.len()).filter(|&i| !states[i].resident).collect();
    let bytes = |i: &usize| residents.plan.matrices[*i].matrix.int8.data().len();
    let total: usize = missing.iter().map(bytes).sum();
    if !quiet {
        let resident = states.len() - missing.len();
        tracing::info!(resident, missing = missing.len(), bytes = total, "evaluator residency");
    }
    let (mut sent, mut said) = (0, 0);
    for i in missing {
        let state = upload(client, residents, i, headers[i].clone(), max_message).await?;
        check_state(&headers[i], &state)?;
        if !state.resident {
            return Err(fatal(format!("it has lost {} right after its upload", headers[i].name)));
        }
        states[i] = state;
        sent += bytes(&i);
        let percent = sent * 100 / total.max(1);
        if quiet {
            continue;
        }
        if percent >= said + 10 || percent == 100 {
            said = percent;
            tracing::info!(percent, sent, total, "uploading weights");
        }
    }
    Ok(states)
}

fn check_state(header: &MatrixHeader, state: &MatrixState) -> Result<(), Refusal> {
    if header.matrix_id == state.matrix_id {
        return Ok(());
    }
    let (found, asked) = (hex(&state.matrix_id), hex(&header.matrix_id));
    Err(fatal(format!("it describes matrix {found}, asked was {} ({asked})", header.name)))
}

/// Uploads matrix `i`: header, then rows in chunks.
async fn upload(
    client: &mut Client,
    residents: &Residents,
    i: usize,
    header: MatrixHeader,
    max_message: usize,
) -> Result<MatrixState, Refusal> {
    let chunk = UPLOAD_CHUNK.min(max_message.saturating_sub(FRAME)).max(1);
    let name = header.name.clone();
    let (chunks, outgoing) = mpsc::channel(4);
    let plan = residents.plan.clone();
    let feed = async move {
        let body = upload_chunk::Body::Header(header);
        let mut going = chunks.send(UploadChunk { body: Some(body) }).await.is_ok();
        for rows in plan.matrices[i].matrix.int8.data().chunks(chunk) {
            if !going {
                break;
            }
            let rows: Bytes = rows.iter().map(|w| w.cast_unsigned()).collect::<Vec<u8>>().into();
            going = chunks.send(UploadChunk { body: Some(upload_chunk::Body::Rows(rows)) }).await.is_ok();
        }
    };
    let receive = async {
        let mut progress = client.upload(ReceiverStream::new(outgoing)).await?.into_inner();
        let mut state = None;
        while let Some(p) = progress.message().await? {
            state = p.state.or(state);
        }
        state.ok_or_else(|| Status::internal("the upload has no result"))
    };
    let (state, ()) = tokio::join!(receive, feed);
    state.map_err(|s| {
        // Codecs refuse a message that is too long with one of these; a budget's refusal has figures of its own.
        let too_long = s.code() == tonic::Code::OutOfRange || s.message().contains("message length");
        let limits = format!(" (sent were {chunk} bytes of weights a message, it announced {max_message} a message)");
        let Refusal { reason, fatal } = Refusal::from(s);
        Refusal { reason: format!("upload of {name}: {reason}{}", if too_long { &limits } else { "" }), fatal }
    })
}

impl Residents {
    /// How the evaluator shall hold each matrix.
    ///
    /// # Errors
    /// A fatal refusal with the figures if they cannot all be held so within its `budget` (bytes).
    fn headers(&self, budget: u64) -> Result<Vec<MatrixHeader>, Refusal> {
        let size = |x: usize| u32::try_from(x).map_err(|_| fatal(format!("bug: {x} does not fit the contract")));
        let residency = self.plan.residency(&self.ring, self.residency, budget);
        let needed = self.plan.resident_bytes(&self.ring, &self.ids, &residency);
        if needed > budget {
            let (form, hint) = match self.residency {
                Wish::Pinned => ("pinned", "; raise its memory budget, or set evaluator.residency to auto"),
                Wish::Auto | Wish::Fallback => ("int8 (fallback)", "; raise its memory budget"),
            };
            let reason = format!("its memory budget is {budget} bytes, needed are {needed} for {form} weights{hint}");
            return Err(fatal(reason));
        }
        let header = |((m, id), residency): ((&crate::planner::PlannedMatrix, &[u8; 32]), Residency)| {
            Ok(MatrixHeader {
                matrix_id: Bytes::copy_from_slice(id),
                name: m.matrix.id.to_string(),
                rows: size(m.tiling.rows())?,
                cols: size(m.tiling.cols())?,
                tile_rows: size(m.tiling.tile_rows())?,
                tile_cols: size(m.tiling.tile_cols())?,
                residency: residency.into(),
            })
        };
        self.plan.matrices.iter().zip(&self.ids).zip(residency).map(header).collect()
    }
}
