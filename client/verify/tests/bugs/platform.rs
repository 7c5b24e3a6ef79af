//! Platforms: verdicts, modules, domains under debug.

use crate::{
    COS, GCP_COLLATERAL, OLD, OLD_COLLATERAL, V4, V5, V5_COLLATERAL,
    support::{Asked, appraise, collateral, day, failing, file, how, quote},
};
use attest_verify::explain::explain;
use attest_verify::factor::Outcome;
use attest_verify::policy::Status;
use attest_verify::tdx::{Quote, judge_domain};
use attest_verify::{Policy, Verdict};

/// A new round of updates leaves a node behind overnight: it is refused with an explanation, and a grace period keeps it.
#[test]
fn bug_01_a_tcb_recovery_is_explained_and_graced() {
    let (Some(quote), Some(collateral)) = (quote(COS), collateral(GCP_COLLATERAL)) else { return };
    let now = day("2026-07-05");
    let findings = appraise(&quote, &collateral, &Asked::default().of(&quote), now);
    let (outcome, found) = how(&findings.factors, "tcb.platform");
    assert_eq!(*outcome, Outcome::Fail);
    assert!(found.starts_with("OutOfDate, level of 20"), "{found}");
    let text = explain(&quote, &collateral.0).unwrap().to_string();
    assert!(text.contains("needs") && text.contains("raised by") && text.contains("INTEL-SA-"), "{text}");
    let graced =
        Asked { accept: r#""UpToDate", "OutOfDate""#, grace: "OutOfDate = 3650", ..Asked::default() }.of(&quote);
    assert!(failing(&appraise(&quote, &collateral, &graced, now).factors).is_empty());
}

/// With TDX 1.5 the second SVN selects the module: both kinds of newer reports match their level.
#[test]
fn bug_05_the_second_svn_selects_the_module() {
    for (name, with, date) in
        [(V5, V5_COLLATERAL, "2026-10-20"), ("go-tdx-guest/quote_v5_sample.dat", OLD_COLLATERAL, "2026-03-01")]
    {
        let Some(quote) = quote(name) else { continue };
        let (launch, current) = quote.tee_tcb_svn();
        assert!(launch[1] > 0 && current.is_some(), "{name}");
        let findings = appraise(&quote, &collateral(with).unwrap(), &Asked::default().of(&quote), day(date));
        assert_eq!(failing(&findings.factors), [""; 0], "{name}");
        let (outcome, found) = how(&findings.factors, "tcb.module");
        assert_eq!(*outcome, Outcome::Pass);
        assert!(found.starts_with(&format!("TDX_{:02X} UpToDate", launch[1])), "{found}");
    }
}

/// A platform below every level gets a sentence, not a code.
#[test]
fn bug_06_below_every_level_is_said_clearly() {
    let (quote, collateral) = (quote(OLD).unwrap(), collateral(OLD_COLLATERAL).unwrap());
    let findings = appraise(&quote, &collateral, &Asked::default().of(&quote), day("2026-03-01"));
    let (outcome, text) = how(&findings.factors, "tcb.platform");
    assert_eq!(*outcome, Outcome::Fail);
    assert!(text.contains("below every level that Intel lists"), "{text}");
    let explanation = explain(&quote, &collateral.0).unwrap();
    assert!(explanation.reached.is_none() && !explanation.behind.is_empty());
}

/// The module's identity is part of the verdict, and a module that it does not list is refused.
#[test]
fn bug_07_the_modules_identity_counts() {
    let (quote, good) = (quote(V5).unwrap(), collateral(V5_COLLATERAL).unwrap());
    let policy = Asked::default().of(&quote);
    let findings = appraise(&quote, &good, &policy, day("2026-10-20"));
    assert_eq!(*how(&findings.factors, "tcb.module").0, Outcome::Pass);
    // Without the list of modules Intel's signature no longer holds: nobody can drop it on the way.
    let mut stripped = good.clone();
    stripped.0.tcb_info = good.0.tcb_info.replace("tdxModuleIdentities", "tdxModuleIdentitiez");
    assert_ne!(stripped.0.tcb_info, good.0.tcb_info);
    let findings = appraise(&quote, &stripped, &policy, day("2026-10-20"));
    assert!(findings.claims.is_none());
    assert!(how(&findings.factors, "collateral.signature").1.contains("tcb_info"));
}

/// Every status is judged by the policy, the worse of platform and quoting enclave counts, and `Revoked` never passes.
#[test]
fn bug_08_a_status_that_is_not_listed_is_refused() {
    let Some(quote) = quote(COS) else { return };
    let Some(collateral) = collateral(GCP_COLLATERAL) else { return };
    for status in Status::ALL {
        let accept = format!("\"{status}\", \"UpToDate\"");
        let grace = format!("{status} = 3650");
        let text = Asked { accept: &accept, grace: &grace, ..Asked::default() }.text(&quote);
        if status == Status::Revoked {
            assert!(Policy::parse(&text).unwrap_err().to_string().contains("never accepted"));
            continue;
        }
        let text = text.replace("\"UpToDate\", \"UpToDate\"", "\"UpToDate\"");
        let findings = appraise(&quote, &collateral, &Policy::parse(&text).unwrap(), day("2026-07-05"));
        assert_eq!(findings.claims.as_ref().unwrap().status, Status::OutOfDate);
        let accepted = *how(&findings.factors, "tcb.platform").0 == Outcome::Pass;
        assert_eq!(accepted, status == Status::OutOfDate, "{status}");
    }
}

/// A domain under debug is refused in every build, and no policy can allow it.
#[test]
fn bug_18_a_domain_under_debug() {
    let mut bytes = file(V4).unwrap();
    const ATTRIBUTES: usize = 48 + 120;
    bytes[ATTRIBUTES] |= 1;
    let quote = Quote::parse(&bytes).unwrap();
    let policy = Asked::default().of(&quote);
    let factors = judge_domain(&quote, policy.rules().td.as_ref().unwrap());
    assert_eq!(failing(&factors), ["td.debug_off", "td.attributes"]);
    let asks = Asked::default().text(&quote).replace("[td]", "[td]\nattributes = \"0100001000000000\"");
    assert!(Policy::parse(&asks).unwrap_err().to_string().contains("debug"));

    let name = "go-tdx-guest/assembled_collateral_50806f000000_2023-06.json";
    let (Some(real), Some(collateral)) = (crate::support::quote("coco-trustee/tdx_quote_4.dat"), collateral(name))
    else {
        return;
    };
    let findings = appraise(&real, &collateral, &Asked::default().of(&real), day("2023-07-05"));
    assert_eq!(failing(&findings.factors), ["td.sound"]);
    assert_eq!(Verdict::of(&findings.factors), Verdict::Rejected);
}

/// MRSEAM is shown and never judged: no policy can name it.
#[test]
fn bug_29_the_module_is_not_pinned() {
    const MR_SEAM: usize = 48 + 16;
    let plain = file(V4).unwrap();
    let recorded = Quote::parse(&plain).unwrap();
    let policy = Asked::default().of(&recorded);
    let td = policy.rules().td.as_ref().unwrap();
    let mut bytes = plain.clone();
    bytes[MR_SEAM] ^= 1;
    let updated = Quote::parse(&bytes).unwrap();
    assert_ne!(updated.measurements().mr_seam, recorded.measurements().mr_seam);
    for quote in [recorded, updated] {
        let factors = judge_domain(&quote, td);
        assert!(failing(&factors).is_empty());
        let (outcome, found) = how(&factors, "mr.seam");
        assert_eq!((outcome, found), (&Outcome::Noted, quote.measurements().mr_seam.to_string().as_str()));
    }
    let text = Asked::default().text(&crate::support::quote(V4).unwrap());
    for section in ["[td]", "[tcb]"] {
        assert!(Policy::parse(&text.replace(section, &format!("{section}\nmr_seam = \"00\""))).is_err());
    }
}
