//! The `Evaluator` service: what a runtime may ask, and what is refused.

mod bulk;
mod jobs;
mod multiply;
mod online;
mod remembered;
mod upload;

use self::{
    jobs::{Jobs, Receiving},
    online::Online,
};
use crate::{
    Error,
    backend::{Backend, Matrix},
    bulk::Bulk,
    config::Config,
    drain::Draining,
    executor::Executor,
    header::{MatrixSpec, parse_id, short},
    pool::Pool,
    precedence::Precedence,
    residency::Store,
    rings::Rings,
    team::Team,
    ticket::Outgoing,
    tiles::Tiles,
};
use futures::{StreamExt, stream::BoxStream};
use kernels::{Int8Matrix, Ring};
use proto::v1::{
    BulkAnswer, BulkJob, FailureKind, HelloRequest, HelloResponse, LookupRequest, LookupResponse, MatrixState,
    OnlineAnswer, OnlineJob, Residency, TileAnswer, TileJob, UploadChunk, UploadProgress, evaluator_server::Evaluator,
};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// Matrices in one Lookup at most.
const MAX_LOOKUP: usize = 4096;
/// Vectors in one job at most.
const MAX_VECTORS: u32 = 64;

/// Bytes of a part that takes longer to unpack than another thread to wake.
const LARGE: usize = 64 << 10;

/// What is wrong with a job.
type Refusal = (FailureKind, String);

/// The service and everything it works with.
#[derive(Clone)]
pub struct Service(Arc<Parts>);

/// What the service is made of.
pub struct Parts {
    /// The rings of encrypted products.
    pub rings: Rings,
    /// What multiplies.
    pub backend: Backend,
    /// Resident matrices.
    pub store: Arc<Store>,
    /// Threads that multiply tiles.
    pub executor: Executor<Tiles>,
    /// Threads that multiply lanes.
    pub bulk: Executor<Bulk>,
    /// Threads that help with online products.
    pub team: Team,
    /// What bulk work stands back for.
    pub precedence: Arc<Precedence>,
    /// Buffers for inputs.
    pub pool: Arc<Pool>,
    /// Settings, among them the limits.
    pub config: Config,
    /// Whether the daemon is leaving.
    pub draining: Draining,
    /// Uploads received at the same time.
    pub uploads: Arc<Semaphore>,
    /// Open job streams.
    pub streams: Arc<Semaphore>,
}

impl Service {
    /// The service over its parts.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(parts))
    }
}

impl Parts {
    fn refuse_while_draining(&self) -> Result<(), Error> {
        if self.draining.begun() { Err(Error::Unavailable("the evaluator is draining".into())) } else { Ok(()) }
    }

    /// One more job stream, if there may be one.
    fn stream(&self) -> Result<OwnedSemaphorePermit, Error> {
        self.refuse_while_draining()?;
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| {
            Error::Exhausted(format!("{} job streams are open, no more are allowed", self.config.max_streams))
        })
    }

    /// The resident matrix that a job names.
    fn matrix(&self, id: &[u8]) -> Result<Arc<Matrix>, Refusal> {
        let id = parse_id(id).map_err(|e| (FailureKind::Malformed, e.to_string()))?;
        let absent = || (FailureKind::MatrixAbsent, format!("matrix {}.. is not resident", short(&id)));
        self.store.matrix(&id).ok_or_else(absent)
    }

    /// The weights of the resident matrix that a job names, and its ring.
    fn weights(&self, id: &[u8]) -> Result<(Ring, Arc<Int8Matrix>), Refusal> {
        let matrix = self.matrix(id)?;
        let weights = matrix.int8().ok_or_else(|| {
            (
                FailureKind::Malformed,
                format!(
                    "matrix {:?} ({}..) is held as {}, this job needs {}",
                    matrix.name(),
                    short(&matrix.id()),
                    Residency::Pinned.as_str_name(),
                    Residency::Fallback.as_str_name()
                ),
            )
        })?;
        Ok((matrix.ring().clone(), Arc::clone(weights)))
    }

    /// Refuses a job that needs more memory than a whole stream may have.
    fn allow(&self, bytes: usize) -> Result<(), Refusal> {
        let most = self.config.max_stream_memory;
        if bytes as u64 > most {
            let what = format!("the job needs {bytes} bytes, a stream may hold {most}");
            return Err((FailureKind::Malformed, what));
        }
        Ok(())
    }
}

/// Unpacks so many bytes: a large part beside the thread that talks to peers, so that nobody waits behind it.
fn unpack<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    if bytes < LARGE { work() } else { tokio::task::block_in_place(work) }
}

/// The number of vectors of a job, which its header gives.
fn vectors(count: u32) -> Result<usize, Refusal> {
    if !(1..=MAX_VECTORS).contains(&count) {
        return Err((FailureKind::Malformed, format!("{count} vectors, allowed are 1 to {MAX_VECTORS}")));
    }
    Ok(count as usize)
}

