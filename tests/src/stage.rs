//! Daemons for one test: started on free ports with certificates of their own, ended on drop.

use crate::{
    binaries::binary,
    enclave::{Enclave, Log},
};
use client::{
    certificates::{Certificates, Role},
    daemon::{Daemon, Launch},
    inference::{Address, Runtime},
};
use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{
        PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Identity, ServerTlsConfig};

/// Beyond this a test has hung.
pub const LIMIT: Duration = Duration::from_secs(240);

/// Certificates and a private directory that the daemons of one test share.
pub struct Stage {
    certificates: Certificates,
    started: AtomicU32,
}

/// A running `gpu-evaluator`.
pub struct Evaluator {
    /// The process.
    pub daemon: Daemon,
    /// Where it listens on loopback.
    pub port: u16,
}

/// A running `bifrost proxy`.
pub struct Proxy {
    /// The process.
    pub daemon: Daemon,
    /// Where it listens on loopback.
    pub port: u16,
}

impl Stage {
    /// Makes the certificates.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn new() -> anyhow::Result<Self> {
        Ok(Self { certificates: Certificates::issue()?, started: AtomicU32::new(0) })
    }

    /// A private directory for files of the test.
    pub fn dir(&self) -> PathBuf {
        self.certificates.dir().to_path_buf()
    }

    /// Starts an evaluator; port 0 takes a free one. `args` are added to address and certificates.
    ///
    /// # Errors
    /// If it ends early, with its last words.
    pub async fn evaluator(&self, port: u16, args: &[&str]) -> anyhow::Result<Evaluator> {
        let mut all = self.common(Role::Evaluator, port);
        all.extend(args.iter().map(Into::into));
        let (mut daemon, _) = self.launch("gpu-evaluator", all)?;
        let port = daemon.port(LIMIT).await?;
        Ok(Evaluator { daemon, port })
    }

    /// Starts a runtime that serves `model` and knows the evaluator at `evaluator`. Its default protocol is
    /// direct, or local without an evaluator, unless `args` name another.
    ///
    /// # Errors
    /// If it ends early, with its last words.
    pub async fn enclave(&self, model: &str, evaluator: Option<u16>, args: &[&str]) -> anyhow::Result<Enclave> {
        self.enclave_over(model, evaluator.as_slice(), args).await
    }

    /// The same with an evaluator at each of `ports`, which share the rows of every matrix.
    ///
    /// # Errors
    /// If it ends early, with its last words.
    pub async fn enclave_over(&self, model: &str, ports: &[u16], args: &[&str]) -> anyhow::Result<Enclave> {
        let mut all: Vec<OsString> = vec!["serve".into(), "--model".into(), model.into()];
        all.extend(self.common(Role::Runtime, 0));
        if !ports.is_empty() {
            all.extend(self.towards(ports));
        }
        if !args.contains(&"--protocol") {
            all.extend(["--protocol", if ports.is_empty() { "local" } else { "direct" }].map(Into::into));
        }
        if !args.contains(&"--policy") {
            // What a test delegates, it means to delegate from the first token of the prompt on.
            all.extend(["--policy", "hybrid_unified"].map(Into::into));
        }
        all.extend(args.iter().map(Into::into));
        let (mut daemon, log) = self.launch("trusted-runtime", all)?;
        let port = daemon.port(LIMIT).await?;
        let address = self.address(port, Role::Client);
        let connection = Runtime::connect(&address).await?;
        Ok(Enclave { daemon, connection, channel: self.channel(port)?, address, log })
    }

    /// Starts a proxy in front of `enclave`, with the settings in `config`.
    ///
    /// # Errors
    /// If it ends early, with its last words.
    pub async fn proxy(&self, enclave: &Enclave, config: &str, args: &[&str]) -> anyhow::Result<Proxy> {
        let number = self.started.load(Ordering::Relaxed);
        let file = self.dir().join(format!("proxy.{number}.toml"));
        std::fs::write(&file, config)?;
        let at = &enclave.address;
        let mut all: Vec<OsString> = ["proxy", "--listen", "127.0.0.1:0"].map(Into::into).to_vec();
        all.extend(["--config".into(), file.into(), "--runtime".into(), at.url.clone().into()]);
        all.extend(["--ca".into(), at.ca.clone().into(), "--cert".into(), at.cert.clone().into()]);
        all.extend(["--key".into(), at.key.clone().into()]);
        all.extend(args.iter().map(Into::into));
        let (mut daemon, _) = self.launch("bifrost", all)?;
        let port = daemon.port(LIMIT).await?;
        Ok(Proxy { daemon, port })
    }

    /// An address at `port` with the certificate of `role`.
    pub fn address(&self, port: u16, role: Role) -> Address {
        let c = &self.certificates;
        Address { url: format!("https://127.0.0.1:{port}"), ca: c.ca(), cert: c.cert(role), key: c.key(role) }
    }

    /// TLS of a fake evaluator.
    ///
    /// # Errors
    /// If a certificate cannot be read.
    pub fn server_tls(&self) -> anyhow::Result<ServerTlsConfig> {
        let c = &self.certificates;
        let identity =
            Identity::from_pem(std::fs::read(c.cert(Role::Evaluator))?, std::fs::read(c.key(Role::Evaluator))?);
        let ca = tonic::transport::Certificate::from_pem(std::fs::read(c.ca())?);
        Ok(ServerTlsConfig::new().identity(identity).client_ca_root(ca))
    }

    /// A channel to an evaluator, opened when it is first used, with the runtime's certificate.
    ///
    /// # Errors
    /// If a certificate cannot be read.
    pub fn channel(&self, port: u16) -> anyhow::Result<Channel> {
        let c = &self.certificates;
        let identity = Identity::from_pem(std::fs::read(c.cert(Role::Runtime))?, std::fs::read(c.key(Role::Runtime))?);
        let ca = tonic::transport::Certificate::from_pem(std::fs::read(c.ca())?);
        let tls = ClientTlsConfig::new().ca_certificate(ca).identity(identity);
        Ok(Endpoint::from_shared(format!("https://127.0.0.1:{port}"))?
            .tls_config(tls)?
            .tcp_nodelay(true)
            .connect_lazy())
    }

    /// The flags that both daemons spell alike.
    pub fn common(&self, role: Role, port: u16) -> Vec<OsString> {
        let c = &self.certificates;
        let listen = format!("127.0.0.1:{port}");
        let mut args: Vec<OsString> = vec!["--listen".into(), listen.into()];
        args.extend(["--tls-cert".into(), c.cert(role).into(), "--tls-key".into(), c.key(role).into()]);
        args.extend(["--tls-client-ca".into(), c.ca().into()]);
        args
    }

    /// The flags of a runtime whose evaluators are at `ports`.
    pub fn towards(&self, ports: &[u16]) -> Vec<OsString> {
        let c = &self.certificates;
        let endpoints: Vec<String> = ports.iter().map(|port| format!("https://127.0.0.1:{port}")).collect();
        let mut args: Vec<OsString> = vec!["--evaluator".into(), endpoints.join(", ").into()];
        args.extend(["--evaluator-ca".into(), c.ca().into()]);
        args.extend(["--evaluator-cert".into(), c.cert(Role::Runtime).into()]);
        args.extend(["--evaluator-key".into(), c.key(Role::Runtime).into()]);
        args
    }

    fn launch(&self, name: &str, args: Vec<OsString>) -> anyhow::Result<(Daemon, Log)> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let port_file = self.certificates.dir().join(format!("{name}.{number}.port"));
        // Shown by a failed test, and by `--nocapture`.
        let prefix = name.to_owned();
        let lines = Log::default();
        let watch: client::daemon::Watch = Box::new({
            let lines = lines.clone();
            move |line| {
                println!("{prefix}: {line}");
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
            }
        });
        let local = name == "trusted-runtime";
        let launch = Launch { program: binary(name), args, port_file, envs: Vec::new(), watch: Some(watch), local };
        Ok((Daemon::start(launch)?, lines))
    }
}
