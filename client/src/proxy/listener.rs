//! Where connections come from: plain, or through TLS, whose handshakes do not wait for each other.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::Error;

/// A handshake takes milliseconds.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// Connections that have shaken hands and wait to be served.
const BACKLOG: usize = 64;

/// Connections over TLS.
pub(super) struct TlsListener {
    address: SocketAddr,
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
}

impl TlsListener {
    /// Accepts on `listener` with the certificate and key in two PEM files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub(super) fn new(mut listener: TcpListener, cert: &Path, key: &Path) -> Result<Self, Error> {
        let acceptor = TlsAcceptor::from(Arc::new(config(cert, key)?));
        let address = listener.local_addr().map_err(|error| Error::Platform(format!("listen: {error}")))?;
        let (tell, ready) = mpsc::channel(BACKLOG);
        tokio::spawn(async move {
            while !tell.is_closed() {
                let (stream, peer) = Listener::accept(&mut listener).await;
                let (acceptor, tell) = (acceptor.clone(), tell.clone());
                tokio::spawn(async move {
                    if let Ok(Ok(stream)) = timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
                        let _ = tell.send((stream, peer)).await;
                    }
                });
            }
        });
        Ok(Self { address, ready })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The accepting task never ends before this does.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

fn config(cert: &Path, key: &Path) -> Result<ServerConfig, Error> {
    let certs = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certs = certs.map_err(|error| Error::file(cert, error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| Error::file(key, error))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Platform(format!("TLS: {error}")))?
        .with_no_client_auth()
        .with_single_cert(certs, secret)
        .map_err(|error| Error::file(cert, error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{Certificates, Role};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn http_is_served_through_tls_and_idlers_hold_nobody_up() {
        let certificates = Certificates::issue().unwrap();
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = plain.local_addr().unwrap();
        let (cert, key) = (certificates.cert(Role::Runtime), certificates.key(Role::Runtime));
        let listener = TlsListener::new(plain, &cert, &key).unwrap();
        let app = axum::Router::new().fallback(|| async { "inside" });
        tokio::spawn(async { axum::serve(listener, app).await });
        // One that never shakes hands.
        let _idle = TcpStream::connect(address).await.unwrap();

        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(certificates.ca()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("inside"), "{answer}");
    }

    #[test]
    fn bad_files_are_named() {
        let certificates = Certificates::issue().unwrap();
        let (cert, key) = (certificates.cert(Role::Runtime), certificates.key(Role::Runtime));
        assert!(config(&cert, &key).is_ok());
        let missing = Path::new("/nonexistent/a.pem");
        for (cert, key) in [(missing, &*key), (&*cert, missing)] {
            assert!(config(cert, key).err().unwrap().to_string().contains("/nonexistent/a.pem"));
        }
        assert!(config(&cert, &certificates.key(Role::Client)).is_err());
    }
}
