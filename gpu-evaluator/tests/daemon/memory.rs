//! What the daemon occupies: the matrices, and little besides.

use crate::{
    bulk::{Bulk, Product},
    harness::{Client, Daemon},
    online::Online,
    peer::{Assembly, Stream, Weights, hello, parts, scalar_ring},
};
use proto::v1::{Residency, UploadChunk, tile_answer, upload_chunk::Body};
use std::sync::Arc;

/// Bytes of a message of rows, as runtimes send them.
const CHUNK: usize = 1 << 20;
/// Uploads at the same time.
const UPLOADS: usize = 4;
/// Connections that each have an online and a bulk stream, one after the other.
const CONNECTIONS: usize = 5;
/// Calls within which the daemon gives back what a job took.
const CALLS: usize = 2000;

/// The linear layers of a small transformer: (rows, cols, tile rows, tile columns), `layers` times four and a head.
fn model(layers: usize, head: usize) -> Vec<Weights> {
    let layer = [(960, 576, 32, 64), (576, 576, 32, 64), (3072, 576, 64, 32), (576, 1536, 16, 128)];
    let shapes = (0..layers).flat_map(|_| layer).chain([(head, 576, 128, 16)]).zip(1..);
    shapes.map(|((rows, cols, m, n), seed)| Weights::random(seed, rows, cols, m, n)).collect()
}

async fn upload(mut client: Client, weights: Weights, residency: Residency) {
    let header = UploadChunk { body: Some(Body::Header(weights.header(residency))) };
    let rows = weights.rows();
    let rows: Vec<_> = rows.chunks(CHUNK).map(|c| UploadChunk { body: Some(Body::Rows(c.to_vec().into())) }).collect();
    let chunks = tokio_stream::iter(std::iter::once(header).chain(rows));
    let mut progress = client.upload(chunks).await.expect("accepted").into_inner();
    let mut residencies = Vec::new();
    while let Some(message) = progress.message().await.expect("accepted") {
        residencies.extend(message.state.map(|s| s.residency()));
    }
    assert_eq!(residencies, [residency]);
}

/// One job of every shape, for one vector and for several.
async fn jobs(client: &mut Client, model: &[Weights]) {
    let ring = scalar_ring();
    let mut stream = Stream::open(client).await.expect("open");
    for (job, (weights, vectors)) in (0..).zip(model.iter().flat_map(|w| [(w, 1), (w, 16)])) {
        let inputs = weights.inputs(&ring, 7, vectors);
        stream.header(job, weights.id(), vectors).await;
        for part in parts(&ring, &weights.tiling, &inputs, vectors, 24) {
            stream.part(job, part).await;
        }
        let mut assembly = Assembly::default();
        loop {
            let (_, tile_answer::Body::Part(part)) = stream.answer().await else { panic!("job {job} failed") };
            if assembly.take(&ring, &weights.tiling, vectors, &part).is_some() {
                break;
            }
        }
    }
}

/// One online job of every shape, and one bulk job whose words take 25 MB while it runs.
async fn masked(client: &mut Client, model: &[Weights]) {
    let mut stream = Online::online(client).await.expect("open");
    for (id, weights) in (0..).zip(model) {
        stream.job(weights.job(id, 4)).await;
        assert!(stream.words().await.1 == weights.products(id, 4), "job {id}");
    }
    let widest = model.iter().max_by_key(|w| w.int8.cols()).expect("a model");
    let job = Product { rows: 0..96, ..Product::whole(1, widest, 2048) };
    let mut stream = Bulk::bulk(client).await.expect("open");
    stream.job(&job, 64).await;
    assert!(stream.product(&job).await == job.expected());
}

/// How a model is used.
enum Protocol {
    Direct,
    Masked,
}

/// Uploads and uses a model; bytes of resident memory that this cost the daemon, per weight.
async fn bytes_per_weight(residency: Residency, layers: usize, head: usize, bound: f64, protocol: Protocol) -> f64 {
    let daemon = Daemon::plain(&["--threads", "2"]);
    let mut client = daemon.client().await;
    let model = model(layers, head);
    let before = daemon.resident();
    let queue = Arc::new(std::sync::Mutex::new(model.clone()));
    let uploads: Vec<_> = (0..UPLOADS)
        .map(|_| {
            let (client, queue) = (client.clone(), Arc::clone(&queue));
            tokio::spawn(async move {
                while let Some(weights) = { queue.lock().expect("queue").pop() } {
                    upload(client.clone(), weights, residency).await;
                }
            })
        })
        .collect();
    for upload in uploads {
        upload.await.expect("uploaded");
    }
    let shapes = &model[model.len() - 5..];
    match protocol {
        Protocol::Direct => jobs(&mut client, shapes).await,
        Protocol::Masked => {
            // Every connection has a thread of its own, and threads have memory of their own.
            for _ in 0..CONNECTIONS {
                masked(&mut daemon.client().await, shapes).await;
            }
        }
    }
    let weights: usize = model.iter().map(|w| w.int8.data().len()).sum();
    let cost = || (daemon.resident() - before) as f64 / weights as f64;
    // The last answer is on its way before its job's buffers are given back: some calls later they are.
    for _ in 0..CALLS {
        if cost() <= bound {
            break;
        }
        client.hello(hello()).await.expect("it answers");
    }
    cost()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_weight_takes_little_more_than_its_form() {
    let direct = bytes_per_weight(Residency::Fallback, 20, 49_152, 1.3, Protocol::Direct).await;
    let masked = bytes_per_weight(Residency::Fallback, 20, 49_152, 1.2, Protocol::Masked).await;
    let pinned = bytes_per_weight(Residency::Pinned, 5, 16_384, 9.0, Protocol::Direct).await;
    assert!(direct <= 1.3, "{direct} bytes per weight in fallback");
    // The last job's words, 0.25 bytes per weight, are gone, too.
    assert!(masked <= 1.2, "{masked} bytes per weight in fallback, masked");
    assert!(pinned <= 9.0, "{pinned} bytes per pinned weight");
}
