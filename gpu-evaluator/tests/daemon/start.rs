//! Starting, refusing to start, transport, Hello, health and metrics.

use crate::{
    harness::{Daemon, Pki, command, refused, text},
    peer::hello,
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
};
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};

const BAD_CONFIGURATION: Option<i32> = Some(64);

#[test]
fn bad_configuration_is_one_line_and_exit_64() {
    let (pki, other) = (Pki::new(), Pki::new());
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|n| pki.path(n).display().to_string());
    let other_key = other.path("server.key").display().to_string();
    let absent = pki.path("absent.pem").display().to_string();
    let typo = pki.path("typo.toml");
    std::fs::write(&typo, "treads = 2").expect("write");
    let plain = "--danger-plaintext";
    for (arguments, environment, message) in [
        (vec![], None, "tls_cert is not set; mutual TLS needs tls_cert, tls_key and tls_client_ca"),
        (vec![plain, "--listen", "0.0.0.0:0"], None, "danger_plaintext is only accepted on a loopback address"),
        (vec![plain, "--listen", "nowhere"], None, "listen is \"nowhere\", expected ADDRESS:PORT"),
        (vec![plain, "--memory-budget", "much"], None, "size is \"much\""),
        (vec![plain, "--threads", "two"], None, "--threads is \"two\", expected a whole number"),
        (vec![plain, "--backend", "cuda"], None, "this build has no CUDA backend ("),
        (vec![plain, "--config", text(&typo)], None, "typo.toml: unknown setting treads"),
        (vec![plain, "--config", absent.as_str()], None, "absent.pem: No such file"),
        (vec![plain], Some(("BIFROST_EVALUATOR_BUDGET", "1")), "BIFROST_EVALUATOR_BUDGET names no setting"),
        (vec![plain], Some(("BIFROST_EVALUATOR_LOG", "a=b=c")), "log is \"a=b=c\""),
        (
            vec![plain],
            Some(("BIFROST_ISA", "mmx")),
            "BIFROST_ISA is \"mmx\", expected one that this machine has: scalar",
        ),
        (vec!["--tls-cert", &absent, "--tls-key", &key, "--tls-client-ca", &ca], None, "absent.pem: No such file"),
        (
            vec!["--tls-cert", &cert, "--tls-key", &ca, "--tls-client-ca", &ca],
            None,
            "ca.pem: no PEM section \"PRIVATE KEY\" in it",
        ),
        (
            vec!["--tls-cert", &cert, "--tls-key", &other_key, "--tls-client-ca", &ca],
            None,
            "not the key of the certificate in",
        ),
    ] {
        let mut daemon = command(&["--listen", "127.0.0.1:0"]);
        if arguments.contains(&"--listen") {
            daemon = command(&[]);
        }
        daemon.args(&arguments).envs(environment);
        let refusal = refused(daemon);
        assert_eq!(refusal.code, BAD_CONFIGURATION, "{message}: {}", refusal.stderr);
        let line = refusal.stderr.lines().find(|l| l.starts_with("gpu-evaluator: configuration: ")).unwrap_or_default();
        assert!(line.contains(message), "{:?} should say {message:?}", refusal.stderr);
    }
    assert_eq!(refused(command(&["--no-such-flag"])).code, BAD_CONFIGURATION);
}

#[test]
fn a_port_in_use_and_unusable_paths_are_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bind");
    let address = taken.local_addr().expect("address").to_string();
    let dir = tempfile::tempdir().expect("directory");
    let file = dir.path().join("file");
    std::fs::write(&file, []).expect("write");
    let below = file.join("below");
    for (arguments, message) in [
        (["--listen", &address, "--threads", "1"], format!("gpu-evaluator: listen {address}: Address already in use")),
        (
            ["--listen", "127.0.0.1:0", "--metrics-listen", &address],
            format!("metrics_listen {address}: Address already"),
        ),
        (["--listen", "127.0.0.1:0", "--cache-dir", text(&below)], format!("cache directory {}: ", below.display())),
        (["--listen", "127.0.0.1:0", "--port-file", text(&below)], format!("port file {}: ", below.display())),
    ] {
        let mut daemon = command(&["--danger-plaintext"]);
        daemon.args(arguments);
        let refusal = refused(daemon);
        assert_eq!(refusal.code, Some(1), "{}", refusal.stderr);
        assert!(refusal.stderr.contains(&message), "{:?} should say {message:?}", refusal.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_peers_with_a_certificate_of_the_client_ca_are_heard() {
    let (pki, other) = (Pki::new(), Pki::new());
    let port_file = pki.path("port");
    let daemon = Daemon::with_tls(&pki, &["--threads", "1", "--port-file", text(&port_file)]);
    for stranger in [pki.anonymous(), pki.as_client(&other)] {
        // TLS 1.3 reports a refused client certificate on the first use of the connection.
        if let Ok(mut client) = daemon.tls_client(stranger).await {
            client.hello(hello()).await.expect_err("not heard");
        }
    }
    assert!(daemon.tls_client(other.as_client(&pki)).await.is_err(), "the daemon's certificate is of another CA");
    let mut client = daemon.tls_client(pki.as_client(&pki)).await.expect("connects");
    let answer = client.hello(hello()).await.expect("heard").into_inner();
    assert_eq!((answer.backend.as_str(), answer.threads, answer.memory_used_bytes), ("cpu", 1, 0));
    assert_eq!(answer.memory_budget_bytes, 8 << 30);
    assert_eq!(std::fs::read_to_string(port_file).expect("written"), format!("{}\n", daemon.port));
    assert!(daemon.log().contains("backend auto: this build has no CUDA backend, using cpu"), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mismatch_at_hello_names_both_sides() {
    let daemon = Daemon::plain(&["--threads", "1"]);
    let mut client = daemon.client().await;
    let ours = hello();
    let mut version = ours.clone();
    version.version = "9.9.9".into();
    let mut protocol = ours.clone();
    protocol.protocol = 77;
    let mut ring = ours.clone();
    ring.params_id = vec![0xab; 32].into();
    let both = format!("ring parameters: the runtime has {}, the evaluator has ", "ab".repeat(32));
    for (request, message) in [
        (version, format!("version: the runtime has 9.9.9, the evaluator has {}", proto::VERSION)),
        (protocol, format!("protocol revision: the runtime has 77, the evaluator has {}", proto::PROTOCOL)),
        (ring, both),
    ] {
        let status = client.hello(request).await.expect_err("mismatch");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().starts_with(&message), "{} should say {message}", status.message());
    }
    client.hello(ours).await.expect("equal sides");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_and_metrics_answer() {
    let daemon = Daemon::plain(&["--threads", "1", "--metrics-listen", "127.0.0.1:0"]);
    let channel = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{}", daemon.port)).expect("uri");
    let mut health = HealthClient::new(channel.connect().await.expect("connects"));
    for service in ["", "bifrost.v1.Evaluator"] {
        let answer = health.check(HealthCheckRequest { service: service.into() }).await.expect("known").into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
    }
    let log = daemon.log();
    let address = log.split("metrics on http://").nth(1).and_then(|l| l.split('/').next()).expect("logged");
    let mut socket = TcpStream::connect(address).expect("metrics listener");
    socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("request");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("answer");
    for line in ["bifrost_evaluator_queue_depth 0", "bifrost_evaluator_bulk_queue_depth 0"] {
        assert!(page.contains(line), "{page}");
    }
}
