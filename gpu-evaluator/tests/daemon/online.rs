//! Online: the words of the definition, whatever the shape, the threads and the company; and what is refused.

use crate::{
    harness::{Client, Daemon, Pki, text},
    peer::{SplitMix, Stream, Weights, put},
};
use bytes::Bytes;
use proto::v1::{FailureKind, JobTiming, OnlineAnswer, OnlineJob, Residency, online_answer::Body};
use std::collections::HashMap;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

pub(crate) type Online = Stream<OnlineJob, OnlineAnswer>;

impl Online {
    pub(crate) async fn online(client: &mut Client) -> Result<Self, Status> {
        let (jobs, receiver) = mpsc::channel(256);
        let answers = client.online(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { jobs, answers })
    }

    pub(crate) async fn job(&self, job: OnlineJob) {
        self.jobs.send(job).await.expect("the stream is open");
    }

    /// The next answer, which must be a good one.
    pub(crate) async fn words(&mut self) -> (u64, Bytes, JobTiming) {
        let answer = self.answers.message().await.expect("the stream goes on").expect("an answer");
        match answer.body {
            Some(Body::Words(words)) => (answer.job_id, words, answer.timing.expect("a timing")),
            other => panic!("job {} failed: {other:?}", answer.job_id),
        }
    }

    async fn refusal(&mut self) -> (u64, FailureKind, String) {
        let answer = self.answers.message().await.expect("the stream goes on").expect("an answer");
        match answer.body {
            Some(Body::Failure(failure)) => (answer.job_id, failure.kind(), failure.message),
            _ => panic!("job {} was answered", answer.job_id),
        }
    }
}

impl Weights {
    /// Any words, [vectors][cols].
    fn words(&self, seed: u64, vectors: usize) -> Vec<u32> {
        let mut random = SplitMix(seed);
        (0..vectors * self.int8.cols()).map(|_| (random.next() >> 32) as u32).collect()
    }

    /// A job with those words.
    pub(crate) fn job(&self, job_id: u64, vectors: usize) -> OnlineJob {
        let words: Vec<u8> = self.words(job_id, vectors).into_iter().flat_map(u32::to_le_bytes).collect();
        let vectors = u32::try_from(vectors).expect("small");
        OnlineJob { job_id, matrix_id: self.id(), vectors, words: words.into(), word_bits: 32 }
    }

