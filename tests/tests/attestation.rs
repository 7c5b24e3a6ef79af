//! Attestation and key release from end to end, on simulated hardware: real processes, three hosts in network namespaces,
//! a capture of what passes between them, and a client that believes nothing it has not verified.

use age::secrecy::ExposeSecret;
use anyhow::{Context, ensure};
use client::{
    certificates::{Certificates, Role},
    daemon::{Daemon, Launch},
};
use e2e::{
    binaries::binary,
    fixtures::chatty,
    hosts::{EVALUATOR, Host, Hosts, RUNTIME},
    stage::LIMIT,
    world::{Ended, World, now},
};
use serde_json::Value;
use simulator::Simulated;
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

type Log = Arc<Mutex<Vec<String>>>;

/// Three hosts, or one where namespaces cannot be had.
struct Field {
    hosts: Option<Hosts>,
    certificates: Certificates,
    world: World,
    logs: Log,
    started: u32,
}

impl Field {
    /// All on loopback, where the test itself can be a peer.
    fn alone() -> anyhow::Result<Self> {
        let certificates = Certificates::issue()?;
        let world = World::new(certificates.dir())?;
        Ok(Self { hosts: None, certificates, world, logs: Log::default(), started: 0 })
    }

    fn new() -> anyhow::Result<Self> {
        let hosts = Hosts::new().map_err(|reason| {
            let line = format!("SKIPPED network namespaces of attestation.rs, on loopback instead: {reason}\n");
            // Past the capture of passed tests' output: a skip must be seen.
            let _ = std::io::stderr().write_all(line.as_bytes());
        });
        let certificates = Certificates::issue_for(&["localhost", "127.0.0.1", EVALUATOR, RUNTIME])?;
        let world = World::new(certificates.dir())?;
        Ok(Self { hosts: hosts.ok(), certificates, world, logs: Log::default(), started: 0 })
    }

