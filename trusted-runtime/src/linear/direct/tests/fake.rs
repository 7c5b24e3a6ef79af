//! A small evaluator over `kernels`, with a choice of ways to misbehave.

use bytes::Bytes;
use futures::StreamExt;
use kernels::{Inputs, Int8Matrix, Ring, Tiling, product::product_on_the_fly, wire};
use proto::v1::{
    AnswerPart, FailureKind, HelloRequest, HelloResponse, JobFailure, JobHeader, JobTiming, LookupRequest,
    LookupResponse, MatrixState, Residency, TileAnswer, TileJob, UploadChunk, UploadProgress,
    evaluator_server::Evaluator, evaluator_server::EvaluatorServer, tile_answer, tile_job, upload_chunk,
};
use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};
use tokio_stream::{
    Stream,
    wrappers::{TcpListenerStream, UnboundedReceiverStream},
};
use tonic::{Request, Response, Status, Streaming, transport::Server};

/// What is wrong with this evaluator; `Once` ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
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
    Silent,
    DropStreamOnce,
    ForgetOnce,
    FailOnce(FailureKind),
    AlwaysUnavailable,
}

const TIGHT: usize = 15_000;

pub(super) struct Shared {
    ring: Ring,
    pub(super) mode: Mutex<Mode>,
    matrices: Mutex<HashMap<Bytes, (Tiling, Arc<Int8Matrix>)>>,
    pub(super) uploads: Mutex<usize>,
    pub(super) cancels: Mutex<usize>,
    /// Every input block ever received.
    pub(super) blocks: Mutex<Vec<Bytes>>,
}

#[derive(Clone)]
pub(super) struct Fake(pub(super) Arc<Shared>);

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    pub(super) fn new(ring: Ring, mode: Mode) -> Self {
        Self(Arc::new(Shared {
            ring,
            mode: Mutex::new(mode),
            matrices: Mutex::default(),
            uploads: Mutex::default(),
            cancels: Mutex::default(),
            blocks: Mutex::default(),
        }))
    }

    /// Serves on a free port of `runtime`; ends with the runtime.
    pub(super) fn serve(&self, runtime: &tokio::runtime::Runtime) -> SocketAddr {
        self.serve_at(runtime, "127.0.0.1:0".parse().unwrap())
    }

    /// As `serve`, on a given address; waits until a former server has let go of it.
    pub(super) fn serve_at(&self, runtime: &tokio::runtime::Runtime, address: SocketAddr) -> SocketAddr {
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

    fn state(&self, matrix_id: Bytes) -> MatrixState {
        let resident = self.0.matrices.lock().unwrap().contains_key(&matrix_id);
        MatrixState { matrix_id, resident, residency: Residency::Fallback.into(), bytes: 100 }
    }

    /// The answer to a complete job; `None` breaks the stream.
    fn answer(&self, job_id: u64, header: &JobHeader, parts: &[(usize, usize, Bytes)]) -> Option<Vec<TileAnswer>> {
        let failure = |kind: FailureKind| {
            let failure = JobFailure { kind: kind.into(), message: "as the test\nwishes".into() };
            vec![TileAnswer { job_id, body: Some(tile_answer::Body::Failure(failure)) }]
        };
        let mode = self.spend();
        match mode {
            Mode::DropStreamOnce => return None,
            Mode::ForgetOnce => self.0.matrices.lock().unwrap().clear(),
            Mode::FailOnce(kind) => return Some(failure(kind)),
            Mode::AlwaysUnavailable => return Some(failure(FailureKind::Unavailable)),
            Mode::Malformed => return Some(failure(FailureKind::Malformed)),
            Mode::Silent => return Some(Vec::new()),
            _ => {}
        }
        let Some((tiling, matrix)) = self.0.matrices.lock().unwrap().get(&header.matrix_id).cloned() else {
            return Some(failure(FailureKind::MatrixAbsent));
        };
        let (ring, n, vectors) = (&self.0.ring, self.0.ring.n(), header.vectors as usize);
        let mut inputs = Inputs::new(ring, vectors, tiling.blocks());
        for (v, first, bytes) in parts {
            let count = (bytes.len() - wire::HEADER) * 8 / ring.params().bits() as usize / n;
            let mut words = vec![0; count * n];
            wire::decode(ring.params(), wire::Kind::Ntt, bytes, &mut words).unwrap();
            words.chunks_exact(n).enumerate().for_each(|(j, w)| inputs.set(*v, first + j, w));
        }
        let mut answers = Vec::new();
        let half = tiling.tiles().div_ceil(2);
        // The second half first: order must not matter.
        for range in [half..tiling.tiles(), 0..half] {
            if range.is_empty() {
                continue;
            }
            let mut out = vec![0; vectors * range.len() * n];
            product_on_the_fly(ring, &tiling, &matrix, &inputs, range.clone(), &mut out).unwrap();
            let mut useful = Vec::new();
            for (k, poly) in out.chunks_exact_mut(n).enumerate() {
                ring.inverse_residues(poly);
                let rows = tiling.tile_row_range(range.start + k % range.len()).len();
                useful.extend((0..rows).map(|r| poly[tiling.output_coefficient(r)]));
            }
            match mode {
                Mode::ResidueTooLarge => useful[0] = ring.q(),
                Mode::WrongSize => useful.push(0),
                _ => {}
            }
            let mut coefficients = Vec::new();
            wire::encode(ring.params(), wire::Kind::Coefficients, &useful, &mut coefficients);
            if mode == Mode::GarbageBytes {
                coefficients[0] ^= 1;
            }
            let part = AnswerPart {
                first_tile: u32::try_from(range.start).unwrap() + if mode == Mode::WrongTile { 1 << 20 } else { 0 },
                tiles: u32::try_from(range.len()).unwrap(),
                coefficients: coefficients.into(),
                timing: Some(JobTiming { queued_ns: 1, compute_ns: 1000 }),
            };
            let job_id = if mode == Mode::UnknownJob { job_id + 1000 } else { job_id };
            let body = (mode != Mode::EmptyAnswer).then_some(tile_answer::Body::Part(part));
            answers.push(TileAnswer { job_id, body });
            match mode {
                Mode::DuplicateTile => answers.push(answers[0].clone()),
                Mode::TooManyParts => answers.extend(vec![answers[0].clone(); 100]),
                _ => {}
            }
        }
        Some(answers)
    }
}

