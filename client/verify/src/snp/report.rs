//! The attestation report: AMD 56860 (SEV-SNP firmware ABI), section 7.3, table "ATTESTATION_REPORT Structure".

use super::product::Product;
use super::tcb::Tcb;
use crate::hex::{Hex, Sha256, Sha384};
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED, UnparsedPublicKey};
use sev::firmware::guest::AttestationReport;
use sev::parser::ByteParser as _;

/// A report that is well formed and says of itself who signed it. Nothing in it is true before
/// [`Report::signed_by`] says so.
#[derive(Clone, Debug)]
pub struct Report {
    bytes: [u8; Report::LEN],
    fields: AttestationReport,
    signer: Signer,
}

/// What a report measures, for people and logs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Measurements {
    /// Launch measurement.
    pub measurement: Sha384,
    /// What the host attached at launch.
    pub host_data: Sha256,
    /// The chip, or zeros.
    pub chip_id: Hex<64>,
    /// Versions that the signing key derives from.
    pub reported_tcb: Tcb,
    /// Privilege level that asked for the report.
    pub vmpl: u32,
}

/// Which key signed a report, from bits 4:2 of the field at 0x48.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signer {
    /// The versioned chip endorsement key: one chip, one TCB.
    Vcek,
    /// The versioned loaded endorsement key: lent to a cloud provider, names no chip.
    Vlek,
}

/// Why bytes are no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A report has one length.
    #[error("report is {0} bytes, expected 1184")]
    Length(usize),
    /// The version at offset 0.
    #[error("report version is {0}, expected 2, 3 or 5")]
    Version(u32),
    /// The signature algorithm at offset 0x34.
    #[error("signature algorithm is {0}, expected 1 (ECDSA P-384 with SHA-384)")]
    Algorithm(u32),
    /// Signer information that no key belongs to; 7 says that the report is not signed.
    #[error("signing key is {0}, expected 0 (VCEK) or 1 (VLEK)")]
    SigningKey(u32),
    /// The platform does not sign with the chip's key.
    #[error("report is not signed: the platform masks its chip key")]
    Masked,
    /// Bytes beside the signature that must be zero.
    #[error("bytes beside the signature are not zero")]
    Padding,
    /// Anything else, in the words of the decoder.
    #[error("report is malformed: {0}")]
    Malformed(String),
}

impl Report {
    /// Bytes of every version of the report.
    pub const LEN: usize = 1184;

    /// # Errors
    /// [`ReportError`], for anything but one well-formed report of version 2, 3 or 5.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReportError> {
        let bytes: [u8; Self::LEN] = bytes.try_into().map_err(|_| ReportError::Length(bytes.len()))?;
        let version = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        // The decoder takes any later version for version 5.
        if !matches!(version, 2 | 3 | 5) {
            return Err(ReportError::Version(version));
        }
        let fields = AttestationReport::from_bytes(&bytes).map_err(|e| ReportError::Malformed(e.to_string()))?;
        if fields.sig_algo != 1 {
            return Err(ReportError::Algorithm(fields.sig_algo));
        }
        if fields.key_info.mask_chip_key() {
            return Err(ReportError::Masked);
        }
        let signer = match fields.key_info.signing_key() {
            0 => Signer::Vcek,
            1 => Signer::Vlek,
            other => return Err(ReportError::SigningKey(other)),
        };
        let (r, s) = (&bytes[R..S], &bytes[S..SIGNATURE_END]);
        if [&r[48..], &s[48..], &bytes[SIGNATURE_END..]].into_iter().flatten().any(|byte| *byte != 0) {
            return Err(ReportError::Padding);
        }
        Ok(Self { bytes, fields, signer })
    }

    /// The fields. Worth as much as the signature.
    #[must_use]
    pub fn fields(&self) -> &AttestationReport {
        &self.fields
    }

    /// What it measures.
    #[must_use]
    pub fn measurements(&self) -> Measurements {
        Measurements {
            measurement: Hex(self.fields.measurement),
            host_data: Hex(self.fields.host_data),
            chip_id: Hex(self.fields.chip_id),
            reported_tcb: self.reported(),
            vmpl: self.fields.vmpl,
        }
    }

    /// Which key signed, as far as the report knows.
    #[must_use]
    pub fn signer(&self) -> Signer {
        self.signer
    }

    /// The family of chips, from the CPUID fields of version 3 and later; `None` in version 2, which has none.
    #[must_use]
    pub fn product(&self) -> Option<Product> {
        Some(Product::of_cpu(self.fields.cpuid_fam_id?, self.fields.cpuid_mod_id?))
    }

    /// The TCB that the signing key is derived from, and that the host cannot report higher than it is.
    #[must_use]
    pub fn reported(&self) -> Tcb {
        self.fields.reported_tcb.into()
    }

    /// The guest policy as it is written: the decoder sets bit 17 by itself.
    #[must_use]
    pub fn policy_bits(&self) -> u64 {
        self.word(0x08)
    }

    /// What the platform says of itself, as it is written: 56860 table "PLATFORM_INFO".
    #[must_use]
    pub fn platform_bits(&self) -> u64 {
        self.word(0x40)
    }

    fn word(&self, at: usize) -> u64 {
        self.bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    }

    /// Whether the ECDSA key (an uncompressed point of P-384) signed bytes 0 to 0x29f.
    #[must_use]
    pub fn signed_by(&self, point: &[u8]) -> bool {
        // R and S are little-endian in 72 bytes each; 48 of them are in use (checked above).
        let mut signature = [0; 96];
        for (out, byte) in signature[..48].iter_mut().zip(self.bytes[R..R + 48].iter().rev()) {
            *out = *byte;
        }
        for (out, byte) in signature[48..].iter_mut().zip(self.bytes[S..S + 48].iter().rev()) {
            *out = *byte;
        }
        UnparsedPublicKey::new(&ECDSA_P384_SHA384_FIXED, point).verify(&self.bytes[..R], &signature).is_ok()
    }
}

impl Signer {
    /// Common name of the subject of its certificate, AMD 57230 section 3.
    #[must_use]
    pub fn common_name(self) -> &'static str {
        match self {
            Self::Vcek => "SEV-VCEK",
            Self::Vlek => "SEV-VLEK",
        }
    }
}

/// Start of R and end of the signed part, 56860 table "ATTESTATION_REPORT".
const R: usize = 0x2a0;
/// Start of S.
const S: usize = R + 72;
/// End of S.
const SIGNATURE_END: usize = S + 72;
