//! A small evaluator over `kernels`, with a choice of ways to misbehave, that remembers what it was sent.

mod direct;
mod masked;

use bytes::Bytes;
use futures::StreamExt;
use kernels::{Int8Matrix, Ring, Tiling};
use proto::v1::{
    BulkAnswer, BulkHeader, BulkJob, BulkRows, FailureKind, HelloRequest, HelloResponse, JobFailure, LookupRequest,
    LookupResponse, MatrixState, OnlineAnswer, OnlineJob, Residency, TileAnswer, TileJob, UploadChunk, UploadProgress,
    evaluator_server::Evaluator, evaluator_server::EvaluatorServer, upload_chunk,
};
use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};
use tokio::{runtime::Runtime, sync::mpsc::UnboundedSender};
use tokio_stream::{
    Stream,
    wrappers::{TcpListenerStream, UnboundedReceiverStream},
};
use tonic::{Request, Response, Status, Streaming, transport::Server};

pub(crate) use masked::{Reply, packed, reword, unpacked};

/// What is wrong with this evaluator outside masked delegation; `Once` ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Honest,
    Version,
    Protocol,
    Params,
    SmallMessages,
    /// Takes messages of 15,000 bytes and says so.
    TightMessages,
    /// Takes messages of 8,000 bytes and promises more.
    BrokenPromise,
    /// Has a memory budget of so many bytes.
    Budget(u64),
    /// Never reads its jobs.
    Deaf,
    LookupOther,
    NoBudget,
    WrongSize,
    WrongTile,
    DuplicateTile,
    ResidueTooLarge,
    GarbageBytes,
    UnknownJob,
    TooManyParts,
    EmptyAnswer,
    Malformed,
    /// One coefficient is another one.
    Lie,
    Silent,
    DropStreamOnce,
    ForgetOnce,
    FailOnce(FailureKind),
    AlwaysUnavailable,
}

const TIGHT: usize = 15_000;

/// Everything with numbers that this evaluator was ever sent, in order.
#[derive(Default)]
pub(crate) struct Seen {
    /// Input blocks of direct jobs, as they came.
    pub(crate) blocks: Vec<Bytes>,
    pub(crate) online: Vec<OnlineJob>,
    /// Rows of bulk jobs, each with the header of its job.
    pub(crate) bulk: Vec<(BulkHeader, BulkRows)>,
}

/// What becomes of the honest answers to a direct job.
pub(crate) type DirectHook = Box<dyn FnMut(Vec<TileAnswer>) -> Reply<TileAnswer> + Send>;
/// What becomes of the honest answers to a job; the job first.
pub(crate) type Hook<J, A> = Box<dyn FnMut(&J, Vec<A>) -> Reply<A> + Send>;

pub(crate) struct Shared {
    ring: Ring,
    pub(crate) mode: Mutex<Mode>,
    pub(crate) direct: Mutex<Option<DirectHook>>,
    pub(crate) online: Mutex<Option<Hook<OnlineJob, OnlineAnswer>>>,
    pub(crate) bulk: Mutex<Option<Hook<BulkHeader, BulkAnswer>>>,
    matrices: Mutex<HashMap<Bytes, (Tiling, Arc<Int8Matrix>)>>,
    pub(crate) uploads: Mutex<usize>,
    pub(crate) cancels: Mutex<usize>,
    pub(crate) seen: Mutex<Seen>,
}

