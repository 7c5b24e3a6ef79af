//! The 64 bytes of report data: everything that a quote must be about.

use crate::Domain;
use aws_lc_rs::digest::{Context, SHA256, SHA512, digest};
use proto::v1::RuntimeValues;

/// What one connection's evidence is bound to. Both ends compute it from what they saw themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    report_data: [u8; 64],
}

/// What goes in beside the domain.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The client's.
    pub nonce: &'a [u8; 32],
    /// Keying material of this TLS session, RFC 8446 section 7.5.
    pub exporter: &'a [u8; 32],
    /// SHA-256 of the server certificate's SubjectPublicKeyInfo.
    pub spki: &'a [u8; 32],
    /// What the runtime says of itself and both sides will use.
    pub values: &'a RuntimeValues,
}

impl Binding {
    /// `SHA-512` over `u32_be(length) || field` of each field, so that nothing can move from one field to another, and
    /// with all 64 bytes in use no padding is open to interpretation.
    #[must_use]
    pub fn new<D: Domain>(parts: Parts<'_>) -> Self {
        let Parts { nonce, exporter, spki, values } = parts;
        let not_after = values.not_after.to_be_bytes();
        let fields: [&[u8]; 13] = [
            D::TAG,
            ROLE,
            D::MODE.as_bytes(),
            nonce,
            exporter,
            spki,
            &values.hpke_key,
            &values.receipt_key,
            &values.params_digest,
            &values.model_digest,
            &values.config_digest,
            &not_after,
            values.software.as_bytes(),
        ];
        let mut hash = Context::new(&SHA512);
        for field in fields {
            hash.update(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(field);
        }
        let mut report_data = [0; 64];
        report_data.copy_from_slice(hash.finish().as_ref());
        Self { report_data }
    }

    /// What the quote must hold as its report data.
    #[must_use]
    pub fn report_data(&self) -> &[u8; 64] {
        &self.report_data
    }

    /// SHA-256 of the report data: names the connection in receipts and logs, and is what an Azure TPM quotes.
    #[must_use]
    pub fn transcript(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, &self.report_data).as_ref());
        out
    }
}

/// What a client knows of a connection before it has evidence: enough to prove on it, and on no other, that it holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening([u8; 32]);

impl Opening {
    /// `SHA-256` over `u32_be(length) || field` of domain, role, exporter and nonce. The exporter comes from this one TLS
    /// session and its two ends, so whoever is shown a proof over an opening can use it nowhere else.
    #[must_use]
    pub fn new<D: Domain>(nonce: &[u8; 32], exporter: &[u8; 32]) -> Self {
        let mut hash = Context::new(&SHA256);
        for field in [D::TAG, D::MODE.as_bytes(), CLIENT, exporter, nonce] {
            hash.update(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
            hash.update(field);
        }
        let mut out = [0; 32];
        out.copy_from_slice(hash.finish().as_ref());
        Self(out)
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Who speaks in an [`Opening`].
const CLIENT: &[u8] = b"client";
/// Who speaks. The exporter is the same at both ends, so the role keeps evidence from being reflected.
const ROLE: &[u8] = b"runtime";
