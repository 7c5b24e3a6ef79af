//! Whether a quote's signatures hold and its platform is good enough.

use super::{
    engine::{self, Claims, Debug, Fault, Kind},
    quote::Quote,
    tcb,
};
use crate::{collateral::CollateralSource, collateral::dates, factor::Factor, hex::HexBytes, policy};

/// What a quote is judged by.
#[derive(Clone)]
pub struct Appraisal<'a> {
    /// Section `[tcb]` of the policy.
    pub tcb: &'a policy::Tcb,
    /// The accepted machines; any if `None`.
    pub ppid: Option<&'a [HexBytes]>,
    /// Where collateral comes from.
    pub collateral: &'a dyn CollateralSource,
    /// DER of the root; Intel's if `None`.
    pub root: Option<Vec<u8>>,
    /// Lowest evaluation number that was accepted before; 0 if none was.
    pub eval_floor: u32,
    /// Seconds since 1970, by the clock of whoever verifies.
    pub now: u64,
}

/// How a quote was judged.
#[derive(Clone, Debug)]
pub struct Findings {
    /// Every factor, in the order of the check.
    pub factors: Vec<Factor>,
    /// What the signatures prove, if they prove anything.
    pub claims: Option<Claims>,
}

/// Every factor of this part, in the order of the check, with what it asks for.
const CHECKS: [(&str, &str); 15] = [
    ("collateral.match", "collateral for this platform"),
    ("collateral.validity", "collateral that is valid now"),
    ("collateral.signature", "TCB info and QE identity signed below the root"),
    ("pck.chain", "a PCK certificate that leads to the root"),
    ("pck.revocation", "revocation lists that name no certificate of the chain"),
    ("quote.signature", "a TD report signed by the quoting enclave"),
    ("td.sound", "no debugging, profiling, migration or service domain; SEPT_VE_DISABLE"),
    ("collateral.age", ""),
    ("collateral.eval_number", ""),
    ("tcb.platform", ""),
    ("tcb.qe", ""),
    ("tcb.module", ""),
    ("tcb.advisories", ""),
    ("platform.flags", ""),
    ("platform.ppid", ""),
];
/// Those of [`CHECKS`] that hold as soon as there are claims.
const PROVEN: usize = 6;

/// Judges the signatures and the platform of a quote. Its report data and measurements are judged elsewhere.
#[must_use]
pub fn judge(quote: &Quote, appraisal: &Appraisal<'_>) -> Findings {
    match proven(quote, appraisal) {
        Ok(findings) => findings,
        Err(fault) => Findings { factors: ended(&fault), claims: None },
    }
}

fn proven(quote: &Quote, appraisal: &Appraisal<'_>) -> Result<Findings, Fault> {
    let unusable = |text| Fault { code: "collateral.match", kind: Kind::Collateral, text };
    let key = engine::needs(quote).map_err(|error| Fault {
        code: "pck.chain",
        kind: Kind::Evidence,
        text: error.to_string(),
    })?;
    let collateral = appraisal.collateral.tdx(&key).map_err(|error| unusable(error.to_string()))?;
    let dates = dates(&collateral).map_err(unusable)?;
    if dates.fmspc != key.fmspc {
        return Err(unusable(format!("collateral is for FMSPC {}, the platform is of {}", dates.fmspc, key.fmspc)));
    }
    let check = |debug| engine::verify(quote.bytes(), collateral.clone(), appraisal.root.clone(), appraisal.now, debug);
    let (claims, unsound) = match check(Debug::Refused) {
        Ok(claims) => (claims, None),
        Err(fault) if fault.is_about_domain() => match check(Debug::Described) {
            Ok(claims) => (claims, Some(fault.text)),
            Err(other) if other.is_about_domain() => return Err(Fault { code: "td.sound", ..fault }),
            Err(other) => return Err(other),
        },
        Err(fault) => return Err(fault),
    };
    let mut factors: Vec<Factor> =
        CHECKS.iter().take(PROVEN).map(|(code, expected)| Factor::judged(code, true, *expected, "so it is")).collect();
    let (sound, found) = (unsound.is_none(), unsound.unwrap_or_else(|| "so it is".to_owned()));
    factors.push(Factor::judged("td.sound", sound, expected("td.sound"), found));
    factors.extend(tcb::judge(quote, &collateral, &dates, &claims, appraisal));
    Ok(Findings { factors, claims: Some(claims) })
}

/// The one factor that ended the check, and the others as not looked at.
fn ended(fault: &Fault) -> Vec<Factor> {
    let known = CHECKS.iter().any(|(code, _)| *code == fault.code);
    let alone = (!known).then_some((fault.code, ""));
    alone
        .iter()
        .chain(&CHECKS)
        .map(|&(code, expected)| match fault.kind {
            _ if code != fault.code => Factor::skipped(code, expected, format!("{} ended the check", fault.code)),
            Kind::Evidence => Factor::judged(code, false, expected, fault.text.as_str()),
            Kind::Clock | Kind::Collateral => Factor::skipped(code, expected, fault.text.as_str()),
        })
        .collect()
}

fn expected(code: &str) -> &'static str {
    CHECKS.iter().find(|(known, _)| *known == code).map_or("", |(_, expected)| expected)
}
