//! Mutual TLS from PEM files.

use crate::Error;
use std::path::Path;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};

/// Adds mutual TLS to a server: peers without a certificate signed by `client_ca` do not get a byte through.
///
/// # Errors
/// [`Error::Config`] naming the file that cannot be read or used.
pub fn mutual(server: Server, cert: &Path, key: &Path, client_ca: &Path) -> Result<Server, Error> {
    let identity =
        Identity::from_pem(pem("tls_cert", cert, "CERTIFICATE-----")?, pem("tls_key", key, "PRIVATE KEY-----")?);
    let ca = Certificate::from_pem(pem("tls_client_ca", client_ca, "CERTIFICATE-----")?);
    let tls = ServerTlsConfig::new().identity(identity).client_ca_root(ca).timeout(HANDSHAKE);
    server.tls_config(tls).map_err(|e| {
        let mut why = e.to_string();
        let mut source = std::error::Error::source(&e);
        while let Some(inner) = source {
            why = format!("{why}: {inner}");
            source = inner.source();
        }
        Error::Config(format!(
            "tls_cert {}, tls_key {}, tls_client_ca {}: {why}",
            cert.display(),
            key.display(),
            client_ca.display()
        ))
    })
}

/// Time a peer has for its handshake.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(10);

/// A PEM file that holds at least one section whose first line ends with `label`.
fn pem(setting: &str, path: &Path, label: &str) -> Result<String, Error> {
    let at = |what: String| Error::Config(format!("{setting} {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| at(e.to_string()))?;
    if !text.lines().any(|l| l.starts_with("-----BEGIN ") && l.trim_end().ends_with(label)) {
        return Err(at(format!("no PEM section \"{}\" in it", label.trim_end_matches('-'))));
    }
    Ok(text)
}
