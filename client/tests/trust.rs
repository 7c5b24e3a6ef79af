//! The commands that judge a runtime, as a person and a script meet them: exit status 0, 1, 2 or 3, and the words. The
//! runtimes here have no hardware; what a runtime with evidence gets is tested with the simulator, end to end.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use attest::server::{Acceptor, Admissions, Settings};
use attest::source::{Collected, Source, SourceError};
use attest::{Domain, Hardware, Opening};
use attest_verify::collateral::{Bundle, CollateralKey, QuoteCollateralV3, dates};
use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::routing::get;
use client::collateral::fetch;
use proto::v1::Platform;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

/// Hardware that states whatever it is asked to, in no quote.
struct Mirror;

impl Source for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        Ok(Collected { platform: Platform::Tdx, quote: report_data.to_vec(), ..Default::default() })
    }
}

struct Nobody;

impl Admissions for Nobody {
    type Tenant = ();

    fn admit(&self, _: &[u8], _: &Opening) -> Option<()> {
        None
    }

    fn ended(&self, (): &()) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

/// Another world than hardware's.
struct Other;

impl Domain for Other {
    const MODE: &'static str = "other";
    const TAG: &'static [u8] = b"other/attest/v1";
    const ALPN: &'static [u8] = b"other-attest/1";
    const EXPORTER: &'static [u8] = b"EXPORTER-other-attest-v1";
    const RELEASE: &'static [u8] = b"other/key-release/v1";
    const BANNER: Option<&'static str> = Some("OTHER");
}

/// A runtime of the world `D` that answers every challenge and has no gRPC.
async fn runtime<D: Domain>() -> String {
    let settings = Settings {
        params_digest: [1; 32],
        model_digest: [2; 32],
        config_digest: [3; 32],
        software: "test".into(),
        session: Duration::from_secs(60),
    };
    let acceptor = Arc::new(Acceptor::<D, Nobody>::new(Box::new(Mirror), settings, Nobody).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, peer)) = listener.accept().await {
            let acceptor = Arc::clone(&acceptor);
            tokio::spawn(async move { acceptor.accept(tcp, peer.ip()).await.is_ok() });
        }
    });
    format!("attested://{address}")
}

/// A folder for one test, and `bifrost` that keeps everything in it.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bifrost"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null()).env("HOME", self.0.path());
        command.env("XDG_STATE_HOME", self.path("state")).env("XDG_CACHE_HOME", self.path("cache"));
        command
    }

    /// Status, standard output, standard error.
    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let mut command = self.command(args);
        let Output { status, stdout, stderr } =
            tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    }

    /// Asserts status and words of a refusal, which leaves standard output empty.
    async fn refuses(&self, args: &[&str], code: i32, words: &[&str]) {
        let (status, stdout, stderr) = self.run(args).await;
        assert_eq!((status, stdout.as_str()), (code, ""), "{args:?}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{args:?}: {word} is not in: {stderr}");
        }
    }

    async fn keygen(&self, file: &str, more: &[&str]) {
        let args = [&["keygen", "--tenant", "acme", "--out", file], more].concat();
        let (status, stdout, stderr) = self.run(&args).await;
        assert_eq!(status, 0, "{stderr}");
        assert!(stdout.contains("of tenant acme") && stdout.contains("admission key "), "{stdout}");
    }

    fn policy(&self) -> String {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("verify/policy.example.toml").display().to_string()
    }
}

