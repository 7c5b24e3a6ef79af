//! `bifrost generate --endpoint` against a runtime that does as it is told: streaming, the JSON object, and what
//! the user reads when the runtime refuses, breaks off, or is somebody else's. And the wait for its lanes.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::Error;
use client::certificates::{Certificates, Role};
use client::inference::{Address, Runtime};
use client::lanes::{Patience, filled};
use client::progress::Progress;
use proto::v1;
use proto::v1::generate_event::Event;
use proto::v1::inference_server::{Inference, InferenceServer};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

type Events = Vec<Result<v1::GenerateEvent, Status>>;

/// The mask pool at each look at it, counted from 0.
type Pool = Arc<dyn Fn(usize) -> Option<v1::Lanes> + Send + Sync>;

/// Answers every request with the same events and keeps what it was asked.
#[derive(Clone)]
struct Puppet {
    events: Arc<dyn Fn() -> Events + Send + Sync>,
    asked: Arc<Mutex<Vec<v1::GenerateRequest>>>,
    pool: Pool,
    looks: Arc<AtomicUsize>,
    has_chat_template: bool,
}

#[tonic::async_trait]
impl Inference for Puppet {
    type GenerateStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::GenerateEvent, Status>>>;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        self.asked.lock().unwrap().push(request.into_inner());
        Ok(Response::new(tokio_stream::iter((self.events)())))
    }

    async fn tokenize(&self, _: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeResponse>, Status> {
        Ok(Response::new(v1::TokenizeResponse::default()))
    }

    async fn describe(&self, _: Request<v1::DescribeRequest>) -> Result<Response<v1::DescribeResponse>, Status> {
        Ok(Response::new(v1::DescribeResponse {
            model: "puppet".into(),
            weights: "w16".into(),
            has_chat_template: self.has_chat_template,
            ring: Some(v1::RingParams { n: 2048, log2_q: 50.5, security_bits: 128, ..Default::default() }),
            evaluator: Some(v1::EvaluatorInfo { backend: "cpu".into(), isa: "avx2".into(), ..Default::default() }),
            lanes: (self.pool)(self.looks.fetch_add(1, Ordering::Relaxed)),
            ..Default::default()
        }))
    }
}

/// A puppet behind mutual TLS, and what is needed to reach it.
struct Stage {
    url: String,
    certificates: Certificates,
    asked: Arc<Mutex<Vec<v1::GenerateRequest>>>,
    looks: Arc<AtomicUsize>,
}

impl Stage {
    async fn open(has_chat_template: bool, events: impl Fn() -> Events + Send + Sync + 'static) -> Self {
        Self::with(has_chat_template, events, Arc::new(|_| None)).await
    }

    async fn with(has_chat_template: bool, events: impl Fn() -> Events + Send + Sync + 'static, pool: Pool) -> Self {
        let certificates = Certificates::issue().unwrap();
        let pem = |path| std::fs::read(path).unwrap();
        let tls = ServerTlsConfig::new()
            .identity(Identity::from_pem(pem(certificates.cert(Role::Runtime)), pem(certificates.key(Role::Runtime))))
            .client_ca_root(Certificate::from_pem(pem(certificates.ca())));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let looks = Arc::new(AtomicUsize::new(0));
        let puppet = Puppet {
            events: Arc::new(events),
            asked: Arc::clone(&asked),
            pool,
            looks: Arc::clone(&looks),
            has_chat_template,
        };
        let server = Server::builder().tls_config(tls).unwrap().add_service(InferenceServer::new(puppet));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { url, certificates, asked, looks }
    }

    /// Waits for 96 lanes.
    async fn fill(&self, patience: Patience) -> Result<v1::Lanes, Error> {
        let address = Address {
            url: self.url.clone(),
            ca: self.certificates.ca(),
            cert: self.certificates.cert(Role::Client),
            key: self.certificates.key(Role::Client),
        };
        let connection = Runtime::connect(&address).await.unwrap();
        filled(&connection, 96, &patience, &Progress::default()).await
    }

