//! The door towards clients: mutual TLS, or plaintext on loopback for development.

use crate::{
    Error,
    config::{self, TlsSection},
};
use std::net::SocketAddr;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use zeroize::Zeroizing;

/// The TLS settings of the server at `listen`; `None` is plaintext.
///
/// # Errors
/// [`Error::Config`] if a file is missing, or if plaintext is asked for beyond loopback or together
/// with certificates.
pub fn server(tls: &TlsSection, listen: SocketAddr) -> Result<Option<ServerTlsConfig>, Error> {
    let files = [("tls.cert", &tls.cert), ("tls.key", &tls.key), ("tls.client_ca", &tls.client_ca)];
    if tls.danger_plaintext {
        if let Some((name, _)) = files.iter().find(|(_, path)| !path.is_empty()) {
            return Err(Error::Config(format!("tls.danger_plaintext is set together with {name}; choose one")));
        }
        if !listen.ip().is_loopback() {
            return Err(Error::Config(format!("tls.danger_plaintext needs a loopback address, listen is {listen}")));
        }
        return Ok(None);
    }
    let pem = |(name, path): (&str, &String)| {
        if path.is_empty() {
            let flag = name.replace(['.', '_'], "-");
            return Err(Error::Config(format!("{name} is not set; mutual TLS needs it (flag --{flag})")));
        }
        let bytes = Zeroizing::new(config::read(name, path)?);
        let begins = bytes.windows(BEGIN.len()).any(|w| w == BEGIN);
        if begins { Ok(bytes) } else { Err(Error::Config(format!("{name} {path}: no PEM block in it"))) }
    };
    let [cert, key, client_ca] = files;
    let (cert, key, client_ca) = (pem(cert)?, pem(key)?, pem(client_ca)?);
    let identity = Identity::from_pem(cert.as_slice(), key.as_slice());
    Ok(Some(ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(client_ca.as_slice()))))
}

const BEGIN: &[u8] = b"-----BEGIN ";

#[cfg(test)]
mod tests {
    use super::*;

    fn section(cert: &str, danger_plaintext: bool) -> TlsSection {
        TlsSection { cert: cert.into(), key: String::new(), client_ca: String::new(), danger_plaintext }
    }

    #[test]
    fn plaintext_is_for_loopback_only_and_never_by_default() {
        let at = |a: &str| a.parse().expect("an address");
        assert!(matches!(server(&section("", true), at("127.0.0.1:1")), Ok(None)));
        for (tls, listen, says) in [
            (section("", false), "127.0.0.1:1", "tls.cert is not set; mutual TLS needs it (flag --tls-cert)"),
            (section("", true), "0.0.0.0:1", "needs a loopback address"),
            (section("a.pem", true), "127.0.0.1:1", "choose one"),
            (section("/nonexistent/a.pem", false), "127.0.0.1:1", "tls.cert /nonexistent/a.pem"),
        ] {
            let err = server(&tls, at(listen)).expect_err(says).to_string();
            assert!(err.contains(says), "{err}");
        }
    }
}
