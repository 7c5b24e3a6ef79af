//! What went wrong in other attestation software, each as a test of ours. The numbers are those of the table in
//! `SECURITY.md`.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "support/vectors.rs"]
mod support;

use attest_verify::{
    Floor, Policy, Verdict,
    collateral::{Bundle, Ca, CollateralError, CollateralKey, CollateralSource, Entry, QuoteCollateralV3},
    eventlog::{EventLog, replay},
    explain::explain,
    factor::Outcome,
    hex::Hex,
    policy::Status,
    tdx::{self, Appraisal, Quote, QuoteError, judge, judge_domain, judge_registers},
    verify,
};
use proto::v1::{Evidence, Platform, RuntimeEvent, RuntimeValues};
use support::{Asked, Fixed, appraise, collateral, day, failing, file, how, quote};

const V4: &str = "dcap-qvl-crate/tdx_quote";
const V4_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_collateral.json";
const V5: &str = "dcap-qvl-crate/tdx_quote_td15ex";
const V5_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_td15ex_collateral.json";
const OLD: &str = "dcap-qvl-crate/tdx_quote_outdated";
const OLD_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_outdated_collateral.json";
const GCP_COLLATERAL: &str = "flashbots-attested-tls/json/gcp_00806f050000_2026-06-30.json";
const COS: &str = "go-tdx-guest/cos-113-tdx-quote.dat";

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

/// Report data is read where each version has it.
#[test]
fn bug_09_report_data_of_version_5_is_not_at_the_offset_of_version_4() {
    const BODY_HEADER: usize = 6;
    for (name, shift) in [(V4, 0), (V5, BODY_HEADER), (OLD, BODY_HEADER)] {
        let (bytes, quote) = (file(name).unwrap(), quote(name).unwrap());
        let there = bytes.get(tdx::REPORT_DATA.start + shift..tdx::REPORT_DATA.end + shift).unwrap();
        assert_eq!(quote.report_data(), there, "{name}");
        assert_eq!(quote.version() == 5, shift > 0);
    }
}

