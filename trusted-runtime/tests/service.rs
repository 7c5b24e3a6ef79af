//! The real binary over the tiny models: tokens, TLS, refusals, cancellation, signals.

#[path = "support/daemon.rs"]
mod daemon;

use daemon::{Certificates, Daemon, run, run_local, tiny};
use proto::v1::{
    self, Chat, ChatMessage, DescribeRequest, FinishReason, GenerateRequest, Protocol, Sampling, TokenIds,
    generate_event::Event, generate_request::Input, inference_client::InferenceClient,
};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Status, transport::Channel};

type Client = InferenceClient<Channel>;

fn prompt(text: &str, max_tokens: u32) -> GenerateRequest {
    let input = Some(Input::Prompt(text.into()));
    GenerateRequest { input, max_tokens, ignore_eos: true, ..Default::default() }
}

#[derive(Default)]
struct Answer {
    started: v1::Started,
    ids: Vec<u32>,
    finished: v1::Finished,
}

async fn generate(client: &mut Client, request: GenerateRequest) -> Result<Answer, Status> {
    let mut events = client.generate(request).await?.into_inner();
    let (mut answer, mut first) = (Answer::default(), true);
    while let Some(event) = events.message().await? {
        match event.event.expect("an event") {
            Event::Started(s) => {
                assert!(first, "started comes first");
                answer.started = s;
            }
            Event::Token(t) => answer.ids.push(t.id),
            Event::Finished(f) => answer.finished = f,
        }
        first = false;
    }
    Ok(answer)
}

async fn refusal(client: &mut Client, request: GenerateRequest) -> Status {
    generate(client, request).await.map(|a| a.ids).expect_err("refused")
}

#[tokio::test]
async fn greedy_ids_equal_the_references_over_mutual_tls() {
    let refs = std::fs::read_to_string(tiny("tiny_refs.json")).expect("committed");
    let refs: serde_json::Value = serde_json::from_str(&refs).expect("json");
    let certs = Certificates::make();
    let server = certs.server_flags();
    for name in ["gpt2", "llama", "qwen3", "gemma3"] {
        let path = tiny(&format!("tiny-{name}.gguf"));
        let mut args = vec!["--protocol", "local", "--weights", "w16", "--model", &path];
        args.extend(server.iter().map(String::as_str));
        let daemon = Daemon::start(&args);
        assert!(daemon.log.contains("attestation: LOCAL"), "{}", daemon.log);
        let channel = Certificates::connect(&daemon.address, &certs, Some(&certs)).await.expect("mutual TLS");
        let mut client = InferenceClient::new(channel);
        for reference in refs["models"][name]["prompts"].as_array().expect("prompts") {
            let numbers = |key: &str| -> Vec<u32> {
                let values = reference[key].as_array().expect("numbers").iter();
                values.map(|n| u32::try_from(n.as_u64().expect("id")).expect("id")).collect()
            };
            let expected = numbers("f64_ids");
            let text = reference["text"].as_str().expect("text");
            let many = u32::try_from(expected.len()).expect("few");
            // The references stop where the model would; past that nothing is known of it.
            let request = || GenerateRequest { ignore_eos: true, ..prompt(text, many) };
            let by_text = generate(&mut client, request()).await.expect("tokens");
            assert_eq!(by_text.ids, expected, "{name}: {text}");
            let ids = numbers("prompt_ids");
            assert_eq!(by_text.started.prompt_tokens as usize, ids.len());
            assert_eq!(by_text.finished.reason(), FinishReason::Length);
            assert_eq!(
                (by_text.finished.prompt_tokens as usize, by_text.finished.completion_tokens),
                (ids.len(), many)
            );
            let timing = by_text.finished.timing.expect("timing");
            assert!(timing.ttft_ms > 0.0 && timing.decode_ms_per_token > 0.0);
            assert_eq!((timing.bytes_up_per_token, timing.retries), (0, 0));
            let input = Some(Input::TokenIds(TokenIds { ids }));
            let by_ids = generate(&mut client, GenerateRequest { input, ..request() }).await.expect("tokens");
            assert_eq!(by_ids.ids, expected);
        }
        // Whoever shows no certificate, or one of another authority, gets nothing.
        let other = Certificates::make();
        for identity in [None, Some(&other)] {
            let refused = match Certificates::connect(&daemon.address, &certs, identity).await {
                Err(_) => true,
                Ok(channel) => InferenceClient::new(channel).describe(DescribeRequest {}).await.is_err(),
            };
            assert!(refused);
        }
        assert!(Certificates::connect(&daemon.address, &other, Some(&certs)).await.is_err());
        daemon.terminate();
        let (status, log) = daemon.wait().await;
        assert!(status.success() && !log.contains("given up"), "an idle client does not delay the end: {log}");
    }
}

