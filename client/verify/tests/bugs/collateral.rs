//! Collateral: how old it is, where it comes from, what it must hold, by whose clock.

use crate::{
    V4, V4_COLLATERAL,
    support::{Asked, Fixed, appraise, collateral, day, failing, file, how, quote},
};
use attest_verify::collateral::{
    Bundle, Ca, CollateralError, CollateralKey, CollateralSource, Entry, QuoteCollateralV3,
};
use attest_verify::explain::explain;
use attest_verify::factor::Outcome;
use attest_verify::hex::Hex;
use attest_verify::tdx::Quote;
use attest_verify::{Verdict, tdx};

/// Collateral whose signature holds and whose `nextUpdate` is not over is still too old, or of too old a round.
#[test]
fn bug_02_stale_collateral_that_is_correctly_signed() {
    let (quote, collateral) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let failing_with = |asked: Asked<'_>, now| failing(&appraise(&quote, &collateral, &asked.of(&quote), now).factors);
    let now = day("2025-07-18");
    assert_eq!(failing_with(Asked { hours: 1000, ..Asked::default() }, now), [""; 0]);
    assert_eq!(failing_with(Asked { hours: 168, ..Asked::default() }, now), ["collateral.age"]);
    assert_eq!(failing_with(Asked { hours: 168, ..Asked::default() }, day("2025-06-21")), [""; 0]);
    assert_eq!(failing_with(Asked { eval: 18, ..Asked::default() }, now), ["collateral.eval_number"]);
}

/// A cache that serves what is over: nothing is verified, nothing is rejected either, and the text says what to do.
#[test]
fn bug_03_expired_collateral_asks_for_new() {
    let (quote, collateral) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let findings = appraise(&quote, &collateral, &Asked::default().of(&quote), day("2025-07-20"));
    let (outcome, text) = how(&findings.factors, "collateral.validity");
    assert!(matches!(outcome, Outcome::Skipped(_)), "{outcome:?}");
    assert!(text.contains("fetch collateral anew"), "{text}");
    assert_eq!(Verdict::of(&findings.factors), Verdict::Unchecked);
}

/// Every place that was asked is named with its own error, and a bundle does without any of them.
#[test]
fn bug_04_every_endpoint_is_named_and_a_bundle_needs_none() {
    struct Down;
    impl CollateralSource for Down {
        fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
            let tried = ["one", "two", "three"].map(|name| (format!("https://{name}"), format!("{name} is down")));
            Err(CollateralError { wanted: key.to_string(), tried: tried.to_vec() })
        }
    }
    let quote = quote(V4).unwrap();
    let policy = Asked::default().of(&quote);
    let findings = appraise(&quote, &Down, &policy, day("2025-07-01"));
    let (_, text) = how(&findings.factors, "collateral.match");
    for part in ["https://one: one is down", "https://two: two is down", "https://three: three is down", "b0c06f000000"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(Verdict::of(&findings.factors).exit_code(), 3);
    let mut bundle = Bundle::default();
    let CollateralKey { fmspc, ca } = tdx::needs(&quote).unwrap();
    bundle.put(Entry { fmspc, ca, collateral: collateral(V4_COLLATERAL).unwrap().0, fetched_at: 0 });
    assert!(failing(&appraise(&quote, &bundle, &policy, day("2025-07-01")).factors).is_empty());
}

/// Collateral is found by the bytes of an FMSPC, whichever case its digits are in.
#[test]
fn bug_11_an_fmspc_is_bytes() {
    let Fixed(held) = collateral(V4_COLLATERAL).unwrap();
    let quote = quote(V4).unwrap();
    let key = tdx::needs(&quote).unwrap();
    let mut bundle = Bundle::default();
    bundle.put(Entry { fmspc: key.fmspc, ca: key.ca, collateral: held, fetched_at: 0 });
    for text in [bundle.to_json().unwrap(), bundle.to_json().unwrap().replace("b0c06f000000", "B0c06F000000")] {
        let bundle = Bundle::parse(text.as_bytes()).unwrap();
        assert!(
            failing(&appraise(&quote, &bundle, &Asked::default().of(&quote), day("2025-07-01")).factors).is_empty()
        );
    }
    assert_eq!(Hex::<6>::parse("B0C06F000000").unwrap(), key.fmspc);
    assert_eq!(key.ca, Ca::Platform);
}

