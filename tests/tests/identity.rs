//! Who runtime and evaluator are to each other, with real processes: pins both ways, a certificate that is replaced under
//! a running generation, and certificates that neither lets pass.

use anyhow::Context;
use client::{
    certificates::Role,
    cli::{InitArgs, IssueArgs, LinkRole},
    daemon::{Daemon, Launch},
    pki,
};
use e2e::{
    binaries,
    enclave::token,
    fixtures::{greedy, tiny},
    stage::{LIMIT, Stage},
};
use identity::{Caller, Files, Pins, files::Named};
use proto::v1::{HelloRequest, Protocol, evaluator_client::EvaluatorClient};
use rustls::time_provider::DefaultTimeProvider;
use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use tokio::io::AsyncReadExt;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

const DAY: Duration = Duration::from_secs(86_400);
/// Tokens of a request that is under way while certificates change.
const LONG: u32 = 120;

/// An authority for the link.
struct Link {
    dir: tempfile::TempDir,
}

impl Link {
    /// Its certificate counts for 200 days around now.
    fn new() -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        pki::init(&InitArgs { dir: dir.path().to_owned(), days: 200 }, SystemTime::now() - 100 * DAY)?;
        Ok(Self { dir })
    }

    /// A certificate for ten days, made at `at`, in a directory of its own called `name`; returns its pin.
    fn issue(&self, name: &str, role: LinkRole, at: SystemTime) -> anyhow::Result<String> {
        let out = self.dir.path().join(name);
        std::fs::create_dir(&out)?;
        let names = vec!["localhost".into(), "127.0.0.1".into()];
        let dir = self.dir.path().to_owned();
        let args = IssueArgs { dir, role, name: names, days: 10, out: Some(out), csr: None, replace: false };
        let report = pki::issue(&args, at)?;
        let pin = report.lines().find_map(|line| line.strip_prefix("pin")).context("a pin")?;
        Ok(pin.trim().to_owned())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// What connects as the runtime in `name`, to evaluators with `pins`.
    fn caller(&self, name: &str, pins: &str) -> anyhow::Result<Caller> {
        let named = |setting, name: String| Named { setting, path: self.path(&name) };
        let files = Files {
            cert: named("cert", format!("{name}/runtime.pem")),
            key: named("key", format!("{name}/runtime.key")),
            ca: named("ca", "ca.pem".into()),
            pins: None,
        };
        Ok(Caller::open(files, Pins::parse("pins", pins)?, Arc::new(DefaultTimeProvider))?)
    }

    /// The certificate flags of an evaluator whose files are in `name`.
    fn evaluator_flags(&self, name: &str) -> Vec<String> {
        let file = |end: &str| self.text(&format!("{name}/evaluator.{end}"));
        let flags = ["--tls-cert".into(), file("pem"), "--tls-key".into(), file("key"), "--tls-client-ca".into()];
        flags.into_iter().chain([self.text("ca.pem"), "--listen".into(), "127.0.0.1:0".into()]).collect()
    }

    /// The evaluator flags of a runtime whose files are in `name`.
    fn runtime_flags(&self, name: &str, port: u16, pins: &str) -> Vec<String> {
        let file = |end: &str| self.text(&format!("{name}/runtime.{end}"));
        let flags = ["--evaluator".into(), format!("https://127.0.0.1:{port}"), "--evaluator-cert".into(), file("pem")];
        let more = ["--evaluator-key".into(), file("key"), "--evaluator-ca".into(), self.text("ca.pem")];
        let last = ["--evaluator-pins", pins, "--protocol", "direct"].map(str::to_owned);
        flags.into_iter().chain(more).chain(last).collect()
    }
}

/// An evaluator of that authority.
struct Evaluator {
    daemon: Daemon,
    port: u16,
    log: Arc<Mutex<Vec<String>>>,
}

impl Evaluator {
    async fn start(link: &Link, name: &str, config: &Path) -> anyhow::Result<Self> {
        let log = Arc::<Mutex<Vec<String>>>::default();
        let lines = log.clone();
        let mut args = link.evaluator_flags(name);
        args.extend(["--config".into(), config.display().to_string(), "--threads".into(), "1".into()]);
        let watch = move |line: &str| {
            println!("gpu-evaluator: {line}");
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        };
        let mut daemon = Daemon::start(Launch {
            program: binaries::binary("gpu-evaluator"),
            args: args.into_iter().map(Into::into).collect(),
            port_file: link.path("port"),
            envs: vec![("NO_COLOR".into(), "1".into())],
            watch: Some(Box::new(watch)),
            local: false,
        })?;
        let port = daemon.port(LIMIT).await?;
        Ok(Self { daemon, port, log })
    }

