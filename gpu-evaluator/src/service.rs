//! The `Evaluator` service: what a runtime may ask, and what is refused.

mod job;
mod multiply;
mod upload;

use crate::{
    Error,
    backend::{Backend, Matrix},
    config::Config,
    drain::Draining,
    executor::Executor,
    header::{MatrixSpec, hex},
    pool::Pool,
    residency::Store,
    ticket::Outgoing,
};
use futures::StreamExt;
use kernels::Ring;
use proto::v1::{
    HelloRequest, HelloResponse, LookupRequest, LookupResponse, MatrixState, TileAnswer, TileJob, UploadChunk,
    UploadProgress, evaluator_server::Evaluator,
};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

/// Matrices in one Lookup at most.
const MAX_LOOKUP: usize = 4096;

/// The service and everything it works with.
#[derive(Clone)]
pub struct Service(Arc<Parts>);

/// What the service is made of.
pub struct Parts {
    /// The ring in which everything is computed.
    pub ring: Ring,
    /// What multiplies.
    pub backend: Backend,
    /// Resident matrices.
    pub store: Arc<Store>,
    /// Threads that multiply.
    pub executor: Executor,
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

/// Takes the answer out of a queue entry; the permit beside it returns here, when the transport asks for more.
type Answers = futures::stream::Map<UnboundedReceiverStream<Outgoing>, fn(Outgoing) -> Result<TileAnswer, Status>>;

#[tonic::async_trait]
impl Evaluator for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let (parts, hello) = (&self.0, request.into_inner());
        let id = parts.ring.params().id();
        for (what, theirs, ours) in [
            ("protocol revision", hello.protocol.to_string(), proto::PROTOCOL.to_string()),
            ("version", shown(&hello.version), proto::VERSION.to_owned()),
            ("ring parameters", hex(&hello.params_id[..hello.params_id.len().min(32)]), hex(&id.0)),
        ] {
            if theirs != ours {
                tracing::warn!("refused a runtime: {what} {theirs}, the evaluator has {ours}");
                return Err(
                    Error::Mismatch(format!("{what}: the runtime has {theirs}, the evaluator has {ours}")).into()
                );
            }
        }
        Ok(Response::new(HelloResponse {
            version: proto::VERSION.into(),
            protocol: proto::PROTOCOL,
            params_id: id.0.to_vec().into(),
            backend: parts.backend.name().into(),
            isa: parts.ring.isa().name().into(),
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
            .map(|h| MatrixSpec::parse(h, self.0.ring.params(), self.0.config.max_matrix))
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

    type MultiplyStream = Answers;

    async fn multiply(&self, request: Request<Streaming<TileJob>>) -> Result<Response<Self::MultiplyStream>, Status> {
        self.0.refuse_while_draining()?;
        let Ok(stream) = Arc::clone(&self.0.streams).try_acquire_owned() else {
            return Err(Error::Exhausted(format!(
                "{} job streams are open, no more are allowed",
                self.0.config.max_streams
            ))
            .into());
        };
        let (answers, receiver) = tokio::sync::mpsc::unbounded_channel();
        let jobs = multiply::Jobs::new(Arc::clone(&self.0), answers);
        tokio::spawn(async move {
            jobs.serve(request.into_inner()).await;
            drop(stream);
        });
        let answer: fn(Outgoing) -> Result<TileAnswer, Status> = |(answer, _place)| answer;
        Ok(Response::new(UnboundedReceiverStream::new(receiver).map(answer)))
    }
}

/// A peer's version, fit for a log line.
fn shown(version: &str) -> String {
    version.chars().filter(|c| c.is_ascii_graphic()).take(32).collect()
}