#[tokio::test]
async fn describe_health_and_metrics_say_what_is_served() {
    let path = tiny("tiny-llama.gguf");
    let dir = tempfile::tempdir().expect("temp dir");
    let port_file = dir.path().join("port").display().to_string();
    let more = ["--metrics-listen", "127.0.0.1:0", "--weights", "w8", "--port-file", &port_file];
    let daemon = Daemon::plaintext(&path, &more);
    let mut client = daemon.client().await;
    let d = client.describe(DescribeRequest {}).await.expect("an answer").into_inner();
    assert_eq!((d.architecture.as_str(), d.weights.as_str(), d.attestation.as_str()), ("llama", "w8", "local"));
    assert_eq!((d.default_protocol(), d.context_length, d.layers, d.threads), (Protocol::Local, 256, 3, 2));
    assert!(d.evaluator.is_none() && d.lanes.is_none() && d.ring.expect("a ring").security_bits >= 128);
    let port = std::fs::read_to_string(&port_file).expect("written");
    assert_eq!(format!("127.0.0.1:{}", port.trim()), daemon.address);

    let mut health = tonic_health::pb::health_client::HealthClient::new(daemon.channel().await);
    for service in ["", "bifrost.v1.Inference"] {
        let request = tonic_health::pb::HealthCheckRequest { service: service.into() };
        let status = health.check(request).await.expect("known").into_inner().status();
        assert_eq!(status, tonic_health::pb::health_check_response::ServingStatus::Serving);
    }

    generate(&mut client, prompt("hello", 5)).await.expect("tokens");
    refusal(&mut client, prompt("", 5)).await;
    let at = daemon.log.split_once("metrics on http://").expect("logged").1;
    let text = scrape(at.split_once("/metrics").expect("a path").0).await;
    for line in [
        "bifrost_runtime_requests_total{ended=\"length\"} 1",
        "bifrost_runtime_requests_total{ended=\"refused\"} 1",
        "bifrost_runtime_generation_tokens_total 5",
        "bifrost_runtime_inter_token_latency_seconds_count 4",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

async fn scrape(address: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("reachable");
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("utf-8");
    text
}

#[tokio::test]
async fn bad_requests_are_refused_by_name_and_the_runtime_lives_on() {
    let daemon = Daemon::plaintext(&tiny("tiny-llama.gguf"), &[]);
    let mut client = daemon.client().await;
    let with = |input| GenerateRequest { input: Some(input), ..prompt("", 4) };
    let ids = |ids| Input::TokenIds(TokenIds { ids });
    let sampling = |s| GenerateRequest { sampling: Some(s), ..prompt("x", 4) };
    let cases = [
        (prompt("", 4), "the prompt is empty"),
        (GenerateRequest::default(), "no prompt, chat or token_ids"),
        (with(ids(vec![])), "the prompt has no tokens"),
        (with(ids(vec![1, 260])), "token_ids[1] is not below the vocabulary size 260"),
        (with(ids(vec![1; 256])), "the prompt is 256 tokens long, the context holds 256"),
        (with(ids(vec![1; 9999])), "the prompt is 9999 tokens long, the context holds 256"),
        (GenerateRequest { max_tokens: 255, ..with(ids(vec![1, 2])) }, "max_tokens is 255, allowed is 1 to 254"),
        (GenerateRequest { protocol: 9, ..prompt("x", 4) }, "protocol is 9"),
        (sampling(Sampling { temperature: Some(3.0), ..Default::default() }), "sampling.temperature is 3"),
        (sampling(Sampling { top_k: Some(0), ..Default::default() }), "sampling.top_k is 0"),
        (sampling(Sampling { top_p: Some(f32::NAN), ..Default::default() }), "sampling.top_p is NaN"),
        (sampling(Sampling { min_p: Some(1.5), ..Default::default() }), "sampling.min_p is 1.5"),
        (
            sampling(Sampling { repetition_penalty: Some(-1.0), ..Default::default() }),
            "sampling.repetition_penalty is -1",
        ),
        (sampling(Sampling { frequency_penalty: Some(3.0), ..Default::default() }), "sampling.frequency_penalty is 3"),
        (sampling(Sampling { presence_penalty: Some(-3.0), ..Default::default() }), "sampling.presence_penalty is -3"),
        (
            sampling(Sampling { logprobs: Some(21), ..Default::default() }),
            "sampling.logprobs is 21, allowed is 0 to 20",
        ),
        (
            sampling(Sampling { logit_bias: [(1, -101.0)].into(), ..Default::default() }),
            "sampling.logit_bias[1] is -101, allowed is -100 to 100",
        ),
        (
            sampling(Sampling { logit_bias: [(260, 1.0)].into(), ..Default::default() }),
            "sampling.logit_bias[260] is not below the vocabulary size 260",
        ),
        (GenerateRequest { stop: vec!["a".into(); 17], ..prompt("x", 4) }, "stop has 17 texts, allowed are 16"),
        (GenerateRequest { stop: vec![String::new()], ..prompt("x", 4) }, "stop[0] is 0 bytes long"),
        (GenerateRequest { stop: vec!["a".repeat(1025)], ..prompt("x", 4) }, "stop[0] is 1025 bytes long"),
        (GenerateRequest { stop_token_ids: vec![260], ..prompt("x", 4) }, "stop_token_ids[0] is not below"),
        (GenerateRequest { stop_token_ids: vec![1; 65], ..prompt("x", 4) }, "stop_token_ids has 65 tokens"),
        (GenerateRequest { min_tokens: 5, ..prompt("x", 4) }, "min_tokens is 5, allowed is 0 to max_tokens, 4"),
    ];
    for (request, says) in cases {
        let status = refusal(&mut client, request).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{says}");
        assert!(status.message().contains(says), "{says:?} is not in {:?}", status.message());
    }
    for protocol in [Protocol::Direct, Protocol::Masked, Protocol::Auto] {
        let delegated = GenerateRequest { protocol: protocol.into(), ..prompt("x", 4) };
        let status = refusal(&mut client, delegated).await;
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains("no evaluator configured"), "{}", status.message());
    }

    let status = refusal(&mut client, prompt(&"x".repeat(5 << 20), 4)).await;
    assert_eq!(status.code(), Code::OutOfRange, "{}", status.message());
    assert_eq!(generate(&mut client, prompt("x", 4)).await.expect("it lives on").ids.len(), 4);
}

#[tokio::test]
async fn chats_need_a_template_and_known_roles() {
    let daemon = Daemon::plaintext(&tiny("tiny-llama.gguf"), &[]);
    let mut client = daemon.client().await;
    let has_template = client.describe(DescribeRequest {}).await.expect("described").into_inner().has_chat_template;
    let chat = |role: &str| {
        let messages = vec![ChatMessage { role: role.into(), content: "hi".into() }];
        GenerateRequest { input: Some(Input::Chat(Chat { messages })), ..prompt("", 3) }
    };
    if has_template {
        assert_eq!(generate(&mut client, chat("user")).await.expect("tokens").ids.len(), 3);
        let status = refusal(&mut client, chat("oracle")).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("chat.messages[0].role is unknown"), "{}", status.message());
    } else {
        let status = refusal(&mut client, chat("user")).await;
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("no chat template"), "{}", status.message());
    }
}