/// Offsets, against bytes read by hand from the specification's table: TD quote body, header of 48 bytes before it.
#[test]
fn bug_10_the_measurement_is_not_the_report_data() {
    for (name, base) in [(V4, 48), (V5, 54)] {
        let bytes = file(name).unwrap();
        let quote = Quote::parse(&bytes).unwrap();
        let field = |at: usize, length: usize| bytes.get(base + at..base + at + length).unwrap();
        let m = quote.measurements();
        assert_eq!(m.mr_seam.0, field(16, 48));
        assert_eq!(m.attributes.0, field(120, 8));
        assert_eq!(m.xfam.0, field(128, 8));
        assert_eq!(m.mr_td.0, field(136, 48));
        for (register, found) in m.rtmr.iter().enumerate() {
            assert_eq!(found.0, field(328 + 48 * register, 48));
        }
        let mut other = bytes.clone();
        for byte in other.iter_mut().skip(base + 520).take(64) {
            *byte = !*byte;
        }
        let other = Quote::parse(&other).unwrap();
        assert_eq!(other.measurements(), m, "the measurement moved with the nonce");
        assert_ne!(other.report_data(), quote.report_data());
    }
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

/// A quote without its certificate chain is refused by a sentence about that.
#[test]
fn bug_12_certification_data_of_another_type() {
    let mut bytes = file(V4).unwrap();
    // The chain is PEM; its type and length are the 6 bytes before.
    let pem = bytes.windows(10).position(|window| window == b"-----BEGIN").unwrap();
    assert_eq!(bytes.get(pem - 6..pem - 4).unwrap(), [5, 0]);
    for found in [1, 2, 3, 4, 6, 7] {
        bytes[pem - 6] = found;
        let error = Quote::parse(&bytes).unwrap_err();
        assert_eq!(error, QuoteError::CertData { found: found.into() });
        assert!(error.to_string().contains("expected 5, a PCK certificate chain"), "{error}");
    }
}

/// All 64 bytes are compared: nothing shorter is padded to fit.
#[test]
fn bug_13_report_data_is_compared_whole() {
    let values = RuntimeValues::default();
    let parts = attest::binding::Parts { nonce: &[1; 32], exporter: &[2; 32], spki: &[3; 32], values: &values };
    let binding = attest::Binding::new::<attest::Hardware>(parts);
    let plain = file(V4).unwrap();
    let policy = Asked::default().of(&quote(V4).unwrap());
    let outcome = |change: Option<usize>| {
        let mut bytes = plain.clone();
        bytes[tdx::REPORT_DATA].copy_from_slice(binding.report_data());
        if let Some(at) = change {
            bytes[tdx::REPORT_DATA.start + at] = 0;
            assert_ne!(binding.report_data()[at], 0, "pick another byte");
        }
        let evidence = Evidence {
            version: attest::VERSION,
            platform: Platform::Tdx.into(),
            quote: bytes.into(),
            values: Some(values.clone()),
            ..Evidence::default()
        };
        let collateral = collateral(V4_COLLATERAL).unwrap();
        let outcome =
            verify::<attest::Hardware>(&evidence, &binding, &policy, &collateral, &Floor::default(), day("2025-07-01"));
        assert!(outcome.verified.is_none(), "the signature does not hold");
        outcome.report.factor("binding.report_data").unwrap().outcome.clone()
    };
    assert_eq!(outcome(None), Outcome::Pass);
    for at in (0..64).filter(|&at| binding.report_data()[at] != 0) {
        assert_eq!(outcome(Some(at)), Outcome::Fail, "byte {at}");
    }
}

/// Entries of register index -1 that say something and extend nothing, and an RTMR3 that no log explains.
#[test]
fn bug_14_odd_event_logs() {
    let Some(log) = file("go-tdx-guest/ccel_data.dat") else { return };
    let Some(quote) = quote(COS) else { return };
    let written = log.iter().rposition(|&byte| byte != 0xff).unwrap() + 1;
    let mut odd = log.get(..written).unwrap().to_vec();
    for index in [u32::MAX, 0, 1] {
        odd.extend(index.to_le_bytes());
        odd.extend(3u32.to_le_bytes());
        odd.extend(1u32.to_le_bytes());
        odd.extend([0x0c, 0]);
        odd.extend([9; 48]);
        odd.extend(0u32.to_le_bytes());
    }
    odd.extend([0xff; 64]);
    let parsed = EventLog::parse(&odd).unwrap();
    assert_eq!(parsed.replay(), quote.measurements().rtmr);
    // A register that is not zero, and no log of the runtime.
    let extended = with_rtmr3(&[RuntimeEvent { name: "x".to_owned(), payload: vec![1].into() }]);
    let policy = Asked::default().of(&support::quote(V4).unwrap());
    let factors = judge_registers(&extended, policy.rules(), &Evidence::default(), false);
    assert_eq!(failing(&factors), ["mr.rtmr3"]);
}

/// A recorded quote whose RTMR3 is what these events make it. Its signature is not looked at.
fn with_rtmr3(events: &[RuntimeEvent]) -> Quote {
    const RTMR3: usize = 48 + 472;
    let mut bytes = file(V4).unwrap();
    bytes[RTMR3..RTMR3 + 48].copy_from_slice(&replay(events).unwrap().0);
    Quote::parse(&bytes).unwrap()
}

/// Logs that explain a register perfectly change nothing about what the policy wants of it.
#[test]
fn bug_15_expected_values_come_from_the_policy_alone() {
    let events = [RuntimeEvent { name: "evil".to_owned(), payload: vec![1].into() }];
    let quote = with_rtmr3(&events);
    let replayed = quote.measurements().rtmr[3];
    assert_eq!(replay(&events).unwrap(), replayed);
    let evidence = Evidence { runtime_log: events.to_vec(), ..Evidence::default() };
    let policy = Asked::default().of(&support::quote(V4).unwrap());
    assert_eq!(failing(&judge_registers(&quote, policy.rules(), &evidence, false)), ["mr.rtmr3"]);

    let (Some(recorded), Some(log)) = (support::quote(COS), file("go-tdx-guest/ccel_data.dat")) else { return };
    let rtmr0 = recorded.measurements().rtmr[0].to_string();
    let text = Asked::default().text(&recorded).replace(&rtmr0, &"ab".repeat(48));
    let evidence = Evidence { event_log: log.into(), ..Evidence::default() };
    let factors = judge_registers(&recorded, Policy::parse(&text).unwrap().rules(), &evidence, false);
    assert_eq!(failing(&factors), ["mr.rtmr0"]);
    assert_eq!(*how(&factors, "eventlog.replay").0, Outcome::Pass);
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
    let (Some(real), Some(collateral)) = (support::quote("coco-trustee/tdx_quote_4.dat"), collateral(name)) else {
        return;
    };
    let findings = appraise(&real, &collateral, &Asked::default().of(&real), day("2023-07-05"));
    assert_eq!(failing(&findings.factors), ["td.sound"]);
    assert_eq!(Verdict::of(&findings.factors), Verdict::Rejected);
}

/// Sizes are looked at before anything is parsed, and nothing in a log says how much memory to take.
#[test]
fn bug_19_sizes_before_parsing() {
    let base = Evidence { version: attest::VERSION, platform: Platform::Tdx.into(), ..Evidence::default() };
    let values = RuntimeValues::default();
    let parts = attest::binding::Parts { nonce: &[1; 32], exporter: &[2; 32], spki: &[3; 32], values: &values };
    let binding = attest::Binding::new::<attest::Hardware>(parts);
    let policy = Asked::default().of(&quote(V4).unwrap());
    for evidence in [
        Evidence { quote: vec![0; (64 << 10) + 1].into(), ..base.clone() },
        Evidence { event_log: vec![0; (1 << 20) + 1].into(), ..base.clone() },
        Evidence { certificates: vec![0; (64 << 10) + 1].into(), ..base.clone() },
    ] {
        let outcome =
            verify::<attest::Hardware>(&evidence, &binding, &policy, &Bundle::default(), &Floor::default(), 1);
        assert_eq!(outcome.report.factor("evidence.sizes").unwrap().outcome, Outcome::Fail);
        assert!(outcome.report.factor("quote.parse").is_none(), "it was parsed");
    }
    // A length of 4 GiB in a log of 100 bytes.
    let mut log = [1u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    log.extend([0; 20]);
    log.extend(u32::MAX.to_le_bytes());
    log.resize(100, 0);
    assert!(EventLog::parse(&log).unwrap_err().to_string().contains("event size"));
    assert!(replay(&vec![RuntimeEvent::default(); 65]).is_err());
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
    let text = Asked::default().text(&support::quote(V4).unwrap());
    for section in ["[td]", "[tcb]"] {
        assert!(Policy::parse(&text.replace(section, &format!("{section}\nmr_seam = \"00\""))).is_err());
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
    let lock = include_str!("../../../Cargo.lock");
    assert!(lock.contains("name = \"attest-verify\""));
    assert!(!lock.contains("name = \"bincode\""));
    // Nor is the one feature of the engine that would let TCB info be edited after its signature was checked.
    let manifest = include_str!("../../../Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with("dcap-qvl =")).unwrap();
    assert!(line.contains("default-features = false") && !line.contains("danger"), "{line}");
}

/// A root that is not a certificate verifies nothing.
#[test]
fn another_root_verifies_nothing() {
    let (quote, collateral) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let policy = Asked::default().of(&quote);
    let tcb = policy.rules().tcb.as_ref().unwrap();
    let root = Some(vec![0x30, 0]);
    let appraisal = Appraisal { tcb, ppid: None, collateral: &collateral, root, eval_floor: 0, now: day("2025-07-01") };
    assert!(judge(&quote, &appraisal).claims.is_none());
}
