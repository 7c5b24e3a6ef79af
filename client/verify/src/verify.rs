//! The whole check of one piece of evidence.

mod amd;
mod azure;
mod intel;
mod values;

#[cfg(test)]
mod tests;

use crate::{
    Anchor, Policy,
    collateral::CollateralSource,
    factor::{Factor, Outcome as Held},
    hex::Hex,
    log::Floor,
    policy::Tee,
    report::{Measured, Report, RuntimeShown, Verdict},
    tdx::Claims,
};
use attest::Binding;
use proto::v1::{Evidence, Platform, RuntimeValues};
use std::{fmt, marker::PhantomData};
use subtle::ConstantTimeEq as _;

/// Evidence of domain `D` of which every factor holds. Made by [`verify`] alone; a key is released to nothing else.
pub struct Verified<D> {
    report: Report,
    values: RuntimeValues,
    transcript: [u8; 32],
    domain: PhantomData<fn() -> D>,
}

impl<D> Verified<D> {
    /// Every finding.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The runtime's public values, which the evidence covers.
    #[must_use]
    pub fn values(&self) -> &RuntimeValues {
        &self.values
    }

    /// SHA-256 of the binding of the connection that was attested.
    #[must_use]
    pub fn transcript(&self) -> &[u8; 32] {
        &self.transcript
    }
}

impl<D> fmt::Debug for Verified<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verified").field("transcript", &Hex(self.transcript)).finish_non_exhaustive()
    }
}

/// What came of a check.
#[derive(Debug)]
pub struct Outcome<D> {
    /// Every finding, always.
    pub report: Report,
    /// There if every factor holds.
    pub verified: Option<Verified<D>>,
}

/// Checks evidence against what this side saw of the connection, a policy, and the time by this side's clock in seconds
/// since 1970.
///
/// Sizes come first, then the comparison with the binding, which is cheap and tells a relay from the rest; certificates
/// are looked at only if that holds.
#[must_use]
pub fn verify<D: Anchor>(
    evidence: &Evidence,
    binding: &Binding,
    policy: &Policy,
    collateral: &dyn CollateralSource,
    floor: &Floor,
    now: u64,
) -> Outcome<D> {
    examine::<D>(&Case {
        evidence,
        report_data: binding.report_data(),
        transcript: binding.transcript(),
        policy,
        collateral,
        floor,
        now,
    })
}

/// One piece of evidence and all that it is judged by.
pub(crate) struct Case<'a> {
    pub(crate) evidence: &'a Evidence,
    /// What the hardware must have stated, by what this side saw.
    pub(crate) report_data: &'a [u8; 64],
    /// SHA-256 of that; what an Azure TPM must have quoted.
    pub(crate) transcript: [u8; 32],
    pub(crate) policy: &'a Policy,
    pub(crate) collateral: &'a dyn CollateralSource,
    pub(crate) floor: &'a Floor,
    pub(crate) now: u64,
}

/// What one kind of evidence came to.
#[derive(Default)]
pub(crate) struct Examined {
    pub(crate) factors: Vec<Factor>,
    pub(crate) measured: Option<Measured>,
    pub(crate) intel: Option<Claims>,
}