#[derive(Clone)]
pub(crate) struct Fake(pub(crate) Arc<Shared>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    pub(crate) fn new(ring: Ring, mode: Mode) -> Self {
        Self(Arc::new(Shared {
            ring,
            mode: Mutex::new(mode),
            direct: Mutex::default(),
            online: Mutex::default(),
            bulk: Mutex::default(),
            matrices: Mutex::default(),
            uploads: Mutex::default(),
            cancels: Mutex::default(),
            seen: Mutex::default(),
        }))
    }

    /// Serves on a free port of `runtime`; ends with the runtime.
    pub(crate) fn serve(&self, runtime: &Runtime) -> SocketAddr {
        self.serve_at(runtime, "127.0.0.1:0".parse().unwrap())
    }

    /// As `serve`, on a given address; waits until a former server has let go of it.
    pub(crate) fn serve_at(&self, runtime: &Runtime, address: SocketAddr) -> SocketAddr {
        let listener = loop {
            match runtime.block_on(tokio::net::TcpListener::bind(address)) {
                Ok(listener) => break listener,
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => std::thread::yield_now(),
                Err(e) => panic!("{e}"),
            }
        };
        let address = listener.local_addr().unwrap();
        let limit = match self.mode() {
            Mode::TightMessages => TIGHT,
            Mode::BrokenPromise => 8000,
            _ => 1 << 24,
        };
        let service = EvaluatorServer::new(self.clone()).max_decoding_message_size(limit);
        runtime.spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        address
    }

    /// From now on every online answer goes through `hook`.
    pub(crate) fn online(
        &self,
        hook: impl FnMut(&OnlineJob, Vec<OnlineAnswer>) -> Reply<OnlineAnswer> + Send + 'static,
    ) {
        *self.0.online.lock().unwrap() = Some(Box::new(hook));
    }

    /// From now on the answers to every bulk job go through `hook`.
    pub(crate) fn bulk(&self, hook: impl FnMut(&BulkHeader, Vec<BulkAnswer>) -> Reply<BulkAnswer> + Send + 'static) {
        *self.0.bulk.lock().unwrap() = Some(Box::new(hook));
    }

    /// From now on the answers to every direct job go through `hook`.
    pub(crate) fn direct(&self, hook: impl FnMut(Vec<TileAnswer>) -> Reply<TileAnswer> + Send + 'static) {
        *self.0.direct.lock().unwrap() = Some(Box::new(hook));
    }

    /// From now on it is honest.
    pub(crate) fn reform(&self) {
        *self.0.mode.lock().unwrap() = Mode::Honest;
        *self.0.direct.lock().unwrap() = None;
        *self.0.online.lock().unwrap() = None;
        *self.0.bulk.lock().unwrap() = None;
    }

    fn mode(&self) -> Mode {
        *self.0.mode.lock().unwrap()
    }

    /// The mode, which becomes honest if it was to happen once.
    fn spend(&self) -> Mode {
        let mut mode = self.0.mode.lock().unwrap();
        let now = *mode;
        if matches!(now, Mode::DropStreamOnce | Mode::ForgetOnce | Mode::FailOnce(_)) {
            *mode = Mode::Honest;
        }
        now
    }

    fn matrix(&self, id: &Bytes) -> Option<(Tiling, Arc<Int8Matrix>)> {
        self.0.matrices.lock().unwrap().get(id).cloned()
    }

    fn state(&self, matrix_id: Bytes) -> MatrixState {
        let resident = self.matrix(&matrix_id).is_some();
        MatrixState { matrix_id, resident, residency: Residency::Fallback.into(), bytes: 100 }
    }
}

/// A failure message, with a line break that must not get into a log.
pub(crate) fn failure(kind: FailureKind) -> JobFailure {
    JobFailure { kind: kind.into(), message: "as the test\nwishes".into() }
}