    /// The products of those words, by the definition.
    pub(crate) fn products(&self, seed: u64, vectors: usize) -> Vec<u8> {
        let times = |w: i8, x: u32| i32::from(w).cast_unsigned().wrapping_mul(x);
        let dot = |row: &[i8], x: &[u32]| row.iter().zip(x).fold(0, |sum: u32, (&w, &x)| sum.wrapping_add(times(w, x)));
        self.words(seed, vectors)
            .chunks_exact(self.int8.cols())
            .flat_map(|x| (0..self.int8.rows()).map(|r| dot(self.int8.row(r), x)).collect::<Vec<_>>())
            .flat_map(u32::to_le_bytes)
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn products_are_those_of_the_definition() {
    let pki = Pki::new();
    // From one weight to more than a thread does alone, and than is done without telling the runtime.
    let shapes = [(1, 1), (3, 7), (130, 1027), (576, 576), (5000, 33), (2050, 1050)];
    let all: Vec<_> = shapes.iter().zip(1..).map(|(&(r, c), seed)| Weights::uncut(seed, r, c)).collect();
    // Several sizes of every matrix, all in flight together, so that some share a pass.
    let jobs: Vec<(u64, &Weights, usize)> = (0..60)
        .map(|id: u64| {
            let at = usize::try_from(id).expect("small");
            (id, &all[at * 7 % all.len()], [1, 1, 2, 5, 64][at % 5])
        })
        .collect();
    let expected: Vec<Vec<u8>> = jobs.iter().map(|&(id, weights, vectors)| weights.products(id, vectors)).collect();
    for (threads, tls) in [("1", true), ("2", false), ("3", true)] {
        let (_daemon, mut client) = Daemon::with_client(&pki, tls, &["--threads", threads]).await;
        for weights in &all {
            put(&mut client, weights, Residency::Fallback).await;
        }
        let mut stream = Online::online(&mut client).await.expect("open");
        for (id, weights, vectors) in &jobs {
            stream.job(weights.job(*id, *vectors)).await;
        }
        let mut found = HashMap::new();
        for _ in &jobs {
            let (id, words, timing) = stream.words().await;
            assert!(timing.compute_ns > 0);
            assert!(found.insert(id, words).is_none(), "one answer a job");
        }
        for ((id, weights, vectors), expected) in jobs.iter().zip(&expected) {
            let shape = (weights.int8.rows(), weights.int8.cols());
            assert!(found[id] == *expected, "job {id}: {shape:?}, {vectors} vectors, {threads} threads");
        }
        // One at a time, too.
        for (id, weights, vectors) in [(1000, &all[3], 1), (1001, &all[5], 3)] {
            stream.job(weights.job(id, vectors)).await;
            let (job, words, _) = stream.words().await;
            assert!(job == id && words == weights.products(id, vectors));
        }
        // A peer that has said all it has to say still gets its answers, and then the end.
        stream.job(all[2].job(2000, 1)).await;
        let Stream { jobs: sender, mut answers } = stream;
        drop(sender);
        let last = answers.message().await.expect("no error").expect("an answer");
        assert_eq!(last.job_id, 2000);
        assert!(answers.message().await.expect("no error").is_none(), "the end");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_job_fails_alone() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("limits.toml");
    std::fs::write(&path, "max_stream_memory = \"1 MiB\"\nmax_jobs_per_stream = 2").expect("write");
    let daemon = Daemon::plain(&["--threads", "2", "--config", text(&path)]);
    let mut client = daemon.client().await;
    let (weights, tall) = (Weights::uncut(1, 64, 100), Weights::uncut(2, 5000, 8));
    let pinned = Weights::random(3, 64, 100, 32, 48);
    for w in [&weights, &tall] {
        put(&mut client, w, Residency::Fallback).await;
    }
    put(&mut client, &pinned, Residency::Pinned).await;
    let mut stream = Online::online(&mut client).await.expect("open");
    let good = weights.job(1, 2);
    let with = |change: &dyn Fn(&mut OnlineJob)| {
        let mut job = good.clone();
        change(&mut job);
        job
    };
    let held = "is held as RESIDENCY_PINNED, this job needs RESIDENCY_FALLBACK";
    let cases: Vec<(OnlineJob, FailureKind, &str)> = vec![
        (
            with(&|j| j.matrix_id = vec![1; 32].into()),
            FailureKind::MatrixAbsent,
            "matrix 0101010101010101.. is not resident",
        ),
        (with(&|j| j.matrix_id = vec![1; 5].into()), FailureKind::Malformed, "matrix id of 5 bytes, expected 32"),
        (with(&|j| j.vectors = 0), FailureKind::Malformed, "0 vectors, allowed are 1 to 64"),
        (with(&|j| j.vectors = 65), FailureKind::Malformed, "65 vectors, allowed are 1 to 64"),
        (with(&|j| j.vectors = 1), FailureKind::Malformed, "800 bytes, 1 vectors of 100 words of 32 bits are 400"),
        (
            with(&|j| j.words = j.words.slice(1..)),
            FailureKind::Malformed,
            "799 bytes, 2 vectors of 100 words of 32 bits are 800",
        ),
        (
            with(&|j| j.words = Bytes::new()),
            FailureKind::Malformed,
            "0 bytes, 2 vectors of 100 words of 32 bits are 800",
        ),
        (tall.job(1, 64), FailureKind::Malformed, "the job needs 1282048 bytes, a stream may hold 1048576"),
        (pinned.job(1, 1), FailureKind::Malformed, held),
    ];
    for ((job, kind, expected), job_id) in cases.into_iter().zip(100..) {
        stream.job(OnlineJob { job_id, ..job }).await;
        let (id, found, message) = stream.refusal().await;
        assert_eq!((id, found), (job_id, kind), "{message}");
        assert!(message.contains(expected), "{message} should say {expected}");
    }
    stream.job(good.clone()).await;
    assert!(stream.words().await.1 == weights.products(1, 2), "the stream works as before");
    // Answered or refused, an id has been used.
    for used in [1, 100] {
        stream.job(weights.job(used, 1)).await;
        let expected = (used, FailureKind::Malformed, format!("job id {used} is used twice"));
        assert_eq!(stream.refusal().await, expected);
    }
    // More than may be in flight wait on the way here.
    for id in 200..300 {
        stream.job(weights.job(id, 1)).await;
    }
    for id in 200..300 {
        let (job, words, _) = stream.words().await;
        assert!(job == id && words == weights.products(id, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_frees_its_place_and_a_draining_daemon_ends_the_rest() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("limits.toml");
    std::fs::write(&path, "max_streams = 1").expect("write");
    let daemon = Daemon::plain(&["--threads", "1", "--config", text(&path)]);
    let mut client = daemon.client().await;
    let weights = Weights::uncut(1, 2000, 1000);
    put(&mut client, &weights, Residency::Fallback).await;
    let stream = Online::online(&mut client).await.expect("open");
    let status = Online::online(&mut client).await.err().expect("one stream only");
    assert_eq!(
        (status.code(), status.message()),
        (Code::ResourceExhausted, "1 job streams are open, no more are allowed")
    );
    // Gone with jobs in flight.
    for id in 0..20 {
        stream.job(weights.job(id, 8)).await;
    }
    drop(stream);
    let mut stream = loop {
        match Online::online(&mut client).await {
            Ok(stream) => break stream,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
    };
    stream.job(weights.job(1, 1)).await;
    assert!(stream.words().await.1 == weights.products(1, 1));
    daemon.terminate();
    let status = stream.answers.message().await.expect_err("nothing is left to do");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the evaluator is draining"));
    drop((stream, client));
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}
