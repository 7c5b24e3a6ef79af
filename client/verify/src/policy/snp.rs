//! Section `[snp]`: what is accepted of AMD SEV-SNP.

use super::PolicyError;
use crate::hex::{Hex, Sha256, Sha384};
use crate::snp::{Product, Signer, Tcb};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Section `[snp]`. A list that may be absent judges nothing when it is; an empty one accepts nothing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snp {
    /// Families of chips.
    pub products: Vec<Product>,
    /// Keys that may sign: a cloud provider's `vlek` names no chip.
    pub signers: Vec<Signer>,
    /// Lowest security versions, for each product; one without an entry is refused.
    pub tcb: BTreeMap<Product, Tcb>,
    /// How the guest must have been started.
    pub guest: Guest,
    /// Privilege levels that may have asked for the report; 0 is the highest.
    pub vmpl: Vec<u32>,
    /// Launch measurements.
    pub measurement: Vec<Sha384>,
    /// What the host attached at launch.
    pub host_data: Option<Vec<Sha256>>,
    /// Digests of the key that signed the ID block.
    pub id_key_digest: Option<Vec<Sha384>>,
    /// Digests of the key above that.
    pub author_key_digest: Option<Vec<Sha384>>,
    /// Family of the guest, from the ID block.
    pub family_id: Option<Vec<Hex<16>>>,
    /// Image of the guest, from the ID block.
    pub image_id: Option<Vec<Hex<16>>>,
    /// Chips; the 8 bytes of a Turin have zeros after them.
    pub chip_id: Option<Vec<Hex<64>>>,
    /// Lowest security version of the guest, from the ID block.
    #[serde(default)]
    pub min_guest_svn: u32,
    /// Whether a current revocation list of the root must be at hand.
    #[serde(default = "yes")]
    pub require_crl: bool,
}

/// Section `[snp.guest]`: the guest policy, AMD 56860 table "POLICY". A guest under debug is never accepted.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guest {
    /// Whether two threads may share a core, exactly.
    pub smt: bool,
    /// Whether a migration agent may move the guest, exactly.
    #[serde(default)]
    pub migration: bool,
    /// Whether the guest is kept on one socket, exactly.
    pub single_socket: bool,
    /// Whether devices and memory may hang on CXL, exactly.
    #[serde(default)]
    pub cxl: bool,
    /// Lowest interface that the guest asks of the firmware, major version.
    #[serde(default)]
    pub min_abi_major: u8,
    /// The same, minor version.
    #[serde(default)]
    pub min_abi_minor: u8,
}

impl Snp {
    /// What `serde` cannot say.
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        if self.products.contains(&Product::Unknown) || self.tcb.contains_key(&Product::Unknown) {
            return Err(PolicyError::Contradiction(
                "snp names product Unknown, expected Milan, Genoa or Turin".to_owned(),
            ));
        }
        for product in &self.products {
            if !self.tcb.contains_key(product) {
                return Err(PolicyError::Contradiction(format!(
                    "snp.products names {product} and there is no [snp.tcb.{product}], expected its lowest versions"
                )));
            }
        }
        match self.tcb.get(&Product::Turin) {
            Some(floor) if floor.fmc.is_none() => {
                Err(PolicyError::Contradiction("snp.tcb.Turin has no fmc, expected its lowest version".to_owned()))
            }
            _ => Ok(()),
        }
    }
}

fn yes() -> bool {
    true
}
