//! The door towards clients: attested, or, in local mode, mutual TLS on loopback.

use crate::{
    Error,
    attestation::{Unlock, World, local, model_digest, params_digest},
    config::Config,
    keys::{Gate, Held, Vault, hex},
    metrics::Metrics,
    tls,
};
use attest::server::{Acceptor, Attested, Settings};
use proto::v1::RuntimeEvent;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tonic::transport::{Server, ServerTlsConfig};

/// Connections that attested, on their way to the server.
type Incoming = mpsc::Receiver<io::Result<Attested<Arc<Held>>>>;
/// Begins to accept.
type Accept = Box<dyn FnOnce(TcpListener, Metrics) -> Incoming + Send>;

/// How clients come in.
pub(super) enum Door {
    /// From this machine, by certificates.
    Local {
        /// Whether there is TLS.
        encrypted: bool,
        tls: Option<Box<ServerTlsConfig>>,
    },
    /// From anywhere, after evidence.
    Attested { accept: Accept, vault: Arc<Vault>, unlock: Arc<Unlock> },
}

impl Door {
    /// Local mode; takes the key of the process that started us.
    pub(super) fn local(config: &Config, listen: SocketAddr) -> Result<Self, Error> {
        let tls = tls::server(&config.tls, listen)?;
        local::take_key(listen)?;
        Ok(Self::Local { encrypted: tls.is_some(), tls: tls.map(Box::new) })
    }

    /// Gets the evidence going; without a TEE this is where the runtime ends.
    pub(super) async fn attested<W: World>(config: &Config, listen: SocketAddr) -> Result<Self, Error> {
        if config.tls.danger_plaintext {
            return Err(Error::Config("tls.danger_plaintext is for --local alone".into()));
        }
        if !W::anywhere(&config.attestation) && !listen.ip().is_loopback() {
            let mode = W::MODE;
            return Err(Error::Config(format!("{mode} evidence is for loopback addresses, listen is {listen}")));
        }
        if config.attestation.tenants.is_empty() && !listen.ip().is_loopback() {
            return Err(Error::Config(
                "attestation.tenants is not set, and whoever reaches this address could release a key; name the tenants".into(),
            ));
        }
        if let Some(banner) = W::BANNER {
            tracing::warn!("attestation: {banner}; nothing here is protected from whoever runs this machine");
        }
        let (section, model) = (config.attestation.clone(), config.model.clone());
        let config_digest = config.digest;
        let open = move || {
            let model_digest = model_digest(&model)?;
            let event =
                |name: &str, payload: &[u8]| RuntimeEvent { name: name.into(), payload: payload.to_vec().into() };
            let events = [event("model", &model_digest), event("config", &config_digest)];
            let source = W::source(&section, &events).map_err(|e| Error::Platform(format!("attestation: {e}")))?;
            Ok::<_, Error>((source, model_digest))
        };
        let opened = tokio::task::spawn_blocking(open).await;
        let (source, model_digest) = opened.map_err(|_| Error::Bug("the source of evidence panicked".into()))??;
        let params_digest = params_digest()?;
        let name = source.name();
        let settings = Settings {
            params_digest,
            model_digest,
            config_digest,
            software: proto::VERSION.into(),
            session: Duration::from_secs(config.attestation.session_seconds.get().into()),
        };
        let vault = Arc::new(Vault::new(params_digest, &config.attestation.tenants));
        let acceptor = Acceptor::<W, Gate>::new(source, settings, Gate(vault.clone()))
            .map_err(|e| Error::Platform(format!("attestation: {e}")))?;
        tracing::info!(
            source = name,
            mode = W::MODE,
            instance = hex(acceptor.instance()),
            params_digest = hex(&params_digest),
            model_digest = hex(&model_digest),
            config_digest = hex(&config_digest),
            "attesting"
        );
        let acceptor = Arc::new(acceptor);
        let accept: Accept = Box::new(move |listener, metrics| accept(acceptor, listener, metrics));
        let unlock = Arc::new(Unlock::new(&config.model, model_digest));
        Ok(Self::Attested { accept, vault, unlock })
    }

    /// Where keys are held; local mode has none.
    pub(super) fn vault(&self) -> Option<(Arc<Vault>, Arc<Unlock>)> {
        match self {
            Self::Local { .. } => None,
            Self::Attested { vault, unlock, .. } => Some((vault.clone(), unlock.clone())),
        }
    }

    /// The gRPC server without its services. Keep-alive, so that a client that vanished is noticed and its sequence
    /// cancelled.
    pub(super) fn server(&self) -> Result<Server, Error> {
        let server = Server::builder()
            .tcp_nodelay(true)
            .http2_keepalive_interval(Some(Duration::from_secs(20)))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)))
            .max_concurrent_streams(MAX_STREAMS);
        match self {
            Self::Local { tls: Some(tls), .. } => {
                let fail = |e: tonic::transport::Error| Error::Config(format!("tls: {}", super::chain(&e)));
                server.tls_config((**tls).clone()).map_err(fail)
            }
            _ => Ok(server),
        }
    }
}

/// Takes every connection through the exchange, each on a task of its own.
fn accept<W: World>(acceptor: Arc<Acceptor<W, Gate>>, listener: TcpListener, metrics: Metrics) -> Incoming {
    let (tell, incoming) = mpsc::channel(BACKLOG);
    let take = move |tcp: TcpStream, peer: SocketAddr, tell: mpsc::Sender<_>| {
        let (acceptor, metrics) = (acceptor.clone(), metrics.clone());
        async move {
            let _ = tcp.set_nodelay(true);
            let outcome = acceptor.accept(tcp, peer.ip()).await;
            metrics.attested(outcome.is_ok());
            match outcome {
                Ok(attested) => {
                    let tenant = attested.session().tenant().map_or("", |held| held.tenant.as_str());
                    let session = hex(&attested.session().transcript()[..8]);
                    tracing::info!(%peer, session, tenant, "a connection has got its evidence");
                    // The server may have ended.
                    let _ = tell.send(Ok(attested)).await;
                }
                Err(error) => tracing::warn!(%peer, %error, "a connection was not let in"),
            }
        }
    };
    tokio::spawn(async move {
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((tcp, peer)) => drop(tokio::spawn(take(tcp, peer, tell.clone()))),
                    Err(error) => {
                        tracing::warn!(%error, "accepting");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                () = tell.closed() => return,
            }
        }
    });
    incoming
}

/// Streams per connection; the engine's queue is the real bound.
const MAX_STREAMS: u32 = 256;
/// Attested connections that wait for the server.
const BACKLOG: usize = 64;
/// After an error of accept, which may last (no file descriptors).
const PAUSE: Duration = Duration::from_millis(100);