#[tokio::test]
async fn seeds_repeat_and_protocol_settings_hold_over_the_wire() {
    let daemon = Daemon::plaintext(&tiny("tiny-gpt2.gguf"), &[]);
    let mut client = daemon.client().await;
    let drawn = |seed| GenerateRequest {
        sampling: Some(Sampling {
            temperature: Some(1.2),
            top_k: Some(50),
            top_p: Some(0.98),
            repetition_penalty: Some(1.1),
            seed: Some(seed),
            ..Default::default()
        }),
        ..prompt("once upon a time", 24)
    };
    let a = generate(&mut client, drawn(1)).await.expect("tokens").ids;
    let again = generate(&mut client, drawn(1)).await.expect("tokens").ids;
    let other = generate(&mut client, drawn(2)).await.expect("tokens").ids;
    assert_eq!(a, again);
    assert_ne!(a, other);
}

/// Long enough that it cannot end by itself within the test: minutes of work.
fn endless() -> GenerateRequest {
    prompt("long", 1000)
}

#[tokio::test]
async fn leaving_a_deadline_and_a_full_queue() {
    let more = ["--max-running", "1", "--max-queue", "1", "--metrics-listen", "127.0.0.1:0"];
    let daemon = Daemon::plaintext("synthetic:gpt2-124m", &more);
    let mut client = daemon.client().await;
    let mut running = client.generate(endless()).await.expect("admitted").into_inner();
    while !matches!(running.message().await.expect("an event").expect("open").event, Some(Event::Token(_))) {}
    let waiting = client.generate(endless()).await.expect("queued").into_inner();
    let status = refusal(&mut client, endless()).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("1 requests run and 1 wait"), "{}", status.message());

    drop((running, waiting));
    // Both leave: as soon as there is room again, a request is served to its end.
    let answer = loop {
        match generate(&mut client, prompt("short", 1)).await {
            Ok(answer) => break answer,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{}", status.message()),
        }
    };
    assert_eq!(answer.ids.len(), 1);
    let at = daemon.log.split_once("metrics on http://").expect("logged").1;
    let text = scrape(at.split_once("/metrics").expect("a path").0).await;
    // The one that waited may have had its first turn before it left.
    let cancelled = |n| text.contains(&format!("bifrost_runtime_requests_total{{ended=\"cancelled\"}} {n}\n"));
    assert!(cancelled(1) || cancelled(2), "{text}");
    assert!(text.contains("bifrost_runtime_requests_total{ended=\"length\"} 1"), "{text}");

    let mut hurried = tonic::Request::new(endless());
    hurried.set_timeout(Duration::from_millis(900));
    let mut events = client.generate(hurried).await.expect("admitted").into_inner();
    let status = loop {
        match events.message().await {
            Ok(event) => assert!(event.is_some(), "no end without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);

    // Told to stop while a request runs: it gets `drain_seconds`, then its end with a reason.
    let mut running = client.generate(endless()).await.expect("admitted").into_inner();
    assert!(running.message().await.expect("an event").is_some());
    daemon.terminate();
    while client.describe(DescribeRequest {}).await.is_ok() {}
    drop(running);
    let (status, log) = daemon.wait().await;
    assert!(status.success(), "{log}");
    assert!(log.contains("SIGTERM: draining") && log.contains("stopped"), "{log}");
}

#[tokio::test]
async fn drains_what_runs_on_sigterm() {
    let daemon = Daemon::plaintext(&tiny("tiny-llama.gguf"), &[]);
    let mut client = daemon.client().await;
    let mut events = client.generate(prompt("drain", 200)).await.expect("admitted").into_inner();
    assert!(matches!(events.message().await.expect("open").expect("open").event, Some(Event::Started(_))));
    daemon.terminate();
    let (mut tokens, mut finished) = (0, false);
    while let Some(event) = events.message().await.expect("no error while draining") {
        match event.event.expect("an event") {
            Event::Token(_) => tokens += 1,
            Event::Finished(f) => finished = f.reason() == FinishReason::Length,
            Event::Started(_) => unreachable!("only once"),
        }
    }
    assert!(finished && tokens == 200, "{tokens} tokens");
    drop((events, client));
    let (status, log) = daemon.wait().await;
    assert!(status.success(), "{log}");
    assert!(!log.contains("given up"), "{log}");
}

#[test]
fn starts_that_cannot_work_end_with_one_line_and_the_right_code() {
    let model = tiny("tiny-llama.gguf");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|a| (taken, a.to_string())).expect("bound");
    let local = ["--danger-plaintext", "--protocol", "local", "--model"];
    let with = |more: &[&'static str]| -> Vec<String> {
        local.iter().chain(&[model.as_str()]).chain(more).map(|s| (*s).to_owned()).collect()
    };
    let strings = |s: &[&str]| -> Vec<String> { s.iter().map(|s| (*s).to_owned()).collect() };
    let cases = [
        (strings(&[]), 64, "model.source is not set"),
        (strings(&["--colour"]), 64, "--colour"),
        (strings(&["--model", &model]), 64, "engine.protocol is masked, but evaluator.endpoint is not set"),
        (strings(&["--model", &model, "--protocol", "local"]), 64, "tls.cert is not set"),
        (strings(&["--config", "/nonexistent/c.toml"]), 64, "/nonexistent/c.toml"),
        (with(&["--weights", "w4"]), 64, "weights"),
        (with(&["--threads", "x"]), 64, "threads is \"x\""),
        (with(&["--listen", "0.0.0.0:0"]), 64, "needs a loopback address"),
        (with(&["--evaluator", "https://127.0.0.1:1"]), 64, "evaluator.ca is not set"),
        (
            strings(&[
                "--danger-plaintext",
                "--protocol",
                "local",
                "--listen",
                "127.0.0.1:0",
                "--model",
                "/nonexistent/m.gguf",
            ]),
            1,
            "/nonexistent/m.gguf",
        ),
        (
            strings(&[
                "--danger-plaintext",
                "--protocol",
                "local",
                "--listen",
                "127.0.0.1:0",
                "--model",
                "synthetic:elephant",
            ]),
            1,
            "elephant",
        ),
        (strings(&["--danger-plaintext", "--protocol", "local", "--model", &model, "--listen", &taken.1]), 1, &taken.1),
    ];
    for (args, code, says) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (found, stderr) = run_local(&args);
        assert_eq!(found, Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{says:?} is not in {stderr:?}");
    }
    for (name, value, says) in [
        ("BIFROST_LOG", "a=b=c", "configuration: BIFROST_LOG is \"a=b=c\", expected levels such as"),
        ("BIFROST_LOG", "loud=very", "configuration: BIFROST_LOG is \"loud=very\""),
        ("BIFROST_ISA", "mmx", "configuration: BIFROST_ISA is \"mmx\", expected one that this machine has: scalar"),
    ] {
        let mut command = daemon::local(&["--danger-plaintext", "--protocol", "local", "--listen", "127.0.0.1:0"]);
        let out = command.args(["--model", &model]).env(name, value).output().expect("the binary starts");
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(64), "{name}={value}: {stderr}");
        assert!(stderr.contains(says), "{says:?} is not in {stderr:?}");
    }
}

