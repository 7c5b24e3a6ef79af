//! Named findings: what was expected, what was found, and whether that is good enough.

use serde::Serialize;

/// One finding about a piece of evidence. Codes are stable: scripts and alarms name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Factor {
    /// For example `td.debug_off`.
    pub code: &'static str,
    /// How it went.
    pub outcome: Outcome,
    /// What the policy or the protocol asks for.
    pub expected: String,
    /// What the evidence says.
    pub found: String,
}

/// How a factor went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As it should be.
    Pass,
    /// Not as it should be: the evidence is rejected.
    Fail,
    /// Could not be looked at, for this reason. A policy that asks for the factor takes this for a failure.
    Skipped(String),
    /// Recorded and not judged.
    Noted,
}

impl Factor {
    /// A comparison of two things.
    pub fn judged(code: &'static str, good: bool, expected: impl Into<String>, found: impl Into<String>) -> Self {
        let outcome = if good { Outcome::Pass } else { Outcome::Fail };
        Self { code, outcome, expected: expected.into(), found: found.into() }
    }

    /// Something that could not be looked at.
    pub fn skipped(code: &'static str, expected: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { code, outcome: Outcome::Skipped(reason.into()), expected: expected.into(), found: String::new() }
    }

    /// Something worth knowing that is not judged.
    pub fn noted(code: &'static str, found: impl Into<String>) -> Self {
        Self { code, outcome: Outcome::Noted, expected: String::new(), found: found.into() }
    }

    /// Whether the evidence may be accepted as far as this goes.
    #[must_use]
    pub fn holds(&self) -> bool {
        matches!(self.outcome, Outcome::Pass | Outcome::Noted)
    }
}
