//! One session: hello, lookup, upload of what is missing, then one stream of jobs until it breaks.

use super::{
    Peer, Residents, chain, clean,
    online::{self, Online},
    stream::JobStream,
};
use bytes::Bytes;
use proto::v1::{
    BulkAnswer, BulkJob, EvaluatorInfo, HelloRequest, HelloResponse, LookupRequest, MatrixHeader, MatrixState,
    Residency, TileAnswer, TileJob, UploadChunk, evaluator_client::EvaluatorClient, upload_chunk,
};
use std::{sync::Arc, time::Duration};
use tokio::{runtime::Handle, sync::mpsc, task::JoinHandle, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, transport::Channel};

/// Largest message accepted from the evaluator: 64 vectors of 49,152 rows are 20 MB.
const MAX_MESSAGE: usize = 32 << 20;
/// Bytes of one upload message, at most.
const UPLOAD_CHUNK: usize = 1 << 20;
/// Room in a message for everything but the bytes it carries.
pub(crate) const FRAME: usize = 1024;
/// Job messages queued towards the socket.
const QUEUE: usize = 32;
/// Bulk messages queued towards the socket, up to a megabyte each.
const BULK_QUEUE: usize = 4;
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
        // What broke the connection below gRPC, a refused certificate for example, is in the causes.
        let cause = std::error::Error::source(&s).map(|cause| format!(": {}", clean(&chain(cause))));
        Self { reason: format!("{:?}: {}{}", s.code(), clean(s.message()), cause.unwrap_or_default()), fatal }
    }
}

fn fatal(reason: String) -> Refusal {
    Refusal { reason, fatal: true }
}

/// Live job streams to an evaluator that holds every matrix of the plan.
pub(crate) struct Session {
    /// Encrypted activations.
    pub(crate) direct: JobStream<TileJob, TileAnswer>,
    /// Masked activations and encrypted masks, on connections of their own: nothing queues before the former.
    pub(crate) masked: Option<MaskedStreams>,
    stop: CancellationToken,
    info: EvaluatorInfo,
    pub(crate) max_message: usize,
    /// As it has announced.
    pub(crate) memory_budget: u64,
}

/// The streams of masked delegation.
pub(crate) struct MaskedStreams {
    pub(crate) online: Arc<Online>,
    pub(crate) bulk: JobStream<BulkJob, BulkAnswer>,
}

impl Session {
    /// Connects and prepares everything; `quiet` says less about it, after a refusal. The task returned ends with the session and says why.
    pub(super) async fn open(
        endpoint: &Peer,
        residents: &Residents,
        handle: Handle,
        quiet: bool,
    ) -> Result<(Arc<Self>, JoinHandle<String>), Refusal> {
        let mut client = connect(endpoint).await?;
        let hello = hello(&mut client, residents).await?;
        let max_message = usize::try_from(hello.max_message_bytes).unwrap_or(usize::MAX);
        let states = reside(&mut client, residents, hello.memory_budget_bytes, max_message, quiet).await?;
        let info = describe(endpoint, residents, &hello, &states);
        let stop = CancellationToken::new();
        let (outgoing, incoming) = mpsc::channel(QUEUE);
        let answers = client.multiply(ReceiverStream::new(incoming)).await?.into_inner();
        let direct = JobStream::new(outgoing, handle.clone());
        let mut readers = vec![handle.spawn(direct.jobs().read(answers, stop.clone()))];
        let masked = if residents.masked {
            let (to, stopped) = (endpoint.clone(), stop.clone());
            let line = handle.spawn_blocking(move || Online::open(&to, MAX_MESSAGE, stopped)).await;
            let online = line.unwrap_or_else(|_| Err(fatal("bug: connecting panicked".into())))?;
            let (ended, line) = (stop.clone(), online.clone());
            readers.push(handle.spawn(async move {
                ended.cancelled().await;
                line.why()
            }));
            let (outgoing, incoming) = mpsc::channel(BULK_QUEUE);
            let answers = connect(endpoint).await?.bulk(ReceiverStream::new(incoming)).await?.into_inner();
            let bulk = JobStream::new(outgoing, handle.clone());
            readers.push(handle.spawn(bulk.jobs().read(answers, stop.clone())));
            Some(MaskedStreams { online, bulk })
        } else {
            None
        };
        tracing::info!(
            evaluator = info.endpoint,
            backend = info.backend,
            isa = info.isa,
            pinned = info.pinned_layers,
            fallback = info.fallback_layers,
            bytes_per_weight = info.bytes_per_weight,
            "evaluator is ready"
        );
        // The first stream to end takes the others with it, and its reason is the session's.
        let end = handle.spawn(async move {
            let (first, _, others) = futures::future::select_all(readers).await;
            let reasons = std::iter::once(first).chain(futures::future::join_all(others).await);
            let mut reasons = reasons.map(|r| r.unwrap_or_else(|_| "the session task ended".into()));
            let first = reasons.next().unwrap_or_default();
            if first == online::CLOSED { reasons.find(|r| r != online::CLOSED).unwrap_or(first) } else { first }
        });
        let memory_budget = hello.memory_budget_bytes;
        Ok((Arc::new(Self { direct, masked, stop, info, max_message, memory_budget }), end))
    }

