//! TLS 1.3 with a key of the process: no authority, no tickets, no early data, post-quantum key exchange first.
//!
//! Certificates prove possession of a key and nothing else; what the key belongs to is what the evidence says.

use crate::{Domain, Error};
use aws_lc_rs::digest::{SHA256, digest};
use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    version::TLS13,
};
use std::sync::Arc;
use x509_cert::{
    Certificate,
    der::{Decode, Encode},
};

/// The name in certificates and SNI; nobody judges it.
pub const NAME: &str = "trusted-runtime.invalid";

/// A server's side of TLS, with a key that was drawn for it and exists nowhere else.
pub struct ServerIdentity {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) spki: [u8; 32],
}

impl ServerIdentity {
    /// Draws an ECDSA P-256 key and signs it with itself.
    ///
    /// # Errors
    /// [`Error::Platform`] if no key can be made.
    pub fn draw<D: Domain>() -> Result<Self, Error> {
        let platform = |e: &dyn std::fmt::Display| Error::Platform(format!("key for TLS: {e}"));
        let made = rcgen::generate_simple_self_signed(vec![NAME.into()]).map_err(|e| platform(&e))?;
        let certificate = made.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let spki = spki_sha256(&certificate)?;
        let mut config = ServerConfig::builder_with_provider(crypto())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| platform(&e))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .map_err(|e| platform(&e))?;
        config.alpn_protocols = vec![D::ALPN.to_vec()];
        // Without resumption every connection has an exporter of its own, and evidence of its own.
        config.send_tls13_tickets = 0;
        config.max_early_data_size = 0;
        Ok(Self { config: Arc::new(config), spki })
    }

    /// SHA-256 of the SubjectPublicKeyInfo: names this process until it ends.
    #[must_use]
    pub fn instance(&self) -> &[u8; 32] {
        &self.spki
    }
}

/// A client's side of TLS: takes any certificate, but only from whoever holds its key.
///
/// # Errors
/// [`Error::Platform`] if the provider lacks TLS 1.3.
pub fn client_config<D: Domain>() -> Result<Arc<ClientConfig>, Error> {
    let mut config = ClientConfig::builder_with_provider(crypto())
        .with_protocol_versions(&[&TLS13])
        .map_err(|e| Error::Platform(format!("TLS 1.3: {e}")))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Possession(crypto())))
        .with_no_client_auth();
    config.alpn_protocols = vec![D::ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    Ok(Arc::new(config))
}

/// SHA-256 of a certificate's SubjectPublicKeyInfo, DER.
///
/// # Errors
/// [`Error::Wire`] for what is no certificate.
pub fn spki_sha256(certificate: &CertificateDer<'_>) -> Result<[u8; 32], Error> {
    let malformed = |e: x509_cert::der::Error| Error::Wire(format!("server certificate: {e}"));
    let certificate = Certificate::from_der(certificate).map_err(malformed)?;
    let spki = certificate.tbs_certificate().subject_public_key_info().to_der().map_err(malformed)?;
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, &spki).as_ref());
    Ok(out)
}

/// Whoever records today and owns a quantum computer later should find prompts behind ML-KEM as well.
fn crypto() -> Arc<CryptoProvider> {
    use provider::kx_group::{SECP256R1, SECP384R1, X25519, X25519MLKEM768};
    Arc::new(CryptoProvider {
        kx_groups: vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
        ..provider::default_provider()
    })
}

/// Any chain, and the handshake's signature by its key. Without the second, anybody could show another's certificate.
#[derive(Debug)]
struct Possession(Arc<CryptoProvider>);

impl ServerCertVerifier for Possession {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not spoken here".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
