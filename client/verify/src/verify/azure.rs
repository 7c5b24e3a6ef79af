//! Evidence of a guest below Azure's paravisor: the virtual TPM first, which knows this connection, then the hardware,
//! which knows the virtual TPM.

use super::{BINDING, Case, Examined, amd, intel};
use crate::azure::{self, Hardware};
use crate::{Anchor, Factor};

/// Examines both. What the hardware is examined with comes from the HCL report, never from what was hoped for.
pub(crate) fn examine<D: Anchor>(case: &Case<'_>, hardware: Hardware) -> Examined {
    examine_quoted::<D>(case, hardware, &case.transcript)
}

/// The same for a TPM quote over `quoted`.
pub(super) fn examine_quoted<D: Anchor>(case: &Case<'_>, hardware: Hardware, quoted: &[u8]) -> Examined {
    let Some(policy) = &case.policy.rules().azure else {
        let factors = vec![Factor::skipped("azure.policy", "section [azure] of the policy", "there is none")];
        return Examined { factors, ..Examined::default() };
    };
    let evidence = case.evidence;
    let opened = azure::open(evidence.azure.as_ref(), hardware, quoted, policy);
    let mut factors = opened.factors;
    let fresh = factors.iter().any(|factor| factor.code == azure::NONCE && factor.holds());
    let (Some(report_data), true) = (opened.report_data, fresh) else {
        factors.push(Factor::skipped(BINDING, "the HCL report, whose TPM knows this connection", "the TPM does not"));
        return Examined { factors, ..Examined::default() };
    };
    let hardware = match hardware {
        Hardware::Tdx => intel::examine::<D>(case, &evidence.quote, &report_data, true),
        Hardware::SevSnp => {
            let same = evidence.quote.is_empty() || evidence.quote == opened.report;
            factors.push(Factor::judged(
                "azure.hcl.report",
                same,
                "the report inside the HCL report, or none beside it",
                if same { "so it is" } else { "another report beside it" },
            ));
            amd::examine::<D>(case, &opened.report, &report_data)
        }
    };
    factors.extend(hardware.factors);
    Examined { factors, ..hardware }
}
