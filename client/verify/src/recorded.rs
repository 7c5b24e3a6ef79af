//! Evidence that was kept. It is judged like any other, and nothing is ever released on the strength of it.

use crate::{
    Anchor, Floor, Policy, Report,
    collateral::CollateralSource,
    factor::Factor,
    report::Verdict,
    verify::{BINDING, Case, examine},
};
use proto::v1::Evidence;
use sha2::Digest as _;

/// What kept evidence is to be judged by.
pub struct Recorded<'a> {
    /// What the hardware must have stated. Without it the binding counts as not looked at.
    pub report_data: Option<[u8; 64]>,
    /// What is accepted.
    pub policy: &'a Policy,
    /// Intel's statements.
    pub collateral: &'a dyn CollateralSource,
    /// Seconds since 1970.
    pub now: u64,
}

impl Recorded<'_> {
    /// Every finding about `evidence`. No [`crate::Verified`] comes of it: whose connection it was is anyone's word.
    #[must_use]
    pub fn report<D: Anchor>(&self, evidence: &Evidence) -> Report {
        let own = || crate::tdx::Quote::parse(&evidence.quote).map_or([0; 64], |quote| *quote.report_data());
        let report_data = self.report_data.unwrap_or_else(own);
        let case = Case {
            evidence,
            report_data: &report_data,
            transcript: sha2::Sha256::digest(report_data).into(),
            policy: self.policy,
            collateral: self.collateral,
            floor: &Floor::default(),
            now: self.now,
        };
        let mut report = examine::<D>(&case).report;
        if self.report_data.is_none()
            && let Some(factor) = report.factors.iter_mut().find(|factor| factor.code == BINDING)
        {
            *factor = Factor::skipped(BINDING, "about a known connection", "no report data was given to compare with");
            report.verdict = Verdict::of(&report.factors);
        }
        report
    }
}
