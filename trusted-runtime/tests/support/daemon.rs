//! Starts the real binary on a free port, with certificates made on the spot, and ends it by its own pid.

use proto::v1::inference_client::InferenceClient;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::JoinHandle,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_trusted-runtime");

/// A committed model of the tests.
pub(crate) fn tiny(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/testdata/tiny").join(name);
    path.canonicalize().unwrap_or(path).display().to_string()
}

/// The binary with a clean environment.
pub(crate) fn binary(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).env("NO_COLOR", "1").stdin(Stdio::null());
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("BIFROST_")) {
        command.env_remove(name);
    }
    command
}

/// Runs the binary to its end: exit code and stderr.
pub(crate) fn run(args: &[&str]) -> (Option<i32>, String) {
    let out = binary(args).output().expect("the binary starts");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// A runtime in local mode that is expected to refuse to start; its key is zeros, without an end.
pub(crate) fn local(args: &[&str]) -> Command {
    let mut command = binary(&["serve", "--local"]);
    command.args(args).stdin(std::fs::File::open("/dev/zero").expect("zeros"));
    command
}

/// Runs the binary in local mode to its end: exit code and stderr.
pub(crate) fn run_local(args: &[&str]) -> (Option<i32>, String) {
    let out = local(args).output().expect("the binary starts");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// A running runtime.
pub(crate) struct Daemon {
    child: Child,
    /// `127.0.0.1:port`.
    pub(crate) address: String,
    /// Lines of stderr until serving began.
    pub(crate) log: String,
    rest: Option<JoinHandle<String>>,
}

impl Daemon {
    /// Starts on a free port and waits until it serves.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = binary(&["serve", "--local", "--listen", "127.0.0.1:0", "--threads", "2"]);
        let command = command.args(args).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        // One that has ended already says why on stderr.
        let _ = child.stdin.as_mut().expect("piped").write_all(&[7; 32]);
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut log = String::new();
        let address = loop {
            let before = log.len();
            let read = stderr.read_line(&mut log).expect("utf-8");
            assert!(read > 0, "ended before serving: {log}");
            if let Some((_, rest)) = log[before..].split_once("serving on ") {
                break rest.split_whitespace().next().expect("an address").to_owned();
            }
        };
        let rest = std::thread::spawn(move || {
            let mut rest = String::new();
            stderr.read_to_string(&mut rest).expect("utf-8");
            rest
        });
        Self { child, address, log, rest: Some(rest) }
    }

    /// Starts in the local protocol without TLS.
    pub(crate) fn plaintext(model: &str, more: &[&str]) -> Self {
        let mut args = vec!["--danger-plaintext", "--protocol", "local", "--model", model];
        args.extend(more);
        Self::start(&args)
    }

    /// A client without TLS.
    pub(crate) async fn client(&self) -> InferenceClient<Channel> {
        InferenceClient::new(self.channel().await)
    }

    /// A channel without TLS.
    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("a url");
        endpoint.connect().await.expect("reachable")
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let sent = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for the end: exit status and the stderr that came after serving began.
    pub(crate) async fn wait(mut self) -> (ExitStatus, String) {
        let wait = move || {
            let status = self.child.wait().expect("a child");
            (status, self.rest.take().expect("once").join().expect("read"))
        };
        tokio::task::spawn_blocking(wait).await.expect("no panic")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One authority and two leaves, in files.
pub(crate) struct Certificates {
    dir: TempDir,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("entropy")).expect("self-signed");
        std::fs::write(dir.path().join("ca.pem"), ca.pem()).expect("write");
        for name in ["server", "client"] {
            let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("names");
            let key = KeyPair::generate().expect("entropy");
            let cert = params.signed_by(&key, &ca).expect("signed");
            std::fs::write(dir.path().join(format!("{name}.pem")), cert.pem()).expect("write");
            std::fs::write(dir.path().join(format!("{name}.key")), key.serialize_pem()).expect("write");
        }
        Self { dir }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(PathBuf::from(self.path(name))).expect("written above")
    }

    /// Flags of a server that asks for client certificates.
    pub(crate) fn server_flags(&self) -> Vec<String> {
        [("--tls-cert", "server.pem"), ("--tls-key", "server.key"), ("--tls-client-ca", "ca.pem")]
            .into_iter()
            .flat_map(|(flag, file)| [flag.to_owned(), self.path(file)])
            .collect()
    }

    /// Connects to `address`; `trust` is whose authority we believe, `identity` whose leaf we show.
    pub(crate) async fn connect(
        address: &str,
        trust: &Self,
        identity: Option<&Self>,
    ) -> Result<Channel, tonic::transport::Error> {
        let mut tls =
            ClientTlsConfig::new().ca_certificate(Certificate::from_pem(trust.read("ca.pem"))).domain_name("localhost");
        if let Some(own) = identity {
            tls = tls.identity(Identity::from_pem(own.read("client.pem"), own.read("client.key")));
        }
        Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?.connect().await
    }
}
