//! One reader for quotes of version 4 and 5 and every TD report in them.

use super::engine;
use crate::hex::{Hex, Sha384};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Largest quote that is read, in bytes. Real ones are near 5 KiB, and padded to 8000 bytes on Google's cloud.
pub const MAX_QUOTE: usize = 64 << 10;

/// Where the 64 bytes of report data lie in a quote of version 4; 6 bytes further on in version 5, whose body has a
/// header of its own. Intel TDX DCAP quoting library API, appendix A.3.
pub const REPORT_DATA: Range<usize> = 568..632;

/// A quote that was taken apart. Nothing in it is verified yet.
#[derive(Clone, Debug)]
pub struct Quote {
    raw: Vec<u8>,
    version: u16,
    kind: &'static str,
    measurements: Measurements,
    report_data: [u8; 64],
    tee_tcb_svn: [u8; 16],
    tee_tcb_svn2: Option<[u8; 16]>,
    mr_service_td: Option<Sha384>,
    padding: usize,
}

/// What a TD report measures, whatever its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measurements {
    /// Firmware.
    pub mr_td: Sha384,
    /// The four runtime registers.
    pub rtmr: [Sha384; 4],
    /// Attributes of the trust domain.
    pub attributes: Hex<8>,
    /// Extended features.
    pub xfam: Hex<8>,
    /// The TDX module. Every update of the module moves it, so it is shown and never pinned.
    pub mr_seam: Sha384,
    /// Set by the host when it made the domain.
    pub mr_config_id: Sha384,
    /// Set by the host when it made the domain.
    pub mr_owner: Sha384,
    /// Set by the host when it made the domain.
    pub mr_owner_config: Sha384,
}

/// Why bytes are no TDX quote that can be verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuoteError {
    /// Nothing at all.
    #[error("quote is empty: the host's quoting service returned nothing")]
    Empty,
    /// Too much.
    #[error("quote is {found} bytes, expected {MAX_QUOTE} at most")]
    Size {
        /// Bytes there.
        found: usize,
    },
    /// Not the structure of a quote.
    #[error("quote: {0}")]
    Structure(String),
    /// A quote of another kind of TEE.
    #[error("quote is of an SGX enclave, expected one of a TDX domain")]
    Sgx,
    /// The platform certificate is not in the quote.
    #[error("quote.cert_data is of type {found}, expected 5, a PCK certificate chain: {}", kind_of(*found))]
    CertData {
        /// The type there. Intel SGX quoting library API, table of certification data types.
        found: u16,
    },
    /// Something after the quote that is not padding.
    #[error("quote is followed by {found} bytes that are not all zero, expected nothing or zeros")]
    Trailing {
        /// Bytes there.
        found: usize,
    },
}

fn kind_of(cert_data: u16) -> &'static str {
    match cert_data {
        1..=3 => {
            "this one names the platform and leaves the chain to a caching service, which the host has to be set up with"
        }
        4 => "this one is the leaf certificate alone",
        6 => "this one is a nested report",
        _ => "this type is unknown",
    }
}

impl Quote {
    /// Takes a quote apart.
    ///
    /// # Errors
    /// [`QuoteError`] for anything that is not a TDX quote of version 4 or 5 with its PCK certificate chain.
    pub fn parse(raw: &[u8]) -> Result<Self, QuoteError> {
        match raw.len() {
            0 => return Err(QuoteError::Empty),
            found if found > MAX_QUOTE => return Err(QuoteError::Size { found }),
            _ => {}
        }
        let parsed = engine::parse(raw)?;
        let (quote, padding) = raw.split_at_checked(parsed.length).unwrap_or((raw, &[]));
        if padding.iter().any(|&byte| byte != 0) {
            return Err(QuoteError::Trailing { found: padding.len() });
        }
        Ok(Self {
            raw: quote.to_vec(),
            version: parsed.version,
            kind: parsed.kind,
            measurements: parsed.measurements,
            report_data: parsed.report_data,
            tee_tcb_svn: parsed.tee_tcb_svn,
            tee_tcb_svn2: parsed.tee_tcb_svn2,
            mr_service_td: parsed.mr_service_td,
            padding: padding.len(),
        })
    }

    /// The quote without what followed it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.raw
    }

    /// 4 or 5.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// The TD report in it: `TD10`, `TD15` or `TD15Ex`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// What it measures.
    #[must_use]
    pub fn measurements(&self) -> &Measurements {
        &self.measurements
    }

    /// What it is about. Compare in constant time.
    #[must_use]
    pub fn report_data(&self) -> &[u8; 64] {
        &self.report_data
    }

    /// TEE_TCB_SVN at launch, and the current one where the report has it.
    #[must_use]
    pub fn tee_tcb_svn(&self) -> (&[u8; 16], Option<&[u8; 16]>) {
        (&self.tee_tcb_svn, self.tee_tcb_svn2.as_ref())
    }

    /// Measurement of the bound service domains, where the report has one.
    #[must_use]
    pub fn mr_service_td(&self) -> Option<Sha384> {
        self.mr_service_td
    }

    /// Zero bytes that followed the quote.
    #[must_use]
    pub fn padding(&self) -> usize {
        self.padding
    }
}
