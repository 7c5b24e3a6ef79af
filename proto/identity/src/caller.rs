//! The runtime's end: connects to evaluators, with the certificates that lie on disk at that time.

use crate::{ALPN, Error, Files, Pin, Pins, Usage, crypto, door::time, files::Stamp, verifier::Pinned, words};
use rustls::{
    ClientConfig,
    client::{Resumption, WebPkiServerVerifier, danger::ServerCertVerifier},
    pki_types::ServerName,
    sign::SingleCertAndKey,
    time_provider::TimeProvider,
    version::TLS13,
};
use std::{
    io,
    pin::Pin as Pinning,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Connects to evaluators that the authority signed and, if there are pins, whose key is among them.
pub struct Caller {
    files: Files,
    pins: Pins,
    clock: Arc<dyn TimeProvider>,
    last: Mutex<Last>,
}

/// What was read last.
#[derive(Clone)]
struct Last {
    stamps: [Stamp; 4],
    own: Pin,
    summary: String,
    config: Arc<ClientConfig>,
}

impl Caller {
    /// Reads the files once, to find out now what is wrong with them.
    ///
    /// # Errors
    /// [`Error`] naming the setting and what is wrong with it.
    pub fn open(files: Files, pins: Pins, clock: Arc<dyn TimeProvider>) -> Result<Self, Error> {
        let last = Mutex::new(Last::read(&files, &pins, &clock)?);
        Ok(Self { files, pins, clock, last })
    }

    /// The own certificate in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).summary.clone()
    }

    /// Connects to `host`, a name or an address, whose certificate must be for it.
    ///
    /// # Errors
    /// The network's, and refusals of either end in words.
    pub async fn connect(&self, host: &str, port: u16) -> io::Result<Line> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::other(format!("{host:?} is neither a name nor an address")))?;
        let tcp = TcpStream::connect((host, port)).await?;
        tcp.set_nodelay(true)?;
        let Last { config, own, .. } = self.current();
        match TlsConnector::from(config).connect(name, tcp).await {
            Ok(tls) => Ok(Line { tls, own }),
            Err(error) => Err(told(error, own)),
        }
    }

    /// Shows a certificate that was not checked.
    #[cfg(test)]
    pub(crate) fn show(&mut self, own: Arc<rustls::sign::CertifiedKey>) {
        let last = self.last.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut config = (*last.config).clone();
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(own));
        last.config = Arc::new(config);
    }

    /// What lies on disk now; what was there before, if that cannot be used.
    fn current(&self) -> Last {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if self.files.stamps() != last.stamps {
            match Last::read(&self.files, &self.pins, &self.clock) {
                Ok(fresh) => {
                    tracing::info!("the certificate towards the evaluator was read anew: {}", fresh.summary);
                    *last = fresh;
                }
                Err(e) => {
                    tracing::warn!("new certificates towards the evaluator cannot be used, the old ones stay: {e}")
                }
            }
        }
        last.clone()
    }
}

impl Last {
    fn read(files: &Files, pins: &Pins, clock: &Arc<dyn TimeProvider>) -> Result<Self, Error> {
        let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
        // Before reading: a file that changes meanwhile is read again.
        let stamps = files.stamps();
        let material = files.read(Usage::Client, time(clock)?)?;
        let pins = material.pins.as_ref().unwrap_or(pins);
        let verifier = WebPkiServerVerifier::builder_with_provider(material.roots.clone(), crypto());
        let verifier: Arc<dyn ServerCertVerifier> = verifier.build().map_err(|e| tls(&e))?;
        let mut config = ClientConfig::builder_with_details(crypto(), clock.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| tls(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned::<dyn ServerCertVerifier>::new(verifier, pins.clone())))
            .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(material.own.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        let (own, summary) = (material.leaf.pin, material.summary());
        Ok(Self { stamps, own, summary, config: Arc::new(config) })
    }
}

/// A connection to an evaluator. In TLS 1.3 the evaluator judges our certificate after the handshake has ended here, so
/// its refusal comes with the first bytes that are read.
pub struct Line {
    tls: TlsStream<TcpStream>,
    own: Pin,
}

fn told(error: io::Error, own: Pin) -> io::Error {
    match words::tls(&error) {
        Some(e) => io::Error::new(error.kind(), words::explain(e, "the evaluator", own)),
        None => error,
    }
}

impl Line {
    fn told<T>(&self, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        poll.map_err(|e| told(e, self.own))
    }
}

impl AsyncRead for Line {
    fn poll_read(mut self: Pinning<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let poll = Pinning::new(&mut self.tls).poll_read(cx, buf);
        self.told(poll)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pinning<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let poll = Pinning::new(&mut self.tls).poll_write(cx, buf);
        self.told(poll)
    }

    fn poll_flush(mut self: Pinning<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let poll = Pinning::new(&mut self.tls).poll_flush(cx);
        self.told(poll)
    }

    fn poll_shutdown(mut self: Pinning<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pinning::new(&mut self.tls).poll_shutdown(cx)
    }
}
