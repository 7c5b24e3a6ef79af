//! What was found about a piece of evidence, for people, scripts and logs.

use crate::{
    factor::{Factor, Outcome},
    hex::{Hex, Sha256},
    tdx::{Claims, Measurements},
};
use serde::Serialize;
use std::fmt;

/// Every finding about one piece of evidence.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `HARDWARE` and whose root, or the banner of another domain.
    pub domain: String,
    /// The kind of evidence.
    pub platform: String,
    /// What follows from the factors.
    pub verdict: Verdict,
    /// Seconds since 1970, by the clock of whoever verified.
    pub checked_at: u64,
    /// SHA-256 of the binding: names the connection.
    pub transcript: Sha256,
    /// Version of the policy.
    pub policy_version: u32,
    /// SHA-256 of the policy's text.
    pub policy_digest: Sha256,
    /// What the evidence measures, whether it is accepted or not.
    pub measured: Option<Measured>,
    /// What Intel's signatures prove about the platform.
    pub intel: Option<Claims>,
    /// What the runtime says of itself.
    pub runtime: Option<RuntimeShown>,
    /// Every factor, in the order of the check.
    pub factors: Vec<Factor>,
}

/// What evidence measures.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measured {
    /// A TDX domain.
    Tdx(Box<Measurements>),
    /// A SEV-SNP guest.
    Snp(crate::snp::Measurements),
}

/// Public values of a runtime, as far as people look at them.
#[derive(Clone, Debug, Serialize)]
pub struct RuntimeShown {
    /// Its version, cut to what a line holds.
    pub software: String,
    /// Seconds since 1970 after which the connection must attest again.
    pub not_after: u64,
    /// SHA-256 of the key that signs receipts.
    pub receipt_key: Sha256,
}

/// What follows from the factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every factor holds.
    Accepted,
    /// Some factor does not hold.
    Rejected,
    /// None failed, and some could not be looked at: no collateral, no network, a wrong clock.
    Unchecked,
}

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Stable code of the factor.
    pub code: &'static str,
    /// `pass`, `fail`, `skipped` or `noted`.
    pub outcome: &'static str,
    /// What is asked for.
    pub expected: &'a str,
    /// What is there, or why it was not looked at.
    pub found: &'a str,
}

impl Verdict {
    /// What follows from these factors. Nothing follows from none.
    #[must_use]
    pub fn of(factors: &[Factor]) -> Self {
        if factors.iter().any(|factor| factor.outcome == Outcome::Fail) {
            Self::Rejected
        } else if factors.is_empty() || !factors.iter().all(Factor::holds) {
            Self::Unchecked
        } else {
            Self::Accepted
        }
    }

    /// Exit status of a command that verifies: 0, 1 or 3; 2 is for wrong usage.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Rejected => 1,
            Self::Unchecked => 3,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Unchecked => "could not be checked",
        })
    }
}

impl Report {
    /// The table, a row for each factor.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.factors.iter().map(|factor| Row {
            code: factor.code,
            outcome: match factor.outcome {
                Outcome::Pass => "pass",
                Outcome::Fail => "fail",
                Outcome::Skipped(_) => "skipped",
                Outcome::Noted => "noted",
            },
            expected: &factor.expected,
            found: match &factor.outcome {
                Outcome::Skipped(reason) => reason,
                _ => &factor.found,
            },
        })
    }

    /// The factor of this code.
    #[must_use]
    pub fn factor(&self, code: &str) -> Option<&Factor> {
        self.factors.iter().find(|factor| factor.code == code)
    }

    /// The factors that keep the evidence from being accepted.
    pub fn failures(&self) -> impl Iterator<Item = &Factor> {
        self.factors.iter().filter(|factor| !factor.holds())
    }
}

impl RuntimeShown {
    pub(crate) fn of(values: &proto::v1::RuntimeValues) -> Self {
        use sha2::Digest as _;
        const SHOWN: usize = 64;
        Self {
            software: values.software.chars().filter(|letter| !letter.is_control()).take(SHOWN).collect(),
            not_after: values.not_after,
            receipt_key: Hex(sha2::Sha256::digest(&values.receipt_key).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_that_was_skipped_is_no_acceptance_and_a_failure_outweighs_it() {
        let pass = Factor::judged("a", true, "", "");
        let fail = Factor::judged("b", false, "", "");
        let skipped = Factor::skipped("c", "", "no network");
        let noted = Factor::noted("d", "");
        for (factors, verdict, exit) in [
            (vec![], Verdict::Unchecked, 3),
            (vec![pass.clone(), noted.clone()], Verdict::Accepted, 0),
            (vec![pass.clone(), skipped.clone()], Verdict::Unchecked, 3),
            (vec![pass.clone(), fail.clone()], Verdict::Rejected, 1),
            (vec![skipped, fail, pass], Verdict::Rejected, 1),
        ] {
            assert_eq!(Verdict::of(&factors), verdict);
            assert_eq!(verdict.exit_code(), exit);
        }
    }
}
