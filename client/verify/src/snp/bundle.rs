//! AMD's collateral in a file, for machines without a way to AMD.

use super::report::Signer;
use super::wanted::{Collateral, Wanted};
use super::x509::Certificate;
use crate::collateral::{CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3};
use crate::hex::HexBytes;
use serde::{Deserialize, Serialize};

/// Certificates and revocation lists, in hexadecimal DER, of any number of chips and products.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bundle {
    /// Of endorsement keys.
    pub certificates: Vec<HexBytes>,
    /// Of roots.
    pub revocation: Vec<HexBytes>,
}

/// Why bytes are no bundle.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Too large.
    #[error("bundle is {0} bytes, expected 67108864 at most")]
    Size(usize),
    /// Not JSON of this form.
    #[error("bundle: {0}")]
    Syntax(#[from] serde_json::Error),
}

impl Bundle {
    /// Largest bundle that is read, in bytes.
    pub const LIMIT: usize = 64 << 20;

    /// Reads JSON.
    ///
    /// # Errors
    /// [`BundleError`]
    pub fn parse(json: &[u8]) -> Result<Self, BundleError> {
        if json.len() > Self::LIMIT {
            return Err(BundleError::Size(json.len()));
        }
        Ok(serde_json::from_slice(json)?)
    }

    /// The certificate for this chip at this TCB, and every revocation list. Of a VLEK, which names no chip, one of the
    /// product at the TCB.
    #[must_use]
    pub fn find(&self, wanted: &Wanted) -> Collateral {
        let certificates = self.certificates.iter().map(|held| held.0.as_slice());
        let endorsement = certificates.into_iter().find(|der| fits(der, wanted)).map(<[u8]>::to_vec);
        Collateral { endorsement, revocation: self.revocation.iter().map(|list| list.0.clone()).collect() }
    }
}

impl CollateralSource for Bundle {
    fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        Err(CollateralError {
            wanted: key.to_string(),
            tried: vec![("the bundle".to_owned(), "of AMD's alone".to_owned())],
        })
    }

    fn snp(&self, wanted: &Wanted) -> Result<Collateral, CollateralError> {
        Ok(self.find(wanted))
    }
}

fn fits(der: &[u8], wanted: &Wanted) -> bool {
    let Ok(certificate) = Certificate::parse(der) else { return false };
    let Ok(endorsement) = certificate.endorsement() else { return false };
    let chip = match (wanted.signer, &endorsement.chip) {
        (Signer::Vcek, Some(chip)) => wanted.chip.0.starts_with(chip) && matches!(chip.len(), 8 | 64),
        (Signer::Vlek, None) => true,
        _ => false,
    };
    chip && certificate.common_name() == wanted.signer.common_name()
        && endorsement.tcb == wanted.tcb
        && wanted.products.contains(&endorsement.product)
}