    fn address(&self, of: Host) -> &'static str {
        match (&self.hosts, of) {
            (None, _) | (_, Host::Client) => "127.0.0.1",
            (Some(_), Host::Runtime) => RUNTIME,
            (Some(_), Host::Evaluator) => EVALUATOR,
        }
    }

    /// Starts a daemon on a host; everything that it logs, at the finest level, is kept.
    fn start(&mut self, host: Host, name: &'static str, args: Vec<OsString>) -> anyhow::Result<Daemon> {
        self.started += 1;
        let port_file = self.certificates.dir().join(format!("{name}.{}.port", self.started));
        let (program, mut all) = match &self.hosts {
            Some(hosts) => hosts.on(host, &binary(name)),
            None => (binary(name), Vec::new()),
        };
        all.extend(args);
        let logs = self.logs.clone();
        let watch: client::daemon::Watch = Box::new(move |line| {
            println!("{name}: {}", line.chars().take(400).collect::<String>());
            logs.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        });
        let envs = vec![
            ("BIFROST_LOG".into(), "trace".into()),
            ("XDG_STATE_HOME".into(), self.world.file("state").into()),
            ("XDG_CACHE_HOME".into(), self.world.file("cache").into()),
        ];
        Ok(Daemon::start(Launch { program, args: all, port_file, envs, watch: Some(watch), local: false })?)
    }

    async fn evaluator(&mut self, port: u16) -> anyhow::Result<(Daemon, u16)> {
        let c = &self.certificates;
        let mut args: Vec<OsString> =
            vec!["--listen".into(), format!("{}:{port}", self.address(Host::Evaluator)).into()];
        args.extend(["--tls-cert".into(), c.cert(Role::Evaluator).into()]);
        args.extend(["--tls-key".into(), c.key(Role::Evaluator).into()]);
        args.extend(["--tls-client-ca".into(), c.ca().into(), "--threads".into(), "2".into()]);
        let mut daemon = self.start(Host::Evaluator, "gpu-evaluator", args)?;
        let port = daemon.port(LIMIT).await?;
        Ok((daemon, port))
    }

    async fn runtime(&mut self, model: &Path, evaluator: u16, port: u16) -> anyhow::Result<(Daemon, u16)> {
        let c = &self.certificates;
        let config = c.dir().join("runtime.toml");
        fs::write(&config, "[attestation]\ndanger_listen_anywhere = true\ntenants = \"acme, globex, brief\"\n")?;
        let at = |host| self.address(host);
        let mut args: Vec<OsString> = vec!["serve".into(), "--config".into(), config.into()];
        args.extend(["--listen".into(), format!("{}:{port}", at(Host::Runtime)).into()]);
        args.extend(["--model".into(), model.into(), "--protocol".into(), "direct".into()]);
        args.extend(["--policy".into(), "hybrid_unified".into(), "--threads".into(), "2".into()]);
        args.extend(["--evaluator".into(), format!("https://{}:{evaluator}", at(Host::Evaluator)).into()]);
        args.extend(["--evaluator-ca".into(), c.ca().into()]);
        args.extend(["--evaluator-cert".into(), c.cert(Role::Runtime).into()]);
        args.extend(["--evaluator-key".into(), c.key(Role::Runtime).into()]);
        let mut daemon = self.start(Host::Runtime, "trusted-runtime-sim", args)?;
        let port = daemon.port(LIMIT).await?;
        Ok((daemon, port))
    }

    async fn proxy(&mut self, url: &str, key: &Path) -> anyhow::Result<(Daemon, u16)> {
        let config = self.certificates.dir().join("proxy.toml");
        fs::write(&config, "model = \"tiny\"\nreattest_seconds = 1\n")?;
        let mut args: Vec<OsString> = ["proxy", "--listen", "127.0.0.1:0", "--config"].map(Into::into).to_vec();
        args.extend([config.into(), "--runtime".into(), url.into(), "--tenant-key".into(), key.into()]);
        args.extend(self.world.judged("--attestation-policy"));
        let mut daemon = self.start(Host::Client, "bifrost-sim", args)?;
        let port = daemon.port(LIMIT).await?;
        Ok((daemon, port))
    }

    /// Runs `bifrost-sim` on the client's host.
    fn client(&self, args: &[&str], more: &[OsString]) -> Ended {
        let all: Vec<OsString> = args.iter().map(Into::into).chain(more.iter().cloned()).collect();
        let Some(hosts) = &self.hosts else { return self.world.run(&all) };
        let mut command = hosts.command(Host::Client, binary("bifrost-sim"));
        command.args(all).env("XDG_STATE_HOME", self.world.file("state"));
        command.env("XDG_CACHE_HOME", self.world.file("cache"));
        e2e::world::ended(command.output().expect("bifrost-sim starts"))
    }

    /// The same against a runtime, with policy and collateral.
    fn attested(&self, args: &[&str]) -> Ended {
        self.client(args, &self.world.judged("--policy"))
    }

    fn release(&self, url: &str, key: &Path, more: &[&str]) -> Ended {
        let key = key.display().to_string();
        let mut args = vec!["release-key", "--runtime", url, "--tenant-key", &key, "--yes", "--json"];
        args.extend(more);
        self.attested(&args)
    }

    fn generate(&self, url: &str, key: &Path, prompt: &str) -> Ended {
        let key = key.display().to_string();
        let asked = ["--prompt", prompt, "--max-tokens", "24", "--json"];
        let args = [&["generate", "--endpoint", url, "--tenant-key", &key][..], &asked].concat();
        self.client(&args, &self.world.judged("--attestation-policy"))
    }

    /// Generates until the model is loaded.
    fn generate_soon(&self, url: &str, key: &Path, prompt: &str) -> anyhow::Result<Value> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let ended = self.generate(url, key, prompt);
            if ended.code == Some(0) {
                return Ok(serde_json::from_str(&ended.out)?);
            }
            ensure!(ended.err.contains("being loaded") || ended.err.contains("evaluator"), "{}", ended.err);
            ensure!(Instant::now() < deadline, "never loaded: {}", ended.err);
        }
    }

    fn logged(&self, what: &str) -> bool {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|line| line.contains(what))
    }

    fn field_of_log(&self, name: &str) -> Option<String> {
        let lines = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |line: &String| {
            let rest = line.split_once(&format!("{name}="))?.1.trim_start_matches('"');
            Some(rest.split(['"', ' ']).next()?.to_owned())
        };
        lines.iter().rev().filter(|line| line.contains("attesting")).find_map(at)
    }
}

