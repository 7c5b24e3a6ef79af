//! Starts the real binary and makes the certificates for it.

use proto::v1::evaluator_client::EvaluatorClient;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::{
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

pub(crate) type Client = EvaluatorClient<Channel>;

/// A running daemon; killed on drop.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) port: u16,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

/// What a daemon that does not start leaves behind.
pub(crate) struct Refusal {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
}

pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-evaluator"));
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("BIFROST_EVALUATOR_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Runs a daemon that is expected not to start.
pub(crate) fn refused(mut command: Command) -> Refusal {
    let output = command.stderr(Stdio::piped()).output().expect("the binary runs");
    Refusal { code: output.status.code(), stderr: String::from_utf8_lossy(&output.stderr).into_owned() }
}

impl Daemon {
    /// Starts a daemon on a free loopback port and waits until it listens.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = command(&["--listen", "127.0.0.1:0"]);
        let mut child = command.args(arguments).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let mut port = None;
        while port.is_none() {
            let line = lines
                .next()
                .unwrap_or_else(|| panic!("the daemon ended early: {}", log.lock().expect("log")))
                .expect("readable log");
            port = line
                .split("listening on 127.0.0.1:")
                .nth(1)
                .map(|p| p.split_whitespace().next().and_then(|p| p.parse().ok()).expect("a port in the log"));
            log.lock().expect("log").push_str(&(line + "\n"));
        }
        let rest = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                rest.lock().expect("log").push_str(&(line + "\n"));
            }
        });
        Self { child, port: port.expect("found above"), log, reader: Some(reader) }
    }

    /// A daemon without TLS, with more arguments.
    pub(crate) fn plain(arguments: &[&str]) -> Self {
        Self::start(&[&["--danger-plaintext"], arguments].concat())
    }

    /// A daemon with mutual TLS, with more arguments.
    pub(crate) fn with_tls(pki: &Pki, arguments: &[&str]) -> Self {
        let flags = pki.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Self::start(&[flags.as_slice(), arguments].concat())
    }

    /// A daemon with a client, over mutual TLS or over loopback plaintext.
    pub(crate) async fn with_client(pki: &Pki, tls: bool, arguments: &[&str]) -> (Self, Client) {
        if tls {
            let daemon = Self::with_tls(pki, arguments);
            let client = daemon.tls_client(pki.as_client(pki)).await.expect("connects");
            return (daemon, client);
        }
        let daemon = Self::plain(arguments);
        let client = daemon.client().await;
        (daemon, client)
    }

    pub(crate) async fn client(&self) -> Client {
        let channel = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.port)).expect("uri").connect().await;
        client(channel.expect("the daemon accepts"))
    }

    pub(crate) async fn tls_client(&self, tls: ClientTlsConfig) -> Result<Client, tonic::transport::Error> {
        let uri = format!("https://127.0.0.1:{}", self.port);
        Ok(client(Endpoint::from_shared(uri).expect("uri").tls_config(tls)?.connect().await?))
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().expect("log").clone()
    }

    /// Its resident memory in bytes.
    pub(crate) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it lives");
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).expect("the system tells");
        line.trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn terminate(&self) {
        let done = Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().expect("kill runs");
        assert!(done.success());
    }

    /// Waits for the end; the log is complete then.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("a child to wait for");
        self.reader.take().expect("set at start").join().expect("log reader");
        (status, self.log())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn client(channel: Channel) -> Client {
    EvaluatorClient::new(channel).max_decoding_message_size(64 << 20).max_encoding_message_size(64 << 20)
}

/// A certificate authority with a server and a client certificate, as files and as text.
pub(crate) struct Pki {
    pub(crate) dir: TempDir,
    pub(crate) ca: String,
    pub(crate) client_cert: String,
    pub(crate) client_key: String,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("key");
        let ca = params.self_signed(&key).expect("ca").pem();
        let issuer = Issuer::new(params, key);
        let leaf = || {
            let key = KeyPair::generate().expect("key");
            let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("name");
            (params.signed_by(&key, &issuer).expect("leaf").pem(), key.serialize_pem())
        };
        let ((server_cert, server_key), (client_cert, client_key)) = (leaf(), leaf());
        for (name, text) in [("ca.pem", &ca), ("server.pem", &server_cert), ("server.key", &server_key)] {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("write");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("permissions");
        }
        Self { dir, ca, client_cert, client_key }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn flags(&self) -> [String; 6] {
        let path = |name: &str| self.path(name).display().to_string();
        [
            "--tls-cert".into(),
            path("server.pem"),
            "--tls-key".into(),
            path("server.key"),
            "--tls-client-ca".into(),
            path("ca.pem"),
        ]
    }

    /// Trusts this CA and shows no certificate.
    pub(crate) fn anonymous(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&self.ca)).domain_name("localhost")
    }

    /// Trusts this CA and shows the certificate that `who` has.
    pub(crate) fn as_client(&self, who: &Self) -> ClientTlsConfig {
        self.anonymous().identity(Identity::from_pem(&who.client_cert, &who.client_key))
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary directory in UTF-8")
}