    /// Runs `bifrost generate` against the puppet, showing the certificates of `of`.
    async fn generate(&self, of: &Certificates, args: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bifrost"));
        command.args(["generate", "--endpoint", &self.url, "--prompt", "a private question"]).args(args);
        command
            .arg("--ca")
            .arg(of.ca())
            .arg("--cert")
            .arg(of.cert(Role::Client))
            .arg("--key")
            .arg(of.key(Role::Client));
        command.stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

fn event(event: Event) -> Result<v1::GenerateEvent, Status> {
    Ok(v1::GenerateEvent { event: Some(event) })
}

/// Two tokens in three events and an orderly finish.
fn answer() -> Events {
    answered(v1::Protocol::Direct)
}

fn answered(protocol: v1::Protocol) -> Events {
    let timing =
        v1::Timing { ttft_ms: 12.5, decode_ms_per_token: 3.25, bytes_up_per_token: 4096, ..Default::default() };
    vec![
        event(Event::Started(v1::Started { prompt_tokens: 7, protocol: protocol.into() })),
        event(Event::Token(v1::Token { id: 11, text: "gr".into(), ..Default::default() })),
        event(Event::Token(v1::Token { id: 12, text: "ün".into(), ..Default::default() })),
        event(Event::Finished(v1::Finished {
            reason: v1::FinishReason::Length.into(),
            prompt_tokens: 7,
            completion_tokens: 2,
            timing: Some(timing),
            masked_steps: u32::from(protocol == v1::Protocol::Masked),
            direct_steps: u32::from(protocol == v1::Protocol::Direct),
            ..Default::default()
        })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn text_goes_to_standard_output_and_figures_beside_it() {
    let stage = Stage::open(true, answer).await;
    let (status, stdout, stderr) = stage.generate(&stage.certificates, &["--temperature", "0.5", "--seed", "3"]).await;
    assert_eq!((status, stdout.as_str()), (0, "grün\n"), "{stderr}");
    for word in ["time to first token", "12.5 ms", "3.25 ms", "4,096", "N = 2048"] {
        assert!(stderr.contains(word), "{word} is missing in\n{stderr}");
    }
    assert!(!stderr.contains("private question"));
    let asked = stage.asked.lock().unwrap()[0].clone();
    let Some(v1::generate_request::Input::Chat(chat)) = asked.input else {
        panic!("a model with a template gets a chat")
    };
    assert_eq!((chat.messages[0].role.as_str(), chat.messages[0].content.as_str()), ("user", "a private question"));
    let sampling = asked.sampling.unwrap();
    assert_eq!((sampling.temperature, sampling.seed, sampling.top_k), (Some(0.5), Some(3), None));
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_one_object_and_nothing_else() {
    let stage = Stage::open(false, answer).await;
    let (status, stdout, stderr) = stage.generate(&stage.certificates, &["--json", "--protocol", "direct"]).await;
    assert_eq!((status, stdout.lines().count()), (0, 1), "{stderr}");
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value["text"], "grün");
    assert_eq!(value["token_ids"], serde_json::json!([11, 12]));
    assert_eq!(value["finish_reason"], "length");
    assert_eq!(value["identical_to_local"], serde_json::Value::Null);
    assert_eq!(value["weights"], "w16");
    assert_eq!(value["bytes_per_token"], serde_json::json!({"up": 4096, "down": 0}));
    assert_eq!(value["evaluator"]["isa"], "avx2");
    let asked = stage.asked.lock().unwrap()[0].clone();
    assert_eq!(asked.protocol(), v1::Protocol::Direct);
    assert!(matches!(asked.input, Some(v1::generate_request::Input::Prompt(text)) if text == "a private question"));
}

/// What the runtime sends, and what the user reads.
type Case = (fn() -> Events, &'static str);

#[tokio::test(flavor = "multi_thread")]
async fn refusals_and_broken_streams_are_one_line() {
    let refuse = || vec![Err(Status::invalid_argument("prompt is 9 tokens, the context is 8"))];
    let cut = || answer().into_iter().take(2).collect();
    let untimed = || vec![event(Event::Finished(v1::Finished { reason: 1, ..Default::default() }))];
    let empty = || vec![Ok(v1::GenerateEvent { event: None })];
    let cases: [Case; 4] = [
        (refuse, "bifrost: prompt is 9 tokens, the context is 8"),
        (cut, "before the finish"),
        (untimed, "a finish without timing"),
        (empty, "an event of an unknown kind"),
    ];
    for (events, word) in cases {
        let stage = Stage::open(false, events).await;
        let (status, stdout, stderr) = stage.generate(&stage.certificates, &["--json"]).await;
        assert_eq!((status, stdout.as_str(), stderr.lines().count()), (1, "", 1), "{stderr}");
        assert!(stderr.starts_with("bifrost: ") && stderr.contains(word), "{word} is missing in {stderr}");
        assert!(!stderr.contains("private question"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_of_another_authority_never_gets_the_prompt() {
    let stage = Stage::open(false, answer).await;
    let other = Certificates::issue().unwrap();
    let (status, stdout, stderr) = stage.generate(&other, &["--json"]).await;
    assert_eq!((status, stdout.as_str()), (1, ""));
    assert!(stderr.contains("no connection to https://127.0.0.1:") && stderr.contains("certificate"), "{stderr}");
    assert!(stage.asked.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_masked_answer_comes_with_the_figures_of_its_lanes() {
    // The pool as it was before the answer is not what the figures are about.
    let pool = |look| Some(v1::Lanes { ready: 100 - look as u64, used: look as u64, ..lanes(0, 2048, "") });
    let stage = Stage::with(false, || answered(v1::Protocol::Masked), Arc::new(pool)).await;
    let (status, stdout, stderr) = stage.generate(&stage.certificates, &["--json", "--protocol", "masked"]).await;
    assert_eq!(status, 0, "{stderr}");
    let value: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(value["protocol"], "masked");
    assert_eq!(value["lanes"], serde_json::json!({"ready": 99, "used": 1, "refill_ms_per_lane": 7.5}));
    assert_eq!(value["tokens"], serde_json::json!({"masked": 1, "direct": 0}));
    assert_eq!(value["offline_ms_per_token"], 6.0);
    assert_eq!(stage.asked.lock().unwrap()[0].protocol(), v1::Protocol::Masked);
    assert_eq!(stage.looks.load(Ordering::Relaxed), 2, "a running runtime makes the request wait by itself");
    let (status, _, stderr) = stage.generate(&stage.certificates, &["--protocol", "auto"]).await;
    assert_eq!(status, 0, "{stderr}");
    assert_eq!(stage.asked.lock().unwrap()[1].protocol(), v1::Protocol::Auto);
    assert!(stderr.contains("1 / 0") && stderr.contains("offline work per masked token"), "{stderr}");
}

fn lanes(ready: u64, capacity: u64, trouble: &str) -> v1::Lanes {
    let trouble = trouble.into();
    let (refill_ms_per_lane, enclave_ms_per_lane, evaluator_ms_per_lane) = (7.5, 1.5, 4.5);
    v1::Lanes {
        ready,
        capacity,
        trouble,
        refill_ms_per_lane,
        enclave_ms_per_lane,
        evaluator_ms_per_lane,
        ..Default::default()
    }
}

/// Asks again at once; nothing that is awaited in these tests takes a minute.
const PATIENCE: Patience =
    Patience { poll: Duration::ZERO, trouble: Duration::from_secs(60), stall: Duration::from_secs(60) };

#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_waited_for_until_enough_are_ready() {
    let pool = |look| match look {
        0 => None,
        1 => Some(lanes(0, 0, "")),
        2 => Some(lanes(0, 2048, "the evaluator is not connected")),
        3 => Some(lanes(95, 2048, "")),
        _ => Some(lanes(96, 2048, "")),
    };
    let stage = Stage::with(false, answer, Arc::new(pool)).await;
    assert_eq!(stage.fill(PATIENCE).await.unwrap().ready, 96);
    assert_eq!(stage.looks.load(Ordering::Relaxed), 5);
    let small = Stage::with(false, answer, Arc::new(|look| Some(lanes(look as u64, 3, "")))).await;
    assert_eq!(small.fill(PATIENCE).await.unwrap().ready, 3, "a full pool is enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pool_that_does_not_fill_is_one_error_with_the_reason() {
    let reason = "pool.memory is 1 MiB, one batch takes 900 MiB";
    let now = Duration::ZERO;
    let troubled = Stage::with(false, answer, Arc::new(move |_| Some(lanes(0, 2048, reason)))).await;
    let error = troubled.fill(Patience { trouble: now, ..PATIENCE }).await.unwrap_err().to_string();
    assert!(error.contains("needs 96 lanes, 0 are ready") && error.ends_with(reason), "{error}");
    let absent = Stage::open(false, answer).await;
    let error = absent.fill(Patience { trouble: now, ..PATIENCE }).await.unwrap_err().to_string();
    assert!(error.contains("needs 96 lanes") && error.ends_with("the runtime keeps no lanes"), "{error}");
    let stalled = Stage::with(false, answer, Arc::new(|_| Some(lanes(40, 2048, "")))).await;
    let error = stalled.fill(Patience { stall: Duration::from_millis(20), ..PATIENCE }).await.unwrap_err().to_string();
    assert_eq!(error, "masked delegation needs 96 lanes, 40 are ready; no lane was added for 0 s");
    assert!(stalled.looks.load(Ordering::Relaxed) > 1, "it asked again");
}
