//! Which phase of a request runs where: the policies of the paper's scheduler.

use super::{Protocol, runner::Site};
use crate::Error;
use std::{fmt, str::FromStr};

/// Where prompts and answers are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Everything in the enclave.
    CpuTee,
    /// The linear layers of prompts and answers by the evaluator.
    HybridUnified,
    /// Prompts in the enclave, the linear layers of answers by the evaluator.
    HybridPdSplit,
}

impl Policy {
    /// Those that exist, by their names.
    pub const ALL: [(Self, &'static str); 3] =
        [(Self::CpuTee, "cpu_tee"), (Self::HybridUnified, "hybrid_unified"), (Self::HybridPdSplit, "hybrid_pd_split")];

    /// Where it has prompts processed.
    pub fn prefill(self) -> Site {
        match self {
            Self::HybridUnified => Site::Evaluator,
            Self::CpuTee | Self::HybridPdSplit => Site::Enclave,
        }
    }

    /// The protocol of a request that asks for `protocol`: `cpu_tee` has one only.
    pub fn protocol(self, protocol: Protocol) -> Protocol {
        if self == Self::CpuTee { Protocol::Local } else { protocol }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(p, _)| p == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Policy {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        if s == "pure_fhe" {
            return Err(Error::Config(
                "policy pure_fhe is not built yet: everything under encryption, non-linear layers included".into(),
            ));
        }
        let known = || Self::ALL.map(|(_, name)| name).join(", ");
        let found = Self::ALL.iter().find(|(_, name)| *name == s).map(|(p, _)| *p);
        found.ok_or_else(|| Error::Config(format!("policy is {s:?}, expected one of: {}", known())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for (policy, name) in Policy::ALL {
            assert_eq!((name.parse::<Policy>().ok(), policy.to_string().as_str()), (Some(policy), name));
        }
        let says = |s: &str| s.parse::<Policy>().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(says("pure_fhe").contains("not built yet"));
        assert!(says("hybrid").contains("cpu_tee, hybrid_unified, hybrid_pd_split"));
    }
}
