//! Just enough of quotes and reports to see whether they are about the report data that was asked for.

use attest::source::{Collected, SourceError};
use proto::v1::Platform;
use sha2::{Digest, Sha256};

/// Shortest TDX quote, bytes: header (48), TD 1.0 body (584), length of the signature data (4).
/// Intel TDX DCAP quote generation library and quote verification library, appendix 3.
pub const MIN_TDX: usize = 48 + 584 + 4;

/// Length of a SEV-SNP report, bytes. AMD SEV-SNP firmware ABI specification (56860), table 23.
pub const SNP_REPORT: usize = 1184;

/// Why a statement is not handed out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Nothing there.
    #[error(
        "quote is empty: the host's quoting service answered with nothing; see the quoting service on the host (qgsd, PCCS registration)"
    )]
    Empty,
    /// Less than the smallest one.
    #[error(
        "quote has {found} bytes, expected at least {least}: the host's quoting service gave an incomplete answer; see qgsd on the host"
    )]
    Short {
        /// Bytes that are there.
        found: usize,
        /// Bytes of the shortest one.
        least: usize,
    },
    /// Not of the platform's kind.
    #[error("{field} is {found}, expected {expected}")]
    Field {
        /// What was looked at.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A statement about something else.
    #[error(
        "report data in the {0} is not what was asked for: an old answer, or another process asked at the same time"
    )]
    OtherReportData(&'static str),
}

impl From<Unfit> for SourceError {
    fn from(unfit: Unfit) -> Self {
        Self::Quote(unfit.to_string())
    }
}

/// Checks that `collected` is a statement over `report_data`.
///
/// Below Azure's paravisor the quote's report data is that of the boot; there the TPM quote is looked at, whose qualifying
/// data must be SHA-256 of `report_data`.
///
/// # Errors
/// [`Unfit`] with what was found.
pub fn check(collected: &Collected, report_data: &[u8; 64]) -> Result<(), Unfit> {
    let in_quote = self::report_data(collected.platform, &collected.quote)?;
    match collected.platform {
        Platform::AzureTdx | Platform::AzureSevSnp => {
            let Some(azure) = &collected.azure else {
                return Err(Unfit::Field {
                    field: "azure",
                    found: "absent".into(),
                    expected: "HCL report and TPM quote",
                });
            };
            if qualifying_data(&azure.tpm_quote)? != Sha256::digest(report_data).as_slice() {
                return Err(Unfit::OtherReportData("TPM quote"));
            }
        }
        _ if in_quote != report_data => return Err(Unfit::OtherReportData("quote")),
        _ => {}
    }
    Ok(())
}

/// The 64 bytes of report data in a TDX quote of version 4 or 5, or in a SEV-SNP report.
///
/// # Errors
/// [`Unfit`] if it is neither, or not of `platform`.
pub fn report_data(platform: Platform, quote: &[u8]) -> Result<&[u8; 64], Unfit> {
    match platform {
        Platform::Tdx | Platform::AzureTdx => tdx(quote),
        Platform::SevSnp | Platform::AzureSevSnp => snp(quote),
        Platform::Unspecified => {
            Err(Unfit::Field { field: "platform", found: "unspecified".into(), expected: "a TEE" })
        }
    }
}

/// Intel TDX DCAP quote library, appendix 3: version at 0, TEE type at 4, and the body at 48 (version 4) or at 54, behind
/// its type and size (version 5). Report data ends the TD 1.0 body, and every later body begins with that one.
fn tdx(quote: &[u8]) -> Result<&[u8; 64], Unfit> {
    const TEE_TYPE: u32 = 0x81;
    const IN_BODY: usize = 520;
    long_enough(quote, MIN_TDX)?;
    let tee = u32::from_le_bytes(at(quote, 4)?);
    if tee != TEE_TYPE {
        return Err(Unfit::Field {
            field: "TEE type of the quote",
            found: format!("{tee:#x}"),
            expected: "0x81 (TDX)",
        });
    }
    let body = match u16::from_le_bytes(at(quote, 0)?) {
        4 => 48,
        5 => {
            let kind = u16::from_le_bytes(at(quote, 48)?);
            if !(2..=4).contains(&kind) {
                let expected = "2, 3 or 4 (TD 1.0, TD 1.5, extended TD 1.5)";
                return Err(Unfit::Field { field: "body type of the quote", found: kind.to_string(), expected });
            }
            54
        }
        other => {
            return Err(Unfit::Field { field: "quote version", found: other.to_string(), expected: "4 or 5" });
        }
    };
    slice(quote, body + IN_BODY)
}

/// AMD SEV-SNP firmware ABI specification (56860), table 23: report data at 0x50.
fn snp(report: &[u8]) -> Result<&[u8; 64], Unfit> {
    const IN_REPORT: usize = 0x50;
    long_enough(report, SNP_REPORT)?;
    if report.len() > SNP_REPORT {
        let found = format!("{} bytes", report.len());
        return Err(Unfit::Field { field: "SEV-SNP report", found, expected: "1184 bytes" });
    }
    slice(report, IN_REPORT)
}

/// `extraData` of a TPMS_ATTEST: magic, type TPM_ST_ATTEST_QUOTE, a sized signer name, the sized data, all big-endian.
/// TPM 2.0 library specification, part 2, section 10.12.12.
fn qualifying_data(attest: &[u8]) -> Result<&[u8], Unfit> {
    const QUOTE: [u8; 6] = [0xff, b'T', b'C', b'G', 0x80, 0x18];
    let wrong = |found: &str| Unfit::Field { field: "TPM quote", found: found.into(), expected: "a TPMS_ATTEST" };
    let rest = attest.strip_prefix(&QUOTE).ok_or_else(|| wrong("another structure"))?;
    let (_signer, rest) = sized(rest).ok_or_else(|| wrong("a short one"))?;
    let (data, _) = sized(rest).ok_or_else(|| wrong("a short one"))?;
    Ok(data)
}

fn sized(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*length).into())
}

fn long_enough(bytes: &[u8], least: usize) -> Result<(), Unfit> {
    match bytes.len() {
        0 => Err(Unfit::Empty),
        found if found < least => Err(Unfit::Short { found, least }),
        _ => Ok(()),
    }
}

fn at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Unfit> {
    slice(bytes, offset).copied()
}

fn slice<const N: usize>(bytes: &[u8], offset: usize) -> Result<&[u8; N], Unfit> {
    let short = Unfit::Short { found: bytes.len(), least: offset + N };
    bytes.get(offset..).and_then(|rest| rest.first_chunk()).ok_or(short)
}

#[cfg(test)]
mod tests;
