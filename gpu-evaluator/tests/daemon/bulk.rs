//! Bulk: the words of the scalar product, whatever the cut and the order; what is refused; and that it is in
//! nobody's way.

use crate::{
    harness::{Client, Daemon, Pki, text},
    online::Online,
    peer::{SplitMix, Stream, Weights, put, scalar_ring},
};
use bytes::Bytes;
use kernels::{Digits, Ring, matmul::matmul, wire};
use proto::v1::{
    BulkAnswer, BulkHeader, BulkJob, BulkPart, BulkRows, FailureKind, JobCancel, Residency, bulk_answer, bulk_job::Body,
};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

pub(crate) type Bulk = Stream<BulkJob, BulkAnswer>;

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("small")
}

impl Bulk {
    pub(crate) async fn bulk(client: &mut Client) -> Result<Self, Status> {
        let (jobs, receiver) = mpsc::channel(256);
        let answers = client.bulk(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { jobs, answers })
    }

    async fn message(&self, job_id: u64, body: Body) {
        self.jobs.send(BulkJob { job_id, body: Some(body) }).await.expect("the stream is open");
    }

    /// Sends a whole job, `cols` columns a message.
    pub(crate) async fn job(&self, job: &Product, cols: usize) {
        self.message(job.id, Body::Header(job.header())).await;
        for rows in job.messages(cols) {
            self.message(job.id, Body::Rows(rows)).await;
        }
    }

    async fn part(&mut self) -> (u64, BulkPart) {
        let answer = self.answers.message().await.expect("the stream goes on").expect("an answer");
        match answer.body {
            Some(bulk_answer::Body::Part(part)) => (answer.job_id, part),
            other => panic!("job {} failed: {other:?}", answer.job_id),
        }
    }

    /// The next failure; parts of the job before it are dropped.
    async fn refusal(&mut self) -> (u64, FailureKind, String) {
        loop {
            let answer = self.answers.message().await.expect("the stream goes on").expect("an answer");
            if let Some(bulk_answer::Body::Failure(failure)) = answer.body {
                return (answer.job_id, failure.kind(), failure.message);
            }
        }
    }

    /// Receives the answer of a job that is alone on the stream.
    pub(crate) async fn product(&mut self, job: &Product) -> Vec<u64> {
        let mut words = Assembly::new(job);
        loop {
            let (id, part) = self.part().await;
            assert_eq!(id, job.id);
            if words.take(&part) {
                return words.words;
            }
        }
    }
}

/// A job: rows of the weights times random words, [cols][lanes].
pub(crate) struct Product {
    pub(crate) id: u64,
    pub(crate) weights: Weights,
    pub(crate) rows: Range<usize>,
    pub(crate) lanes: usize,
}

impl Product {
    pub(crate) fn whole(id: u64, weights: &Weights, lanes: usize) -> Self {
        Self { id, weights: weights.clone(), rows: 0..weights.int8.rows(), lanes }
    }

    fn header(&self) -> BulkHeader {
        BulkHeader {
            matrix_id: self.weights.id(),
            first_row: small(self.rows.start),
            rows: small(self.rows.len()),
            lanes: small(self.lanes),
            deadline_ms: 0,
        }
    }

    fn words(&self, ring: &Ring) -> Vec<u64> {
        let mut random = SplitMix(self.id);
        (0..self.weights.int8.cols() * self.lanes).map(|_| random.next() % ring.q()).collect()
    }

    /// The messages with the words, the last columns first.
    fn messages(&self, cols: usize) -> Vec<BulkRows> {
        let ring = scalar_ring();
        let words = self.words(&ring);
        let mut all: Vec<_> = words
            .chunks(cols * self.lanes)
            .enumerate()
            .map(|(i, words)| BulkRows {
                first_col: small(i * cols),
                cols: small(words.len() / self.lanes),
                words: encoded(&ring, wire::Kind::Lanes, words),
            })
            .collect();
        all.reverse();
        all
    }

    pub(crate) fn expected(&self) -> Vec<u64> {
        let ring = scalar_ring();
        let mut digits = Digits::new(&ring, self.weights.int8.cols(), self.lanes).expect("shape");
        digits.set(0, &self.words(&ring)).expect("fits");
        let mut out = vec![0; self.rows.len() * self.lanes];
        matmul(&ring, &self.weights.int8, self.rows.clone(), &digits, 0..self.lanes, &mut out).expect("fits");
        out
    }
}

