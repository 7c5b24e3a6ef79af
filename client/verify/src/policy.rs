//! What a user accepts, as a TOML file.
//!
//! An unknown key is an error, so that a typo drops no check. An empty list accepts nothing. There are no wildcards: the
//! one thing that may be left open, the digest of the configuration, is left open by the word `any`.

mod azure;
mod measured;
mod runtime;
mod snp;
mod tcb;
mod td;

pub use azure::Azure;
pub use measured::{Event, Image, Payload, Platform, Rtmr3, Value};
pub use runtime::{ConfigDigest, Runtime};
pub use snp::{Guest, Snp};
pub use tcb::{Allow, Status, Tcb};
pub use td::Td;

use crate::hex::Sha256;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use std::fmt;

/// A policy that was read and checked.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Rules,
    digest: Sha256,
}

/// The sections of a policy.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Rises with every change; going down is a failure, see [`crate::Floor`].
    pub version: u32,
    /// What kinds of evidence are accepted at all.
    pub platforms: Vec<Tee>,
    /// Intel's verdict on the platform; needed with `tdx` and `azure_tdx`.
    pub tcb: Option<Tcb>,
    /// How the trust domain was made; needed with `tdx` and `azure_tdx`.
    pub td: Option<Td>,
    /// Firmware and virtual hardware that are accepted.
    #[serde(default, rename = "platform")]
    pub platform: Vec<Platform>,
    /// Kernels with their command line and initrd that are accepted.
    #[serde(default, rename = "image")]
    pub image: Vec<Image>,
    /// What the runtime says of itself.
    pub runtime: Runtime,
    /// AMD's; needed with `sev_snp` and `azure_sev_snp`.
    pub snp: Option<Snp>,
    /// The virtual TPM; needed with `azure_tdx` and `azure_sev_snp`.
    pub azure: Option<Azure>,
}

/// A kind of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tee {
    /// Intel TDX with report data of the guest's own.
    Tdx,
    /// AMD SEV-SNP with report data of the guest's own.
    SevSnp,
    /// Intel TDX below Azure's paravisor.
    AzureTdx,
    /// AMD SEV-SNP below Azure's paravisor.
    AzureSevSnp,
}

/// Why a policy file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Too much text to be a policy.
    #[error("policy is {found} bytes, expected {MAX_POLICY} at most")]
    Size {
        /// Bytes there.
        found: usize,
    },
    /// Not TOML, an unknown or missing key, or a value of another kind.
    #[error("policy: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A section that `platforms` calls for is not there.
    #[error("policy has no section [{section}], which platforms needs for {platform}")]
    Section {
        /// Name of the section.
        section: &'static str,
        /// What needs it.
        platform: Tee,
    },
    /// A status that no policy may accept, or that needs a grace period to be accepted.
    #[error("tcb.accept: {0}")]
    Status(String),
    /// Attributes or lists that contradict what is always required.
    #[error("{0}")]
    Contradiction(String),
}

/// Largest policy file that is read, in bytes.
pub const MAX_POLICY: usize = 1 << 20;

impl Policy {
    /// Reads a policy.
    ///
    /// # Errors
    /// [`PolicyError`] naming the key.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        if text.len() > MAX_POLICY {
            return Err(PolicyError::Size { found: text.len() });
        }
        let rules: Rules = toml::from_str(text)?;
        for &platform in &rules.platforms {
            if let Some(section) = rules.missing(platform) {
                return Err(PolicyError::Section { section, platform });
            }
        }
        if let Some(tcb) = &rules.tcb {
            tcb.check()?;
        }
        if let Some(td) = &rules.td {
            td.check()?;
        }
        if let Some(snp) = &rules.snp {
            snp.check()?;
        }
        if let Some(azure) = &rules.azure {
            azure.check()?;
        }
        for image in &rules.image {
            image.check()?;
        }
        Ok(Self { rules, digest: crate::hex::Hex(sha2::Sha256::digest(text).into()) })
    }

    /// The sections.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// SHA-256 of the text, for logs: it names the policy that something was accepted by.
    #[must_use]
    pub fn digest(&self) -> Sha256 {
        self.digest
    }
}

impl Rules {
    fn missing(&self, platform: Tee) -> Option<&'static str> {
        let (intel, amd, azure) = match platform {
            Tee::Tdx => (true, false, false),
            Tee::SevSnp => (false, true, false),
            Tee::AzureTdx => (true, false, true),
            Tee::AzureSevSnp => (false, true, true),
        };
        let needed = [
            ("tcb", intel && self.tcb.is_none()),
            ("td", intel && self.td.is_none()),
            ("snp", amd && self.snp.is_none()),
            ("azure", azure && self.azure.is_none()),
        ];
        needed.into_iter().find_map(|(section, missing)| missing.then_some(section))
    }
}

impl Tee {
    /// Name in policies and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tdx => "tdx",
            Self::SevSnp => "sev_snp",
            Self::AzureTdx => "azure_tdx",
            Self::AzureSevSnp => "azure_sev_snp",
        }
    }
}

impl fmt::Display for Tee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