    /// Waits for a line with all of `words`.
    async fn says(&self, words: &[&str]) -> anyhow::Result<()> {
        until(&format!("the evaluator never says {words:?}"), || {
            let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await
    }

    fn hang_up(&self) -> anyhow::Result<()> {
        let done = Command::new("kill").args(["-HUP", &self.daemon.pid().to_string()]).status()?;
        anyhow::ensure!(done.success(), "no SIGHUP");
        Ok(())
    }
}

async fn until(what: &str, happens: impl Fn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !happens() {
        anyhow::ensure!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What the runtime in `name` reads first from the evaluator at `port`: something, or a refusal.
async fn first_word(link: &Link, name: &str, port: u16, pins: &str) -> anyhow::Result<()> {
    let mut line = link.caller(name, pins)?.connect("127.0.0.1", port).await?;
    line.read_u8().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_hold_both_ways_and_certificates_change_under_a_generation() -> anyhow::Result<()> {
    let (stage, link, now, model) = (Stage::new()?, Link::new()?, SystemTime::now(), tiny("llama"));
    let old = link.issue("old", LinkRole::Evaluator, now)?;
    let new = link.issue("new", LinkRole::Evaluator, now)?;
    let runtime = link.issue("runtime", LinkRole::Runtime, now)?;
    let stranger = link.issue("stranger", LinkRole::Runtime, now)?;
    let config = link.path("evaluator.toml");
    std::fs::write(&config, format!("tls_client_pins = \"{runtime}\"\n"))?;
    let evaluator = Evaluator::start(&link, "old", &config).await?;
    let port = evaluator.port;
    evaluator.says(&["mutual TLS as", &old, "1 pinned"]).await?;

    let path = model.path.to_string_lossy().into_owned();
    let flags = link.runtime_flags("runtime", port, &format!("{old}, {new}"));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let enclave = stage.enclave(&path, None, &flags).await?;
    enclave.connected().await?;
    let prompt = &model.prompts[0].prompt_ids;
    let undisturbed = enclave.generate(greedy(prompt, LONG, Protocol::Direct)).await?.token_ids;

    // Strangers of the same authority, in either role, are told why.
    first_word(&link, "runtime", port, &old).await.context("the pinned runtime")?;
    let error = first_word(&link, "stranger", port, &old).await.unwrap_err().to_string();
    assert!(error.contains("refuses our certificate") && error.contains(&stranger), "{error}");
    evaluator.says(&["a peer was not let in", &stranger, "none of the 1 allowed"]).await?;
    let wrong = link.runtime_flags("runtime", port, &new);
    let wrong: Vec<&str> = wrong.iter().map(String::as_str).collect();
    let mistaken = stage.enclave(&path, None, &wrong).await?;
    until("the runtime never names the wrong pin", || {
        mistaken.logged(&["evaluator connection is down", &old, "none of the 1 allowed"]).is_some()
    })
    .await?;
    evaluator.says(&["a peer was not let in", "refuses our certificate", &old]).await?;
    drop(mistaken);

    // Half of a new certificate changes nothing; all of it counts for connections from then on.
    let (mut events, mut seen) = enclave.begun(greedy(prompt, LONG, Protocol::Direct)).await?;
    std::fs::copy(link.path("new/evaluator.key"), link.path("old/evaluator.key"))?;
    evaluator.hang_up()?;
    evaluator.says(&["the old ones stay", "not the key of the certificate"]).await?;
    first_word(&link, "runtime", port, &old).await.context("the old certificate stays")?;
    std::fs::copy(link.path("new/evaluator.pem"), link.path("old/evaluator.pem"))?;
    evaluator.hang_up()?;
    evaluator.says(&["were read anew", &new]).await?;
    while let Some(event) = tokio::time::timeout(LIMIT, events.message()).await?? {
        seen.extend(token(&event));
    }
    assert_eq!(seen, undisturbed, "a token differs");
    first_word(&link, "runtime", port, &new).await.context("the new certificate")?;
    let error = first_word(&link, "runtime", port, &old).await.unwrap_err().to_string();
    assert!(error.contains(&new) && error.contains("none of the 1 allowed"), "{error}");

    // Pins change like certificates.
    std::fs::write(&config, format!("tls_client_pins = \"{runtime},{stranger}\"\n"))?;
    evaluator.hang_up()?;
    evaluator.says(&["were read anew", "2 pinned"]).await?;
    first_word(&link, "stranger", port, &new).await.context("a stranger no longer")?;
    std::fs::write(&config, "tls_client_pins = \"a typo\"\n")?;
    evaluator.hang_up()?;
    evaluator.says(&["the old ones stay", "tls_client_pins is \"a typo\""]).await?;
    first_word(&link, "runtime", port, &new).await.context("the old pins stay")?;
    assert_eq!(enclave.generate(greedy(prompt, LONG, Protocol::Direct)).await?.token_ids, undisturbed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_other_times_and_roles_are_refused() -> anyhow::Result<()> {
    let (stage, link, now, model) = (Stage::new()?, Link::new()?, SystemTime::now(), tiny("gpt2"));
    link.issue("good", LinkRole::Evaluator, now)?;
    for (name, at) in [("expired", now - 20 * DAY), ("early", now + 20 * DAY)] {
        link.issue(name, LinkRole::Evaluator, at)?;
        std::fs::rename(link.path(name), link.path(&format!("{name}-evaluator")))?;
        link.issue(name, LinkRole::Runtime, at)?;
        std::fs::rename(link.path(name), link.path(&format!("{name}-runtime")))?;
    }
    // Each in the other's place.
    link.issue("swapped-evaluator", LinkRole::Runtime, now)?;
    link.issue("swapped-runtime", LinkRole::Evaluator, now)?;
    for end in ["pem", "key"] {
        for (from, to, dir) in
            [("runtime", "evaluator", "swapped-evaluator"), ("evaluator", "runtime", "swapped-runtime")]
        {
            std::fs::rename(link.path(&format!("{dir}/{from}.{end}")), link.path(&format!("{dir}/{to}.{end}")))?;
        }
    }
    let config = link.path("evaluator.toml");
    std::fs::write(&config, "")?;
    let evaluator = Evaluator::start(&link, "good", &config).await?;
    for (name, own, evaluator_says) in [
        ("expired", "has expired on", "it has expired on"),
        ("early", "is not valid before", "it is not valid before"),
        ("swapped", "expected", "it is for another role"),
    ] {
        // Neither daemon starts with such a certificate of its own.
        let out =
            binaries::command("gpu-evaluator").args(link.evaluator_flags(&format!("{name}-evaluator"))).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(64) && text.contains(own), "{name}: {text}");
        let mut runtime = binaries::command("trusted-runtime");
        runtime.args(["serve", "--model"]).arg(&model.path).args(stage.common(Role::Runtime, 0));
        let flags = link.runtime_flags(&format!("{name}-runtime"), evaluator.port, "");
        let out = runtime.args(flags).output()?;
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(64) && text.contains(own), "{name}: {text}");

        // Whoever shows one all the same is not heard.
        let read = |file: &str| std::fs::read(link.path(&format!("{name}-runtime/runtime.{file}")));
        let ca = Certificate::from_pem(std::fs::read(link.path("ca.pem"))?);
        let tls = ClientTlsConfig::new().ca_certificate(ca).identity(Identity::from_pem(read("pem")?, read("key")?));
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", evaluator.port))?.tls_config(tls)?;
        if let Ok(channel) = endpoint.connect().await {
            let heard = EvaluatorClient::new(channel).hello(HelloRequest::default()).await;
            assert_ne!(heard.unwrap_err().code(), tonic::Code::FailedPrecondition, "{name}: it was heard");
        }
        evaluator.says(&["a peer was not let in", evaluator_says]).await?;
    }
    Ok(())
}

/// Beyond loopback, clients and evaluators need authorities of their own.
#[test]
fn one_authority_for_clients_and_evaluators_is_refused() -> anyhow::Result<()> {
    let (stage, model) = (Stage::new()?, tiny("gpt2"));
    let mut runtime = binaries::command("trusted-runtime");
    let mut flags = stage.common(Role::Runtime, 0);
    flags[1] = "0.0.0.0:0".into();
    runtime.args(["serve", "--model"]).arg(&model.path).args(flags).args(stage.towards(&[1]));
    let out = runtime.args(["--protocol", "direct"]).output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(64) && text.contains("one authority (pin "), "{text}");
    Ok(())
}
