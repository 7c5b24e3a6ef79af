//! The evaluator's end: lets runtimes in, and takes new certificates without a restart.

use crate::{ALPN, Error, Files, Pin, Pins, Usage, crypto, files::Stamp, verifier::Pinned, words};
use rustls::{
    ServerConfig,
    server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier},
    sign::SingleCertAndKey,
    time_provider::TimeProvider,
    version::TLS13,
};
use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Takes connections through TLS.
pub struct Door {
    clock: Arc<dyn TimeProvider>,
    now: RwLock<Arc<Opened>>,
}

/// The door with certificates of one time.
struct Opened {
    files: Files,
    stamps: [Stamp; 4],
    pins: Pins,
    own: Pin,
    summary: String,
    config: Arc<ServerConfig>,
}

/// Why a connection was not let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// In words.
    pub reason: String,
    /// Whether it is about who one of the two is, and not the noise of passers-by.
    pub identity: bool,
}

impl Door {
    /// Reads the files. Every key that the authority signed is let in if `pins` has none.
    ///
    /// # Errors
    /// [`Error`] naming the setting and what is wrong with it.
    pub fn open(files: Files, pins: Pins, clock: Arc<dyn TimeProvider>) -> Result<Self, Error> {
        let now = RwLock::new(Arc::new(Opened::new(files, pins, &clock)?));
        Ok(Self { clock, now })
    }

    /// Reads everything anew, for connections that come from now on. What was there stays if the new cannot be used.
    ///
    /// # Errors
    /// [`Error`] naming the setting and what is wrong with it.
    pub fn renew(&self, files: Files, pins: Pins) -> Result<(), Error> {
        let fresh = Arc::new(Opened::new(files, pins, &self.clock)?);
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// Whether the files are others than those that were read.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let now = self.opened();
        now.files.stamps() != now.stamps
    }

    /// The own certificate and how many pins there are, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        let now = self.opened();
        match now.pins.len() {
            0 => format!("{}; every runtime of the authority is let in", now.summary),
            n => format!("{}; {n} pinned runtimes are let in", now.summary),
        }
    }

    /// Shakes hands, within ten seconds.
    ///
    /// # Errors
    /// [`Refused`] with the reason.
    pub async fn accept(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, Refused> {
        let now = self.opened();
        match timeout(HANDSHAKE, TlsAcceptor::from(now.config.clone()).accept(tcp).into_fallible()).await {
            Ok(Ok(stream)) => Ok(stream),
            Err(_) => Err(Refused { reason: "no handshake in time".into(), identity: false }),
            Ok(Err((error, mut tcp))) => {
                // What the other end has sent meanwhile would turn into a reset, and that might overtake the alert.
                let linger = async {
                    tcp.shutdown().await?;
                    let mut rest = [0; 4096];
                    while tcp.read(&mut rest).await? > 0 {}
                    std::io::Result::Ok(())
                };
                let _ = timeout(LINGER, linger).await;
                Err(match words::tls(&error) {
                    Some(e) => Refused {
                        reason: words::explain(e, "the runtime", now.own),
                        identity: words::about_identity(e),
                    },
                    None => Refused { reason: error.to_string(), identity: false },
                })
            }
        }
    }

    fn opened(&self) -> Arc<Opened> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Opened {
    fn new(files: Files, pins: Pins, clock: &Arc<dyn TimeProvider>) -> Result<Self, Error> {
        let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
        // Before reading: a file that changes meanwhile is read again.
        let stamps = files.stamps();
        let material = files.read(Usage::Server, time(clock)?)?;
        let pins = material.pins.clone().unwrap_or(pins);
        let verifier = WebPkiClientVerifier::builder_with_provider(material.roots.clone(), crypto());
        let verifier: Arc<dyn ClientCertVerifier> = verifier.build().map_err(|e| tls(&e))?;
        let mut config = ServerConfig::builder_with_details(crypto(), clock.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| tls(&e))?
            .with_client_cert_verifier(Arc::new(Pinned::<dyn ClientCertVerifier>::new(verifier, pins.clone())))
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(material.own.clone())));
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Every connection is judged by the certificates and pins of its time.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        let (own, summary) = (material.leaf.pin, material.summary());
        Ok(Self { files, stamps, pins, own, summary, config: Arc::new(config) })
    }
}

/// What the clock says.
pub(crate) fn time(clock: &Arc<dyn TimeProvider>) -> Result<SystemTime, Error> {
    let now = clock.current_time().ok_or_else(|| Error::Tls("there is no clock".into()))?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs()))
}

/// Time a peer has for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Time for a peer that was refused to hear so.
const LINGER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
