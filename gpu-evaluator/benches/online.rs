//! The round trip of an online job over loopback TLS: one vector, one job at a time, as in decoding.
//!
//! `cargo bench -p gpu-evaluator --bench online [-- THREADS | ROWSxCOLS ...]`

#[path = "../tests/daemon/harness.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod harness;

use harness::{Client, Daemon, Pki};
use kernels::{Int8Matrix, Tiling, params::RINGS};
use proto::v1::{
    HelloRequest, MatrixHeader, OnlineAnswer, OnlineJob, Residency, UploadChunk, online_answer, upload_chunk,
};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::ClientTlsConfig};

/// Round trips measured for each matrix.
const ROUNDS: u64 = 5000;
/// A pause between two, as the enclave has other work to do.
const PAUSE: Duration = Duration::from_micros(100);

/// An open stream to the daemon.
struct Line {
    jobs: mpsc::Sender<OnlineJob>,
    answers: Streaming<OnlineAnswer>,
    next: u64,
}

/// What one round trip took: all of it, and what the daemon says of it.
struct Trip {
    whole: Duration,
    queued: Duration,
    compute: Duration,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let (shapes, threads): (Vec<_>, Vec<_>) = words.into_iter().partition(|w| w.contains('x'));
    let mut shapes: Vec<(usize, usize)> = shapes.iter().map(|s| shape(s)).collect();
    if shapes.is_empty() {
        shapes = vec![(8, 8), (576, 576), (960, 576), (3072, 576), (576, 1536), (49_152, 576)];
    }
    let threads = if threads.is_empty() { vec!["1".to_owned(), "2".to_owned()] } else { threads };
    let pki = Pki::new();
    for threads in threads {
        for workers in [1, 2] {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
            let runtime = runtime.expect("runtime");
            let daemon = Daemon::with_tls(&pki, &["--threads", &threads]);
            println!("{threads} threads, a client with {workers} workers:");
            let tls = pki.as_client(&pki);
            let shapes = shapes.clone();
            // On a worker, as the parts of a daemon are: the main thread would be one more to wake.
            runtime.block_on(runtime.spawn(async move { measure(&daemon, tls, &shapes).await })).expect("measures");
        }
    }
}

fn shape(text: &str) -> (usize, usize) {
    let (rows, cols) = text.split_once('x').expect("ROWSxCOLS");
    (rows.parse().expect("rows"), cols.parse().expect("columns"))
}

/// Prints the medians for every shape.
async fn measure(daemon: &Daemon, tls: ClientTlsConfig, shapes: &[(usize, usize)]) {
    let mut client = daemon.tls_client(tls).await.expect("connects");
    let mut calls = Vec::new();
    for _ in 0..ROUNDS {
        let since = Instant::now();
        // What it answers does not matter, only that it does.
        let _ = client.hello(HelloRequest::default()).await;
        calls.push(since.elapsed());
    }
    println!("  a call of its own {:.1} us", micros(median(calls)));
    for &(rows, cols) in shapes {
        let id = upload(&mut client, rows, cols).await;
        let mut line = open(&mut client).await;
        let rounds = if rows > 10_000 { ROUNDS / 20 } else { ROUNDS };
        for pause in [None, Some(PAUSE)] {
            let mut trips = Vec::new();
            let before = spent(daemon.pid());
            for _ in 0..rounds {
                trips.push(trip(&mut line, &id, cols).await);
                let since = Instant::now();
                // The enclave computes meanwhile; it does not sleep.
                while pause.is_some_and(|p| since.elapsed() < p) {
                    std::hint::spin_loop();
                }
            }
            let after = spent(daemon.pid());
            let each = |count: u64| count as f64 / rounds as f64;
            let of = |part: fn(&Trip) -> Duration| micros(median(trips.iter().map(part).collect()));
            println!(
                "  {rows}x{cols}, {}: round trip {:.1} us; queued {:.1}, computed {:.1}; \
                     daemon {:.1} us of processor time, {:.2} switches",
                if pause.is_some() { "100 us apart" } else { "back to back" },
                of(|t| t.whole),
                of(|t| t.queued),
                of(|t| t.compute),
                each(after.0 - before.0) / 1000.0,
                each(after.1 - before.1)
            );
        }
    }
}

async fn upload(client: &mut Client, rows: usize, cols: usize) -> Vec<u8> {
    let data: Vec<u8> = (0u32..).map(|i| (i * 31 % 251).to_le_bytes()[0]).take(rows * cols).collect();
    let matrix = Int8Matrix::new(rows, cols, data.iter().map(|b| b.cast_signed()).collect()).expect("shape");
    let tiling = Tiling::new(rows, cols, 1, cols, 2048).expect("fits");
    let size = |n: usize| u32::try_from(n).expect("small");
    let header = MatrixHeader {
        matrix_id: matrix.id().0.to_vec().into(),
        name: format!("bench.{rows}x{cols}"),
        rows: size(rows),
        cols: size(cols),
        tile_rows: size(tiling.tile_rows()),
        tile_cols: size(tiling.tile_cols()),
        residency: Residency::Fallback.into(),
        params_id: RINGS[0].check().expect("checked").id().0.to_vec().into(),
    };
    let chunk = |body| UploadChunk { body: Some(body) };
    let mut chunks = vec![chunk(upload_chunk::Body::Header(header))];
    chunks.extend(data.chunks(1 << 20).map(|c| chunk(upload_chunk::Body::Rows(c.to_vec().into()))));
    let mut progress = client.upload(tokio_stream::iter(chunks)).await.expect("accepted").into_inner();
    while progress.message().await.expect("accepted").is_some() {}
    matrix.id().0.to_vec()
}

async fn open(client: &mut Client) -> Line {
    let (jobs, receiver) = mpsc::channel(16);
    let answers = client.online(ReceiverStream::new(receiver)).await.expect("open").into_inner();
    Line { jobs, answers, next: 0 }
}

async fn trip(line: &mut Line, id: &[u8], cols: usize) -> Trip {
    line.next += 1;
    let job = OnlineJob {
        job_id: line.next,
        matrix_id: id.to_vec().into(),
        vectors: 1,
        words: vec![7; 4 * cols].into(),
        word_bits: 32,
    };
    let since = Instant::now();
    line.jobs.send(job).await.expect("open");
    let answer = line.answers.message().await.expect("goes on").expect("an answer");
    let whole = since.elapsed();
    assert!(matches!(answer.body, Some(online_answer::Body::Words(_))), "{:?}", answer.body);
    let timing = answer.timing.expect("answers have it");
    let [queued, compute] = [timing.queued_ns, timing.compute_ns].map(Duration::from_nanos);
    Trip { whole, queued, compute }
}

/// Processor time (in ns) and voluntary switches of a process so far, all its threads.
fn spent(pid: u32) -> (u64, u64) {
    let (mut time, mut switches) = (0, 0);
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").flatten() {
        // A thread may have ended meanwhile.
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        time += read("schedstat").split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        switches += read("status")
            .lines()
            .find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))
            .and_then(|n| n.trim().parse::<u64>().ok())
            .unwrap_or(0);
    }
    (time, switches)
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort();
    all[all.len() / 2]
}

fn micros(d: Duration) -> f64 {
    d.as_secs_f64() * 1e6
}
