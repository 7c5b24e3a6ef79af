//! Section `[azure]`: what is accepted of the virtual TPM below Azure's paravisor.

use super::PolicyError;
use crate::hex::Sha256;
use serde::{Deserialize, Deserializer, de::Error as _};
use std::collections::BTreeMap;

/// Section `[azure]`.
///
/// RTMRs are zero there and count for nothing: the software is what the PCRs say.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Azure {
    /// For each PCR that counts, the accepted values. The TPM quote must cover all of them.
    #[serde(deserialize_with = "pcrs")]
    pub pcr: BTreeMap<u8, Vec<Sha256>>,
    /// Whether secure boot must be on, as the paravisor states it.
    #[serde(default = "yes")]
    pub require_secure_boot: bool,
}

impl Azure {
    /// What `serde` cannot say.
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        if self.pcr.is_empty() {
            return Err(PolicyError::Contradiction(
                "azure.pcr is empty, expected at least one PCR: nothing else says what the guest runs".to_owned(),
            ));
        }
        match self.pcr.keys().find(|index| **index > 23) {
            Some(index) => Err(PolicyError::Contradiction(format!("azure.pcr names PCR {index}, expected 0 to 23"))),
            None => Ok(()),
        }
    }
}

/// TOML's keys are text.
fn pcrs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<u8, Vec<Sha256>>, D::Error> {
    let mut out = BTreeMap::new();
    for (key, values) in BTreeMap::<String, Vec<Sha256>>::deserialize(deserializer)? {
        let index =
            key.parse().map_err(|_| D::Error::custom(format!("azure.pcr has key {key:?}, expected 0 to 23")))?;
        if out.insert(index, values).is_some() {
            return Err(D::Error::custom(format!("azure.pcr has two keys for PCR {index}")));
        }
    }
    Ok(out)
}

fn yes() -> bool {
    true
}
