//! An evaluator that forwards everything to a real one and meddles with what comes back.
//!
//! It holds no weights and no arithmetic: what it changes, it changes in the messages. Whatever it does,
//! the runtime may fail or repeat, but must never turn it into a token that differs.

use crate::stage::{Evaluator, Stage};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use proto::v1::{
    self, AnswerPart, HelloResponse, TileAnswer, evaluator_client::EvaluatorClient, evaluator_server::EvaluatorServer,
    tile_answer::Body,
};
use std::{
    pin::Pin,
    sync::{Arc, Mutex},
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::{
    Stream,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Channel, Server},
};

/// What is done to an answer part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meddling {
    /// The last byte is cut off.
    Short,
    /// One byte is added.
    Long,
    /// No bytes at all.
    Empty,
    /// Every residue is all ones: not below q.
    OutOfRange,
    /// Bytes of no format.
    Garbage,
    /// The header says another kind of residues.
    WrongKind,
    /// The part comes twice.
    Twice,
    /// The part is said to hold the next tile.
    Shifted,
    /// The part is said to hold more tiles than there are.
    TooManyTiles,
    /// A part of no tiles, again and again, instead of the answer.
    Nothing,
    /// The answer is for a job that was never sent.
    AnotherJob,
    /// An answer without a body.
    Bodyless,
    /// A failure of a kind that does not exist.
    UnknownFailure,
    /// The part never arrives.
    Silence,
    /// The stream ends instead, as if all were well.
    End,
    /// The stream breaks instead.
    Break,
}

impl Meddling {
    /// Every kind.
    pub const ALL: [Self; 16] = [
        Self::Short,
        Self::Long,
        Self::Empty,
        Self::OutOfRange,
        Self::Garbage,
        Self::WrongKind,
        Self::Twice,
        Self::Shifted,
        Self::TooManyTiles,
        Self::Nothing,
        Self::AnotherJob,
        Self::Bodyless,
        Self::UnknownFailure,
        Self::Silence,
        Self::End,
        Self::Break,
    ];
}

/// What the meddler says about itself in `Hello` in place of the truth.
#[derive(Clone, Default)]
pub struct Disguise {
    /// Another build.
    pub version: Option<String>,
    /// Another protocol revision.
    pub protocol: Option<u32>,
    /// Another ring.
    pub params_id: Option<Bytes>,
}

/// What the meddler has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls of `Upload`.
    pub uploads: u64,
    /// Answer parts forwarded or meddled with.
    pub parts: u64,
    /// Answer parts meddled with.
    pub meddled: u64,
    /// Jobs that were cancelled by the runtime.
    pub cancelled: u64,
}

#[derive(Default)]
struct Plan {
    meddling: Option<(Meddling, u64)>,
    disguise: Disguise,
    seen: Seen,
}

/// A fake evaluator in front of a real one. Dropping it stops it.
pub struct Meddler {
    /// Where it listens on loopback.
    pub port: u16,
    plan: Arc<Mutex<Plan>>,
    server: tokio::task::JoinHandle<()>,
}

