//! Quotes of version 4 and 5.
//!
//! Source: "Intel TDX DCAP Quote Generation Library and Quote Verification Library", appendix on quote formats.

use crate::marker::marker;
use crate::spoil::spoiled;
use crate::{Module, Platform, TdReport};
use sha2::{Digest, Sha256};

/// One thing that is wrong with a quote whose every other part is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuoteFlaw {
    /// The header names another vendor's quoting enclave.
    VendorId,
    /// The header says that the attestation key is of another kind (3: P-384).
    AttestationKeyType,
    /// Certification data of this type instead of 5, a PCK chain. Type 3 is an encrypted PPID.
    CertificationType(u16),
    /// One bit of the signature over header and body.
    QuoteSignature,
    /// One bit of the signature over the quoting enclave's report.
    QeReportSignature,
    /// The quoting enclave's report is about another attestation key.
    QeReportData,
    /// A quoting enclave of another signer, on a genuine platform.
    QeSigner,
    /// A quoting enclave under a debugger.
    QeDebug,
    /// A TDX module of another signer.
    ModuleSigner,
}

impl Platform {
    /// A quote over `td`.
    #[must_use]
    pub fn quote(&self, td: &TdReport) -> Vec<u8> {
        self.assemble(td, None)
    }

    /// A quote over `td` with one thing wrong in it.
    #[must_use]
    pub fn flawed_quote(&self, td: &TdReport, flaw: QuoteFlaw) -> Vec<u8> {
        self.assemble(td, Some(flaw))
    }

    fn assemble(&self, td: &TdReport, flaw: Option<QuoteFlaw>) -> Vec<u8> {
        let has = |other| flaw == Some(other);
        let module = match flaw {
            Some(QuoteFlaw::ModuleSigner) => Module { signer: marker("ANOTHER-MRSIGNER"), ..self.spec.module },
            _ => self.spec.module,
        };
        let mut quote = self.header(td, flaw);
        let body = td.body(&module);
        if td.td15.is_some() {
            quote.extend_from_slice(&TD15_BODY.to_le_bytes());
            quote.extend_from_slice(&length(&body));
        }
        quote.extend_from_slice(&body);

        let certification = self.qe_certification(flaw);
        let mut authentication = spoiled(self.attestation.sign_raw(&quote), has(QuoteFlaw::QuoteSignature));
        authentication.extend_from_slice(self.attestation.coordinates());
        authentication.extend_from_slice(&QE_REPORT_CERTIFICATION.to_le_bytes());
        authentication.extend_from_slice(&length(&certification));
        authentication.extend_from_slice(&certification);

        quote.extend_from_slice(&length(&authentication));
        quote.extend_from_slice(&authentication);
        quote
    }

    /// 48 bytes.
    fn header(&self, td: &TdReport, flaw: Option<QuoteFlaw>) -> Vec<u8> {
        let version: u16 = if td.td15.is_some() { 5 } else { 4 };
        let key_type: u16 = if flaw == Some(QuoteFlaw::AttestationKeyType) { 3 } else { 2 };
        let vendor =
            if flaw == Some(QuoteFlaw::VendorId) { *b"BIFROST-SIM-QEID" } else { dcap_qvl::INTEL_QE_VENDOR_ID };
        [
            version.to_le_bytes().as_slice(),
            &key_type.to_le_bytes(),
            &TDX.to_le_bytes(),
            &[0; 4],
            &vendor,
            &marker::<20>("QE"),
        ]
        .concat()
    }

    /// The quoting enclave's report, the platform's signature over it, and the platform's certificates.
    fn qe_certification(&self, flaw: Option<QuoteFlaw>) -> Vec<u8> {
        let has = |other| flaw == Some(other);
        let mut bound = Sha256::new();
        bound.update(self.attestation.coordinates());
        bound.update(QE_AUTHENTICATION);
        let bound = spoiled(bound.finalize().to_vec(), has(QuoteFlaw::QeReportData));
        let report = self.qe_report(&bound, flaw);
        let signature = spoiled(self.pck.key.sign_raw(&report), has(QuoteFlaw::QeReportSignature));
        let (kind, mut data) = match flaw {
            Some(QuoteFlaw::CertificationType(kind)) if kind != PCK_CHAIN => (kind, vec![0; ENCRYPTED_PPID]),
            _ => (PCK_CHAIN, self.pck_chain().into_bytes()),
        };
        // The quoting service ends the chain as C ends a string.
        data.push(0);
        [
            report.as_slice(),
            &signature,
            &QE_AUTHENTICATION_LENGTH.to_le_bytes(),
            QE_AUTHENTICATION,
            &kind.to_le_bytes(),
            &length(&data),
            &data,
        ]
        .concat()
    }

    /// An SGX report body: 384 bytes.
    fn qe_report(&self, bound: &[u8], flaw: Option<QuoteFlaw>) -> Vec<u8> {
        let signer = if flaw == Some(QuoteFlaw::QeSigner) { marker("QE-ANOTHER-SIGNER") } else { qe_signer() };
        let flags = if flaw == Some(QuoteFlaw::QeDebug) { QE_FLAGS | QE_DEBUG } else { QE_FLAGS };
        [
            self.spec.cpu_svn.as_slice(),
            &[0; 4],
            &[0; 28],
            &[flags, 0, 0, 0, 0, 0, 0, 0],
            &[0; 8],
            &marker::<32>("QE-MEASURE"),
            &[0; 32],
            &signer,
            &[0; 96],
            &QE_PRODUCT.to_le_bytes(),
            &self.spec.qe_svn.to_le_bytes(),
            &[0; 60],
            bound,
            &[0; 32],
        ]
        .concat()
    }
}

/// `MRSIGNER` of the simulated quoting enclave.
pub(crate) fn qe_signer() -> [u8; 32] {
    marker("QE-SIGNER")
}

/// Four little-endian bytes; nothing here is anywhere near 4 GiB.
fn length(data: &[u8]) -> [u8; 4] {
    u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes()
}

/// TEE type of TDX.
const TDX: u32 = 0x81;
/// Body type of a TD report of TDX 1.5.
const TD15_BODY: u16 = 3;
/// Certification data that is the quoting enclave's report and what certifies it.
const QE_REPORT_CERTIFICATION: u16 = 6;
/// Certification data that is a chain of certificates, PEM.
const PCK_CHAIN: u16 = 5;
/// Certification data of type 3: a PPID under RSA-3072 (384 bytes), CPUSVN (16), PCESVN and PCEID (2 each).
const ENCRYPTED_PPID: usize = 404;
/// What the quoting enclave hashes with the attestation key.
const QE_AUTHENTICATION: &[u8; 32] = b"BIFROST-SIMULATED-QE-AUTH-DATA..";
const QE_AUTHENTICATION_LENGTH: u16 = 32;
/// `ISVPRODID` of the TD quoting enclave.
pub(crate) const QE_PRODUCT: u16 = 2;
/// Initialised, with a provisioning key.
pub(crate) const QE_FLAGS: u8 = 0x11;
const QE_DEBUG: u8 = 2;