fn encoded(ring: &Ring, kind: wire::Kind, words: &[u64]) -> Bytes {
    let mut message = Vec::new();
    wire::encode(ring.params(), kind, words, &mut message);
    message.into()
}

/// Puts the parts of an answer together; checks that they cover every row once and that the last one alone has the
/// timing.
struct Assembly {
    rows: Range<usize>,
    lanes: usize,
    seen: Vec<bool>,
    words: Vec<u64>,
}

impl Assembly {
    fn new(job: &Product) -> Self {
        let count = job.rows.len();
        Self { rows: job.rows.clone(), lanes: job.lanes, seen: vec![false; count], words: vec![0; count * job.lanes] }
    }

    /// Takes a part; whether it completes the answer.
    fn take(&mut self, part: &BulkPart) -> bool {
        let (first, count) = (part.first_row as usize - self.rows.start, part.rows as usize);
        for seen in &mut self.seen[first..first + count] {
            assert!(!*seen, "a row came twice");
            *seen = true;
        }
        let words = &mut self.words[first * self.lanes..][..count * self.lanes];
        wire::decode(scalar_ring().params(), wire::Kind::Lanes, &part.words, words).expect("well-formed");
        let complete = self.seen.iter().all(|&s| s);
        assert_eq!(complete, part.timing.is_some(), "the last part carries the timing");
        complete
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn products_are_those_of_the_scalar_ring() {
    let pki = Pki::new();
    let all: Vec<_> =
        [(1, 1), (33, 7), (100, 129), (70, 401)].iter().zip(1..).map(|(&(r, c), s)| Weights::uncut(s, r, c)).collect();
    let part = |id, at: usize, rows, lanes| Product { id, weights: all[at].clone(), rows, lanes };
    // Partial lanes, more than between two looks at others, all of them; ranges of rows.
    let jobs = [
        (Product::whole(1, &all[0], 8), 1),
        (Product::whole(2, &all[1], 16), 2),
        (Product::whole(3, &all[2], 2048), 50),
        (part(4, 2, 5..6, 264), 129),
        (part(5, 2, 31..97, 24), 7),
        (part(6, 3, 68..70, 512), 400),
        (Product::whole(7, &all[3], 40), 1),
    ];
    let expected: Vec<_> = jobs.iter().map(|(job, _)| job.expected()).collect();
    for (threads, tls) in [("1", false), ("3", true)] {
        let (daemon, mut client) = Daemon::with_client(&pki, tls, &["--threads", threads]).await;
        for weights in &all {
            put(&mut client, weights, Residency::Fallback).await;
        }
        let mut stream = Bulk::bulk(&mut client).await.expect("open");
        // All in flight together.
        for (job, cols) in &jobs {
            stream.job(job, *cols).await;
        }
        let mut answers: Vec<_> = jobs.iter().map(|(job, _)| Assembly::new(job)).collect();
        let mut left = jobs.len();
        while left > 0 {
            let (id, part) = stream.part().await;
            let at = jobs.iter().position(|(job, _)| job.id == id).expect("a job that was sent");
            left -= usize::from(answers[at].take(&part));
        }
        for ((answer, expected), (job, _)) in answers.iter().zip(&expected).zip(&jobs) {
            assert!(answer.words == *expected, "job {}, {threads} threads", job.id);
        }
        assert!(!daemon.log().contains("keep their priority"), "{}", daemon.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_job_fails_alone() {
    let ring = scalar_ring();
    let daemon = Daemon::plain(&["--threads", "2"]);
    let mut client = daemon.client().await;
    let (weights, pinned) = (Weights::uncut(1, 40, 9), Weights::random(2, 64, 100, 32, 48));
    put(&mut client, &weights, Residency::Fallback).await;
    put(&mut client, &pinned, Residency::Pinned).await;
    let mut stream = Bulk::bulk(&mut client).await.expect("open");
    let job = |id| Product::whole(id, &weights, 16);
    let good = job(1).header();
    let with = |change: &dyn Fn(&mut BulkHeader)| {
        let mut header = good.clone();
        change(&mut header);
        header
    };
    let held = "is held as RESIDENCY_PINNED, this job needs RESIDENCY_FALLBACK";
    let headers: Vec<(BulkHeader, FailureKind, &str)> = vec![
        (
            with(&|h| h.matrix_id = vec![1; 32].into()),
            FailureKind::MatrixAbsent,
            "matrix 0101010101010101.. is not resident",
        ),
        (with(&|h| h.matrix_id = Bytes::new()), FailureKind::Malformed, "matrix id of 0 bytes, expected 32"),
        (with(&|h| h.matrix_id = pinned.id()), FailureKind::Malformed, held),
        (with(&|h| h.rows = 0), FailureKind::Malformed, "rows 0..0, the matrix has 40"),
        (with(&|h| h.rows = 41), FailureKind::Malformed, "rows 0..41, the matrix has 40"),
        (with(&|h| h.first_row = 1), FailureKind::Malformed, "rows 1..41, the matrix has 40"),
        (with(&|h| h.first_row = u32::MAX), FailureKind::Malformed, "the matrix has 40"),
        (with(&|h| h.lanes = 0), FailureKind::Malformed, "0 lanes, allowed are multiples of 8 up to 2048"),
        (with(&|h| h.lanes = 12), FailureKind::Malformed, "12 lanes, allowed are multiples of 8 up to 2048"),
        (with(&|h| h.lanes = 2056), FailureKind::Malformed, "2056 lanes, allowed are multiples of 8 up to 2048"),
    ];
    for ((header, kind, expected), id) in headers.into_iter().zip(100..) {
        stream.message(id, Body::Header(header)).await;
        let (job, found, message) = stream.refusal().await;
        assert_eq!((job, found), (id, kind), "{message}");
        assert!(message.contains(expected), "{message} should say {expected}");
    }

    let words = job(1).words(&ring);
    let message = |cols: usize| encoded(&ring, wire::Kind::Lanes, &words[..cols * 16]);
    let rows = |first_col, cols, words: Bytes| BulkRows { first_col, cols, words };
    let mut over = message(1).to_vec();
    over[wire::HEADER..wire::HEADER + 7].fill(0xff);
    let kind = encoded(&ring, wire::Kind::Ntt, &words[..16]);
    let cases: Vec<(Vec<BulkRows>, &str)> = vec![
        (vec![rows(9, 1, message(1))], "columns 9..10, the matrix has 9"),
        (vec![rows(8, 2, message(2))], "columns 8..10, the matrix has 9"),
        (vec![rows(u32::MAX, 1, message(1))], "the matrix has 9"),
        (vec![rows(0, 0, message(0))], "columns 0..0, the matrix has 9"),
        (vec![rows(0, 2, message(2)), rows(1, 2, message(2))], "column 1 came twice"),
        (vec![rows(0, 1, message(2))], "wire format: "),
        (vec![rows(0, 2, message(1))], "wire format: "),
        (vec![rows(0, 1, Bytes::new())], "wire format: 0 bytes"),
        (vec![rows(0, 1, kind)], "wire format: kind is 1, expected 3"),
        (vec![rows(0, 1, over.into())], "is not below q"),
    ];
    for ((bad, expected), id) in cases.into_iter().zip(200..) {
        stream.message(id, Body::Header(good.clone())).await;
        for rows in bad {
            stream.message(id, Body::Rows(rows)).await;
        }
        // A late part of the failed job is dropped without a word: the next answer is the next job's.
        stream.message(id, Body::Rows(rows(0, 1, message(1)))).await;
        let (job, kind, message) = stream.refusal().await;
        assert_eq!((job, kind), (id, FailureKind::Malformed), "{message}");
        assert!(message.contains(expected), "{message} should say {expected}");
    }
    stream.message(300, Body::Rows(rows(0, 1, message(1)))).await;
    assert_eq!(stream.refusal().await, (300, FailureKind::Malformed, "a part of job 300 without its header".into()));
    for _ in 0..2 {
        stream.message(301, Body::Header(good.clone())).await;
    }
    assert_eq!(stream.refusal().await, (301, FailureKind::Malformed, "job id 301 is used twice".into()));

    stream.job(&job(1), 4).await;
    assert!(stream.product(&job(1)).await == job(1).expected(), "the stream works as before");
    stream.jobs.send(BulkJob { job_id: 5, body: None }).await.expect("open");
    let status = stream.answers.message().await.expect_err("the stream itself is violated");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "message for job 5 without a body"));
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_cancellation_and_a_lost_peer_end_jobs_that_run() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("limits.toml");
    let limits = "max_streams = 1\nmax_jobs_per_stream = 2\nmax_stream_memory = \"5 MiB\"";
    std::fs::write(&path, limits).expect("write");
    let daemon = Daemon::plain(&["--threads", "2", "--config", text(&path)]);
    let mut client = daemon.client().await;
    let weights = Weights::uncut(1, 200_000, 256);
    put(&mut client, &weights, Residency::Fallback).await;
    // 4 MiB of digits, and minutes of work.
    let endless = |id| Product::whole(id, &weights, 2048);
    let brief = |id| Product { rows: 7..50, lanes: 512, ..endless(id) };
    let mut stream = Bulk::bulk(&mut client).await.expect("open");
    let header = BulkHeader { deadline_ms: 1, ..endless(1).header() };
    stream.message(1, Body::Header(header)).await;
    let expected = (1, FailureKind::Deadline, "the deadline passed while parts were missing".into());
    assert_eq!(stream.refusal().await, expected);

    // One that runs: its parts come, and then they end.
    stream.job(&endless(2), 100).await;
    assert_eq!(stream.part().await.0, 2);
    stream.message(3, Body::Header(endless(3).header())).await;
    let (job, kind, message) = stream.refusal().await;
    assert_eq!((job, kind), (3, FailureKind::Unavailable));
    assert!(message.contains("needs 4194304 bytes, this stream's jobs hold too many of 5242880"), "{message}");
    stream.message(2, Body::Cancel(JobCancel {})).await;
    assert_eq!(stream.refusal().await, (2, FailureKind::Cancelled, "cancelled by the runtime".into()));
    // Its memory comes back when its threads have noticed.
    let mut id = 10;
    loop {
        id += 1;
        stream.message(id, Body::Header(BulkHeader { deadline_ms: 300, ..endless(id).header() })).await;
        stream.message(1000 + id, Body::Header(brief(1000 + id).header())).await;
        stream.message(1000 + id, Body::Cancel(JobCancel {})).await;
        // The first of the two, or the second, whose cancellation follows in any case.
        let (job, kind, _) = stream.refusal().await;
        if job == id && kind == FailureKind::Unavailable {
            assert_eq!(stream.refusal().await.0, 1000 + id);
            continue;
        }
        assert_eq!((job, kind), (1000 + id, FailureKind::Cancelled), "the first was admitted");
        break;
    }
    for rows in endless(id).messages(100) {
        stream.message(id, Body::Rows(rows)).await;
    }
    let (job, kind, message) = stream.refusal().await;
    assert_eq!((job, kind), (id, FailureKind::Deadline));
    assert!(message.starts_with("the deadline passed"), "{message}");

    // A peer that goes while its job runs, without having read.
    drop(stream);
    let mut stream = loop {
        match Bulk::bulk(&mut client).await {
            Ok(stream) => break stream,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
    };
    stream.job(&endless(1), 100).await;
    assert_eq!(stream.part().await.0, 1);
    drop(stream);
    let mut stream = loop {
        match Bulk::bulk(&mut client).await {
            Ok(stream) => break stream,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
    };
    let too_much = Product { lanes: 2048, ..brief(1) };
    let (a, b) = (brief(2), Product { rows: 0..1, lanes: 8, ..brief(3) });
    stream.message(1, Body::Header(too_much.header())).await;
    stream.message(2, Body::Header(b.header())).await;
    stream.message(3, Body::Header(b.header())).await;
    let expected = (3, FailureKind::Unavailable, "2 jobs of this stream are in flight".into());
    assert_eq!(stream.refusal().await, expected);
    for id in [1, 2] {
        stream.message(id, Body::Cancel(JobCancel {})).await;
        assert_eq!(stream.refusal().await.1, FailureKind::Cancelled);
    }
    let a = Product { id: 4, ..a };
    stream.job(&a, 200).await;
    assert!(stream.product(&a).await == a.expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn online_jobs_are_answered_while_a_bulk_job_runs() {
    let daemon = Daemon::plain(&["--threads", "1"]);
    let mut client = daemon.client().await;
    let (large, weights) = (Weights::uncut(1, 100_000, 256), Weights::uncut(2, 300, 500));
    for w in [&large, &weights] {
        put(&mut client, w, Residency::Fallback).await;
    }
    let mut bulk = Bulk::bulk(&mut client).await.expect("open");
    let job = Product::whole(1, &large, 2048);
    bulk.job(&job, 100).await;
    let (_, first) = bulk.part().await;
    let (complete, jobs) = (Arc::new(AtomicBool::new(false)), bulk.jobs.clone());
    let ended = Arc::clone(&complete);
    let reader = tokio::spawn(async move {
        let (mut answer, mut parts) = (Assembly::new(&job), 1);
        assert!(!answer.take(&first));
        loop {
            let message = bulk.answers.message().await.expect("the stream goes on").expect("an answer");
            match message.body.expect("a body") {
                bulk_answer::Body::Failure(failure) => return (parts, failure.kind()),
                bulk_answer::Body::Part(part) => {
                    ended.store(answer.take(&part), Ordering::SeqCst);
                    parts += 1;
                }
            }
        }
    });
    let mut stream = Online::online(&mut client).await.expect("open");
    for id in 1..=50 {
        stream.job(weights.job(id, 1)).await;
        let (job, words, _) = stream.words().await;
        assert!(job == id && words == weights.products(id, 1));
    }
    assert!(!complete.load(Ordering::SeqCst), "the bulk job is still at it");
    jobs.send(BulkJob { job_id: 1, body: Some(Body::Cancel(JobCancel {})) }).await.expect("open");
    let (parts, kind) = reader.await.expect("reads to the end");
    assert!(parts >= 1);
    assert_eq!(kind, FailureKind::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_does_not_read_holds_up_nobody_else_and_loses_nothing() {
    let daemon = Daemon::plain(&["--threads", "1"]);
    let (mut lazy, mut client) = (daemon.client().await, daemon.client().await);
    let weights = Weights::uncut(1, 6000, 5);
    put(&mut client, &weights, Residency::Fallback).await;
    let before = daemon.resident();
    let mut unread = Bulk::bulk(&mut lazy).await.expect("open");
    // 77 MB of answers.
    let large = Product::whole(1, &weights, 2048);
    unread.job(&large, 5).await;
    let mut stream = Bulk::bulk(&mut client).await.expect("open");
    for id in 2..12 {
        let job = Product { id, rows: 100..1100, lanes: 64, weights: weights.clone() };
        stream.job(&job, 5).await;
        assert!(stream.product(&job).await == job.expected());
    }
    let held = daemon.resident().saturating_sub(before);
    assert!(held < 40 << 20, "{held} bytes for a peer that does not read");
    assert!(unread.product(&large).await == large.expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_flight_is_finished_before_the_daemon_leaves() {
    let daemon = Daemon::plain(&["--threads", "1"]);
    let mut client = daemon.client().await;
    let weights = Weights::uncut(1, 100, 30);
    put(&mut client, &weights, Residency::Fallback).await;
    let mut stream = Bulk::bulk(&mut client).await.expect("open");
    let job = Product::whole(1, &weights, 16);
    let mut messages = job.messages(16);
    stream.message(1, Body::Header(job.header())).await;
    stream.message(1, Body::Rows(messages.remove(0))).await;
    // An answer to a later message: the job above has arrived.
    stream.message(2, Body::Header(BulkHeader::default())).await;
    assert_eq!(stream.refusal().await.1, FailureKind::Malformed);
    daemon.terminate();
    for id in 3.. {
        stream.message(id, Body::Header(BulkHeader::default())).await;
        let (_, kind, message) = stream.refusal().await;
        if kind == FailureKind::Unavailable {
            assert_eq!(message, "the evaluator is draining");
            break;
        }
    }
    for rows in messages {
        stream.message(1, Body::Rows(rows)).await;
    }
    assert!(stream.product(&job).await == job.expected());
    let status = stream.answers.message().await.expect_err("nothing is left to do");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the evaluator is draining"));
    drop((stream, client));
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
}
