//! Intel's statements about platforms: which of them a quote needs, where they come from, how old they are.
//!
//! Collateral is signed and may come from anyone. Its signatures, root, age and evaluation number are checked with the
//! quote.

mod bundle;
mod fetch;
mod signed;

pub use crate::tdx::QuoteCollateralV3;
pub use bundle::{Bundle, BundleError, Entry, MAX_BUNDLE, Standing};
pub use fetch::{Answer, Answers, FetchError, INTEL_PCS, Urls, assemble, urls};
pub use signed::signatures;

use crate::{hex::Hex, time};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What names the collateral of a platform. Compared as bytes: the digits of an FMSPC come in both cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CollateralKey {
    /// Family, model, stepping, platform and custom SKU.
    pub fmspc: Hex<6>,
    /// Which of Intel's two authorities issued the platform's certificate.
    pub ca: Ca,
}

/// One of Intel's two authorities for PCK certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ca {
    /// Single-package platforms.
    Processor,
    /// Multi-package platforms.
    Platform,
}

/// A place that collateral comes from.
pub trait CollateralSource {
    /// Collateral for a TDX platform.
    ///
    /// # Errors
    /// [`CollateralError`] with every place that was asked and its answer.
    fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError>;

    /// What an SEV-SNP report needs beside itself. A place that has none of AMD's says so.
    ///
    /// # Errors
    /// [`CollateralError`] with every place that was asked and its answer.
    fn snp(&self, wanted: &crate::snp::Wanted) -> Result<crate::snp::Collateral, CollateralError> {
        Err(CollateralError { wanted: wanted.to_string(), tried: Vec::new() })
    }
}

/// No place had the collateral.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollateralError {
    /// What was looked for.
    pub wanted: String,
    /// Each place that was asked, with its error.
    pub tried: Vec<(String, String)>,
}

impl fmt::Display for CollateralError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no collateral for {}", self.wanted)?;
        if self.tried.is_empty() {
            return f.write_str(": no place to look");
        }
        for (at, (place, error)) in self.tried.iter().enumerate() {
            write!(f, "{} {place}: {error}", if at == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl std::error::Error for CollateralError {}

impl Ca {
    /// Name in Intel's addresses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Processor => "processor",
            Self::Platform => "platform",
        }
    }
}

impl fmt::Display for CollateralKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FMSPC {}, {} CA", self.fmspc, self.ca.name())
    }
}

/// Largest part of a collateral that is looked at, in bytes. Real ones are near 10 KiB.
pub const MAX_PART: usize = 1 << 20;

/// What collateral says of itself, before its signatures are checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Dates {
    /// The platform model that the TCB info is for.
    pub fmspc: Hex<6>,
    /// When Intel issued the older of TCB info and QE identity; seconds since 1970.
    pub issued: u64,
    /// When the first of the two is due to be replaced.
    pub next_update: u64,
    /// The lower of their evaluation numbers.
    pub eval_number: u32,
}

/// The fields of TCB info and QE identity that [`Dates`] are made of. Intel PCS API version 4.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    id: String,
    issue_date: String,
    next_update: String,
    tcb_evaluation_data_number: u32,
    fmspc: Option<Hex<6>>,
}

/// Reads what collateral says of itself.
///
/// # Errors
/// A sentence naming the field: too large, not JSON, or of another kind of TEE.
pub fn dates(collateral: &QuoteCollateralV3) -> Result<Dates, String> {
    let parts = [
        ("pck_crl_issuer_chain", collateral.pck_crl_issuer_chain.len()),
        ("root_ca_crl", collateral.root_ca_crl.len()),
        ("pck_crl", collateral.pck_crl.len()),
        ("tcb_info_issuer_chain", collateral.tcb_info_issuer_chain.len()),
        ("tcb_info", collateral.tcb_info.len()),
        ("tcb_info_signature", collateral.tcb_info_signature.len()),
        ("qe_identity_issuer_chain", collateral.qe_identity_issuer_chain.len()),
        ("qe_identity", collateral.qe_identity.len()),
        ("qe_identity_signature", collateral.qe_identity_signature.len()),
    ];
    if let Some((field, found)) = parts.into_iter().find(|(_, found)| *found > MAX_PART) {
        return Err(format!("{field} is {found} bytes, expected {MAX_PART} at most"));
    }
    let tcb = head("tcb_info", &collateral.tcb_info, "TDX")?;
    let qe = head("qe_identity", &collateral.qe_identity, "TD_QE")?;
    let time = |field: &str, text: &str| {
        time::parse(text).ok_or_else(|| format!("{field} is {text:?}, expected a time such as 2026-10-08T00:09:46Z"))
    };
    Ok(Dates {
        fmspc: tcb.fmspc.ok_or("tcb_info.fmspc is missing")?,
        issued: time("tcb_info.issueDate", &tcb.issue_date)?.min(time("qe_identity.issueDate", &qe.issue_date)?),
        next_update: time("tcb_info.nextUpdate", &tcb.next_update)?
            .min(time("qe_identity.nextUpdate", &qe.next_update)?),
        eval_number: tcb.tcb_evaluation_data_number.min(qe.tcb_evaluation_data_number),
    })
}

fn head(field: &str, text: &str, id: &str) -> Result<Head, String> {
    let head: Head = serde_json::from_str(text).map_err(|error| format!("{field}: {error}"))?;
    if head.id == id { Ok(head) } else { Err(format!("{field}.id is {:?}, expected {id:?}", head.id)) }
}