/// Everything that passes on one link of the runtime's host.
struct Capture {
    child: Child,
    file: PathBuf,
}

impl Capture {
    fn of(hosts: &Hosts, link: &str, dir: &Path) -> anyhow::Result<Self> {
        let (file, script) =
            (dir.join(format!("{link}.frames")), Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/capture.py"));
        let mut command = hosts.command(Host::Runtime, "python3");
        let mut child =
            command.arg(script).arg(link).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut ready = [0; 9];
        child.stdout.as_mut().context("piped")?.read_exact(&mut ready).context("no raw sockets here")?;
        Ok(Self { child, file })
    }

    fn frames(mut self) -> anyhow::Result<Vec<u8>> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the capture failed");
        Ok(fs::read(&self.file)?)
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    assert!(!needle.is_empty(), "everything holds nothing");
    memchr::memmem::find(haystack, needle).is_some()
}

async fn http(hosts: Option<&Hosts>, port: u16, request: &str) -> anyhow::Result<(u16, String)> {
    let script = "import sys,http.client,json\n\
        c=http.client.HTTPConnection('127.0.0.1',int(sys.argv[1]),timeout=200)\n\
        m,p,b=sys.argv[2].split(' ',2)\n\
        c.request(m,p,b or None,{'content-type':'application/json'})\n\
        r=c.getresponse()\nprint(r.status)\nprint(r.getheader('x-bifrost-attestation'))\nprint(r.read().decode())";
    let mut command = match hosts {
        Some(hosts) => hosts.command(Host::Client, "python3"),
        None => std::process::Command::new("python3"),
    };
    command.args(["-c", script, &port.to_string(), request]);
    let out = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8(out.stdout)?;
    let (status, rest) = text.split_once('\n').with_context(|| String::from_utf8_lossy(&out.stderr).into_owned())?;
    Ok((status.parse()?, rest.to_owned()))
}

/// Between two questions.
const POLL: Duration = Duration::from_millis(50);
const CHAT: &str = r#"POST /v1/chat/completions {"model":"tiny","messages":[{"role":"user","content":"PROMPT"}],"max_tokens":24,"temperature":0}"#;
/// What must be found nowhere.
const PROMPT: &str = "swordfish saves the white whale";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_locked_to_chat_rotation_expiry_revocation_and_restart() -> anyhow::Result<()> {
    let mut field = Field::new()?;
    let dir = field.certificates.dir().to_path_buf();
    let captures = match &field.hosts {
        Some(hosts) => ["front", "back"].map(|link| Capture::of(hosts, link, &dir)).into_iter().collect(),
        None => Ok(Vec::new()),
    };
    let captures = captures.unwrap_or_else(|reason: anyhow::Error| {
        let line = format!("SKIPPED the captures of attestation.rs: {reason}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        Vec::new()
    });
    let model = chatty("llama", &dir);
    let (evaluator, evaluator_port) = field.evaluator(0).await?;
    let (mut runtime, port) = field.runtime(&model, evaluator_port, 0).await?;
    let url = format!("attested://{}:{port}", field.address(Host::Runtime));
    let digest = |field: &Field, name| field.field_of_log(name).with_context(|| format!("no {name} in the log"));
    let (params, model_digest) = (digest(&field, "params_digest")?, digest(&field, "model_digest")?);
    let sha = std::process::Command::new("sha256sum").arg(&model).output()?;
    assert!(String::from_utf8_lossy(&sha.stdout).starts_with(&model_digest), "what sha256sum says of the model");
    field.world.policy(&params, &model_digest, |text| text)?;

    // Verified, and locked.
    let verified = field.attested(&["verify", &url, "--json"]);
    assert_eq!(verified.code, Some(0), "{}\n{}", verified.out, verified.err);
    let report: Value = serde_json::from_str(&verified.out)?;
    assert!(verified.err.contains("SIMULATED") && report.to_string().contains("SIMULATED"), "{report}");
    let instance = report["instance"].as_str().context("an instance")?.to_owned();
    let first = field.world.keygen("acme", "k1");
    let locked = field.generate(&url, &first, PROMPT);
    assert!(locked.code != Some(0) && locked.err.contains("holds no key"), "{}", locked.err);
    assert!(!field.logged("model loaded"), "nothing is loaded before a key is released");

    // Policies that fit something else, and a runtime that is another process than the one looked at.
    type Change = fn(String) -> String;
    let changes: [(&str, Change, &str); 4] = [
        (
            "another model",
            |t| t.replace("model_digest = [\"", "model_digest = [\"00").replace("00\"]", "\"]"),
            "policy",
        ),
        ("another machine", |t| t.replacen("mr_td = \"4", "mr_td = \"5", 1), "mr.td"),
        ("higher floor", |t| t.replace("min_eval_data_number = 1", "min_eval_data_number = 99"), "eval_number"),
        ("typo", |t| t.replace("rtmr3 =", "rtmr4 ="), "rtmr4"),
    ];
    for (what, change, says) in changes {
        field.world.policy(&params, &model_digest, change)?;
        let refused = field.release(&url, &first, &[]);
        assert!(matches!(refused.code, Some(1 | 2)), "{what}: {:?} {}", refused.code, refused.err);
        assert!(format!("{}{}", refused.out, refused.err).contains(says), "{what}: {}{}", refused.out, refused.err);
    }
    field.world.policy(&params, &model_digest, |text| text)?;
    let other = "00".repeat(32);
    let refused = field.release(&url, &first, &["--instance", &other]);
    assert!(refused.code == Some(1) && refused.err.contains("restarted"), "{}", refused.err);

    // Released, once.
    let released = field.release(&url, &first, &["--instance", &instance]);
    assert_eq!(released.code, Some(0), "{}", released.err);
    let receipt: Value = serde_json::from_str(&released.out)?;
    assert_eq!((&receipt["tenant"], &receipt["key_id"]), (&"acme".into(), &"k1".into()), "{receipt}");
    let again = field.release(&url, &first, &[]);
    assert!(again.code == Some(1) && again.err.contains("held already"), "{}", again.err);
    let answer = field.generate_soon(&url, &first, PROMPT)?;
    let text = answer["text"].as_str().context("text")?.to_owned();
    assert!(!text.is_empty());

    // Through the proxy, with plain HTTP and, where it can be had, with the SDK.
    let (proxy, proxy_port) = field.proxy(&url, &first).await?;
    let request = CHAT.replace("PROMPT", PROMPT);
    let (status, body) = http(field.hosts.as_ref(), proxy_port, &request).await?;
    assert_eq!(status, 200, "{body}");
    assert!(body.starts_with("SIMULATED"), "the header says so: {body}");
    sdk(&field, proxy_port, &dir)?;

    // A second tenant; a stranger cannot touch the first.
    let other = field.world.keygen("globex", "k1");
    let impostor = field.world.keygen("acme", "k9");
    assert_eq!(field.release(&url, &other, &[]).code, Some(0));
    let refused = field.release(&url, &impostor, &[]);
    assert!(refused.code == Some(1) && refused.err.contains("holds other keys"), "{}", refused.err);

    // Rotation: the old key ends, the proxy that has it blocks and says why.
    let second = field.world.keygen("acme", "k2");
    let old = first.display().to_string();
    let rotated = field.release(&url, &second, &["--replaces", "k1", "--as", &old]);
    assert_eq!(rotated.code, Some(0), "{}", rotated.err);
    let refused = field.generate(&url, &first, PROMPT);
    assert!(refused.code != Some(0) && refused.err.contains("holds no key"), "{}", refused.err);
    assert_eq!(field.generate_soon(&url, &second, PROMPT)?["text"], answer["text"]);
    let (status, body) = http(field.hosts.as_ref(), proxy_port, &request).await?;
    assert!(matches!(status, 403 | 503), "{status} {body}");
    drop(proxy);

    // Expiry.
    let brief = field.world.keygen("brief", "k1");
    let ends = now() + 3;
    let text_of_key = fs::read_to_string(&brief)?;
    let lines = text_of_key
        .lines()
        .map(|l| if l.starts_with("expires_at") { format!("expires_at = {ends}") } else { l.to_owned() });
    fs::write(&brief, lines.collect::<Vec<_>>().join("\n") + "\n")?;
    assert_eq!(field.release(&url, &brief, &[]).code, Some(0));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !field.logged("a key has expired") {
        ensure!(Instant::now() < deadline, "the key never expired");
        tokio::time::sleep(POLL).await;
    }
    let refused = field.generate(&url, &brief, PROMPT);
    assert!(refused.code != Some(0), "an expired key");
    let refused = field.release(&url, &brief, &[]);
    assert!(refused.code != Some(0), "an expired key is not released again: {}", refused.err);

    // Revocation.
    let key = other.display().to_string();
    let revoked = field.attested(&["release-key", "--runtime", &url, "--tenant-key", &key, "--revoke", "k1", "--yes"]);
    assert_eq!(revoked.code, Some(0), "{}", revoked.err);
    let refused = field.generate(&url, &other, PROMPT);
    assert!(refused.code != Some(0) && refused.err.contains("holds no key"), "{}", refused.err);
    let again = field.release(&url, &other, &[]);
    assert!(again.code == Some(1) && again.err.contains("was revoked"), "{}", again.err);

    // The evaluator is replaced under the runtime.
    drop(evaluator);
    let (_evaluator, _) = field.evaluator(evaluator_port).await?;
    assert_eq!(field.generate_soon(&url, &second, PROMPT)?["text"], answer["text"]);

    // A restart forgets everything; the proxy blocks until the key is released again.
    let (_proxy, proxy_port) = field.proxy(&url, &second).await?;
    assert_eq!(http(field.hosts.as_ref(), proxy_port, &request).await?.0, 200);
    runtime.stop(Duration::from_secs(5));
    let (_runtime, _) = field.runtime(&model, evaluator_port, port).await?;
    let refused = field.generate(&url, &second, PROMPT);
    assert!(refused.code != Some(0) && refused.err.contains("holds no key"), "{}", refused.err);
    let (status, body) = http(field.hosts.as_ref(), proxy_port, &request).await?;
    assert!(matches!(status, 403 | 503), "{status} {body}");
    let refused = field.release(&url, &second, &["--instance", &instance]);
    assert!(refused.code == Some(1) && refused.err.contains("restarted"), "{}", refused.err);
    assert_eq!(field.release(&url, &second, &[]).code, Some(0));
    assert_eq!(field.generate_soon(&url, &second, PROMPT)?["text"], answer["text"]);
    let deadline = Instant::now() + LIMIT;
    loop {
        let (status, body) = http(field.hosts.as_ref(), proxy_port, &request).await?;
        if status == 200 {
            break;
        }
        ensure!(Instant::now() < deadline, "the proxy stays blocked: {status} {body}");
    }

    // Nothing of it in any log at any level, nor on any wire.
    let roots: Vec<String> = [&first, &second, &other].iter().map(|f| root(f)).collect::<anyhow::Result<_>>()?;
    let lines = field.logs.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
    assert!(lines.contains("TRACE"), "the logs are complete");
    for secret in [PROMPT, text.as_str()].into_iter().chain(roots.iter().map(String::as_str)) {
        assert!(!lines.contains(secret), "a log holds {secret:?}");
    }
    let raw: Vec<Vec<u8>> = roots.iter().map(|root| unhex(root)).collect();
    let embeddings = embeddings(&model)?;
    for capture in captures {
        let frames = capture.frames()?;
        assert!(frames.len() > 20_000, "{} bytes captured", frames.len());
        assert!(!contains(&frames, PROMPT.as_bytes()) && !contains(&frames, text.as_bytes()));
        for row in &embeddings {
            assert!(!contains(&frames, row), "an activation passed a wire");
        }
        for root in roots.iter().map(|root| root.as_bytes()).chain(raw.iter().map(Vec::as_slice)) {
            assert!(!contains(&frames, root), "a root secret passed a wire");
        }
        // Both links speak HTTP/2 below TLS, and nothing of it shows.
        for word in ["PRI * HTTP/2.0", "application/grpc", "bifrost.v1."] {
            assert!(!contains(&frames, word.as_bytes()), "{word} passed a wire outside TLS");
        }
    }
    Ok(())
}

/// Collateral decides, too: out of date, too old, from the future, of a revoked platform.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_maker_says_of_the_platform_counts() -> anyhow::Result<()> {
    use simulator::{CollateralSpec, Revoked, TcbStatus};
    let mut field = Field::new()?;
    let dir = field.certificates.dir().to_path_buf();
    let model = chatty("llama", &dir);
    let (_runtime, port) = field.runtime(&model, 1, 0).await?;
    let url = format!("attested://{}:{port}", field.address(Host::Runtime));
    let digest = |name| field.field_of_log(name).with_context(|| format!("no {name} in the log"));
    field.world.policy(&digest("params_digest")?, &digest("model_digest")?, |text| text)?;
    type Change = fn(CollateralSpec) -> CollateralSpec;
    let cases: [(Change, i32, &str); 4] = [
        (|s| s.status(TcbStatus::OutOfDate), 1, "tcb.platform"),
        (|s| CollateralSpec { issue_date: s.issue_date - 20 * 86_400, ..s }, 1, "collateral.age"),
        (
            |s| CollateralSpec {
                issue_date: s.issue_date + 10 * 86_400,
                next_update: s.next_update + 10 * 86_400,
                ..s
            },
            3,
            "clock",
        ),
        (|s| s.revoking(Revoked::Pck), 1, "revo"),
    ];
    for (change, code, says) in cases {
        field.world.collateral(change)?;
        let ended = field.attested(&["verify", &url, "--json"]);
        let told = format!("{}{}", ended.out, ended.err).to_lowercase();
        assert!(ended.code == Some(code) && told.contains(says), "{says}: {:?} {told}", ended.code);
    }
    field.world.collateral(|spec| spec)?;
    assert_eq!(field.attested(&["verify", &url]).code, Some(0));
    // A production client does not even get to see its evidence: the protocols differ.
    let mut command = match &field.hosts {
        Some(hosts) => hosts.command(Host::Client, binary("bifrost")),
        None => std::process::Command::new(binary("bifrost")),
    };
    command.args(["verify", &url]).args(field.world.judged("--policy"));
    let ended = e2e::world::ended(command.output()?);
    assert!(ended.code != Some(0) && ended.err.contains("bifrost-attest/1"), "{:?} {}", ended.code, ended.err);
    Ok(())
}

/// Bug report 22 with real processes: someone in the middle ends the client's TLS and passes everything on to a genuine runtime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bug_22_a_relay_is_rejected_by_the_client() -> anyhow::Result<()> {
    let mut field = Field::alone()?;
    let model = chatty("llama", field.certificates.dir());
    let (_runtime, port) = field.runtime(&model, 1, 0).await?;
    let digest = |name| field.field_of_log(name).with_context(|| format!("no {name} in the log"));
    field.world.policy(&digest("params_digest")?, &digest("model_digest")?, |text| text)?;
    let genuine = format!("attested://127.0.0.1:{port}");
    assert_eq!(field.attested(&["verify", &genuine]).code, Some(0));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let relay = format!("attested://{}", listener.local_addr()?);
    let made = rcgen::generate_simple_self_signed(vec![attest::tls::NAME.into()])?;
    let key =
        rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    server.alpn_protocols = vec![<Simulated as attest::Domain>::ALPN.to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut to_client = acceptor.accept(tcp).await?;
                let connector = tokio_rustls::TlsConnector::from(attest::tls::client_config::<Simulated>()?);
                let name = rustls::pki_types::ServerName::try_from(attest::tls::NAME)?;
                let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                let mut to_runtime = connector.connect(name, tcp).await?;
                tokio::io::copy_bidirectional(&mut to_client, &mut to_runtime).await?;
                Ok::<_, anyhow::Error>(())
            });
        }
    });
    let ended = field.attested(&["verify", &relay, "--json"]);
    assert!(ended.code == Some(1) && ended.out.contains("binding.report_data"), "{} {}", ended.out, ended.err);
    let secret = field.world.keygen("acme", "k1");
    let released = field.release(&relay, &secret, &[]);
    assert!(released.code == Some(1), "a key was released to a relay: {}", released.err);
    assert!(!field.logged("a key was released"));
    Ok(())
}