pub(crate) fn examine<D: Anchor>(case: &Case<'_>) -> Outcome<D> {
    let Case { evidence, policy, .. } = *case;
    let tee = tee(evidence);
    let mut factors = vec![case.version(), sizes(evidence), platform(tee, policy)];
    let mut examined = Examined::default();
    if factors.iter().all(Factor::holds) {
        examined = match tee {
            Some(Tee::Tdx) => intel::examine::<D>(case, &evidence.quote, case.report_data, false),
            Some(Tee::SevSnp) => amd::examine::<D>(case, &evidence.quote, case.report_data),
            Some(Tee::AzureTdx) => azure::examine::<D>(case, crate::azure::Hardware::Tdx),
            Some(Tee::AzureSevSnp) => azure::examine::<D>(case, crate::azure::Hardware::SevSnp),
            None => Examined::default(),
        };
    }
    factors.append(&mut examined.factors);
    factors.extend(case.values());
    factors.push(case.policy_version());
    let report = Report {
        domain: domain::<D>(tee),
        platform: tee.map_or("unknown", Tee::name).to_owned(),
        verdict: Verdict::of(&factors),
        checked_at: case.now,
        transcript: Hex(case.transcript),
        policy_version: policy.rules().version,
        policy_digest: policy.digest(),
        measured: examined.measured,
        intel: examined.intel,
        runtime: evidence.values.as_ref().map(RuntimeShown::of),
        factors,
    };
    let bound = report.factor(BINDING).is_some_and(|factor| factor.outcome == Held::Pass);
    let values = evidence.values.clone().filter(|_| bound && report.verdict == Verdict::Accepted);
    let verified = values.map(|values| Verified {
        report: report.clone(),
        values,
        transcript: case.transcript,
        domain: PhantomData,
    });
    Outcome { report, verified }
}

/// Code of the one factor without which nothing is accepted.
pub(crate) const BINDING: &str = "binding.report_data";

/// Compares report data, in constant time.
pub(crate) fn bound(expected: &[u8; 64], found: &[u8; 64]) -> Factor {
    let same = bool::from(expected.ct_eq(found));
    let found = if same { "so it is".to_owned() } else { format!("{}, which is about something else", Hex(*found)) };
    Factor::judged(BINDING, same, "about this connection: its nonce, TLS session, certificate and values", found)
}

fn tee(evidence: &Evidence) -> Option<Tee> {
    match Platform::try_from(evidence.platform) {
        Ok(Platform::Tdx) => Some(Tee::Tdx),
        Ok(Platform::SevSnp) => Some(Tee::SevSnp),
        Ok(Platform::AzureTdx) => Some(Tee::AzureTdx),
        Ok(Platform::AzureSevSnp) => Some(Tee::AzureSevSnp),
        Ok(Platform::Unspecified) | Err(_) => None,
    }
}

fn domain<D: Anchor>(tee: Option<Tee>) -> String {
    let root = match tee {
        Some(Tee::Tdx | Tee::AzureTdx) => "Intel root",
        Some(Tee::SevSnp | Tee::AzureSevSnp) => "AMD root",
        None => "no root",
    };
    D::BANNER.map_or_else(|| format!("HARDWARE ({root})"), ToOwned::to_owned)
}

/// Caps of the parts of evidence, in bytes.
const CAPS: [(&str, usize); 3] =
    [("quote", crate::tdx::MAX_QUOTE), ("event_log", crate::eventlog::MAX_EVENT_LOG), ("certificates", 64 << 10)];
/// Caps of the parts of Azure's evidence, in bytes.
const AZURE_CAPS: [(&str, usize); 4] =
    [("hcl_report", 32 << 10), ("tpm_quote", 4 << 10), ("tpm_signature", 4 << 10), ("pcrs", 24 * 32)];

fn sizes(evidence: &Evidence) -> Factor {
    let parts = [evidence.quote.len(), evidence.event_log.len(), evidence.certificates.len()];
    let azure = evidence.azure.iter().flat_map(|azure| {
        let parts = [azure.hcl_report.len(), azure.tpm_quote.len(), azure.tpm_signature.len(), azure.pcrs.len()];
        AZURE_CAPS.into_iter().zip(parts)
    });
    let too_large = CAPS.into_iter().zip(parts).chain(azure).find(|((_, most), found)| found > most);
    let found = too_large.map(|((name, most), found)| format!("{name} of {found} bytes, expected {most} at most"));
    Factor::judged(
        "evidence.sizes",
        found.is_none(),
        "every part within its cap",
        found.as_deref().unwrap_or("so it is"),
    )
}

fn platform(tee: Option<Tee>, policy: &Policy) -> Factor {
    let accepted = &policy.rules().platforms;
    Factor::judged(
        "platform.accepted",
        tee.is_some_and(|tee| accepted.contains(&tee)),
        crate::hex::one_of(accepted),
        tee.map_or("unknown", Tee::name),
    )
}