    pub(crate) fn info(&self) -> &EvaluatorInfo {
        &self.info
    }

    pub(crate) fn is_open(&self) -> bool {
        self.direct.is_open() && self.masked.as_ref().is_none_or(|m| m.online.is_open() && m.bulk.is_open())
    }

    /// Ends the session; every job in flight hears it.
    pub(crate) fn close(&self, reason: &str) {
        self.direct.jobs().close(reason);
        if let Some(MaskedStreams { online, bulk }) = &self.masked {
            online.close(reason);
            bulk.jobs().close(reason);
        }
        self.stop.cancel();
    }
}

async fn connect(endpoint: &Peer) -> Result<Client, Refusal> {
    let channel = endpoint.connect().await.map_err(|reason| Refusal { reason, fatal: false })?;
    Ok(Client::new(channel).max_decoding_message_size(MAX_MESSAGE))
}

fn describe(endpoint: &Peer, residents: &Residents, hello: &HelloResponse, states: &[MatrixState]) -> EvaluatorInfo {
    let count = |r| u32::try_from(states.iter().filter(|s| s.residency() == r).count()).unwrap_or(u32::MAX);
    let weights: usize = residents.plan.matrices.iter().map(|m| m.matrix.int8.data().len()).sum();
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let bytes_per_weight = states.iter().map(|s| s.bytes).sum::<u64>() as f64 / weights.max(1) as f64;
    EvaluatorInfo {
        endpoint: endpoint.uri().to_string(),
        version: clean(&hello.version),
        backend: clean(&hello.backend),
        isa: clean(&hello.isa),
        bytes_per_weight,
        pinned_layers: count(Residency::Pinned),
        fallback_layers: count(Residency::Fallback),
    }
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
        let budget = self.budget.map_or(budget, |own| own.min(budget));
        let residency = self.plan.fit(&self.ring, &self.ids, self.residency, budget).map_err(fatal)?;
        let params_id = Bytes::copy_from_slice(&self.ring.params().id().0);
        let header = |((m, id), residency): ((&crate::planner::PlannedMatrix, &[u8; 32]), Residency)| {
            Ok(MatrixHeader {
                matrix_id: Bytes::copy_from_slice(id),
                name: m.matrix.id.to_string(),
                rows: size(m.tiling.rows())?,
                cols: size(m.tiling.cols())?,
                tile_rows: size(m.tiling.tile_rows())?,
                tile_cols: size(m.tiling.tile_cols())?,
                residency: residency.into(),
                params_id: params_id.clone(),
            })
        };
        self.plan.matrices.iter().zip(&self.ids).zip(residency).map(header).collect()
    }
}
