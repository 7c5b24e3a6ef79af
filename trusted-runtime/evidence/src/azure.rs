//! Evidence below Azure's paravisor: its virtual TPM and the host's metadata service.
//!
//! A guest there cannot choose the report data of a hardware report; it is that of the boot and covers the TPM's
//! attestation key. What is fresh is a TPM quote over SHA-256 of our report data. The steps are here, compiled and tested
//! everywhere; the calls to the machine ([`Vtpm`]) need the feature `azure_vtpm` and its C library (`libtss2-dev`).

mod hcl;
#[cfg(feature = "azure_vtpm")]
mod imds;
#[cfg(feature = "azure_vtpm")]
mod system;

use crate::{MAX_BLOB, statement};
use attest::source::{Collected, Source, SourceError};
use hcl::{Hardware, Hcl};
use proto::v1::{AzureEvidence, Platform};
use sha2::{Digest, Sha256};

/// What the machine is asked. Texts of errors name what was asked.
pub trait Vtpm: Send + Sync + 'static {
    /// NV index 0x01400001, the HCL report.
    ///
    /// # Errors
    /// That there is no such TPM or index.
    fn hcl_report(&self) -> Result<Vec<u8>, String>;

    /// A quote by the attestation key over all SHA-256 PCRs.
    ///
    /// # Errors
    /// The TPM's.
    fn quote(&self, qualifying: &[u8; 32]) -> Result<TpmQuote, String>;

    /// The host's quote of a TDREPORT of this machine.
    ///
    /// # Errors
    /// The metadata service's.
    fn td_quote(&self, td_report: &[u8]) -> Result<Vec<u8>, String>;

    /// What the host's SEV-SNP reports are signed with, and AMD's certificates above it, in PEM.
    ///
    /// # Errors
    /// The metadata service's.
    fn certificates(&self) -> Result<Vec<u8>, String>;
}

/// What a TPM stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmQuote {
    /// TPMS_ATTEST.
    pub message: Vec<u8>,
    /// RSASSA-SHA256.
    pub signature: Vec<u8>,
    /// SHA-256 PCRs 0 to 23.
    pub pcrs: Vec<[u8; 32]>,
}

/// The paravisor's TPM as a source.
pub struct AzureVtpm<V>(V);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum AzureError {
    /// Not a guest of this kind.
    #[error("virtual TPM of Azure: {0}")]
    Absent(String),
    /// The HCL report is not one.
    #[error("{0}")]
    Hcl(#[from] hcl::HclError),
    /// It is there and does not work.
    #[error("{what}: {why}")]
    Failed {
        /// What was asked.
        what: &'static str,
        /// What came of it.
        why: String,
    },
    /// The TPM has other registers than expected.
    #[error("TPM quote with {0} PCRs, expected 24")]
    Pcrs(usize),
    /// The quote is about another HCL report: the NV index was read while it changed.
    #[error("the quote is not about the variable data of the HCL report; an old report was read")]
    Stale,
    /// Not about our report data.
    #[error(transparent)]
    Unfit(#[from] statement::Unfit),
}

impl From<AzureError> for SourceError {
    fn from(error: AzureError) -> Self {
        let text = format!("azure_vtpm: {error}");
        match error {
            AzureError::Absent(_) => Self::NoTee(text),
            _ => Self::Quote(text),
        }
    }
}

impl<V: Vtpm> AzureVtpm<V> {
    /// Over this TPM; nothing is asked yet.
    pub fn new(vtpm: V) -> Self {
        Self(vtpm)
    }

    /// Whether the machine is such a guest.
    ///
    /// # Errors
    /// [`AzureError::Absent`] if there is no HCL report, [`AzureError::Hcl`] if it is not understood.
    pub fn present(&self) -> Result<(), AzureError> {
        let bytes = self.0.hcl_report().map_err(AzureError::Absent)?;
        Ok(Hcl::parse(&bytes).map(|_| ())?)
    }

    fn ask(&self, report_data: &[u8; 64]) -> Result<Collected, AzureError> {
        let failed = |what| move |why| AzureError::Failed { what, why };
        let bytes = self.0.hcl_report().map_err(AzureError::Absent)?;
        let hcl = Hcl::parse(&bytes)?;
        let (platform, quote, certificates) = match hcl.hardware {
            Hardware::Tdx => {
                let quote = self.0.td_quote(hcl.report).and_then(limited).map_err(failed(QUOTE))?;
                (Platform::AzureTdx, quote, Vec::new())
            }
            Hardware::SevSnp => {
                let certificates = self.0.certificates().and_then(limited).map_err(failed(CERTIFICATES))?;
                (Platform::AzureSevSnp, hcl.report.to_vec(), certificates)
            }
        };
        if statement::report_data(platform, &quote)?[..32] != *Sha256::digest(hcl.variable_data) {
            return Err(AzureError::Stale);
        }
        let qualifying = Sha256::digest(report_data).into();
        let tpm = self.0.quote(&qualifying).map_err(failed("TPM quote"))?;
        if tpm.pcrs.len() != 24 {
            return Err(AzureError::Pcrs(tpm.pcrs.len()));
        }
        let azure = AzureEvidence {
            hcl_report: bytes.into(),
            tpm_quote: tpm.message.into(),
            tpm_signature: tpm.signature.into(),
            pcrs: tpm.pcrs.concat().into(),
        };
        let collected = Collected { platform, quote, certificates, azure: Some(azure), ..Collected::default() };
        statement::check(&collected, report_data)?;
        Ok(collected)
    }
}

impl<V: Vtpm> Source for AzureVtpm<V> {
    fn name(&self) -> &'static str {
        "azure_vtpm"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        Ok(self.ask(report_data)?)
    }
}

/// This machine's, if the program was built for it.
///
/// # Errors
/// [`SourceError::NoTee`] that says how to build it.
#[cfg(not(feature = "azure_vtpm"))]
pub fn open() -> Result<Box<dyn Source>, SourceError> {
    Err(SourceError::NoTee(
        "azure_vtpm: this trusted-runtime was built without it; build it with --features azure_vtpm (needs libtss2-dev), or use external_command".into(),
    ))
}

/// This machine's.
///
/// # Errors
/// [`SourceError::NoTee`] if it has no such TPM.
#[cfg(feature = "azure_vtpm")]
pub fn open() -> Result<Box<dyn Source>, SourceError> {
    let source = AzureVtpm::new(system::System::default());
    source.present()?;
    Ok(Box::new(source))
}

fn limited(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    match bytes.len() {
        found if found > MAX_BLOB => Err(format!("{found} bytes, expected at most {MAX_BLOB}")),
        _ => Ok(bytes),
    }
}

const QUOTE: &str = "quote of the metadata service";
const CERTIFICATES: &str = "certificates of the metadata service";

#[cfg(test)]
mod tests;
