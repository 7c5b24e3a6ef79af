//! SIGTERM: jobs in flight are finished, new ones are refused, and the daemon leaves with status 0.

use crate::{
    harness::{Daemon, text},
    peer::{Assembly, Stream, Weights, parts, put, scalar_ring, upload},
};
use proto::v1::{FailureKind, Residency, tile_answer::Body};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_flight_is_finished_and_new_ones_are_refused() {
    let ring = scalar_ring();
    let daemon = Daemon::plain(&["--threads", "1"]);
    let mut client = daemon.client().await;
    let weights = Weights::random(1, 64, 100, 32, 48);
    put(&mut client, &weights, Residency::Pinned).await;
    let mut stream = Stream::open(&mut client).await.expect("open");
    let inputs = weights.inputs(&ring, 1, 1);
    let all = parts(&ring, &weights.tiling, &inputs, 1, 1);
    stream.header(1, weights.id(), 1).await;
    stream.part(1, all[0].clone()).await;
    // An answer to a later message: the job above has arrived.
    stream.header(2, weights.id(), 0).await;
    assert_eq!(stream.failure().await.1, FailureKind::Malformed);

    daemon.terminate();
    // Once a new job is refused for it, the daemon is draining.
    for id in 3.. {
        stream.header(id, weights.id(), 65).await;
        let (job, kind, message) = stream.failure().await;
        assert_eq!(job, id);
        if kind == FailureKind::Unavailable {
            assert_eq!(message, "the evaluator is draining");
            break;
        }
    }
    for part in &all[1..] {
        stream.part(1, part.clone()).await;
    }
    let mut assembly = Assembly::default();
    let words = loop {
        let (job, Body::Part(part)) = stream.answer().await else { panic!("job 1 failed") };
        assert_eq!(job, 1);
        if let Some(words) = assembly.take(&ring, &weights.tiling, 1, &part) {
            break words;
        }
    };
    assert!(words == weights.expected(&ring, &inputs, 1));
    let status = stream.answers.message().await.expect_err("nothing is left to do");
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the evaluator is draining"));
    drop((stream, client));
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGTERM: draining") && log.trim_end().ends_with("left"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_never_completes_does_not_keep_the_daemon() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("drain.toml");
    std::fs::write(&path, "drain_seconds = 0").expect("write");
    let daemon = Daemon::plain(&["--threads", "1", "--config", text(&path)]);
    let mut client = daemon.client().await;
    let weights = Weights::random(1, 64, 100, 32, 48);
    put(&mut client, &weights, Residency::Fallback).await;
    let mut stream = Stream::open(&mut client).await.expect("open");
    stream.header(1, weights.id(), 1).await;
    stream.header(2, weights.id(), 0).await;
    stream.failure().await;
    daemon.terminate();
    let (status, log) = daemon.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("jobs were still in flight after 0 s"), "{log}");
    assert!(stream.answers.message().await.is_err(), "the peer sees the end");
    upload(&mut client, Vec::new()).await.expect_err("nobody is there");
}

/// Invariant: no key can reach this crate, not even by name.
#[test]
fn the_sources_name_no_keys() {
    fn check(dir: &std::path::Path) {
        for entry in std::fs::read_dir(dir).expect("readable") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                check(&path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("text");
            for banned in ["secret", "decrypt", "sample_"] {
                assert!(!source.to_lowercase().contains(banned), "{} contains {banned}", path.display());
            }
        }
    }
    check(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
}
