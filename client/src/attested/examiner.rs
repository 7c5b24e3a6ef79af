//! The judge of one exchange.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use attest::client::{Judge, Offer};
use attest_verify::Verified;
use attest_verify::report::Report;
use proto::v1::Evidence;

use super::failure::reasons;
use super::terms::Terms;
use crate::trust::Trust;

/// What came of one exchange's evidence, whatever the verdict.
pub struct Seen {
    /// Every finding.
    pub report: Report,
    /// The evidence.
    pub evidence: Evidence,
    /// What it had to be about.
    pub report_data: [u8; 64],
    /// SHA-256 of the process's public key.
    pub instance: [u8; 32],
}

/// Judges by [`Terms`], away from the threads that serve connections, and keeps what it saw.
pub(super) struct Examiner<W> {
    terms: Arc<Terms>,
    endpoint: String,
    seen: Mutex<Option<Seen>>,
    world: PhantomData<fn() -> W>,
}

impl<W> Examiner<W> {
    pub(super) fn new(terms: Arc<Terms>, endpoint: String) -> Self {
        Self { terms, endpoint, seen: Mutex::new(None), world: PhantomData }
    }

    pub(super) fn seen(self) -> Option<Seen> {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W: Trust> Judge<W> for Examiner<W> {
    type Approval = Verified<W>;

    async fn judge(&self, offer: &Offer<W>) -> Result<Verified<W>, attest::Error> {
        let (terms, endpoint) = (Arc::clone(&self.terms), self.endpoint.clone());
        let (evidence, binding) = (offer.evidence.clone(), offer.binding.clone());
        let judged = move || terms.examine::<W>(&endpoint, &evidence, &binding);
        let judged = tokio::task::spawn_blocking(judged).await;
        let judged = judged.map_err(|error| attest::Error::Platform(format!("a thread of this process: {error}")))?;
        let outcome = judged.map_err(attest::Error::Platform)?;
        let seen = Seen {
            report: outcome.report.clone(),
            evidence: offer.evidence.clone(),
            report_data: *offer.binding.report_data(),
            instance: offer.instance,
        };
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
        let report = outcome.report;
        outcome.verified.ok_or_else(|| {
            attest::Error::Rejected(format!("the runtime's evidence {}: {}", verdict(&report), reasons(&report)))
        })
    }
}

fn verdict(report: &Report) -> String {
    match report.verdict {
        attest_verify::Verdict::Rejected => "is rejected".into(),
        other => other.to_string(),
    }
}
