//! Families of chips, each with a root of its own.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A family of EPYC processors with SEV-SNP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Product {
    /// Third generation.
    Milan,
    /// Fourth generation.
    Genoa,
    /// Fifth generation.
    Turin,
    /// None of those: no root is pinned for it.
    Unknown,
}

impl Product {
    /// Those with a pinned root.
    pub const ALL: [Self; 3] = [Self::Milan, Self::Genoa, Self::Turin];

    /// By CPUID family and model, AMD 57230 section 2.
    #[must_use]
    pub fn of_cpu(family: u8, model: u8) -> Self {
        match (family, model) {
            (0x19, 0x00..=0x0f) => Self::Milan,
            (0x19, 0x10..=0x1f | 0xa0..=0xaf) => Self::Genoa,
            (0x1a, 0x00..=0x11) => Self::Turin,
            _ => Self::Unknown,
        }
    }

    /// As AMD's key distribution service and certificates write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Milan => "Milan",
            Self::Genoa => "Genoa",
            Self::Turin => "Turin",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