/// A connection that attested and belongs to nobody: every RPC but a release is refused, whatever the client is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_released_key_no_rpc_is_answered() -> anyhow::Result<()> {
    use proto::v1::{inference_client::InferenceClient, keys_client::KeysClient};
    /// Asks nothing of anybody.
    struct Credulous;
    impl attest::client::Judge<Simulated> for Credulous {
        type Approval = ();
        async fn judge(&self, _: &attest::client::Offer<Simulated>) -> Result<(), attest::Error> {
            Ok(())
        }
    }
    let mut field = Field::alone()?;
    let model = chatty("llama", field.certificates.dir());
    let (_runtime, port) = field.runtime(&model, 1, 0).await?;
    let connect = tower::service_fn(move |_: tonic::codegen::http::Uri| async move {
        let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        let ((), tls) =
            attest::client::attest::<Simulated, _>(tcp, &Credulous, None).await.map_err(std::io::Error::other)?;
        Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(tls))
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://runtime.invalid");
    let channel = endpoint.connect_with_connector(connect).await?;
    let (mut inference, mut keys) = (InferenceClient::new(channel.clone()), KeysClient::new(channel));
    let refused = [
        inference.generate(proto::v1::GenerateRequest::default()).await.err(),
        inference.tokenize(proto::v1::TokenizeRequest::default()).await.err(),
        inference.describe(proto::v1::DescribeRequest::default()).await.err(),
        keys.held(proto::v1::HeldRequest::default()).await.err(),
        keys.revoke(proto::v1::RevokeRequest::default()).await.err(),
    ];
    for status in refused {
        let status = status.context("it was answered")?;
        assert_eq!(status.code(), tonic::Code::PermissionDenied, "{status}");
        assert!(status.message().starts_with("locked:"), "{status}");
    }
    Ok(())
}

