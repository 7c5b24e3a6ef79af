//! Section `[td]`: how a trust domain must have been made.

use super::PolicyError;
use crate::hex::{Hex, Sha384};
use serde::Deserialize;

/// Section `[td]`. Values are written as the bytes lie in the report.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Td {
    /// The attributes, exactly. Intel TDX module ABI 348551, table 3.23.
    #[serde(default = "sept_ve_disable")]
    pub attributes: Hex<8>,
    /// The accepted sets of extended features.
    pub xfam: Vec<Hex<8>>,
    /// MRCONFIGID, exactly.
    #[serde(default = "zero")]
    pub mr_config_id: Sha384,
    /// MROWNER, exactly.
    #[serde(default = "zero")]
    pub mr_owner: Sha384,
    /// MROWNERCONFIG, exactly.
    #[serde(default = "zero")]
    pub mr_owner_config: Sha384,
}

/// Bit 28, SEPT_VE_DISABLE, and no other.
fn sept_ve_disable() -> Hex<8> {
    Hex([0, 0, 0, 0x10, 0, 0, 0, 0])
}

fn zero() -> Sha384 {
    Hex::ZERO
}

impl Td {
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        let [debug, ..] = self.attributes.0;
        if debug != 0 {
            return Err(PolicyError::Contradiction(format!(
                "td.attributes is {}, expected its first byte to be 00: a TD under debug is never accepted",
                self.attributes
            )));
        }
        Ok(())
    }
}