/// A port on which nobody listens.
const NOWHERE: &str = "attested://127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_ends_with_2() {
    let home = Home::new();
    let policy = home.policy();
    std::fs::write(
        home.path("typo.toml"),
        std::fs::read_to_string(&policy).unwrap().replacen("accept =", "acept =", 1),
    )
    .unwrap();
    home.keygen("acme.key", &[]).await;
    let release = ["release-key", "--runtime", NOWHERE, "--policy", &policy, "--tenant-key", "acme.key"];
    for (args, words) in [
        (&["verify", NOWHERE][..], &["--policy"][..]),
        (&["verify", "--policy", &policy], &["URL"]),
        (
            &["verify", "https://h:1", "--policy", &policy],
            &["endpoint is `https://h:1`, expected attested://HOST:PORT"],
        ),
        (&["verify", NOWHERE, "--policy", "absent.toml"], &["absent.toml", "No such file"]),
        (&["verify", NOWHERE, "--policy", "typo.toml"], &["typo.toml", "acept"]),
        (&["verify", NOWHERE, "--policy", &policy, "--collateral", "typo.toml"], &["typo.toml", "collateral bundle"]),
        (&["verify", NOWHERE, "--policy", &policy, "--collateral-endpoint", "x"], &["expected https://HOST"]),
        (&["explain-tcb"], &["URL"]),
        (&["explain-tcb", "--evidence", "typo.toml"], &["typo.toml: no saved evidence"]),
        (&["collateral", "fetch", "--fmspc", "00", "--ca", "platform", "--out", "o"], &["expected 6"]),
        (&["collateral", "check", "absent"], &["absent", "No such file"]),
        (&["keygen", "--tenant", "a/b", "--out", "o"], &["tenant is \"a/b\""]),
        (&["keygen", "--tenant", "acme", "--out", "acme.key"], &["acme.key", "exists"]),
        (&release, &["--yes"]),
        (&[&release[..], &["--held", "--revoke", "k"]].concat(), &["cannot be used with"]),
    ] {
        home.refuses(args, 2, words).await;
    }
    home.refuses(&["generate", "--endpoint", NOWHERE, "--prompt", "x"], 64, &["--attestation-policy", "--tenant-key"])
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn key_files_that_are_not_right_are_refused_before_anyone_is_asked() {
    let home = Home::new();
    let policy = home.policy();
    home.keygen("acme.key", &[]).await;
    home.keygen("test.key", &["--test"]).await;
    home.keygen("open.key", &[]).await;
    std::fs::set_permissions(home.path("open.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let whole = std::fs::read_to_string(home.path("acme.key")).unwrap();
    std::fs::write(home.path("half.key"), &whole[..whole.len() / 2]).unwrap();
    std::fs::set_permissions(home.path("half.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    for (key, words) in [
        ("test.key", "test is true, expected false"),
        ("open.key", "mode is 644, expected 600"),
        ("half.key", "half.key: "),
        ("absent.key", "No such file"),
    ] {
        let args = ["release-key", "--runtime", NOWHERE, "--policy", &policy, "--tenant-key", key, "--yes"];
        home.refuses(&args, 2, &[words]).await;
        let args = ["generate", "--endpoint", NOWHERE, "--attestation-policy", &policy, "--tenant-key", key];
        home.refuses(&[&args[..], &["--prompt", "x"]].concat(), 1, &[words]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_without_evidence_could_not_be_checked() {
    let home = Home::new();
    let policy = home.policy();
    home.refuses(&["verify", NOWHERE, "--policy", &policy], 3, &["no connection to attested://127.0.0.1:1"]).await;
    let other = runtime::<Other>().await;
    home.refuses(&["verify", &other, "--policy", &policy], 3, &["does not speak bifrost-attest/1"]).await;
    let (status, stdout, _) = home.run(&["verify", NOWHERE, "--policy", &policy, "--json"]).await;
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (status, object["verdict"].as_str(), object["world"].as_str()),
        (3, Some("unchecked"), Some("hardware"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn evidence_that_is_none_is_rejected_with_the_table_and_not_logged() {
    let home = Home::new();
    let (policy, url) = (home.policy(), runtime::<Hardware>().await);
    let (status, stdout, stderr) = home.run(&["verify", &url, "--policy", &policy, "--save", "kept"]).await;
    assert_eq!(status, 1, "{stderr}");
    for part in
        ["HARDWARE (Intel root)", "quote.parse", "fail", "runtime.params_digest", "verdict     rejected", "instance"]
    {
        assert!(stdout.contains(part), "{part} is not in\n{stdout}");
    }
    assert!(stderr.contains("evidence in kept, about "), "{stderr}");
    assert!(!home.path("state/bifrost/attestations.jsonl").exists(), "only what is accepted is logged");

    let (status, stdout, _) = home.run(&["verify", &url, "--policy", &policy, "--json"]).await;
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status, object["verdict"].as_str()), (1, Some("rejected")));
    let codes: Vec<_> = object["factors"].as_array().unwrap().iter().map(|f| f["code"].as_str().unwrap()).collect();
    assert!(codes.contains(&"quote.parse") && codes.contains(&"runtime.model_digest"), "{codes:?}");
    assert_eq!(object["instance"].as_str().map(str::len), Some(64));

    let (status, stdout, _) = home.run(&["verify", "--evidence", "kept", "--policy", &policy, "--json"]).await;
    let object: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status, object["instance"].is_null()), (1, true));
    home.refuses(&["explain-tcb", &url], 3, &["quote"]).await;
    home.refuses(&["explain-tcb", "--evidence", "kept"], 3, &["quote"]).await;

    home.keygen("acme.key", &[]).await;
    let args = ["release-key", "--runtime", &url, "--policy", &policy, "--tenant-key", "acme.key", "--yes"];
    home.refuses(&args, 1, &["rejected", "quote.parse"]).await;
    assert!(!home.path("state/bifrost/receipts").exists());
    let args = ["generate", "--endpoint", &url, "--attestation-policy", &policy, "--tenant-key", "acme.key"];
    home.refuses(&[&args[..], &["--prompt", "x"]].concat(), 1, &["rejected", "quote.parse"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_blocks_and_says_why_by_code_alone() {
    let home = Home::new();
    let (policy, url) = (home.policy(), runtime::<Hardware>().await);
    home.keygen("acme.key", &[]).await;
    let args = ["proxy", "--runtime", &url, "--attestation-policy", &policy, "--tenant-key", "acme.key"];
    let args = [&args[..], &["--listen", "127.0.0.1:0", "--port-file", "port", "--exit-with-parent"]].concat();
    let mut child = home.command(&args).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut port = None;
    for _ in 0..600 {
        port = std::fs::read_to_string(home.path("port")).ok();
        if port.is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let address = format!("127.0.0.1:{}", port.unwrap().trim());
    let health = http(&address, "GET /health HTTP/1.1", "").await;
    assert!(health.starts_with("HTTP/1.1 503"), "{health}");
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).to_string();
    let answer = http(&address, "POST /v1/chat/completions HTTP/1.1", &chat).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("x-bifrost-attestation: hardware"), "{answer}");
    assert!(answer.contains("\"code\":\"attestation_failed\"") && answer.contains("quote.parse"), "{answer}");
    assert!(!answer.contains("expected"), "values stay in the log: {answer}");
    let metrics = http(&address, "GET /metrics HTTP/1.1", "").await;
    assert!(metrics.contains("bifrost_proxy_attestation_blocked 1"), "{metrics}");
    assert!(metrics.contains("bifrost_proxy_attestations_total{outcome=\"accepted\"} 0"), "{metrics}");
    drop(child.stdin.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("attestation  BLOCKED") && log.contains("quote.parse: found"), "{log}");
}

async fn http(address: &str, line: &str, body: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let request = format!("{line}\r\nhost: h\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Recorded collateral of a real platform, see the notes beside it.
fn recorded() -> QuoteCollateralV3 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("verify/testdata/dcap-qvl-crate/tdx_quote_collateral.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// A caching service that has `collateral`.
async fn service(collateral: &QuoteCollateralV3) -> String {
    let hex = attest_verify::hex::encode;
    let answer = |body: Vec<u8>, header: Option<(&'static str, &str)>| {
        let mut headers = HeaderMap::new();
        if let Some((name, value)) = header {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(&percent(value)).unwrap());
        }
        get(move || async move { (headers, body) })
    };
    let tcb = format!(r#"{{"tcbInfo":{},"signature":"{}"}}"#, collateral.tcb_info, hex(&collateral.tcb_info_signature));
    let qe = format!(
        r#"{{"enclaveIdentity":{},"signature":"{}"}}"#,
        collateral.qe_identity,
        hex(&collateral.qe_identity_signature)
    );
    let app = Router::new()
        .route(
            "/tdx/certification/v4/tcb",
            answer(tcb.into_bytes(), Some(("tcb-info-issuer-chain", &collateral.tcb_info_issuer_chain))),
        )
        .route(
            "/tdx/certification/v4/qe/identity",
            answer(qe.into_bytes(), Some(("sgx-enclave-identity-issuer-chain", &collateral.qe_identity_issuer_chain))),
        )
        .route(
            "/sgx/certification/v4/pckcrl",
            answer(collateral.pck_crl.clone(), Some(("sgx-pck-crl-issuer-chain", &collateral.pck_crl_issuer_chain))),
        )
        .route("/sgx/certification/v4/rootcacrl", answer(hex(&collateral.root_ca_crl).into_bytes(), None));
    served(app).await
}

async fn served(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn collateral_comes_from_the_first_endpoint_that_has_it() {
    let (home, collateral) = (Home::new(), recorded());
    let fmspc = dates(&collateral).unwrap().fmspc;
    let (good, empty) = (service(&collateral).await, served(Router::new()).await);
    let fmspc_text = fmspc.to_string();
    let fetch = |out: &'static str, endpoints: Vec<String>| {
        let mut args = vec!["collateral", "fetch", "--fmspc", &fmspc_text, "--ca", "platform", "--out", out];
        args.extend(endpoints.iter().flat_map(|endpoint| ["--endpoint", endpoint]));
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = async |args: Vec<String>| home.run(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let dead = "http://127.0.0.1:1".to_owned();
    let (status, stdout, stderr) = run(fetch("bundle", vec![dead.clone(), empty.clone(), good.clone()])).await;
    assert_eq!(status, 0, "{stderr}");
    assert!(stdout.contains(&format!("FMSPC {fmspc}, platform CA: round ")), "{stdout}");
    let bundle = Bundle::parse(&std::fs::read(home.path("bundle")).unwrap()).unwrap();
    let [entry] = bundle.entries() else { panic!("{} entries", bundle.entries().len()) };
    assert_eq!(
        (&entry.collateral.tcb_info, &entry.collateral.root_ca_crl),
        (&collateral.tcb_info, &collateral.root_ca_crl)
    );
    assert_eq!(entry.collateral.pck_crl_issuer_chain, collateral.pck_crl_issuer_chain);

    // It is of last year.
    let (status, stdout, _) = home.run(&["collateral", "check", "bundle"]).await;
    assert!(status == 1 && stdout.contains("expired"), "{stdout}");
    let (status, stdout, _) = home.run(&["collateral", "show", "bundle", "--json"]).await;
    let list: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((status, list.as_array().map(Vec::len)), (0, Some(1)));

    let (status, _, stderr) = run(fetch("none", vec![dead.clone(), empty.clone()])).await;
    assert_eq!(status, 3, "{stderr}");
    for part in [&dead, &empty, "404", &fmspc.to_string()] {
        assert!(stderr.contains(part), "{part} is not in: {stderr}");
    }
    assert!(!home.path("none").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn collateral_of_another_platform_is_no_answer() {
    let collateral = recorded();
    let good = service(&collateral).await;
    let key = CollateralKey { fmspc: attest_verify::hex::Hex([0xee; 6]), ca: attest_verify::collateral::Ca::Platform };
    let (endpoint, endpoints) = (good.clone(), vec![good]);
    let error = tokio::task::spawn_blocking(move || fetch(&key, &endpoints, |_| true)).await.unwrap().unwrap_err();
    let [(place, reason)] = &error.tried[..] else { panic!("{error}") };
    assert_eq!(place, &endpoint);
    assert!(reason.contains("expected eeeeeeeeeeee"), "{reason}");
}