/// A model that was shipped encrypted is opened by its key, which is released with the tenant's, and by nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_model_is_opened_in_the_enclave_alone() -> anyhow::Result<()> {
    let mut field = Field::new()?;
    let dir = field.certificates.dir().to_path_buf();
    let plain = chatty("llama", &dir);
    let (sealed, identity) = (dir.join("model.gguf.age"), age::x25519::Identity::generate());
    let recipient = identity.to_public();
    let encryptor = age::Encryptor::with_recipients(std::iter::once(&recipient as &dyn age::Recipient))?;
    let mut out = encryptor.wrap_output(fs::File::create(&sealed)?)?;
    out.write_all(&fs::read(&plain)?)?;
    out.finish()?;
    let keys = [(identity, "right.age"), (age::x25519::Identity::generate(), "wrong.age")].map(|(identity, name)| {
        let file = dir.join(name);
        fs::write(&file, format!("# a comment\n{}\n", identity.to_string().expose_secret())).map(|()| file)
    });
    let [right, wrong] = keys.map(|file| file.map(|f| f.display().to_string()));
    let (right, wrong) = (right?, wrong?);
    for file in [&right, &wrong] {
        fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    }
    let (_evaluator, evaluator_port) = field.evaluator(0).await?;
    let (_runtime, port) = field.runtime(&sealed, evaluator_port, 0).await?;
    let url = format!("attested://{}:{port}", field.address(Host::Runtime));
    let digest = |name| field.field_of_log(name).with_context(|| format!("no {name} in the log"));
    field.world.policy(&digest("params_digest")?, &digest("model_digest")?, |text| text)?;
    let key = field.world.keygen("acme", "k1");
    let without = field.release(&url, &key, &[]);
    assert!(without.code == Some(1) && without.err.contains("the model is encrypted"), "{}", without.err);
    let another = field.release(&url, &key, &["--model-key", &wrong]);
    assert!(another.code == Some(1) && another.err.contains("does not open"), "{}", another.err);
    let released = field.release(&url, &key, &["--model-key", &right]);
    assert_eq!(released.code, Some(0), "{}", released.err);
    let answer = field.generate_soon(&url, &key, PROMPT)?;
    let plain = plain.display().to_string();
    let local =
        ["generate", "--model", &plain, "--protocol", "local", "--prompt", PROMPT, "--max-tokens", "24", "--json"];
    let ended = e2e::world::ended(e2e::binaries::run("bifrost", &local));
    let local: Value = serde_json::from_str(&ended.out).with_context(|| ended.err.clone())?;
    assert_eq!((&answer["text"], &answer["token_ids"]), (&local["text"], &local["token_ids"]));
    let left: Vec<_> = fs::read_dir(&dir)?.flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("memfd")), "{left:?}");
    Ok(())
}