#[test]
fn inspect_tells_what_a_model_holds_and_how_close_it_is_quantized() {
    let model = tiny("tiny-llama.gguf");
    let out = daemon::binary(&["inspect", &model, "--fidelity", "--json"]).output().expect("the binary starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).expect("one object");
    assert_eq!((report["architecture"].as_str(), report["layers"].as_u64()), (Some("llama"), Some(3)));
    assert_eq!(report["sha256"].as_str().map(str::len), Some(64));
    let figures = report["fidelity"].as_array().expect("a list");
    let [w8, w16] = ["w8", "w16"].map(|weights| {
        let built_in = figures.iter().find(|f| f["weights"] == weights && f["text"] == "built-in");
        built_in.and_then(|f| f["agreement"].as_f64()).expect("measured")
    });
    assert!(w8 > 0.9 && w16 > 0.99 && w16 >= w8, "{w8} {w16}");
    let text = daemon::binary(&["inspect", &model]).output().expect("the binary starts").stdout;
    let text = String::from_utf8(text).expect("utf-8");
    assert!(text.contains("architecture    llama") && text.contains("vocabulary      260"), "{text}");
    let (code, stderr) = run(&["inspect", "/nonexistent/m.gguf"]);
    assert!(code == Some(1) && stderr.contains("/nonexistent/m.gguf"), "{stderr}");
}

/// There is nothing weaker to fall back to.
#[test]
fn without_a_tee_or_a_parent_with_a_key_nothing_starts() {
    let model = tiny("tiny-llama.gguf");
    let serve = ["--protocol", "local", "--listen", "127.0.0.1:0", "--model", &model];
    let (code, stderr) = run(&[&["serve", "--local", "--danger-plaintext"], &serve[..]].concat());
    assert!(code == Some(64) && stderr.contains("takes a key of 32 bytes from standard input"), "{stderr}");
    if std::path::Path::new("/sys/kernel/config/tsm/report").exists() {
        eprintln!("SKIPPED without_a_tee: this kernel has the TSM interface");
        return;
    }
    let (code, stderr) = run(&[&["serve"], &serve[..]].concat());
    assert!(code == Some(1) && stderr.contains("no TEE") && stderr.contains("/sys/kernel/config/tsm"), "{stderr}");
}

#[test]
fn bad_certificates_are_refused_at_the_start() {
    let certs = Certificates::make();
    std::fs::write(certs.path("junk.pem"), "hello").expect("write");
    let (ca, server, key, junk) =
        (certs.path("ca.pem"), certs.path("server.pem"), certs.path("server.key"), certs.path("junk.pem"));
    let model = tiny("tiny-llama.gguf");
    let other_key = certs.path("client.key");
    for (cert, key, says) in [(&junk, &key, "tls.cert"), (&server, &junk, "tls.key"), (&server, &other_key, "tls: ")] {
        let args =
            ["--protocol", "local", "--model", &model, "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", &ca];
        let (code, stderr) = run_local(&args);
        assert_eq!(code, Some(64), "{stderr}");
        assert!(stderr.contains(says), "{says:?} is not in {stderr:?}");
    }
}
