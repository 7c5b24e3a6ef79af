//! Uploads, lookups, residency, the budget and the disk cache.

use crate::{
    harness::{Daemon, text},
    peer::{Weights, chunks, hello, put, upload},
};
use proto::v1::{LookupRequest, MatrixHeader, MatrixState, Residency, UploadChunk, upload_chunk::Body};
use tonic::Code;

fn rows(bytes: &[u8]) -> UploadChunk {
    UploadChunk { body: Some(Body::Rows(bytes.to_vec().into())) }
}

async fn lookup(client: &mut crate::harness::Client, headers: Vec<MatrixHeader>) -> Vec<MatrixState> {
    client.lookup(LookupRequest { matrices: headers }).await.expect("lookup").into_inner().states
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_uploads_are_refused_and_leave_nothing() {
    let daemon = Daemon::plain(&["--threads", "1"]);
    let mut client = daemon.client().await;
    let weights = Weights::random(1, 40, 96, 16, 48);
    let (good, content) = (weights.header(Residency::Fallback), weights.rows());
    let mut flipped = content.clone();
    flipped[77] ^= 1;
    let with = |change: &dyn Fn(&mut MatrixHeader)| {
        let mut header = good.clone();
        change(&mut header);
        chunks(header, &content)
    };
    let cases: Vec<(Vec<UploadChunk>, &str)> = vec![
        (with(&|h| h.matrix_id.truncate(31)), "matrix id of 31 bytes, expected 32"),
        (with(&|h| h.rows = 0), "0x96 in tiles of 16x48: empty"),
        (with(&|h| h.tile_rows = 43), "tile of 43x48 does not fit ring degree 2048"),
        (with(&|h| (h.tile_rows, h.tile_cols) = (u32::MAX, u32::MAX)), "does not fit ring degree 2048"),
        (with(&|h| (h.tile_rows, h.tile_cols) = (41, 1)), "tile of 41x1 is larger than 40x96"),
        (with(&|h| (h.rows, h.cols) = (u32::MAX, u32::MAX)), "is 18446744065119617025 bytes, the limit is 1073741824"),
        (with(&|h| h.name = "x".repeat(129)), "matrix name of 129 bytes"),
        (with(&|h| h.name = "a\nb".into()), "matrix name of 3 bytes, allowed are 128 printable ones"),
        (with(&|h| h.residency = 9), "residency is 9, allowed are 0 to 2"),
        (with(&|h| h.rows = 41), "3840 bytes, expected 3936"),
        (with(&|h| h.rows = 39), "more than the 3744 bytes of 39x96"),
        (chunks(good.clone(), &flipped), "the rows hash to "),
        (vec![rows(&content)], "an upload starts with a matrix header"),
        (vec![], "an upload starts with a matrix header"),
        (vec![chunks(good.clone(), &[])[0].clone(), chunks(good.clone(), &[])[0].clone()], "only rows may follow"),
        (vec![chunks(good.clone(), &[])[0].clone(), UploadChunk { body: None }], "only rows may follow"),
    ];
    for (messages, expected) in cases {
        let status = upload(&mut client, messages).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(expected), "{} should say {expected}", status.message());
        let states = lookup(&mut client, vec![good.clone()]).await;
        assert_eq!(states, [MatrixState { matrix_id: weights.id(), ..MatrixState::default() }]);
    }
    assert_eq!(client.hello(hello()).await.expect("hello").into_inner().memory_used_bytes, 0);

    put(&mut client, &weights, Residency::Fallback).await;
    let mut other_cut = good.clone();
    other_cut.tile_rows = 8;
    let status = upload(&mut client, chunks(other_cut.clone(), &content)).await.expect_err("other cut");
    assert!(status.message().contains("is resident as 40x96 in tiles of 16x48 modulo "));
    let status = client.lookup(LookupRequest { matrices: vec![other_cut] }).await.expect_err("other cut");
    assert_eq!(status.code(), Code::InvalidArgument);
    let status = client.lookup(LookupRequest { matrices: vec![good; 4097] }).await.expect_err("too many");
    assert!(status.message().contains("4097 matrices in one lookup"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_holds_and_its_refusal_has_the_figures() {
    let daemon = Daemon::plain(&["--threads", "1", "--memory-budget", "100000"]);
    let mut client = daemon.client().await;
    // 4 polynomials of 16,384 bytes when pinned, 6,144 bytes as int8.
    let first = put(&mut client, &Weights::random(1, 64, 96, 32, 48), Residency::Pinned).await;
    assert_eq!((first.residency(), first.resident), (Residency::Pinned, true));
    assert!(first.bytes >= 65_536 && first.bytes < 66_600, "{}", first.bytes);
    let second = put(&mut client, &Weights::random(2, 64, 96, 32, 48), Residency::Pinned).await;
    assert_eq!((second.residency(), second.bytes), (Residency::Fallback, 6144));
    let third = Weights::random(3, 512, 96, 32, 48);
    let status = upload(&mut client, chunks(third.header(Residency::Fallback), &third.rows())).await.expect_err("full");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let used = first.bytes + second.bytes;
    assert_eq!(
        status.message(),
        format!("matrix \"test.512x96\": memory budget is 100000 bytes, used {used}, needed 49152")
    );
    assert_eq!(client.hello(hello()).await.expect("hello").into_inner().memory_used_bytes, used);
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_told_and_a_second_upload_sends_nothing() {
    let daemon = Daemon::plain(&["--threads", "2"]);
    let mut client = daemon.client().await;
    let weights = Weights::random(4, 2048, 4096, 32, 64);
    let header = weights.header(Residency::Fallback);
    let all = upload(&mut client, chunks(header.clone(), &weights.rows())).await.expect("accepted");
    let received: Vec<u64> = all.iter().map(|p| p.received_bytes).collect();
    assert!(received.len() >= 2 && received.is_sorted(), "{received:?}");
    assert_eq!(received.last(), Some(&(2048 * 4096)));
    assert!(all[..all.len() - 1].iter().all(|p| p.state.is_none()), "the last message alone has the state");
    let again = upload(&mut client, chunks(header, &[])).await.expect("resident");
    assert_eq!(again.len(), 1);
    assert_eq!((again[0].received_bytes, again[0].state.as_ref()), (0, all.last().and_then(|p| p.state.as_ref())));
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_uploads_of_one_matrix_end_as_one() {
    let daemon = Daemon::plain(&["--threads", "1", "--memory-budget", "100000"]);
    let client = daemon.client().await;
    let weights = Weights::random(5, 64, 96, 32, 48);
    let header = weights.header(Residency::Pinned);
    // The first holds the reservation, since its header is answered, and then brings the wrong content.
    let (sender, receiver) = tokio::sync::mpsc::channel(8);
    sender.send(chunks(header.clone(), &[])[0].clone()).await.expect("open");
    let first = client.clone().upload(tokio_stream::wrappers::ReceiverStream::new(receiver)).await.expect("a slot");
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (mut client, messages) = (client.clone(), chunks(header.clone(), &weights.rows()));
            tokio::spawn(async move { upload(&mut client, messages).await })
        })
        .collect();
    sender.send(rows(&vec![0; 64 * 96])).await.expect("open");
    drop(sender);
    assert_eq!(first.into_inner().message().await.expect_err("wrong hash").code(), Code::InvalidArgument);
    for task in tasks {
        let all = task.await.expect("no panic").expect("accepted");
        assert!(all.last().and_then(|p| p.state.as_ref()).is_some_and(|s| s.resident));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_over_the_limit_is_refused() {
    let mut command = vec!["--threads", "1", "--config"];
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("small.toml");
    std::fs::write(&path, "max_message = \"64 KiB\"\nmax_matrix = 100").expect("write");
    command.push(text(&path));
    let daemon = Daemon::plain(&command);
    let mut client = daemon.client().await;
    let weights = Weights::random(6, 10, 10, 10, 10);
    let header = chunks(weights.header(Residency::Fallback), &[])[0].clone();
    let status = upload(&mut client, vec![header, rows(&[0; 70_000])]).await.expect_err("too large");
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    let large = Weights::random(6, 10, 11, 10, 10);
    let status = upload(&mut client, chunks(large.header(Residency::Fallback), &[])).await.expect_err("too large");
    assert!(status.message().contains("of 10x11 is 110 bytes, the limit is 100"), "{status}");
    assert_eq!(client.hello(hello()).await.expect("lives").into_inner().max_message_bytes, 65_536);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_the_disk_cache_serves_and_corruption_does_not() {
    let dir = tempfile::tempdir().expect("directory");
    let arguments = ["--threads", "2", "--cache-dir", text(dir.path())];
    let all: Vec<_> = (0..3).map(|seed| Weights::random(10 + seed, 64, 96, 32, 48)).collect();
    let headers: Vec<_> = all.iter().map(|w| w.header(Residency::Pinned)).collect();
    let daemon = Daemon::plain(&arguments);
    let mut client = daemon.client().await;
    for weights in &all {
        put(&mut client, weights, Residency::Pinned).await;
    }
    let before = lookup(&mut client, headers.clone()).await;
    drop((client, daemon));

    let spoilt = dir.path().join(format!("{}.int8", all[1].int8.id().0.map(|b| format!("{b:02x}")).concat()));
    let mut bytes = std::fs::read(&spoilt).expect("named by hash");
    let last = bytes.len() - 1;
    bytes[last] ^= 0x10;
    std::fs::write(&spoilt, bytes).expect("write");

    let daemon = Daemon::plain(&arguments);
    let mut client = daemon.client().await;
    let after = lookup(&mut client, headers).await;
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert!(!after[1].resident && !spoilt.exists());
    daemon.terminate();
    let (_, log) = daemon.wait();
    assert!(log.contains("its content does not have the hash in its name; deleted"), "{log}");
}
