//! A guest below Azure's paravisor: the hardware vouches for a virtual TPM, and the TPM for the guest.
//!
//! The guest has no report data of its own there. The hardware's report is about the HCL report's variable data, which
//! holds the TPM's attestation key; freshness and the connection come from a TPM quote by that key, and what the guest
//! runs from the PCRs that it covers.

mod hcl;
mod jwk;
mod pcrs;
mod tpm;

pub use hcl::{Hardware, HclError, HclReport};
#[cfg(test)]
pub(crate) use jwk::base64url;
pub use jwk::{AttestationKey, VarData, VarDataError};
pub use tpm::{TpmError, TpmQuote};

use crate::Factor;
use crate::policy::Azure;
use proto::v1::AzureEvidence;
use subtle::ConstantTimeEq as _;

/// What comes of Azure's part of the evidence.
#[derive(Clone, Debug)]
pub struct Opened {
    /// What was found. Fails if anything of it does not hold.
    pub factors: Vec<Factor>,
    /// What the hardware's report must be about, for the verification that follows: SHA-256 of the variable data and 32
    /// zeros. `None` if there is none, and then a factor failed.
    pub report_data: Option<[u8; 64]>,
    /// With SEV-SNP, the report inside; with TDX the quote comes beside and this is empty.
    pub report: Vec<u8>,
}

/// Judges the virtual TPM. `quoted` is what the TPM quote must be over: SHA-256 of the binding.
///
/// The evidence is accepted if every factor here holds and the hardware's report, verified with
/// [`Opened::report_data`], is accepted too. Neither is worth anything alone.
#[must_use]
pub fn open(evidence: Option<&AzureEvidence>, hardware: Hardware, quoted: &[u8], policy: &Azure) -> Opened {
    let Some(evidence) = evidence else {
        return Opened::refused(HCL, HCL_EXPECTED, "no evidence of a virtual TPM");
    };
    let report = match HclReport::parse(&evidence.hcl_report) {
        Ok(report) => report,
        Err(error) => return Opened::refused(HCL, HCL_EXPECTED, error),
    };
    let mut factors = vec![
        Factor::judged(HCL, true, HCL_EXPECTED, format!("version {}", report.version())),
        Factor::judged(
            "azure.hcl.hardware",
            report.hardware() == hardware,
            hardware.to_string(),
            report.hardware().to_string(),
        ),
    ];
    let data = match VarData::parse(report.var_data()) {
        Ok(data) => data,
        Err(error) => {
            factors.push(Factor::judged(DATA, false, DATA_EXPECTED, error.to_string()));
            return Opened { factors, report_data: None, report: Vec::new() };
        }
    };
    factors.push(Factor::judged(DATA, true, DATA_EXPECTED, "HCLAkPub"));
    factors.push(secure_boot(&data, policy));
    factors.extend(quote(evidence, data.key(), quoted, policy));
    let inner = if hardware == Hardware::SevSnp { report.hardware_report().to_vec() } else { Vec::new() };
    Opened { factors, report_data: Some(report.report_data()), report: inner }
}

/// The TPM quote: whose, about what, over which PCRs.
fn quote(evidence: &AzureEvidence, key: &AttestationKey, quoted: &[u8], policy: &Azure) -> Vec<Factor> {
    let quote = match TpmQuote::parse(&evidence.tpm_quote) {
        Ok(quote) => quote,
        Err(error) => return vec![Factor::judged(QUOTE, false, QUOTE_EXPECTED, error.to_string())],
    };
    let signed = key.signed(&evidence.tpm_quote, &evidence.tpm_signature);
    let about = quote.extra_data().len() == quoted.len() && bool::from(quote.extra_data().ct_eq(quoted));
    let mut out = vec![
        Factor::judged(QUOTE, true, QUOTE_EXPECTED, "a TPM quote"),
        Factor::judged(
            "azure.tpm.signature",
            signed,
            "RSASSA-PKCS1 with SHA-256 by the key in the variable data",
            if signed { "good" } else { "another, or none" },
        ),
        Factor::judged("azure.tpm.nonce", about, crate::hex::encode(quoted), crate::hex::encode(quote.extra_data())),
    ];
    out.extend(pcrs::judge(&quote, &evidence.pcrs, policy));
    out
}

fn secure_boot(data: &VarData, policy: &Azure) -> Factor {
    let found = match data.secure_boot() {
        Some(true) => "on",
        Some(false) => "off",
        None => "not stated",
    };
    if policy.require_secure_boot {
        Factor::judged("azure.secure_boot", data.secure_boot() == Some(true), "on", found)
    } else {
        Factor::noted("azure.secure_boot", found)
    }
}

impl Opened {
    fn refused(code: &'static str, expected: &str, found: impl ToString) -> Self {
        let factors = vec![Factor::judged(code, false, expected, found.to_string())];
        Self { factors, report_data: None, report: Vec::new() }
    }
}

/// For tests and fuzzing: reads the bytes as each structure of this module; nothing may panic.
#[doc(hidden)]
pub fn read_anything(bytes: &[u8]) -> usize {
    let report = HclReport::parse(bytes).map(|report| VarData::parse(report.var_data()).is_ok()).is_ok();
    let data = VarData::parse(bytes).is_ok();
    let quote = TpmQuote::parse(bytes).is_ok();
    [report, data, quote].into_iter().map(usize::from).sum()
}

const HCL: &str = "azure.hcl.parse";
const HCL_EXPECTED: &str = "an HCL report with variable data hashed by SHA-256";
const DATA: &str = "azure.var_data";
const DATA_EXPECTED: &str = "variable data with one RSA key HCLAkPub";
const QUOTE: &str = "azure.tpm.quote";
/// Code of the factor that ties the TPM to the connection.
pub(crate) const NONCE: &str = "azure.tpm.nonce";
const QUOTE_EXPECTED: &str = "a TPM quote, without which the evidence may be old";
