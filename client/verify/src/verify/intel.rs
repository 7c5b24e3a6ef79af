//! Evidence whose statement is a TDX quote.

use super::{Case, Examined, bound};
use crate::{
    Anchor, Factor,
    report::Measured,
    tdx::{self, Appraisal, Quote},
};

/// Examines a quote that must be about `expected`: the binding, or what Azure's paravisor puts in its place.
pub(crate) fn examine<D: Anchor>(case: &Case<'_>, quote: &[u8], expected: &[u8; 64], paravisor: bool) -> Examined {
    const PARSE: &str = "quote.parse";
    let rules = case.policy.rules();
    let quote = match Quote::parse(quote) {
        Ok(quote) => quote,
        Err(error) => {
            let factors = vec![Factor::judged(PARSE, false, "a TDX quote of version 4 or 5", error.to_string())];
            return Examined { factors, ..Examined::default() };
        }
    };
    let padding =
        if quote.padding() > 0 { format!(", {} zero bytes after it", quote.padding()) } else { String::new() };
    let parsed = format!("version {}, {}{padding}", quote.version(), quote.kind());
    let binding = bound(expected, quote.report_data());
    let relayed = !binding.holds();
    let mut factors = vec![Factor::judged(PARSE, true, "a TDX quote of version 4 or 5", parsed), binding];
    let measured = Some(Measured::Tdx(Box::new(*quote.measurements())));
    let (Some(tcb), Some(td), false) = (&rules.tcb, &rules.td, relayed) else {
        factors.push(Factor::skipped(
            "quote.signature",
            "a TD report signed by the quoting enclave",
            "not about this connection",
        ));
        return Examined { factors, measured, intel: None };
    };
    let findings = tdx::judge(
        &quote,
        &Appraisal {
            tcb,
            ppid: rules.runtime.ppid.as_deref(),
            collateral: case.collateral,
            root: D::intel_root(),
            eval_floor: case.floor.least_eval_number(),
            now: case.now,
        },
    );
    factors.extend(findings.factors);
    factors.extend(tdx::judge_domain(&quote, td));
    factors.extend(tdx::judge_registers(&quote, rules, case.evidence, paravisor));
    Examined { factors, measured, intel: findings.claims }
}
