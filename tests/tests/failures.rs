//! What happens when the evaluator is killed, restarted, another version or too small: the request is repeated or fails
//! with a reason, and never yields a token that differs. What cannot work is refused at the start.

use anyhow::Context;
use client::certificates::Role;
use e2e::{
    binaries,
    enclave::{Enclave, token},
    fixtures::{Tiny, greedy, tiny},
    meddler::{Disguise, Meddler, Meddling, Path},
    stage::{LIMIT, Stage},
};
use proto::v1::{self, Protocol, evaluator_client::EvaluatorClient, generate_event::Event, tile_answer, tile_job};
use std::time::Duration;
use tonic::Code;

/// Tokens of a request that is disturbed in the middle.
const LONG: u32 = 120;
/// Tokens of any other.
const SHORT: u32 = 12;

fn prompt(model: &Tiny) -> &[u32] {
    &model.prompts[0].prompt_ids
}

async fn ids(enclave: &Enclave, model: &Tiny, protocol: Protocol) -> anyhow::Result<Vec<u32>> {
    Ok(enclave.generate(greedy(prompt(model), SHORT, protocol)).await?.token_ids)
}

async fn long(enclave: &Enclave, model: &Tiny, protocol: Protocol) -> anyhow::Result<Vec<u32>> {
    Ok(enclave.generate(greedy(prompt(model), LONG, protocol)).await?.token_ids)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evaluator_restarted_in_mid_generation_changes_no_token() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let mut evaluator = stage.evaluator(0, &["--threads", "1"]).await?;
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &["--retry-for", "60"]).await?;
    let undisturbed = long(&enclave, &model, Protocol::Direct).await?;
    assert_eq!(undisturbed, long(&enclave, &model, Protocol::Local).await?);

    // A fast machine may be done before it can be disturbed; then it is disturbed again.
    for _ in 0..10 {
        let (mut events, mut seen) = enclave.begun(greedy(prompt(&model), LONG, Protocol::Direct)).await?;
        evaluator.daemon.kill();
        evaluator = stage.evaluator(evaluator.port, &["--threads", "1"]).await?;
        let mut retries = 0;
        while let Some(event) = tokio::time::timeout(LIMIT, events.message()).await?? {
            if let Some(Event::Finished(finished)) = &event.event {
                retries = finished.timing.context("timing")?.retries;
            }
            seen.extend(token(&event));
        }
        assert_eq!(seen, undisturbed);
        if retries > 0 {
            return Ok(());
        }
    }
    anyhow::bail!("no generation was ever disturbed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evaluator_that_stays_away_is_an_error_with_a_reason() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let stage = Stage::new()?;
    let mut evaluator = stage.evaluator(0, &["--threads", "1"]).await?;
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &["--retry-for", "1"]).await?;
    let undisturbed = long(&enclave, &model, Protocol::Local).await?;
    let (mut events, mut seen) = enclave.begun(greedy(prompt(&model), LONG, Protocol::Direct)).await?;
    evaluator.daemon.kill();
    let status = loop {
        match tokio::time::timeout(LIMIT, events.message()).await? {
            Ok(Some(event)) => seen.extend(token(&event)),
            Ok(None) => break None,
            Err(status) => break Some(status),
        }
    };
    assert!(undisturbed.starts_with(&seen), "a token differs");
    if let Some(status) = status {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("evaluator"), "{status:?}");
    } else {
        assert_eq!(seen, undisturbed, "a stream that ends well is whole");
    }
    // The runtime lives on: local at once, direct with a reason, and direct again with a new evaluator.
    assert_eq!(long(&enclave, &model, Protocol::Local).await?, undisturbed);
    let error = long(&enclave, &model, Protocol::Direct).await.err().context("there is no evaluator")?.to_string();
    assert!(error.contains("evaluator at") && error.contains("is gone"), "{error}");
    let _evaluator = stage.evaluator(evaluator.port, &[]).await?;
    enclave.connected().await?;
    assert_eq!(long(&enclave, &model, Protocol::Direct).await?, undisturbed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evaluator_that_was_never_there_is_named_and_may_come_later() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let stage = Stage::new()?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(port), &["--retry-for", "1"]).await?;
    let local = long(&enclave, &model, Protocol::Local).await?;
    let error = long(&enclave, &model, Protocol::Direct).await.err().context("there is no evaluator")?.to_string();
    assert!(error.contains(&format!("evaluator at https://127.0.0.1:{port}")), "{error}");
    let _evaluator = stage.evaluator(port, &[]).await?;
    enclave.connected().await?;
    assert_eq!(long(&enclave, &model, Protocol::Direct).await?, local);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_versions_and_rings_are_refused_with_both_sides_named() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let plain = stage.enclave(&model.path.to_string_lossy(), None, &[]).await?;
    let ring = plain.connection.describe().await?.ring.context("the runtime names no ring")?.params_id;
    let same =
        || v1::HelloRequest { version: proto::VERSION.into(), protocol: proto::PROTOCOL, params_id: ring.clone() };
    assert_eq!(hello(&stage, evaluator.port, same()).await?.params_id, ring);
    let (next, mine) = (proto::PROTOCOL + 1, proto::PROTOCOL.to_string());
    let hex: String = ring[..4].iter().map(|b| format!("{b:02x}")).collect();

    // The evaluator refuses a runtime that does not fit.
    let others = [
        (v1::HelloRequest { version: "9.9.9".into(), ..same() }, "9.9.9", proto::VERSION),
        (v1::HelloRequest { protocol: next, ..same() }, "protocol", &mine),
        (v1::HelloRequest { params_id: vec![0xab; 32].into(), ..same() }, "abababab", &hex),
    ];
    for (other, theirs, ours) in others {
        let status = hello(&stage, evaluator.port, other).await.err().context("a runtime was accepted")?;
        assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
        assert!(status.message().contains(theirs) && status.message().contains(ours), "{theirs}, {ours}: {status:?}");
    }

    // The runtime refuses an evaluator that does not fit, and sends it no weights.
    let lies = [
        (Disguise { version: Some("9.9.9".into()), ..Disguise::default() }, "9.9.9", proto::VERSION),
        (Disguise { protocol: Some(next), ..Disguise::default() }, "protocol", &mine),
        (Disguise { params_id: Some(vec![0xab; 32].into()), ..Disguise::default() }, "abababab", &hex),
    ];
    for (lie, theirs, ours) in lies {
        let meddler = Meddler::start(&stage, &evaluator).await?;
        meddler.disguise(lie);
        let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &["--retry-for", "1"]).await?;
        let error = ids(&enclave, &model, Protocol::Direct).await.err().context("an evaluator was accepted")?;
        let error = error.to_string();
        assert!(error.contains(theirs) && error.contains(ours), "{theirs}, {ours}: {error}");
        assert_eq!(meddler.seen().uploads, 0, "weights were sent to a peer that does not fit");
        ids(&enclave, &model, Protocol::Local).await?;
    }
    Ok(())
}

