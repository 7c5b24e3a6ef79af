//! The HCL report of NV index 0x01400001.
//!
//! Microsoft, "Attestation report of the guest attestation feature": a header of 32 bytes, the hardware's report in an
//! area of 1184 bytes, and the runtime data, a header of 20 bytes with variable data behind it. The sizes come from the
//! headers, which must agree with one another: those written in the documentation have been wrong.

use sha2::{Digest as _, Sha256};
use std::fmt;

/// A report whose headers agree. What it holds is true once the hardware vouches for [`HclReport::report_data`].
#[derive(Clone, Copy, Debug)]
pub struct HclReport<'a> {
    version: u32,
    hardware: Hardware,
    hardware_report: &'a [u8],
    var_data: &'a [u8],
}

/// Whose report is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardware {
    /// AMD's, complete.
    SevSnp,
    /// Intel's TDREPORT, which vouches for nothing by itself: the quote comes beside.
    Tdx,
}

/// Why bytes are no HCL report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HclError {
    /// Larger than the NV index can be.
    #[error("hcl report is {0} bytes, expected 16384 at most")]
    Size(usize),
    /// Ends within a header or before what a header promises.
    #[error("hcl report ends before its {0}")]
    Truncated(&'static str),
    /// The first four bytes.
    #[error("hcl report does not begin with HCLA")]
    Signature,
    /// A field of a header.
    #[error("hcl report: {field} is {found}, expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        found: u32,
        /// What it may be.
        expected: &'static str,
    },
    /// Two headers contradict each other.
    #[error("hcl report: {field} is {found}, and the lengths behind it come to {expected}")]
    Length {
        /// Which length.
        field: &'static str,
        /// What the header says.
        found: u32,
        /// What follows from the others.
        expected: usize,
    },
    /// Bytes after the report that are not zero.
    #[error("hcl report is followed by {0} bytes that are not all zero")]
    Trailing(usize),
}

impl<'a> HclReport<'a> {
    /// Largest report that is read, in bytes.
    pub const LIMIT: usize = 16 << 10;

    /// # Errors
    /// [`HclError`]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, HclError> {
        if bytes.len() > Self::LIMIT {
            return Err(HclError::Size(bytes.len()));
        }
        let (header, rest) = bytes.split_at_checked(HEADER).ok_or(HclError::Truncated("header"))?;
        if !header.starts_with(b"HCLA") {
            return Err(HclError::Signature);
        }
        let version = check("version", word(header, 4), "1 or 2", |version| matches!(version, 1 | 2))?;
        check("request type", word(header, 12), "2", |request| request == 2)?;
        check("status", word(header, 16), "0", |status| status == 0)?;
        let (hardware_report, rest) = rest.split_at_checked(AREA).ok_or(HclError::Truncated("hardware report"))?;
        let (runtime, rest) = rest.split_at_checked(RUNTIME).ok_or(HclError::Truncated("runtime header"))?;
        check("runtime version", word(runtime, 4), "1", |version| version == 1)?;
        let hardware = match word(runtime, 8) {
            2 => Hardware::SevSnp,
            4 => Hardware::Tdx,
            found => return Err(HclError::Field { field: "report type", found, expected: "2 (SEV-SNP) or 4 (TDX)" }),
        };
        check("hash type", word(runtime, 12), "1 (SHA-256)", |hash| hash == 1)?;
        let length = usize::try_from(word(runtime, 16)).unwrap_or(usize::MAX);
        let (var_data, rest) = rest.split_at_checked(length).ok_or(HclError::Truncated("variable data"))?;
        agree("length of the runtime data", word(runtime, 0), RUNTIME + length)?;
        agree("length of the report", word(header, 8), HEADER + AREA + RUNTIME + length)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(HclError::Trailing(rest.len()));
        }
        Ok(Self { version, hardware, hardware_report, var_data })
    }

    /// Of the header.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whose report is inside.
    #[must_use]
    pub fn hardware(&self) -> Hardware {
        self.hardware
    }

    /// The area of the hardware's report, 1184 bytes.
    #[must_use]
    pub fn hardware_report(&self) -> &'a [u8] {
        self.hardware_report
    }

    /// JSON, see [`super::VarData`].
    #[must_use]
    pub fn var_data(&self) -> &'a [u8] {
        self.var_data
    }

    /// What the hardware's report is about if it vouches for this one: `SHA-256(variable data) || 32 zeros`.
    #[must_use]
    pub fn report_data(&self) -> [u8; 64] {
        let mut out = [0; 64];
        out[..32].copy_from_slice(&Sha256::digest(self.var_data));
        out
    }
}

impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SevSnp => "SEV-SNP",
            Self::Tdx => "TDX",
        })
    }
}

/// Little-endian; `at + 4` lies within the header.
fn word(header: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

fn check(field: &'static str, found: u32, expected: &'static str, good: impl Fn(u32) -> bool) -> Result<u32, HclError> {
    if good(found) { Ok(found) } else { Err(HclError::Field { field, found, expected }) }
}

fn agree(field: &'static str, found: u32, expected: usize) -> Result<(), HclError> {
    if usize::try_from(found) == Ok(expected) { Ok(()) } else { Err(HclError::Length { field, found, expected }) }
}

/// Bytes of the first header.
const HEADER: usize = 32;
/// Bytes kept for the hardware's report, whichever it is.
const AREA: usize = 1184;
/// Bytes of the header of the runtime data.
const RUNTIME: usize = 20;
