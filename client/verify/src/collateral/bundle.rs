//! Collateral in a file, for machines without a way to Intel.

use super::{Ca, CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3, dates, signatures};
use crate::{hex::Hex, time};
use serde::{Deserialize, Serialize};

/// Largest bundle that is read, in bytes.
pub const MAX_BUNDLE: usize = 64 << 20;

/// Collateral of several platforms, as JSON: a list of entries.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bundle {
    entries: Vec<Entry>,
}

/// Collateral of one platform.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The model of the platform.
    pub fmspc: Hex<6>,
    /// Who issued its certificate.
    pub ca: Ca,
    /// What Intel says of it.
    pub collateral: QuoteCollateralV3,
    /// Seconds since 1970 when it was fetched.
    pub fetched_at: u64,
}

/// Why a text is no bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Too large.
    #[error("collateral bundle is {found} bytes, expected {MAX_BUNDLE} at most")]
    Size {
        /// Bytes there.
        found: usize,
    },
    /// Not JSON of this form.
    #[error("collateral bundle: {0}")]
    Syntax(#[from] serde_json::Error),
    /// An entry that carries a PCK certificate chain, which would take the place of the one in a quote.
    #[error("collateral bundle: the entry for {0} has a pck_certificate_chain, expected none")]
    PckChain(CollateralKey),
}

/// How an entry stands at some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// Which entry.
    pub key: CollateralKey,
    /// Hours since Intel issued it; none if it is from the future or cannot be read.
    pub age_hours: Option<u64>,
    /// When Intel replaces it, as RFC 3339.
    pub next_update: String,
    /// Its evaluation number.
    pub eval_number: u32,
    /// Seconds since 1970 when it was fetched.
    pub fetched_at: u64,
    /// `valid`, or what is wrong with its dates or its signatures at this time.
    pub state: String,
}

impl Bundle {
    /// Reads a bundle.
    ///
    /// # Errors
    /// [`BundleError`] for other JSON, or for an entry with a PCK certificate chain.
    pub fn parse(bytes: &[u8]) -> Result<Self, BundleError> {
        if bytes.len() > MAX_BUNDLE {
            return Err(BundleError::Size { found: bytes.len() });
        }
        let bundle: Self = serde_json::from_slice(bytes)?;
        match bundle.entries.iter().find(|entry| entry.collateral.pck_certificate_chain.is_some()) {
            Some(entry) => Err(BundleError::PckChain(entry.key())),
            None => Ok(bundle),
        }
    }

    /// The bundle as it is written to a file.
    ///
    /// # Errors
    /// [`BundleError::Syntax`], which does not happen.
    pub fn to_json(&self) -> Result<String, BundleError> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// Puts collateral in, without any PCK certificate chain in it; an entry of the same key is replaced.
    pub fn put(&mut self, mut entry: Entry) {
        entry.collateral.pck_certificate_chain = None;
        self.entries.retain(|held| held.key() != entry.key());
        self.entries.push(entry);
    }

    /// What is in it.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// How each entry stands at `now`, in seconds since 1970, below Intel's root.
    #[must_use]
    pub fn check(&self, now: u64) -> Vec<Standing> {
        self.check_below(None, now)
    }

    /// The same below another root, given as a DER certificate.
    #[must_use]
    pub fn check_below(&self, root: Option<&[u8]>, now: u64) -> Vec<Standing> {
        self.entries.iter().map(|entry| entry.standing(root, now)).collect()
    }
}

impl Entry {
    /// What names it.
    #[must_use]
    pub fn key(&self) -> CollateralKey {
        CollateralKey { fmspc: self.fmspc, ca: self.ca }
    }

    fn standing(&self, root: Option<&[u8]>, now: u64) -> Standing {
        let (key, fetched_at) = (self.key(), self.fetched_at);
        match dates(&self.collateral) {
            Ok(dates) => {
                let state = if dates.fmspc != self.fmspc {
                    format!("its TCB info is for FMSPC {}", dates.fmspc)
                } else if dates.issued > now {
                    "from the future: check the clock of this machine".to_owned()
                } else if dates.next_update < now {
                    "expired: check the clock of this machine, then fetch collateral anew".to_owned()
                } else {
                    signatures(&self.collateral, root, now).err().unwrap_or_else(|| "valid".to_owned())
                };
                Standing {
                    key,
                    age_hours: now.checked_sub(dates.issued).map(|seconds| seconds / 3600),
                    next_update: time::show(dates.next_update),
                    eval_number: dates.eval_number,
                    fetched_at,
                    state,
                }
            }
            Err(state) => {
                Standing { key, age_hours: None, next_update: String::new(), eval_number: 0, fetched_at, state }
            }
        }
    }
}

impl CollateralSource for Bundle {
    fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        let found = self.entries.iter().find(|entry| entry.key() == *key);
        found.map(|entry| entry.collateral.clone()).ok_or_else(|| CollateralError {
            wanted: key.to_string(),
            tried: vec![("the bundle".to_owned(), format!("not among its {} entries", self.entries.len()))],
        })
    }
}
