//! The kinds of values that arguments have.

use clap::ValueEnum;
use proto::v1;

/// How linear layers are executed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Protocol {
    /// One-time-padded activations, multiplied by the evaluator; waits for lanes, the encrypted masks of one vector
    Masked,
    /// Masked where lanes are ready, else direct
    Auto,
    /// Encrypted activations, multiplied by the evaluator
    Direct,
    /// In the runtime's own process
    Local,
}

impl Protocol {
    /// Name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Masked => "masked",
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Local => "local",
        }
    }

    /// The protocol of a request as the runtime reports it; `None` for one it did not name.
    #[must_use]
    pub fn of(reported: v1::Protocol) -> Option<Self> {
        Self::value_variants().iter().copied().find(|protocol| v1::Protocol::from(*protocol) == reported)
    }

    /// Whether an evaluator takes part.
    #[must_use]
    pub fn delegates(self) -> bool {
        self != Self::Local
    }

    /// Whether lanes are used.
    #[must_use]
    pub fn masks(self) -> bool {
        matches!(self, Self::Masked | Self::Auto)
    }
}

impl From<Protocol> for v1::Protocol {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Masked => Self::Masked,
            Protocol::Auto => Self::Auto,
            Protocol::Direct => Self::Direct,
            Protocol::Local => Self::Local,
        }
    }
}

/// Where prompts and answers are computed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Policy {
    /// Both in the enclave
    #[value(name = "cpu_tee")]
    CpuTee,
    /// The linear layers of both by the protocol
    #[value(name = "hybrid_unified")]
    HybridUnified,
    /// Prompts in the enclave, the linear layers of answers by the protocol
    #[value(name = "hybrid_pd_split")]
    HybridPdSplit,
    /// Everything under encryption: not built yet, refused
    #[value(name = "pure_fhe")]
    PureFhe,
}

impl Policy {
    /// Name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuTee => "cpu_tee",
            Self::HybridUnified => "hybrid_unified",
            Self::HybridPdSplit => "hybrid_pd_split",
            Self::PureFhe => "pure_fhe",
        }
    }

    /// The policy as a runtime reports it; `None` for one it did not name.
    #[must_use]
    pub fn of(reported: v1::Policy) -> Option<Self> {
        Self::value_variants().iter().copied().find(|policy| v1::Policy::from(*policy) == reported)
    }

    /// The protocol of a request that asks for `protocol`.
    #[must_use]
    pub fn protocol(self, protocol: Protocol) -> Protocol {
        if self == Self::CpuTee { Protocol::Local } else { protocol }
    }

    /// Whether prompts take lanes too.
    #[must_use]
    pub fn delegates_prompts(self) -> bool {
        self == Self::HybridUnified
    }
}

impl From<Policy> for v1::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::CpuTee => Self::CpuTee,
            Policy::HybridUnified => Self::HybridUnified,
            Policy::HybridPdSplit => Self::HybridPdSplit,
            Policy::PureFhe => Self::PureFhe,
        }
    }
}

/// Precision of the quantized weights.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Weights {
    /// int8 per row
    W8,
    /// int16 per row, held as two int8 planes
    W16,
}

impl Weights {
    /// Name on the command line and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::W8 => "w8",
            Self::W16 => "w16",
        }
    }
}

/// How the evaluator holds the weights.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Residency {
    /// NTT form, 8 bytes per weight
    Pinned,
    /// int8, encoded on the fly, 1 byte per weight
    Fallback,
    /// As the evaluator's memory allows
    Auto,
}

impl Residency {
    /// Name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pinned => "pinned",
            Self::Fallback => "fallback",
            Self::Auto => "auto",
        }
    }
}

/// Parses a finite number and checks its range.
pub(super) fn number(text: &str, allowed: &str, holds: fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() && holds(value) => Ok(value),
        Ok(_) => Err(format!("allowed is {allowed}")),
        Err(_) => Err(format!("not a number; allowed is {allowed}")),
    }
}

/// Parses a size in bytes, above 0: a whole number with an optional unit, `4096`, `2GiB`, `500 MB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: Option<u64> = match unit.trim() {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        "TiB" => Some(1 << 40),
        "KB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "TB" => Some(1_000_000_000_000),
        _ => None,
    };
    let bytes = unit.and_then(|unit| number.parse::<u64>().ok()?.checked_mul(unit));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "expected bytes above 0, or e.g. 2GiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("500 MB"), Ok(500_000_000));
        for bad in ["", "GiB", "0", "0GiB", "-1", "1.5GiB", "2gib", "2 GiB more", "17179869184GiB"] {
            assert!(size(bad).unwrap_err().contains("2GiB"), "{bad}");
        }
    }
}
