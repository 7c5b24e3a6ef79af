//! Security versions of a platform's firmware.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One security version per component; a higher number is a later fix. AMD 56860 section 2.2, "TCB_VERSION".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcb {
    /// Firmware of the management controller; Turin and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fmc: Option<u8>,
    /// Boot loader of the security processor.
    pub bootloader: u8,
    /// Operating system of the security processor.
    pub tee: u8,
    /// SEV-SNP firmware.
    pub snp: u8,
    /// Microcode.
    pub microcode: u8,
}

impl Tcb {
    /// Name, factor code and value of each component.
    #[must_use]
    pub fn components(&self) -> [(&'static str, &'static str, u8); 5] {
        [
            ("fmc", "snp.tcb.fmc", self.fmc.unwrap_or(0)),
            ("bootloader", "snp.tcb.bootloader", self.bootloader),
            ("tee", "snp.tcb.tee", self.tee),
            ("snp", "snp.tcb.snp", self.snp),
            ("microcode", "snp.tcb.microcode", self.microcode),
        ]
    }

    /// Whether no component is below its counterpart in `floor`.
    #[must_use]
    pub fn at_least(&self, floor: &Self) -> bool {
        self.components().iter().zip(floor.components()).all(|(ours, least)| ours.2 >= least.2)
    }
}

impl From<sev::firmware::host::TcbVersion> for Tcb {
    fn from(version: sev::firmware::host::TcbVersion) -> Self {
        let sev::firmware::host::TcbVersion { fmc, bootloader, tee, snp, microcode } = version;
        Self { fmc, bootloader, tee, snp, microcode }
    }
}

impl fmt::Display for Tcb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(fmc) = self.fmc {
            write!(f, "fmc {fmc}, ")?;
        }
        let Self { bootloader, tee, snp, microcode, .. } = self;
        write!(f, "bootloader {bootloader}, tee {tee}, snp {snp}, microcode {microcode}")
    }
}
