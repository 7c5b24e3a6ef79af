//! What is asked of the other end's certificate: a chain to the authority, its times, its role and its name, as WebPKI
//! judges them, and then that its key is among the pins.

use crate::{Pin, Pins};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use std::sync::Arc;

/// A key that is not among the pins.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its key has the pin {found}, which is none of the {allowed} allowed")]
pub struct Unpinned {
    /// The pin of the certificate that was shown.
    pub found: Pin,
    /// How many pins are allowed.
    pub allowed: usize,
}

/// A verifier of one end, and the pins after it.
#[derive(Debug)]
pub(crate) struct Pinned<V: ?Sized> {
    pins: Pins,
    inner: Arc<V>,
}

impl<V: ?Sized> Pinned<V> {
    pub(crate) fn new(inner: Arc<V>, pins: Pins) -> Self {
        Self { pins, inner }
    }

    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let found = Pin::of(certificate).map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if self.pins.admit(found) {
            return Ok(());
        }
        let refusal = Unpinned { found, allowed: self.pins.len() };
        Err(Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal)))))
    }
}

/// The pin that a refusal is about, if it is about pins.
pub(crate) fn unpinned(error: &CertificateError) -> Option<&Unpinned> {
    match error {
        CertificateError::Other(OtherError(inner)) => inner.downcast_ref(),
        _ => None,
    }
}

impl ServerCertVerifier for Pinned<dyn ServerCertVerifier> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.inner.verify_server_cert(end_entity, intermediates, name, ocsp, now)?;
        self.check(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

impl ClientCertVerifier for Pinned<dyn ClientCertVerifier> {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        self.check(end_entity).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
