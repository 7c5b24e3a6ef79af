//! The HCL report, as far as its maker needs it: a header of 32 bytes, the hardware's report in an area of 1184 bytes, a
//! header of 20 bytes, variable data. Whether all of it agrees is for the client to judge.
//! Microsoft, "Attestation report of the guest attestation feature".

/// Whose report is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hardware {
    SevSnp,
    Tdx,
}

/// Parts of a report.
#[derive(Debug)]
pub(super) struct Hcl<'a> {
    pub(super) hardware: Hardware,
    /// A TDREPORT (1024 bytes) or a SEV-SNP report (1184).
    pub(super) report: &'a [u8],
    pub(super) variable_data: &'a [u8],
}

/// Why bytes are no HCL report.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HclError {
    /// The first four bytes.
    #[error("NV index 0x01400001 does not begin with HCLA")]
    Signature,
    /// Ends early.
    #[error("HCL report of {found} bytes, expected {least} at least")]
    Short {
        /// Bytes there are.
        found: usize,
        /// Bytes that its headers speak of.
        least: usize,
    },
    /// Neither Intel's nor AMD's.
    #[error("HCL report of type {0}, expected 2 (SEV-SNP) or 4 (TDX)")]
    Type(u32),
}

impl<'a> Hcl<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, HclError> {
        let least = |least| HclError::Short { found: bytes.len(), least };
        if !bytes.starts_with(b"HCLA") {
            return Err(HclError::Signature);
        }
        let rest = bytes.get(HEADER..).ok_or(least(HEADER))?;
        let (area, rest) = rest.split_at_checked(AREA).ok_or(least(HEADER + AREA))?;
        let (runtime, rest) = rest.split_first_chunk::<RUNTIME>().ok_or(least(HEADER + AREA + RUNTIME))?;
        let word = |at: usize| u32::from_le_bytes([runtime[at], runtime[at + 1], runtime[at + 2], runtime[at + 3]]);
        let (hardware, length) = match word(8) {
            2 => (Hardware::SevSnp, AREA),
            4 => (Hardware::Tdx, TD_REPORT),
            other => return Err(HclError::Type(other)),
        };
        let variable = usize::try_from(word(16)).unwrap_or(usize::MAX);
        let all = (HEADER + AREA + RUNTIME).saturating_add(variable);
        let variable_data = rest.get(..variable).ok_or(least(all))?;
        Ok(Self { hardware, report: &area[..length], variable_data })
    }
}

pub(super) const HEADER: usize = 32;
/// AMD's report is the longer one.
pub(super) const AREA: usize = 1184;
pub(super) const RUNTIME: usize = 20;
/// Intel TDX module specification: TDREPORT_STRUCT.
pub(super) const TD_REPORT: usize = 1024;