async fn hello(stage: &Stage, port: u16, request: v1::HelloRequest) -> Result<v1::HelloResponse, tonic::Status> {
    let channel = stage.channel(port).map_err(|e| tonic::Status::internal(e.to_string()))?;
    Ok(EvaluatorClient::new(channel).hello(request).await?.into_inner())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_beyond_the_memory_budget_are_refused_or_held_smaller() -> anyhow::Result<()> {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let stage = Stage::new()?;
    let small = stage.evaluator(0, &["--memory-budget", "20000"]).await?;
    let enclave = stage.enclave(&path, Some(small.port), &["--retry-for", "1"]).await?;
    let honest = ids(&enclave, &model, Protocol::Local).await?;
    let error = ids(&enclave, &model, Protocol::Direct).await.err().context("20 kB held a model")?.to_string();
    assert!(error.contains("20000") && error.contains("budget"), "{error}");
    assert_eq!(ids(&enclave, &model, Protocol::Local).await?, honest);

    // Room for a part of the tiles: the rest is held as int8, and the tokens stay the same.
    let middling = stage.evaluator(0, &["--memory-budget", "700000"]).await?;
    let enclave = stage.enclave(&path, Some(middling.port), &[]).await?;
    let info = enclave.connected().await?;
    assert!(info.fallback_layers > 0 && info.pinned_layers > 0, "{info:?}");
    assert_eq!(ids(&enclave, &model, Protocol::Direct).await?, honest);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_and_malformed_messages_are_refused_on_both_sides() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(evaluator.port), &[]).await?;
    let honest = ids(&enclave, &model, Protocol::Local).await?;

    // The runtime's door.
    let port = enclave.address.url.rsplit(':').next().context("a port")?.parse()?;
    let mut client = enclave.inference();
    let huge = v1::GenerateRequest {
        input: Some(v1::generate_request::Input::Prompt("x".repeat(9 << 20))),
        ..Default::default()
    };
    let status = client.generate(huge).await.err().context("9 MiB of prompt were accepted")?;
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    let empty = client.generate(v1::GenerateRequest::default()).await.err().context("no input was accepted")?;
    assert_eq!(empty.code(), Code::InvalidArgument, "{empty:?}");

    // The evaluator's door.
    let mut client = EvaluatorClient::new(stage.channel(evaluator.port)?);
    let part = |bytes: Vec<u8>| v1::TileJob {
        job_id: 1,
        body: Some(tile_job::Body::Part(v1::JobPart { vector: 0, first_block: 0, blocks: bytes.into() })),
    };
    let stream = tokio_stream::iter([part(vec![0; 33 << 20])]);
    let refused = match client.multiply(stream).await {
        Ok(mut answers) => answers.get_mut().message().await.err(),
        Err(status) => Some(status),
    };
    let status = refused.context("33 MiB in one message were accepted")?;
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    let header = v1::JobHeader { matrix_id: vec![7; 32].into(), vectors: 1, deadline_ms: 0 };
    let job = v1::TileJob { job_id: 1, body: Some(tile_job::Body::Header(header)) };
    let mut answers = client.multiply(tokio_stream::iter([job, part(b"no such format".to_vec())])).await?.into_inner();
    let answer = answers.message().await?.context("no answer to a job for an unknown matrix")?;
    let Some(tile_answer::Body::Failure(failure)) = answer.body else { anyhow::bail!("not refused") };
    assert_eq!(failure.kind(), v1::FailureKind::MatrixAbsent, "{failure:?}");

    // Bytes that are not even TLS, on both.
    for port in [port, evaluator.port] {
        let mut raw = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        tokio::io::AsyncWriteExt::write_all(&mut raw, &[0x55; 4096]).await?;
    }
    assert_eq!(ids(&enclave, &model, Protocol::Direct).await?, honest);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_in_use_is_one_clear_line() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let model = model.path.to_string_lossy();
    let stage = Stage::new()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = taken.local_addr()?.port();
    let mut runtime = binaries::local_runtime();
    runtime.args(["--protocol", "local", "--model", &model]);
    for (name, role, mut command) in [
        ("gpu-evaluator", Role::Evaluator, binaries::command("gpu-evaluator")),
        ("trusted-runtime", Role::Runtime, runtime),
    ] {
        let out = command.args(stage.common(role, port)).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{name} shared a port");
        let last = text.lines().last().unwrap_or_default();
        assert!(last.contains(&format!("127.0.0.1:{port}")) && last.contains("in use"), "{name}: {text}");
        assert!(out.stdout.is_empty(), "{name} wrote to stdout");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_its_place() -> anyhow::Result<()> {
    let model = tiny("gpt2");
    let stage = Stage::new()?;
    let evaluator = stage.evaluator(0, &[]).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    let config = stage.dir().join("patient.toml");
    std::fs::write(&config, "[engine]\nmax_running = 1\nmax_queue = 1\n[evaluator]\ndeadline_seconds = 600\n")?;
    let config = config.to_string_lossy();
    let enclave = stage.enclave(&model.path.to_string_lossy(), Some(meddler.port), &["--config", &config]).await?;
    let honest = ids(&enclave, &model, Protocol::Direct).await?;
    for _ in 0..3 {
        // One request hangs for ten minutes if nobody cancels it; its client leaves.
        let (events, _) = enclave.begun(greedy(prompt(&model), LONG, Protocol::Direct)).await?;
        let before = meddler.seen();
        meddler.meddle(Path::Direct, Meddling::Silence, u64::MAX);
        let swallowed = async {
            while meddler.seen().meddled == before.meddled {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let hung = tokio::time::timeout(Duration::from_secs(10), swallowed).await.is_ok();
        drop(events);
        meddler.behave();
        assert_eq!(ids(&enclave, &model, Protocol::Direct).await?, honest);
        if hung {
            return Ok(());
        }
    }
    anyhow::bail!("no generation was slow enough to be left")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_evaluator_holds_is_not_sent_again() -> anyhow::Result<()> {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let stage = Stage::new()?;
    let cache = stage.dir().join("cache");
    let cache = cache.to_string_lossy();
    let flags = ["--cache-dir", &*cache];
    let mut evaluator = stage.evaluator(0, &flags).await?;
    let meddler = Meddler::start(&stage, &evaluator).await?;
    let enclave = stage.enclave(&path, Some(meddler.port), &[]).await?;
    enclave.connected().await?;
    let honest = ids(&enclave, &model, Protocol::Direct).await?;
    let first = meddler.seen().uploads;
    assert!(first > 0, "nothing was uploaded at first");
    drop(enclave);

    // Another runtime, the same evaluator.
    let enclave = stage.enclave(&path, Some(meddler.port), &[]).await?;
    enclave.connected().await?;
    assert_eq!(ids(&enclave, &model, Protocol::Direct).await?, honest);
    assert_eq!(meddler.seen().uploads, first, "a resident matrix was uploaded again");

    // The same runtime, another process of the evaluator, the same disk.
    evaluator.daemon.kill();
    evaluator = stage.evaluator(evaluator.port, &flags).await?;
    assert_eq!(ids(&enclave, &model, Protocol::Direct).await?, honest);
    assert_eq!(meddler.seen().uploads, first, "a cached matrix was uploaded again");

    // A corrupt file is noticed and sent again.
    evaluator.daemon.kill();
    let victim = std::fs::read_dir(&*cache)?.next().context("the cache is empty")??.path();
    let mut bytes = std::fs::read(&victim)?;
    let last = bytes.last_mut().context("an empty file in the cache")?;
    *last ^= 1;
    std::fs::write(&victim, bytes)?;
    let _evaluator = stage.evaluator(evaluator.port, &flags).await?;
    assert_eq!(ids(&enclave, &model, Protocol::Direct).await?, honest);
    assert_eq!(meddler.seen().uploads, first + 1, "one corrupt matrix, one upload");
    Ok(())
}

/// Masks that cannot be made are refused before anything is served, by the setting's name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_masks_cannot_live_with_are_refused_with_figures() -> anyhow::Result<()> {
    let model = tiny("llama");
    let stage = Stage::new()?;
    let refused = |flags: &[&str], environment: &[(&str, &str)]| {
        let mut command = binaries::local_runtime();
        command.arg("--model").arg(&model.path).args(stage.common(Role::Runtime, 0));
        let out = command.args(stage.towards(&[1])).args(flags).envs(environment.iter().copied()).output()?;
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        anyhow::ensure!(out.status.code() == Some(64), "{flags:?}: {}\n{text}", out.status);
        Ok(text.lines().last().unwrap_or_default().to_owned())
    };
    // What A and its products take is known: 16 KiB a row of every matrix, and a column of the widest.
    for flags in [["--lanes", "64", "--pool-memory", "5000000"], ["--lanes", "0", "--pool-memory", "5000000"]] {
        let line = refused(&[&flags[..], &["--threads", "1"]].concat(), &[])?;
        let figures: Vec<u64> = line.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
        assert!(line.contains("pool.memory is 5000000 bytes") && line.contains("lanes need"), "{line}");
        let [given, lanes, needed, fixed, lane, least, refill] = figures[..] else { panic!("{line}") };
        assert_eq!((given, lanes), (5_000_000, if flags[1] == "64" { 64 } else { 32 }), "{line}");
        assert!(needed > given && fixed % 16384 == 0 && least == 32 && refill > 0, "{line}");
        assert!(needed >= fixed + lanes * lane, "{line}");
    }
    for protocol in ["masked", "auto"] {
        let line = refused(&["--protocol", protocol, "--residency", "pinned"], &[])?;
        assert!(line.contains("evaluator.residency is pinned") && line.contains(protocol), "{line}");
    }
    let line = refused(&[], &[("BIFROST_RUNTIME_EVALUATOR_QUARANTINE_SECONDS", "0")])?;
    assert!(line.contains("quarantine_seconds"), "{line}");
    Ok(())
}
