//! Why there is no attested connection: by what it means for the user, in full for the own log, coarse for others.

use attest_verify::report::{Report, Verdict};

use super::Endpoint;

/// Why there is no attested connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    kind: Kind,
    codes: Vec<&'static str>,
    text: String,
}

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Evidence came and is not good enough.
    Rejected,
    /// Evidence came and could not be judged: no collateral, no log.
    Unchecked,
    /// No evidence came: no network, another protocol, no hardware, too many others.
    NoEvidence,
    /// Evidence was accepted, and the runtime does not hold the key that we have.
    Locked,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Rejected, Self::Unchecked, Self::NoEvidence, Self::Locked];

    /// Name in metrics and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Unchecked => "unchecked",
            Self::NoEvidence => "no_evidence",
            Self::Locked => "locked",
        }
    }

    /// Exit status of a command that judges: 1 for no, 3 for no answer.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Rejected | Self::Locked => 1,
            Self::Unchecked | Self::NoEvidence => 3,
        }
    }
}

impl Failure {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, codes: Vec::new(), text: text.into() }
    }

    /// From the error of an exchange and the report on what it brought.
    pub(super) fn of(error: &attest::Error, endpoint: &Endpoint, report: Option<&Report>) -> Self {
        let kind = match (error, report.map(|report| report.verdict)) {
            (attest::Error::Rejected(_), Some(Verdict::Rejected)) => Kind::Rejected,
            (attest::Error::Rejected(_) | attest::Error::Platform(_), _) => Kind::Unchecked,
            (attest::Error::Refused(_), Some(_)) => Kind::Locked,
            _ => Kind::NoEvidence,
        };
        let judged = report.filter(|_| kind != Kind::Locked);
        let codes = judged.map(|report| report.failures().map(|factor| factor.code).collect()).unwrap_or_default();
        Self { kind, codes, text: format!("{endpoint}: {error}") }
    }

    /// What kind it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The factors that do not hold.
    #[must_use]
    pub fn codes(&self) -> &[&'static str] {
        &self.codes
    }

    /// What others may know: codes and no values.
    #[must_use]
    pub fn coarse(&self) -> String {
        let codes = if self.codes.is_empty() { String::new() } else { format!(" ({})", self.codes.join(", ")) };
        match self.kind {
            Kind::Rejected => format!("the runtime's evidence was rejected{codes}"),
            Kind::Unchecked => format!("the runtime's evidence could not be checked{codes}"),
            Kind::NoEvidence => "the runtime gives no evidence or cannot be reached".into(),
            Kind::Locked => "the runtime does not hold this tenant's key: not released, expired or revoked".into(),
        }
    }
}

/// The factors that keep evidence from being accepted, on one line.
pub(super) fn reasons(report: &Report) -> String {
    use attest_verify::factor::Outcome;
    let reasons = report.failures().map(|factor| match &factor.outcome {
        Outcome::Skipped(reason) => format!("{}: {reason}", factor.code),
        _ => format!("{}: found {}, expected {}", factor.code, factor.found, factor.expected),
    });
    reasons.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_statuses_and_others_learn_codes_alone() {
        let endpoint = Endpoint::parse("attested://h:1").unwrap();
        for (error, kind, code) in [
            (attest::Error::Wire("broken off".into()), Kind::NoEvidence, 3),
            (attest::Error::Version("of another mode".into()), Kind::NoEvidence, 3),
            (attest::Error::Refused("busy".into()), Kind::NoEvidence, 3),
            (attest::Error::Platform("log".into()), Kind::Unchecked, 3),
        ] {
            let failure = Failure::of(&error, &endpoint, None);
            assert_eq!((failure.kind(), failure.kind().exit_code()), (kind, code));
            assert!(failure.to_string().starts_with("attested://h:1: "), "{failure}");
            assert!(!failure.coarse().contains(&error.to_string()), "{}", failure.coarse());
        }
        let failure = Failure { kind: Kind::Rejected, codes: vec!["td.debug_off", "tcb.status"], text: "x".into() };
        assert_eq!(failure.coarse(), "the runtime's evidence was rejected (td.debug_off, tcb.status)");
    }
}
