//! Multiply: the right bits, whatever the form, the threads and the order; and what is refused.

use crate::{
    harness::{Daemon, Pki, text},
    peer::{Assembly, Stream, Weights, parts, put, scalar_ring},
};
use kernels::{Ring, wire};
use proto::v1::{FailureKind, JobCancel, JobHeader, JobPart, Residency, TileJob, tile_answer::Body, tile_job};
use std::collections::HashMap;
use tonic::Code;

/// Runs jobs of one matrix, all in flight together, and returns their words by job id.
async fn multiply(
    stream: &mut Stream,
    ring: &Ring,
    weights: &Weights,
    jobs: &[(u64, usize)],
) -> HashMap<u64, Vec<u64>> {
    let mut queues = Vec::new();
    for &(id, vectors) in jobs {
        stream.header(id, weights.id(), vectors).await;
        queues.push((id, parts(ring, &weights.tiling, &weights.inputs(ring, id, vectors), vectors, 2)));
    }
    // Parts of different jobs alternate.
    while queues.iter().any(|(_, queue)| !queue.is_empty()) {
        for (id, queue) in &mut queues {
            if let Some(part) = queue.pop() {
                stream.part(*id, part).await;
            }
        }
    }
    let vectors: HashMap<_, _> = jobs.iter().copied().collect();
    let mut open: HashMap<u64, Assembly> = jobs.iter().map(|(id, _)| (*id, Assembly::default())).collect();
    let mut done = HashMap::new();
    while done.len() < jobs.len() {
        let (id, body) = stream.answer().await;
        let Body::Part(part) = body else { panic!("job {id} failed: {body:?}") };
        let assembly = open.get_mut(&id).expect("a job that was sent and not complete");
        if let Some(words) = assembly.take(ring, &weights.tiling, vectors[&id], &part) {
            open.remove(&id);
            done.insert(id, words);
        }
    }
    done
}