/// Serves a stream of jobs in a task of its own.
fn serve<R: Receiving>(parts: &Arc<Parts>, inbound: Streaming<R::Message>) -> Result<Answers<R::Answer>, Error> {
    let stream = parts.stream()?;
    let (answers, receiver) = tokio::sync::mpsc::unbounded_channel();
    let jobs = Jobs::<R>::new(Arc::clone(parts), answers);
    tokio::spawn(async move {
        jobs.serve(inbound).await;
        drop(stream);
    });
    let leave: Leave<R::Answer> = Outgoing::leave;
    Ok(UnboundedReceiverStream::new(receiver).map(leave))
}

/// What a runtime is told about a resident matrix.
fn state(matrix: &Matrix) -> MatrixState {
    MatrixState {
        matrix_id: matrix.id().0.to_vec().into(),
        resident: true,
        residency: matrix.residency().into(),
        bytes: matrix.bytes(),
    }
}

/// Takes an answer out of the queue when the transport asks for more; what it occupied is free then.
type Leave<A> = fn(Outgoing<A>) -> Result<A, Status>;

/// The answers of a stream whose jobs are served in a task of their own.
type Answers<A> = futures::stream::Map<UnboundedReceiverStream<Outgoing<A>>, Leave<A>>;

#[tonic::async_trait]
impl Evaluator for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let (parts, hello) = (&self.0, request.into_inner());
        for (what, theirs, ours) in [
            ("protocol revision", hello.protocol.to_string(), proto::PROTOCOL.to_string()),
            ("version", shown(&hello.version), proto::VERSION.to_owned()),
        ] {
            if theirs != ours {
                tracing::warn!("refused a runtime: {what} {theirs}, the evaluator has {ours}");
                return Err(
                    Error::Mismatch(format!("{what}: the runtime has {theirs}, the evaluator has {ours}")).into()
                );
            }
        }
        let ring = parts.rings.find(&hello.params_id).inspect_err(|e| tracing::warn!("refused a runtime: {e}"))?;
        Ok(Response::new(HelloResponse {
            version: proto::VERSION.into(),
            protocol: proto::PROTOCOL,
            params_id: ring.params().id().0.to_vec().into(),
            backend: parts.backend.name().into(),
            isa: parts.rings.isa().name().into(),
            threads: u32::try_from(parts.executor.threads()).unwrap_or(u32::MAX),
            memory_budget_bytes: parts.store.budget(),
            memory_used_bytes: parts.store.used(),
            max_message_bytes: parts.config.max_message as u64,
            max_jobs_in_flight: u32::try_from(parts.config.max_jobs_per_stream).unwrap_or(u32::MAX),
        }))
    }

    async fn lookup(&self, request: Request<LookupRequest>) -> Result<Response<LookupResponse>, Status> {
        let headers = request.into_inner().matrices;
        if headers.len() > MAX_LOOKUP {
            return Err(
                Error::Peer(format!("{} matrices in one lookup, allowed are {MAX_LOOKUP}", headers.len())).into()
            );
        }
        let specs = headers
            .iter()
            .map(|h| MatrixSpec::parse(h, &self.0.rings, self.0.config.max_matrix))
            .collect::<Result<Vec<_>, _>>()?;
        let parts = Arc::clone(&self.0);
        // Matrices may come from the disk cache and be encoded here.
        let states = tokio::task::spawn_blocking(move || parts.store.lookup_all(&specs, parts.executor.threads()))
            .await
            .map_err(|e| Error::Bug(format!("lookup: {e}")))??
            .into_iter()
            .zip(headers)
            .map(|(found, header)| match found {
                Some(matrix) => state(&matrix),
                None => MatrixState { matrix_id: header.matrix_id, ..MatrixState::default() },
            })
            .collect();
        Ok(Response::new(LookupResponse { states }))
    }

    type UploadStream = ReceiverStream<Result<UploadProgress, Status>>;

    async fn upload(&self, request: Request<Streaming<UploadChunk>>) -> Result<Response<Self::UploadStream>, Status> {
        self.0.refuse_while_draining()?;
        Ok(Response::new(upload::receive(Arc::clone(&self.0), request.into_inner()).await?))
    }

    type MultiplyStream = Answers<TileAnswer>;

    async fn multiply(&self, request: Request<Streaming<TileJob>>) -> Result<Response<Self::MultiplyStream>, Status> {
        Ok(Response::new(serve::<multiply::Blocks>(&self.0, request.into_inner())?))
    }

    type OnlineStream = BoxStream<'static, Result<OnlineAnswer, Status>>;

    async fn online(&self, request: Request<Streaming<OnlineJob>>) -> Result<Response<Self::OnlineStream>, Status> {
        let stream = self.0.stream()?;
        let online = Online::new(Arc::clone(&self.0), request.into_inner(), stream);
        let answers = futures::stream::unfold(online, async |mut online| {
            let answer = online.next().await?;
            Some((answer, online))
        });
        Ok(Response::new(answers.boxed()))
    }

    type BulkStream = Answers<BulkAnswer>;

    async fn bulk(&self, request: Request<Streaming<BulkJob>>) -> Result<Response<Self::BulkStream>, Status> {
        Ok(Response::new(serve::<bulk::Columns>(&self.0, request.into_inner())?))
    }
}

/// A peer's version, fit for a log line.
fn shown(version: &str) -> String {
    version.chars().filter(|c| c.is_ascii_graphic()).take(32).collect()
}
