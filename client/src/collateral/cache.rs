//! Collateral that was fetched before: a bundle of one entry for each platform model, in the user's cache directory.

use std::fmt;
use std::path::{Path, PathBuf};

use attest_verify::collateral::{Bundle, CollateralKey, Entry, MAX_BUNDLE, QuoteCollateralV3};

use crate::Error;
use crate::file::{bounded, private_dir, replace};

/// The cache in one directory.
pub(super) struct Cache<'a>(&'a Path);

impl<'a> Cache<'a> {
    pub(super) fn at(dir: &'a Path) -> Self {
        Self(dir)
    }

    /// What it has; nothing if there is no such file.
    ///
    /// # Errors
    /// A sentence: a file that is none of ours.
    pub(super) fn read(&self, key: &CollateralKey) -> Result<Option<QuoteCollateralV3>, String> {
        let path = self.path(key);
        if !path.exists() {
            return Ok(None);
        }
        let bytes = bounded(&path, MAX_BUNDLE).map_err(|error| error.to_string())?;
        let bundle = Bundle::parse(&bytes).map_err(|error| error.to_string())?;
        let held = bundle.entries().iter().find(|entry| (entry.fmspc, entry.ca) == (key.fmspc, key.ca));
        Ok(held.map(|entry| entry.collateral.clone()))
    }

    /// Keeps collateral if it can.
    pub(super) fn write(&self, key: &CollateralKey, collateral: &QuoteCollateralV3, now: u64) {
        let mut bundle = Bundle::default();
        bundle.put(Entry { fmspc: key.fmspc, ca: key.ca, collateral: collateral.clone(), fetched_at: now });
        if let (Ok(text), Ok(())) = (bundle.to_json(), private_dir(self.0)) {
            let _ = replace(&self.path(key), text.as_bytes());
        }
    }

    fn path(&self, key: &CollateralKey) -> PathBuf {
        self.0.join(format!("{}-{}.json", key.fmspc, key.ca.name()))
    }
}

impl fmt::Display for Cache<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// `bifrost/collateral` under the user's cache directory.
///
/// # Errors
/// [`Error::Platform`] when the user has no home.
pub(super) fn dir() -> Result<PathBuf, Error> {
    directories::BaseDirs::new().map(|dirs| dirs.cache_dir().join("bifrost/collateral")).ok_or_else(|| {
        Error::Platform("no cache directory for collateral: neither XDG_CACHE_HOME nor HOME names one".into())
    })
}