#[tokio::test(flavor = "multi_thread")]
async fn products_are_bit_exact_in_every_form_and_for_any_thread_count() {
    let ring = scalar_ring();
    let pki = Pki::new();
    // Ragged at both edges; more rows than columns; one row a tile; a single tile.
    let shapes = [(150, 100, 32, 48), (700, 40, 40, 40), (9, 300, 1, 256), (5, 7, 5, 7)];
    let all: Vec<_> = shapes.iter().zip(1..).map(|(&(r, c, m, n), seed)| Weights::random(seed, r, c, m, n)).collect();
    let jobs = [(7, 1), (3, 3), (900, 8)];
    let expected: Vec<HashMap<u64, Vec<u64>>> = all
        .iter()
        .map(|w| jobs.iter().map(|&(id, v)| (id, w.expected(&ring, &w.inputs(&ring, id, v), v))).collect())
        .collect();
    for (residency, threads, tls) in [
        (Residency::Pinned, "1", true),
        (Residency::Pinned, "2", false),
        (Residency::Fallback, "1", false),
        (Residency::Fallback, "2", true),
    ] {
        let (_daemon, mut client) = Daemon::with_client(&pki, tls, &["--threads", threads]).await;
        let mut stream = Stream::open(&mut client).await.expect("open");
        for (weights, expected) in all.iter().zip(&expected) {
            let state = put(&mut client, weights, residency).await;
            assert_eq!(state.residency(), residency);
            let found = multiply(&mut stream, &ring, weights, &jobs).await;
            assert!(found == *expected, "{residency:?}, {threads} threads, {:?}", weights.tiling);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_job_fails_alone() {
    let ring = scalar_ring();
    let daemon = Daemon::plain(&["--threads", "2"]);
    let mut client = daemon.client().await;
    let weights = Weights::random(1, 64, 100, 32, 48);
    put(&mut client, &weights, Residency::Pinned).await;
    let mut stream = Stream::open(&mut client).await.expect("open");
    let words = weights.inputs(&ring, 1, 1);
    let message = |count: usize| {
        let mut bytes = Vec::new();
        wire::encode(ring.params(), wire::Kind::Ntt, &words[..count * ring.n()], &mut bytes);
        bytes
    };
    let part = |vector, first_block, blocks: Vec<u8>| JobPart { vector, first_block, blocks: blocks.into() };
    let mut over = message(1);
    over[wire::HEADER..wire::HEADER + 7].fill(0xff);
    let mut kind = message(1);
    kind[4] = wire::Kind::Coefficients as u8;
    let mut cut = message(1);
    cut.pop();
    let cases: Vec<(Vec<JobPart>, &str)> = vec![
        (vec![part(1, 0, message(1))], "part for vector 1, the job has 1"),
        (vec![part(0, 3, message(1))], "blocks 3..4 of vector 0, the matrix has 3"),
        (vec![part(0, 2, message(2))], "blocks 2..4 of vector 0, the matrix has 3"),
        (vec![part(0, u32::MAX, message(1))], "of vector 0, the matrix has 3"),
        (vec![part(0, 0, message(0))], "blocks 0..0 of vector 0"),
        (vec![part(0, 0, message(1)), part(0, 0, message(2))], "block 0 of vector 0 came twice"),
        (vec![part(0, 0, Vec::new())], "0 bytes are not 16 and whole polynomials of 13056"),
        (vec![part(0, 0, cut)], "13071 bytes are not 16 and whole polynomials"),
        (vec![part(0, 0, kind)], "wire format: kind is 2, expected 1"),
        (vec![part(0, 0, over)], "is not below q"),
    ];
    for ((bad, expected), id) in cases.into_iter().zip(100..) {
        stream.header(id, weights.id(), 1).await;
        for part in bad {
            stream.part(id, part).await;
        }
        // A late part of the failed job is dropped without a word: the next answer is the next job's.
        stream.part(id, part(0, 0, message(1))).await;
        let (job, kind, message) = stream.failure().await;
        assert_eq!((job, kind), (id, FailureKind::Malformed), "{message}");
        assert!(message.contains(expected), "{message} should say {expected}");
    }
    let headers: Vec<(JobHeader, FailureKind, &str)> = vec![
        (
            JobHeader { matrix_id: vec![1; 32].into(), vectors: 1, deadline_ms: 0 },
            FailureKind::MatrixAbsent,
            "matrix 0101010101010101.. is not resident",
        ),
        (
            JobHeader { matrix_id: vec![1; 5].into(), vectors: 1, deadline_ms: 0 },
            FailureKind::Malformed,
            "matrix id of 5 bytes",
        ),
        (
            JobHeader { matrix_id: weights.id(), vectors: 0, deadline_ms: 0 },
            FailureKind::Malformed,
            "0 vectors, allowed are 1 to 64",
        ),
        (JobHeader { matrix_id: weights.id(), vectors: 65, deadline_ms: 0 }, FailureKind::Malformed, "65 vectors"),
    ];
    for ((header, kind, expected), id) in headers.into_iter().zip(200..) {
        stream.send(id, tile_job::Body::Header(header)).await;
        let failure = stream.failure().await;
        assert_eq!((failure.0, failure.1), (id, kind));
        assert!(failure.2.contains(expected), "{} should say {expected}", failure.2);
    }
    stream.part(300, part(0, 0, message(1))).await;
    assert_eq!(stream.failure().await, (300, FailureKind::Malformed, "a part of job 300 without its header".into()));
    stream.header(301, weights.id(), 1).await;
    stream.header(301, weights.id(), 1).await;
    assert_eq!(stream.failure().await, (301, FailureKind::Malformed, "job id 301 is used twice".into()));

    let found = multiply(&mut stream, &ring, &weights, &[(1, 1)]).await;
    assert!(found[&1] == weights.expected(&ring, &words, 1), "the stream works as before");

    stream.jobs.send(TileJob { job_id: 5, body: None }).await.expect("open");
    let status = stream.answers.message().await.expect_err("the stream itself is violated");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "message for job 5 without a body");
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_and_cancellation_end_jobs() {
    let ring = scalar_ring();
    let daemon = Daemon::plain(&["--threads", "1"]);
    let mut client = daemon.client().await;
    let weights = Weights::random(1, 64, 100, 32, 48);
    put(&mut client, &weights, Residency::Fallback).await;
    let mut stream = Stream::open(&mut client).await.expect("open");
    let header = JobHeader { matrix_id: weights.id(), vectors: 1, deadline_ms: 1 };
    stream.send(1, tile_job::Body::Header(header)).await;
    let expired = stream.failure().await;
    assert_eq!(expired, (1, FailureKind::Deadline, "the deadline passed while parts were missing".into()));

    let all = parts(&ring, &weights.tiling, &weights.inputs(&ring, 2, 1), 1, 1);
    stream.header(2, weights.id(), 1).await;
    stream.part(2, all[0].clone()).await;
    stream.send(2, tile_job::Body::Cancel(JobCancel {})).await;
    for part in &all[1..] {
        stream.part(2, part.clone()).await;
    }
    // Cancelling what has ended, or never was, is no mistake.
    stream.send(2, tile_job::Body::Cancel(JobCancel {})).await;
    stream.send(99, tile_job::Body::Cancel(JobCancel {})).await;
    assert_eq!(stream.failure().await.1, FailureKind::Cancelled);
    let found = multiply(&mut stream, &ring, &weights, &[(3, 2)]).await;
    assert!(found[&3] == weights.expected(&ring, &weights.inputs(&ring, 3, 2), 2));

    // A peer that has said all it has to say still gets its answers, and then the end.
    let Stream { jobs, mut answers } = stream;
    let send = |id, body| jobs.send(TileJob { job_id: id, body: Some(body) });
    send(4, tile_job::Body::Header(JobHeader { matrix_id: weights.id(), vectors: 1, deadline_ms: 0 }))
        .await
        .expect("open");
    for part in all {
        send(4, tile_job::Body::Part(part)).await.expect("open");
    }
    drop(jobs);
    let (mut assembly, mut words) = (Assembly::default(), None);
    while let Some(answer) = answers.message().await.expect("no error") {
        let Some(Body::Part(part)) = answer.body else { panic!("job 4 failed") };
        words = assembly.take(&ring, &weights.tiling, 1, &part);
    }
    assert!(words.expect("complete before the end") == weights.expected(&ring, &weights.inputs(&ring, 2, 1), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_refuse_what_exceeds_them_and_a_dropped_stream_frees_its_share() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("limits.toml");
    std::fs::write(&path, "max_streams = 1\nmax_jobs_per_stream = 2\nmax_stream_memory = \"1 MiB\"").expect("write");
    let daemon = Daemon::plain(&["--threads", "1", "--config", text(&path)]);
    let mut client = daemon.client().await;
    let weights = Weights::random(1, 64, 480, 32, 48);
    put(&mut client, &weights, Residency::Fallback).await;
    let mut stream = Stream::open(&mut client).await.expect("open");
    // Ten blocks of 16 KiB a vector: three vectors are 480 KiB, seven more than 1 MiB.
    stream.header(1, weights.id(), 7).await;
    let failure = stream.failure().await;
    assert_eq!((failure.0, failure.1), (1, FailureKind::Malformed));
    assert!(failure.2.contains("needs 1146880 bytes, a stream may hold 1048576"), "{}", failure.2);
    stream.header(2, weights.id(), 3).await;
    stream.header(3, weights.id(), 4).await;
    let failure = stream.failure().await;
    assert_eq!((failure.0, failure.1), (3, FailureKind::Unavailable));
    assert!(failure.2.contains("needs 655360 bytes, this stream's jobs hold too many of 1048576"), "{}", failure.2);
    stream.header(4, weights.id(), 1).await;
    stream.header(5, weights.id(), 1).await;
    let failure = stream.failure().await;
    assert_eq!(failure, (5, FailureKind::Unavailable, "2 jobs of this stream are in flight".into()));

    let status = Stream::open(&mut client).await.err().expect("one stream only");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "1 job streams are open, no more are allowed");
    drop(stream);
    // The daemon sees the end when it reads it; every refusal until then is the one above.
    let mut stream = loop {
        match Stream::open(&mut client).await {
            Ok(stream) => break stream,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
    };
    let ring = scalar_ring();
    let found = multiply(&mut stream, &ring, &weights, &[(8, 6)]).await;
    assert!(found[&8] == weights.expected(&ring, &weights.inputs(&ring, 8, 6), 6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses_and_loses_nothing() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("queue.toml");
    std::fs::write(&path, "max_queued_jobs = 1").expect("write");
    let daemon = Daemon::plain(&["--threads", "1", "--config", text(&path)]);
    let mut client = daemon.client().await;
    let ring = scalar_ring();
    let weights = Weights::random(1, 96, 96, 32, 48);
    put(&mut client, &weights, Residency::Fallback).await;
    let mut stream = Stream::open(&mut client).await.expect("open");
    let vectors = 4;
    let ids = 1..=40;
    let inputs = weights.inputs(&ring, 1, vectors);
    let all = parts(&ring, &weights.tiling, &inputs, vectors, 2);
    let jobs = stream.jobs.clone();
    let id = weights.id();
    let sender = tokio::spawn(async move {
        for job_id in ids {
            let header = JobHeader { matrix_id: id.clone(), vectors: 4, deadline_ms: 0 };
            let bodies = std::iter::once(tile_job::Body::Header(header));
            for body in bodies.chain(all.iter().cloned().map(tile_job::Body::Part)) {
                jobs.send(TileJob { job_id, body: Some(body) }).await.expect("open");
            }
        }
    });
    let expected = weights.expected(&ring, &inputs, vectors);
    let mut open: HashMap<u64, Assembly> = HashMap::new();
    let (mut answered, mut refused) = (0, 0);
    while answered + refused < 40 {
        match stream.answer().await {
            (id, Body::Part(part)) => {
                if let Some(words) = open.entry(id).or_default().take(&ring, &weights.tiling, vectors, &part) {
                    assert!(words == expected);
                    answered += 1;
                }
            }
            (_, Body::Failure(failure)) => {
                assert_eq!(failure.kind(), FailureKind::Unavailable, "{}", failure.message);
                refused += 1;
            }
        }
    }
    sender.await.expect("all sent");
    assert!(answered >= 1);
}
