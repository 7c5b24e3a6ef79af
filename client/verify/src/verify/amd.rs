//! Evidence whose statement is a SEV-SNP report.

use super::{Case, Examined};
use crate::report::Measured;
use crate::snp::{self, Inputs, Report, Roots};
use crate::{Anchor, Factor};

/// Examines a report that must be about `expected`: the binding, or what Azure's paravisor puts in its place.
pub(crate) fn examine<D: Anchor>(case: &Case<'_>, report: &[u8], expected: &[u8; 64]) -> Examined {
    let Some(policy) = &case.policy.rules().snp else {
        let factors = vec![Factor::skipped("snp.policy", "section [snp] of the policy", "there is none")];
        return Examined { factors, ..Examined::default() };
    };
    let roots = match D::amd_roots() {
        None => Roots::amd(),
        Some(roots) => Roots::of(&roots),
    };
    let roots = match roots {
        Ok(roots) => roots,
        Err(error) => {
            let factors = vec![Factor::judged("snp.roots", false, "certificates of roots", error.to_string())];
            return Examined { factors, ..Examined::default() };
        }
    };
    let factors = snp::judge(
        &Inputs {
            report,
            certificates: &case.evidence.certificates,
            collateral: case.collateral,
            roots: &roots,
            report_data: expected,
            now: case.now,
        },
        policy,
    );
    let measured = Report::parse(report).ok().map(|report| Measured::Snp(report.measurements()));
    Examined { factors, measured, intel: None }
}
