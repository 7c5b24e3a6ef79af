//! Receiving one matrix: the header, then exactly its rows; visible only when the hash is right.

use super::{Parts, state};
use crate::{
    Error,
    header::MatrixSpec,
    metrics,
    residency::{Claim, Slot},
};
use kernels::Int8Matrix;
use proto::v1::{UploadChunk, UploadProgress, upload_chunk::Body};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Bytes between two progress messages.
const PROGRESS: usize = 4 << 20;
/// Silence after which an upload is given up and its reservation returned.
const IDLE: Duration = Duration::from_secs(60);

type Progress = Result<UploadProgress, Status>;

/// Reads the header, reserves memory, and receives the rest in a task of its own.
///
/// A matrix that is resident, or becomes so by somebody else's upload, is answered without reading its rows.
pub(super) async fn receive(
    parts: Arc<Parts>,
    mut chunks: Streaming<UploadChunk>,
) -> Result<ReceiverStream<Progress>, Status> {
    let Some(UploadChunk { body: Some(Body::Header(header)) }) = next(&mut chunks).await? else {
        return Err(Error::Peer("an upload starts with a matrix header".into()).into());
    };
    let spec = MatrixSpec::parse(&header, &parts.rings, parts.config.max_matrix)?;
    let (progress, receiver) = mpsc::channel(4);
    let place = Arc::clone(&parts.uploads)
        .acquire_owned()
        .await
        .map_err(|_| Error::Bug("the upload semaphore is never closed".into()))?;
    loop {
        match parts.store.claim(&spec) {
            Ok(Claim::Wait(mut end)) => {
                // Closing is the signal.
                let _ = end.changed().await;
            }
            Ok(Claim::Ready(matrix)) => {
                let _ = progress.try_send(Ok(UploadProgress { received_bytes: 0, state: Some(state(&matrix)) }));
                break;
            }
            Ok(Claim::Slot(slot)) => {
                tokio::spawn(run(parts, chunks, slot, spec, progress, place));
                break;
            }
            Err(e) => {
                tracing::warn!("refused an upload: {e}");
                metrics::upload(false, 0);
                return Err(e.into());
            }
        }
    }
    Ok(ReceiverStream::new(receiver))
}

/// Receives the rows and reports how it ended.
async fn run(
    parts: Arc<Parts>,
    chunks: Streaming<UploadChunk>,
    slot: Slot,
    spec: MatrixSpec,
    progress: mpsc::Sender<Progress>,
    place: OwnedSemaphorePermit,
) {
    let mut draining = parts.draining.clone();
    let result = tokio::select! {
        result = rows(chunks, slot, &spec, &progress) => result,
        () = draining.wait() => Err(Error::Unavailable("the evaluator is draining".into()).into()),
        () = progress.closed() => Err(Status::cancelled("the uploader went away")),
    };
    drop(place);
    metrics::upload(result.is_ok(), if result.is_ok() { spec.int8_bytes() } else { 0 });
    if let Err(status) = &result {
        tracing::warn!(matrix = spec.name, "refused an upload: {}", status.message());
    }
    // A peer that has gone does not need the answer.
    let _ = progress.send(result).await;
}

async fn rows(
    mut chunks: Streaming<UploadChunk>,
    slot: Slot,
    spec: &MatrixSpec,
    progress: &mpsc::Sender<Progress>,
) -> Progress {
    let expected = spec.int8_bytes();
    let mut data: Vec<i8> = Vec::new();
    data.try_reserve_exact(expected)
        .map_err(|_| Error::Platform(format!("matrix {:?}: no memory for {expected} bytes", spec.name)))?;
    let mut told = 0;
    while let Some(chunk) = next(&mut chunks).await? {
        let Some(Body::Rows(rows)) = chunk.body else {
            return Err(Error::Peer(format!("matrix {:?}: only rows may follow the header", spec.name)).into());
        };
        if rows.len() > expected - data.len() {
            return Err(Error::Peer(format!(
                "matrix {:?}: more than the {expected} bytes of {}x{}",
                spec.name,
                spec.tiling.rows(),
                spec.tiling.cols()
            ))
            .into());
        }
        data.extend(rows.iter().map(|&b| b.cast_signed()));
        if data.len() - told >= PROGRESS {
            told = data.len();
            // Progress is a courtesy: a peer that does not read it loses some of it.
            let _ = progress.try_send(Ok(UploadProgress { received_bytes: told as u64, state: None }));
        }
    }
    if data.len() < expected {
        return Err(Error::Peer(format!("matrix {:?}: {} bytes, expected {expected}", spec.name, data.len())).into());
    }
    let (rows, cols) = (spec.tiling.rows(), spec.tiling.cols());
    let matrix = tokio::task::spawn_blocking(move || {
        let int8 = Int8Matrix::new(rows, cols, data)?;
        slot.fill(int8)
    })
    .await
    .map_err(|e| Error::Bug(format!("encoding: {e}")))??;
    tracing::info!(
        matrix = spec.name,
        rows,
        cols,
        residency = matrix.residency().as_str_name(),
        bytes = matrix.bytes(),
        "resident"
    );
    Ok(UploadProgress { received_bytes: expected as u64, state: Some(state(&matrix)) })
}

async fn next(chunks: &mut Streaming<UploadChunk>) -> Result<Option<UploadChunk>, Status> {
    timeout(IDLE, chunks.message())
        .await
        .map_err(|_| Status::deadline_exceeded(format!("nothing received for {} seconds", IDLE.as_secs())))?
}