impl Meddler {
    /// Starts in front of `behind`.
    ///
    /// # Errors
    /// If there is no port or no certificate.
    pub async fn start(stage: &Stage, behind: &Evaluator) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        let service = Service { channel: stage.channel(behind.port)?, plan: plan.clone() };
        let service = EvaluatorServer::new(service).max_decoding_message_size(LARGEST);
        let router = Server::builder().tls_config(stage.server_tls()?)?.add_service(service);
        let server = tokio::spawn(async move {
            // Ends when it is aborted; an error shows as a connection that is refused.
            let _ = router.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        Ok(Self { port, plan, server })
    }

    /// Meddles with the next `times` answer parts.
    pub fn meddle(&self, what: Meddling, times: u64) {
        self.plan.lock().expect("no panic in the meddler").meddling = Some((what, times));
    }

    /// Forwards faithfully from now on.
    pub fn behave(&self) {
        self.plan.lock().expect("no panic in the meddler").meddling = None;
    }

    /// Pretends in `Hello`.
    pub fn disguise(&self, as_what: Disguise) {
        self.plan.lock().expect("no panic in the meddler").disguise = as_what;
    }

    /// The counts so far.
    pub fn seen(&self) -> Seen {
        self.plan.lock().expect("no panic in the meddler").seen
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Service {
    channel: Channel,
    plan: Arc<Mutex<Plan>>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    fn real(&self) -> EvaluatorClient<Channel> {
        EvaluatorClient::new(self.channel.clone()).max_decoding_message_size(LARGEST)
    }
}

#[tonic::async_trait]
impl v1::evaluator_server::Evaluator for Service {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<HelloResponse>, Status> {
        let mut answer = self.real().hello(request.into_inner()).await?.into_inner();
        let disguise = self.plan.lock().expect("no panic in the meddler").disguise.clone();
        answer.version = disguise.version.unwrap_or(answer.version);
        answer.protocol = disguise.protocol.unwrap_or(answer.protocol);
        answer.params_id = disguise.params_id.unwrap_or(answer.params_id);
        Ok(Response::new(answer))
    }

    async fn lookup(&self, request: Request<v1::LookupRequest>) -> Result<Response<v1::LookupResponse>, Status> {
        self.real().lookup(request.into_inner()).await
    }

    type UploadStream = Answers<v1::UploadProgress>;

    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadChunk>>,
    ) -> Result<Response<Self::UploadStream>, Status> {
        self.plan.lock().expect("no panic in the meddler").seen.uploads += 1;
        let chunks = forward(request.into_inner(), |_| {});
        let progress = self.real().upload(chunks).await?.into_inner();
        Ok(Response::new(Box::pin(progress)))
    }

    type MultiplyStream = Answers<TileAnswer>;

    async fn multiply(
        &self,
        request: Request<Streaming<v1::TileJob>>,
    ) -> Result<Response<Self::MultiplyStream>, Status> {
        let plan = self.plan.clone();
        let jobs = forward(request.into_inner(), move |job: &v1::TileJob| {
            if matches!(job.body, Some(v1::tile_job::Body::Cancel(_))) {
                plan.lock().expect("no panic in the meddler").seen.cancelled += 1;
            }
        });
        let mut answers = self.real().multiply(jobs).await?.into_inner();
        let (plan, (out, stream)) = (self.plan.clone(), mpsc::channel(16));
        tokio::spawn(async move {
            while let Some(answer) = answers.next().await {
                let told = match answer {
                    Ok(answer) => plan.lock().expect("no panic in the meddler").answer(answer),
                    Err(status) => vec![Err(status)],
                };
                let Some(told) = told_or_end(told) else { return };
                for message in told {
                    if out.send(message).await.is_err() {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// What is sent for one answer: messages, or nothing more at all after `Err(OK)`.
type Told = Vec<Result<TileAnswer, Status>>;

fn told_or_end(told: Told) -> Option<Told> {
    let ends = told.iter().any(|m| m.as_ref().is_err_and(|s| s.code() == tonic::Code::Ok));
    (!ends).then_some(told)
}

impl Plan {
    fn answer(&mut self, answer: TileAnswer) -> Told {
        let TileAnswer { job_id, body: Some(Body::Part(part)) } = answer else { return vec![Ok(answer)] };
        self.seen.parts += 1;
        let whole = |part: AnswerPart| Ok(TileAnswer { job_id, body: Some(Body::Part(part)) });
        let Some((meddling, times @ 1..)) = self.meddling else { return vec![whole(part)] };
        self.meddling = Some((meddling, times - 1));
        self.seen.meddled += 1;
        let with = |coefficients: Bytes| vec![whole(AnswerPart { coefficients, ..part.clone() })];
        let bytes = &part.coefficients;
        match meddling {
            Meddling::Short => with(bytes.slice(..bytes.len().saturating_sub(1))),
            Meddling::Long => with([bytes, &[0u8][..]].concat().into()),
            Meddling::Empty => with(Bytes::new()),
            Meddling::OutOfRange => {
                let mut ones = BytesMut::from(&bytes[..]);
                ones[WIRE_HEADER..].fill(0xff);
                with(ones.freeze())
            }
            Meddling::Garbage => with((0..bytes.len()).map(|i| u8::try_from(i * 151 % 256).unwrap_or(0)).collect()),
            Meddling::WrongKind => {
                let mut other = BytesMut::from(&bytes[..]);
                other[WIRE_KIND] ^= 3;
                with(other.freeze())
            }
            Meddling::Twice => vec![whole(part.clone()), whole(part)],
            Meddling::Shifted => vec![whole(AnswerPart { first_tile: part.first_tile + 1, ..part })],
            Meddling::TooManyTiles => vec![whole(AnswerPart { tiles: u32::MAX, ..part })],
            Meddling::Nothing => (0..3).map(|_| whole(AnswerPart { tiles: 0, ..part.clone() })).collect(),
            Meddling::AnotherJob => {
                vec![Ok(TileAnswer { job_id: job_id ^ (1 << 40), body: Some(Body::Part(part)) })]
            }
            Meddling::Bodyless => vec![Ok(TileAnswer { job_id, body: None })],
            Meddling::UnknownFailure => {
                let failure = v1::JobFailure { kind: 99, message: "\u{7}x".repeat(2000) };
                vec![Ok(TileAnswer { job_id, body: Some(Body::Failure(failure)) })]
            }
            Meddling::Silence => Vec::new(),
            Meddling::End => vec![Err(Status::ok("end"))],
            Meddling::Break => vec![Err(Status::data_loss("meddled with"))],
        }
    }
}

/// Passes messages on until either side ends.
fn forward<T: Send + 'static>(mut from: Streaming<T>, mut look: impl FnMut(&T) + Send + 'static) -> ReceiverStream<T> {
    let (out, stream) = mpsc::channel(16);
    tokio::spawn(async move {
        while let Some(Ok(message)) = from.next().await {
            look(&message);
            if out.send(message).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(stream)
}

/// `kernels::wire`: bytes before the residues, and where the kind is.
const WIRE_HEADER: usize = 16;
const WIRE_KIND: usize = 4;
const LARGEST: usize = 64 << 20;