/// The `openai` package, if this machine has it or can get it; `openai_sdk.rs` tests it at length.
fn sdk(field: &Field, port: u16, dir: &Path) -> anyhow::Result<()> {
    let venv = dir.join("venv");
    let quiet = |command: &mut std::process::Command| command.output().is_ok_and(|o| o.status.success());
    let installed = quiet(std::process::Command::new("python3").args(["-m", "venv"]).arg(&venv))
        && quiet(std::process::Command::new(venv.join("bin/python")).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--retries",
            "1",
            "openai==3.57.0",
        ]));
    if !installed {
        let line = "SKIPPED the openai package in attestation.rs: it cannot be had here\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return Ok(());
    }
    let mut command = match &field.hosts {
        Some(hosts) => hosts.command(Host::Client, venv.join("bin/python")),
        None => std::process::Command::new(venv.join("bin/python")),
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/chat.py");
    let out = command.arg(script).args([&format!("http://127.0.0.1:{port}/v1"), "none", PROMPT]).output()?;
    ensure!(out.status.success() && !out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// The secret of a key file, in hexadecimal.
fn root(file: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find(|l| l.starts_with("root")).context("a root")?;
    Ok(line.split('"').nth(1).context("quoted")?.to_owned())
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).filter_map(|d| u8::try_from(d).ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Pieces of the tensors of a model, as f32, embeddings among them: the first activations there are.
fn embeddings(model: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let bytes = fs::read(model)?;
    // The last two thirds of the file are weights.
    let from = bytes.len() / 3;
    let pieces = bytes[from..].chunks_exact(4096).map(|chunk| chunk[..32].to_vec());
    Ok(pieces.filter(|piece| piece.iter().any(|b| *b != piece[0])).collect())
}
