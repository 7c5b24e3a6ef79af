//! Attestation and key release from end to end, on simulated hardware: real processes, three hosts in network namespaces,
//! a capture of what passes between them, and a client that believes nothing it has not verified.

mod evaluator;
mod field;
mod search;

use age::secrecy::ExposeSecret;
use anyhow::{Context, ensure};
use e2e::{binaries::binary, fixtures::chatty, hosts::Host, stage::LIMIT, world::now};
use serde_json::Value;
use simulator::Simulated;
use std::{
    fs,
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use field::{Capture, Field, http, scalar, sdk};
use search::{Inside, Search, embeddings, forms, grpc, keys_of, unhex, written};

/// Between two questions.
const POLL: Duration = Duration::from_millis(50);
const CHAT: &str = r#"POST /v1/chat/completions {"model":"tiny","messages":[{"role":"user","content":"PROMPT"}],"max_tokens":24,"temperature":0}"#;
/// What must be found nowhere.
const PROMPT: &str = "swordfish saves the white whale";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_locked_to_chat_rotation_expiry_revocation_and_restart() -> anyhow::Result<()> {
    let mut field = Field::new()?;
    let dir = field.certificates.dir().to_path_buf();
    let captures = Capture::both(&field, &dir);
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
    for protocol in ["auto", "direct"] {
        let ended = field.generate_by(protocol, &url, &first, PROMPT);
        let other: Value = serde_json::from_str(&ended.out).with_context(|| ended.err.clone())?;
        assert_eq!((&other["protocol"], &other["token_ids"]), (&protocol.into(), &answer["token_ids"]));
    }

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
    // This host remembers it, and what was replaced; another with the key file is refused by the runtime.
    for (tenant, key) in [("globex", &other), ("acme", &first)] {
        let again = field.release(&url, key, &[]);
        let says = format!("key k1 of tenant {tenant} was revoked");
        assert!(again.code == Some(2) && again.err.contains(&says), "{}", again.err);
    }
    fs::remove_file(dir.join("state/bifrost/revoked/SIMULATED/globex/k1.json"))?;
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

    // Nothing of it in any log at any level, nor on any wire, after all protocols.
    let answered = ids(&answer);
    let inside = Inside::of(&model, PROMPT, &answered)?;
    assert_eq!(inside.prompt.len() as u64, answer["prompt_tokens"].as_u64().context("a length")?);
    let mut secrets = [forms(PROMPT.as_bytes()), forms(text.as_bytes())].concat();
    secrets.extend([written(&inside.prompt)?, written(&answered)?].concat());
    for key in [&first, &second, &other, &impostor, &brief] {
        secrets.extend(keys_of(key)?);
    }
    let said = field.said()?;
    for who in ["bifrost-sim: ", "verify: "] {
        assert!(said.lines().any(|line| line.starts_with(who)), "what {who} said");
    }
    assert!(Search::of(forms(&unhex(&model_digest)))?.find(said.as_bytes()).is_some(), "a digest, which is no secret");
    let found = Search::of(secrets.clone())?.find(said.as_bytes());
    assert_eq!(found, None, "in what was said");
    let everything = [secrets, inside.activations, embeddings(&model)?, grpc()].concat();
    field.searched(captures, everything)
}

fn ids(answer: &Value) -> Vec<u64> {
    answer["token_ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
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
    let released_key = identity.to_string().expose_secret().to_owned();
    let captures = Capture::both(&field, &dir);
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
    let keys = [forms(released_key.as_bytes()), forms(&scalar(&released_key)), keys_of(&key)?].concat();
    let found = Search::of(keys.clone())?.find(field.said()?.as_bytes());
    assert_eq!(found, None, "in what was said");
    field.searched(captures, keys)?;
    let left: Vec<_> = fs::read_dir(&dir)?.flatten().map(|e| e.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("memfd")), "{left:?}");
    Ok(())
}