#[tonic::async_trait]
impl Evaluator for Fake {
    type UploadStream = Answers<UploadProgress>;
    type MultiplyStream = Answers<TileAnswer>;
    type OnlineStream = Answers<OnlineAnswer>;
    type BulkStream = Answers<BulkAnswer>;

    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let theirs = request.into_inner();
        let mode = self.mode();
        let or = |bad: bool, a: &str, b: &str| if bad { b.to_owned() } else { a.to_owned() };
        Ok(Response::new(HelloResponse {
            version: or(mode == Mode::Version, proto::VERSION, "9.9.9\u{7}"),
            protocol: if mode == Mode::Protocol { 77 } else { proto::PROTOCOL },
            params_id: if mode == Mode::Params { vec![0xab; 32].into() } else { theirs.params_id },
            backend: "fake".into(),
            isa: "scalar".into(),
            threads: 1,
            memory_budget_bytes: if let Mode::Budget(bytes) = mode { bytes } else { 1 << 30 },
            memory_used_bytes: 0,
            max_message_bytes: match mode {
                Mode::SmallMessages => 5000,
                Mode::TightMessages => TIGHT as u64,
                _ => 1 << 24,
            },
            max_jobs_in_flight: 8,
        }))
    }

    async fn lookup(&self, request: Request<LookupRequest>) -> Result<Response<LookupResponse>, Status> {
        let mut states: Vec<_> = request.into_inner().matrices.into_iter().map(|h| self.state(h.matrix_id)).collect();
        if self.mode() == Mode::LookupOther {
            states.reverse();
        }
        Ok(Response::new(LookupResponse { states }))
    }

    async fn upload(&self, request: Request<Streaming<UploadChunk>>) -> Result<Response<Self::UploadStream>, Status> {
        let mut chunks = request.into_inner();
        let Some(upload_chunk::Body::Header(h)) = chunks.message().await?.and_then(|c| c.body) else {
            return Err(Status::invalid_argument("no header"));
        };
        if self.mode() == Mode::NoBudget {
            return Err(Status::resource_exhausted("budget 5 bytes, used 0, needed 9"));
        }
        let mut data = Vec::new();
        while let Some(chunk) = chunks.message().await? {
            if let Some(upload_chunk::Body::Rows(rows)) = chunk.body {
                data.extend(rows.iter().map(|b| b.cast_signed()));
            }
        }
        let [rows, cols, m, n] = [h.rows, h.cols, h.tile_rows, h.tile_cols].map(|x| x as usize);
        let matrix = Int8Matrix::new(rows, cols, data).unwrap();
        assert_eq!(matrix.id().0[..], h.matrix_id[..]);
        let tiling = Tiling::new(rows, cols, m, n, self.0.ring.n()).unwrap();
        self.0.matrices.lock().unwrap().insert(h.matrix_id.clone(), (tiling, Arc::new(matrix)));
        *self.0.uploads.lock().unwrap() += 1;
        let last = UploadProgress { received_bytes: 0, state: Some(self.state(h.matrix_id)) };
        Ok(Response::new(Box::pin(futures::stream::iter([Ok(last)]))))
    }

    async fn multiply(&self, request: Request<Streaming<TileJob>>) -> Result<Response<Self::MultiplyStream>, Status> {
        let mut desk = direct::Desk::new(self.clone());
        let deaf = self.mode() == Mode::Deaf;
        Ok(serve(request, deaf, move |job| desk.take(job)))
    }

    async fn online(&self, request: Request<Streaming<OnlineJob>>) -> Result<Response<Self::OnlineStream>, Status> {
        let fake = self.clone();
        Ok(serve(request, false, move |job| fake.multiply_online(&job)))
    }

    async fn bulk(&self, request: Request<Streaming<BulkJob>>) -> Result<Response<Self::BulkStream>, Status> {
        let mut desk = masked::Desk::new(self.clone());
        Ok(serve(request, false, move |job| desk.take(job)))
    }
}

/// Answers one message after the other until `work` hangs up; a `deaf` one reads none.
fn serve<J: Send + 'static, A: Send + 'static>(
    request: Request<Streaming<J>>,
    deaf: bool,
    mut work: impl FnMut(J) -> Reply<A> + Send + 'static,
) -> Response<Answers<A>> {
    let (send, answers): (UnboundedSender<Result<A, Status>>, _) = tokio::sync::mpsc::unbounded_channel();
    let mut jobs = request.into_inner();
    tokio::spawn(async move {
        if deaf {
            send.closed().await;
            return;
        }
        while let Some(Ok(job)) = jobs.next().await {
            let reply = work(job);
            reply.answers.into_iter().for_each(|a| drop(send.send(Ok(a))));
            if reply.hang_up {
                return;
            }
        }
    });
    Response::new(Box::pin(UnboundedReceiverStream::new(answers)))
}