/// Without revocation lists, or with those of others, nothing is verified. (That a revoked certificate is refused needs
/// an authority that revokes one: see the simulator's tests.)
#[test]
fn bug_25_revocation_cannot_be_left_out() {
    let (quote, good) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let policy = Asked::default().of(&quote);
    let sgx: QuoteCollateralV3 =
        serde_json::from_slice(&file("dcap-qvl-crate/sgx_quote_collateral.json").unwrap()).unwrap();
    let changes: [fn(&mut QuoteCollateralV3, &QuoteCollateralV3); 5] = [
        |held, _| held.pck_crl.clear(),
        |held, _| held.root_ca_crl.clear(),
        |held, _| held.pck_crl = held.root_ca_crl.clone(),
        |held, _| held.root_ca_crl = held.pck_crl.clone(),
        |held, other| held.pck_crl = other.pck_crl.get(..100).unwrap().to_vec(),
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut held = good.clone();
        change(&mut held.0, &sgx);
        let findings = appraise(&quote, &held, &policy, day("2025-07-01"));
        assert!(findings.claims.is_none(), "change {at}");
        assert!(failing(&findings.factors).contains(&"pck.revocation"), "change {at}");
        assert!(findings.factors.iter().all(|factor| factor.outcome != Outcome::Pass));
    }
}

/// The time is the verifier's own: the guest's `not_after` is judged by it, and a wrong clock says so.
#[test]
fn bug_28_the_clock_is_the_verifiers() {
    let (quote, collateral) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    for date in ["2025-06-18", "2025-07-21", "2001-01-01", "2099-01-01"] {
        let findings = appraise(&quote, &collateral, &Asked::default().of(&quote), day(date));
        let (outcome, text) = how(&findings.factors, "collateral.validity");
        assert!(matches!(outcome, Outcome::Skipped(_)), "{date}: {outcome:?}");
        assert!(text.contains("check the clock"), "{date}: {text}");
        assert_eq!(Verdict::of(&findings.factors), Verdict::Unchecked);
    }
}

/// Lists of components that are too long or too short, another vendor's quoting enclave, and no panic.
#[test]
fn bug_30_odd_collateral_and_another_vendor() {
    let (quote, good) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let policy = Asked::default().of(&quote);
    let component = r#"{"svn":"#;
    for (from, to) in [
        ("\"sgxtcbcomponents\":[", "\"sgxtcbcomponents\":[{\"svn\":1},"),
        ("\"tdxtcbcomponents\":[", "\"tdxtcbcomponents\":[{\"svn\":1},"),
        (component, "{\"svn\":999,\"x\":"),
    ] {
        let mut odd = good.clone();
        odd.0.tcb_info = good.0.tcb_info.replace(from, to);
        assert_ne!(odd.0.tcb_info, good.0.tcb_info, "{from}");
        let findings = appraise(&quote, &odd, &policy, day("2025-07-01"));
        assert!(findings.claims.is_none());
        // An explanation of unsigned collateral says something or nothing; it does not end the program.
        let _ = explain(&quote, &odd.0);
    }
    const VENDOR: usize = 12;
    let mut bytes = file(V4).unwrap();
    bytes[VENDOR] ^= 1;
    let other = Quote::parse(&bytes).unwrap();
    let findings = appraise(&other, &good, &policy, day("2025-07-01"));
    assert!(how(&findings.factors, "tcb.qe").1.contains("vendor is not Intel"));
}

/// What is unmaintained is not in the build.
#[test]
fn bug_32_bincode_is_not_used() {
    let lock = include_str!("../../../../Cargo.lock");
    assert!(lock.contains("name = \"attest-verify\""));
    assert!(!lock.contains("name = \"bincode\""));
    // Nor is the one feature of the engine that would let TCB info be edited after its signature was checked.
    let manifest = include_str!("../../../../Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with("dcap-qvl =")).unwrap();
    assert!(line.contains("default-features = false") && !line.contains("danger"), "{line}");
}
