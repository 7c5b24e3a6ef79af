//! An evaluator's address, and how every connection to it is made: mutual TLS of our own, because gRPC's takes no pins.

use super::{CONNECTION_WINDOW, EvaluatorConfig, STREAM_WINDOW, chain, clean};
use crate::Error;
use hyper_util::rt::TokioIo;
use identity::{Caller, caller::Line};
use std::{
    future::Future,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tonic::{
    codegen::{Service, http::Uri},
    transport::{Channel, Endpoint},
};

/// An evaluator that may be connected to.
#[derive(Clone)]
pub struct Peer {
    uri: Uri,
    endpoint: Endpoint,
    secured: Option<Secured>,
}

impl Peer {
    /// `name` is `https://host:port`; `http://` only with `danger_plaintext`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting, what was found and what is allowed.
    pub(super) fn new(name: &str, config: &EvaluatorConfig) -> Result<Self, Error> {
        let fail = |what: String| Error::Config(format!("evaluator endpoint {name}: {what}"));
        let uri = name.parse::<Uri>().map_err(|e| fail(e.to_string()))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let secured = match uri.scheme_str() {
            Some("https") => {
                let caller = config.caller.clone();
                let caller = caller.ok_or_else(|| fail("mutual TLS needs evaluator.ca, cert and key".into()))?;
                let port = uri.port_u16().unwrap_or(443);
                Some(Secured { caller, host: host.into(), port })
            }
            Some("http") if !config.danger_plaintext => {
                return Err(fail("plaintext needs danger_plaintext; expected https://".into()));
            }
            Some("http") if host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) => {
                return Err(fail("danger_plaintext needs a loopback address".into()));
            }
            Some("http") => None,
            _ => return Err(fail("expected https://host:port".into())),
        };
        // What is below HTTP/2 is the connector's affair: with https here, gRPC would look for TLS of its own.
        let authority = uri.authority().map_or("", |a| a.as_str());
        let endpoint = Endpoint::from_shared(format!("http://{authority}")).map_err(|e| fail(chain(&e)))?;
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .http2_adaptive_window(false)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(1 << 20)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true);
        Ok(Self { uri, endpoint, secured })
    }

    /// Its address as configured.
    pub(super) fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Connects, with the certificates that lie on disk now.
    ///
    /// # Errors
    /// The reason in one line.
    pub(super) async fn connect(&self) -> Result<Channel, String> {
        let connected = match &self.secured {
            Some(secured) => self.endpoint.connect_with_connector(secured.clone()).await,
            None => self.endpoint.connect().await,
        };
        connected.map_err(|e| clean(&chain(&e)))
    }
}

/// Connects to one host and port, wherever it is asked to.
#[derive(Clone)]
struct Secured {
    caller: Arc<Caller>,
    host: Arc<str>,
    port: u16,
}

impl Service<Uri> for Secured {
    type Response = TokioIo<Line>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TokioIo<Line>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { caller, host, port } = self.clone();
        Box::pin(async move { caller.connect(&host, port).await.map(TokioIo::new) })
    }
}
