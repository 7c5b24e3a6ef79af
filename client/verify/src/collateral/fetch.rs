//! Collateral from Intel's service or a caching one (PCCS), API version 4: which addresses, and what to make of the
//! answers. Whoever has a network does the asking.

use super::{CollateralKey, MAX_PART, QuoteCollateralV3};
use serde::Deserialize;
use serde_json::value::RawValue;

/// Intel's own service.
pub const INTEL_PCS: &str = "https://api.trustedservices.intel.com";
/// Where Intel has the revocation list of its root; a caching service has it below its own address.
const INTEL_ROOT_CRL: &str = "https://certificates.trustedservices.intel.com/IntelSGXRootCA.der";

/// The addresses to ask, each by GET.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Urls {
    /// TCB info of the platform model.
    pub tcb_info: String,
    /// Identity of the quoting enclave.
    pub qe_identity: String,
    /// Revocation list of the platform's authority.
    pub pck_crl: String,
    /// Revocation list of the root.
    pub root_ca_crl: String,
}

/// What one address answered with status 200.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The body.
    pub body: Vec<u8>,
    /// Names and values of the headers, as they came.
    pub headers: Vec<(String, String)>,
}

/// The answers to [`Urls`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// To [`Urls::tcb_info`].
    pub tcb_info: Answer,
    /// To [`Urls::qe_identity`].
    pub qe_identity: Answer,
    /// To [`Urls::pck_crl`].
    pub pck_crl: Answer,
    /// To [`Urls::root_ca_crl`].
    pub root_ca_crl: Answer,
}

/// Why answers are no collateral.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    /// A body that is too large.
    #[error("{answer} is {found} bytes, expected {MAX_PART} at most")]
    Size {
        /// Which answer.
        answer: &'static str,
        /// Bytes there.
        found: usize,
    },
    /// A header is missing.
    #[error("{answer} has no header {header}")]
    Header {
        /// Which answer.
        answer: &'static str,
        /// The header's name.
        header: &'static str,
    },
    /// A body or header of another form.
    #[error("{answer}: {found}")]
    Form {
        /// Which answer.
        answer: &'static str,
        /// What is wrong.
        found: String,
    },
}

/// The addresses below a base such as [`INTEL_PCS`] or `https://pccs.example:8081`.
#[must_use]
pub fn urls(base: &str, key: &CollateralKey) -> Urls {
    let base = base.trim_end_matches('/');
    let base =
        base.strip_suffix("/sgx/certification/v4").or(base.strip_suffix("/tdx/certification/v4")).unwrap_or(base);
    let root_ca_crl =
        if base == INTEL_PCS { INTEL_ROOT_CRL.to_owned() } else { format!("{base}/sgx/certification/v4/rootcacrl") };
    Urls {
        tcb_info: format!("{base}/tdx/certification/v4/tcb?fmspc={}", key.fmspc.to_string().to_uppercase()),
        qe_identity: format!("{base}/tdx/certification/v4/qe/identity"),
        pck_crl: format!("{base}/sgx/certification/v4/pckcrl?ca={}&encoding=der", key.ca.name()),
        root_ca_crl,
    }
}

/// Puts answers together. What is signed stays byte for byte as it came.
///
/// # Errors
/// [`FetchError`] naming the answer.
pub fn assemble(answers: &Answers) -> Result<QuoteCollateralV3, FetchError> {
    let tcb = signed::<TcbInfo>("tcb info", &answers.tcb_info)?;
    let qe = signed::<QeIdentity>("qe identity", &answers.qe_identity)?;
    Ok(QuoteCollateralV3 {
        pck_crl_issuer_chain: chain("pck crl", &answers.pck_crl, "SGX-PCK-CRL-Issuer-Chain")?,
        root_ca_crl: der("root ca crl", &answers.root_ca_crl)?,
        pck_crl: der("pck crl", &answers.pck_crl)?,
        tcb_info_issuer_chain: chain("tcb info", &answers.tcb_info, "TCB-Info-Issuer-Chain")?,
        tcb_info: tcb.tcb_info.get().to_owned(),
        tcb_info_signature: signature("tcb info", &tcb.signature)?,
        qe_identity_issuer_chain: chain("qe identity", &answers.qe_identity, "SGX-Enclave-Identity-Issuer-Chain")?,
        qe_identity: qe.enclave_identity.get().to_owned(),
        qe_identity_signature: signature("qe identity", &qe.signature)?,
        pck_certificate_chain: None,
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TcbInfo {
    tcb_info: Box<RawValue>,
    signature: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QeIdentity {
    enclave_identity: Box<RawValue>,
    signature: String,
}

fn sized<'a>(answer: &'static str, from: &'a Answer) -> Result<&'a [u8], FetchError> {
    let found = from.body.len();
    if found > MAX_PART { Err(FetchError::Size { answer, found }) } else { Ok(&from.body) }
}

fn signed<'a, T: Deserialize<'a>>(answer: &'static str, from: &'a Answer) -> Result<T, FetchError> {
    serde_json::from_slice(sized(answer, from)?)
        .map_err(|error| FetchError::Form { answer, found: format!("not the JSON of a signed answer: {error}") })
}

fn signature(answer: &'static str, digits: &str) -> Result<Vec<u8>, FetchError> {
    crate::hex::decode(digits).map_err(|error| FetchError::Form { answer, found: format!("signature: {error}") })
}

/// A caching service gives revocation lists as hexadecimal digits, Intel as DER.
fn der(answer: &'static str, from: &Answer) -> Result<Vec<u8>, FetchError> {
    const SEQUENCE: u8 = 0x30;
    let body = sized(answer, from)?;
    let digits = str::from_utf8(body).ok().map(|text| text.trim().trim_matches('"'));
    match digits.map(crate::hex::decode) {
        Some(Ok(bytes)) if bytes.first() == Some(&SEQUENCE) => Ok(bytes),
        _ if body.first() == Some(&SEQUENCE) => Ok(body.to_vec()),
        _ => Err(FetchError::Form { answer, found: "neither DER nor its hexadecimal digits".to_owned() }),
    }
}

/// An issuer chain: PEM, percent-encoded.
fn chain(answer: &'static str, from: &Answer, header: &'static str) -> Result<String, FetchError> {
    let value = from.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(header));
    let (_, value) = value.ok_or(FetchError::Header { answer, header })?;
    if value.len() > MAX_PART {
        return Err(FetchError::Size { answer, found: value.len() });
    }
    let pem = percent_decoded(value).filter(|text| text.contains("-----BEGIN CERTIFICATE-----"));
    pem.ok_or_else(|| FetchError::Form { answer, found: format!("header {header} is no percent-encoded PEM") })
}

/// RFC 3986 section 2.1.
fn percent_decoded(text: &str) -> Option<String> {
    let mut pieces = text.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.extend(crate::hex::decode(digits).ok()?);
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}