#[tonic::async_trait]
impl Evaluator for Fake {
    type UploadStream = Answers<UploadProgress>;
    type MultiplyStream = Answers<TileAnswer>;

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
        let (send, answers) = tokio::sync::mpsc::unbounded_channel();
        let (fake, mut jobs) = (self.clone(), request.into_inner());
        tokio::spawn(async move {
            if fake.mode() == Mode::Deaf {
                send.closed().await;
                drop(jobs);
                return;
            }
            let mut open: HashMap<u64, (JobHeader, Vec<(usize, usize, Bytes)>, usize)> = HashMap::new();
            while let Some(Ok(TileJob { job_id, body })) = jobs.next().await {
                match body {
                    Some(tile_job::Body::Header(h)) => {
                        open.insert(job_id, (h, Vec::new(), 0));
                        continue;
                    }
                    Some(tile_job::Body::Part(p)) => {
                        let job = open.get_mut(&job_id).unwrap();
                        let bits = fake.0.ring.params().bits() as usize * fake.0.ring.n();
                        job.2 += (p.blocks.len() - wire::HEADER) * 8 / bits;
                        fake.0.blocks.lock().unwrap().push(p.blocks.clone());
                        job.1.push((p.vector as usize, p.first_block as usize, p.blocks));
                    }
                    _ => {
                        *fake.0.cancels.lock().unwrap() += 1;
                        open.remove(&job_id);
                        continue;
                    }
                }
                let (h, parts, blocks) = &open[&job_id];
                let known = fake.0.matrices.lock().unwrap().get(&h.matrix_id).map(|m| m.0.blocks());
                if known.is_some_and(|k| k * h.vectors as usize != *blocks) {
                    continue;
                }
                let Some(answers) = fake.answer(job_id, h, parts) else { return };
                open.remove(&job_id);
                answers.into_iter().for_each(|a| drop(send.send(Ok(a))));
            }
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(answers))))
    }
}
