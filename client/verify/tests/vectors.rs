//! Every recorded quote, with its collateral and its day, through our own policy.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "support/vectors.rs"]
mod support;

use attest_verify::{
    Factor,
    collateral::{Bundle, Ca, CollateralKey, CollateralSource as _, Entry},
    eventlog::EventLog,
    explain::explain,
    factor::Outcome,
    hex::Hex,
    policy::Status,
    tdx::{self, Quote, judge_domain, judge_registers},
};
use proto::v1::Evidence;
use support::{Asked, Fixed, appraise, collateral, day, failing, file, how, quote};

const V4: &str = "dcap-qvl-crate/tdx_quote";
const V4_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_collateral.json";
const V5: &str = "dcap-qvl-crate/tdx_quote_td15ex";
const V5_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_td15ex_collateral.json";
const OLD: &str = "dcap-qvl-crate/tdx_quote_outdated";
const OLD_COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_outdated_collateral.json";
const GCP: &str = "flashbots-attested-tls/gcp-tdx-1782809233226668671";
const GCP_COLLATERAL: &str = "flashbots-attested-tls/json/gcp_00806f050000_2026-06-30.json";
const AZURE: &str = "flashbots-attested-tls/json/azure-tdx-1764662251380464271.quote.bin";
const COS: &str = "go-tdx-guest/cos-113-tdx-quote.dat";
const DEBUG: &str = "coco-trustee/tdx_quote_4.dat";

/// Judged, as far as the files are there.
fn judged(quote_name: &str, collateral_name: &str, date: &str, asked: &Asked<'_>) -> Option<(Quote, tdx::Findings)> {
    let (quote, collateral) = (quote(quote_name)?, collateral(collateral_name)?);
    let findings = appraise(&quote, &collateral, &asked.of(&quote), day(date));
    Some((quote, findings))
}

#[test]
fn what_is_up_to_date_is_accepted() {
    let mut accepted = 0;
    for (name, with, date, eval, version, kind) in [
        (V4, V4_COLLATERAL, "2025-07-01", 17, 4, "TD10"),
        (V5, V5_COLLATERAL, "2026-10-20", 20, 5, "TD15Ex"),
        ("go-tdx-guest/quote_v5_sample.dat", OLD_COLLATERAL, "2026-03-01", 18, 5, "TD15"),
        (GCP, GCP_COLLATERAL, "2026-07-05", 19, 4, "TD10"),
        (AZURE, "flashbots-attested-tls/json/azure_90c06f000000_2026-02-18.json", "2026-03-01", 18, 4, "TD10"),
        (AZURE, "attestation-rs/assembled_collateral_90c06f000000.json", "2026-03-25", 18, 4, "TD10"),
    ] {
        let Some((quote, findings)) = judged(name, with, date, &Asked { eval, ..Asked::default() }) else { continue };
        assert_eq!(failing(&findings.factors), [""; 0], "{name}: {:#?}", findings.factors);
        let claims = findings.claims.unwrap();
        assert_eq!((claims.status, claims.eval_number), (Status::UpToDate, eval), "{name}");
        assert_eq!((quote.version(), quote.kind()), (version, kind), "{name}");
        accepted += 1;
    }
    assert!(accepted >= 2);
}

#[test]
fn each_limit_of_the_policy_counts() {
    let refused = |asked: Asked<'_>| failing(&judged(V4, V4_COLLATERAL, "2025-07-01", &asked).unwrap().1.factors);
    assert_eq!(refused(Asked { eval: 18, ..Asked::default() }), ["collateral.eval_number"]);
    assert_eq!(refused(Asked { hours: 168, ..Asked::default() }), ["collateral.age"]);
    assert_eq!(refused(Asked { accept: "", ..Asked::default() }), ["tcb.platform", "tcb.qe", "tcb.module"]);
    let other = Asked { accept: r#""SWHardeningNeeded""#, ..Asked::default() };
    assert_eq!(refused(other), ["tcb.platform", "tcb.qe", "tcb.module"]);
    for allow in [
        "",
        "cached_keys = true, smt = true",
        "dynamic_platform = true, smt = true",
        "dynamic_platform = true, cached_keys = true",
    ] {
        assert_eq!(refused(Asked { allow, ..Asked::default() }), ["platform.flags"], "{allow}");
    }
    let ppid = judged(V4, V4_COLLATERAL, "2025-07-01", &Asked::default()).unwrap().1.claims.unwrap().ppid;
    let listed = |id: &str| refused(Asked { rest: &format!("ppid = [{id}]"), ..Asked::default() });
    assert_eq!(listed(&format!("\"{}\"", attest_verify::hex::encode(&ppid.0))), [""; 0]);
    assert_eq!(listed(""), ["platform.ppid"]);
    assert_eq!(listed(&format!("\"{}\"", "00".repeat(16))), ["platform.ppid"]);
}

#[test]
fn an_evaluation_number_that_was_seen_is_a_floor() {
    let (quote, collateral) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let policy = Asked::default().of(&quote);
    let with = |eval_floor| {
        let tcb = policy.rules().tcb.as_ref().unwrap();
        let now = day("2025-07-01");
        let findings = tdx::judge(
            &quote,
            &tdx::Appraisal { tcb, ppid: None, collateral: &collateral, root: None, eval_floor, now },
        );
        failing(&findings.factors)
    };
    assert_eq!(with(17), [""; 0]);
    assert_eq!(with(18), ["collateral.eval_number"]);
}

#[test]
fn what_is_out_of_date_needs_grace() {
    let Some((quote, findings)) = judged(COS, GCP_COLLATERAL, "2026-07-05", &Asked::default()) else { return };
    let claims = findings.claims.unwrap();
    assert_eq!((claims.status, claims.advisories.len()), (Status::OutOfDate, 7));
    assert!(failing(&findings.factors).contains(&"tcb.platform"));
    let days = (day("2026-07-05") - claims.level_date).div_ceil(86_400);
    let with = |days: u64, reject: &str| {
        let grace = format!("OutOfDate = {days}");
        let accept = r#""UpToDate", "OutOfDate""#;
        let asked = Asked { accept, grace: &grace, reject, ..Asked::default() };
        let findings = appraise(&quote, &collateral(GCP_COLLATERAL).unwrap(), &asked.of(&quote), day("2026-07-05"));
        failing(&findings.factors)
    };
    assert_eq!(with(days, ""), [""; 0]);
    assert!(with(days - 1, "").contains(&"tcb.platform"));
    let advisory = format!("\"{}\"", claims.advisories[0].to_lowercase());
    assert_eq!(with(days, &advisory), ["tcb.advisories"]);
}

#[test]
fn a_real_domain_under_debug_is_refused_and_described() {
    for (with, date, status, advisories) in [
        ("go-tdx-guest/assembled_collateral_50806f000000_2023-06.json", "2023-07-05", Status::UpToDate, 0),
        ("attestation-rs/assembled_collateral_50806f000000.json", "2026-03-25", Status::OutOfDate, 11),
    ] {
        let Some((quote, findings)) = judged(DEBUG, with, date, &Asked::default()) else { return };
        let (outcome, found) = how(&findings.factors, "td.sound");
        assert_eq!(*outcome, Outcome::Fail);
        assert!(found.contains("debug mode is enabled"), "{found}");
        let claims = findings.claims.unwrap();
        assert_eq!((claims.status, claims.advisories.len()), (status, advisories), "{with}");
        let domain = judge_domain(&quote, Asked::default().of(&quote).rules().td.as_ref().unwrap());
        assert_eq!(failing(&domain), ["td.debug_off", "td.attributes"]);
    }
}

#[test]
fn what_cannot_be_matched_or_is_not_valid_says_why() {
    for (name, with, date, code, rejected, text) in [
        (OLD, OLD_COLLATERAL, "2026-03-01", "tcb.platform", true, "below every level"),
        (V4, V4_COLLATERAL, "2026-01-01", "collateral.validity", false, "check the clock"),
        (V4, V4_COLLATERAL, "2025-06-01", "collateral.validity", false, "check the clock"),
        (V4, OLD_COLLATERAL, "2026-03-01", "collateral.match", false, "FMSPC 90c06f000000"),
        (V4, "dcap-qvl-crate/sgx_quote_collateral.json", "2025-07-01", "collateral.match", false, "expected \"TDX\""),
        (
            "coco-trustee/td-quote.bin",
            "go-tdx-guest/assembled_collateral_50806f000000_2023-06.json",
            "2023-07-05",
            "",
            true,
            "",
        ),
        (
            "flashbots-attested-tls/azure_failed_dcap_quote_10.bin",
            OLD_COLLATERAL,
            "2026-03-01",
            "tcb.platform",
            true,
            "below",
        ),
    ] {
        let Some((_, findings)) = judged(name, with, date, &Asked::default()) else { continue };
        assert!(!failing(&findings.factors).is_empty(), "{name}");
        if code.is_empty() {
            continue;
        }
        let (outcome, found) = how(&findings.factors, code);
        assert_eq!(*outcome == Outcome::Fail, rejected, "{name} {with}: {outcome:?}");
        assert!(found.contains(text), "{name} {with}: {found}");
        assert!(findings.claims.is_none());
    }
}

#[test]
fn an_sgx_quote_is_none_of_ours() {
    let error = Quote::parse(&file("dcap-qvl-crate/sgx_quote").unwrap()).unwrap_err();
    assert_eq!(error, tdx::QuoteError::Sgx);
}

#[test]
fn padding_of_zeros_is_taken_and_no_other() {
    let plain = file(V4).unwrap();
    let length = Quote::parse(&plain).unwrap().bytes().len();
    let padded = [plain.get(..length).unwrap(), &[0; 3065]].concat();
    let quote = Quote::parse(&padded).unwrap();
    assert_eq!((quote.padding(), quote.bytes()), (3065, plain.get(..length).unwrap()));
    for at in [length, length + 1, padded.len() - 1] {
        let mut other = padded.clone();
        other[at] = 1;
        assert_eq!(Quote::parse(&other).unwrap_err(), tdx::QuoteError::Trailing { found: 3065 });
    }
    let Some(gcp) = file(GCP) else { return };
    assert_eq!((gcp.len(), Quote::parse(&gcp).unwrap().padding()), (8000, 3065));
}

#[test]
fn sizes_are_capped_before_parsing() {
    assert_eq!(Quote::parse(&[]).unwrap_err(), tdx::QuoteError::Empty);
    let large = vec![0; tdx::MAX_QUOTE + 1];
    assert_eq!(Quote::parse(&large).unwrap_err(), tdx::QuoteError::Size { found: large.len() });
    let plain = file(V4).unwrap();
    for length in 0..plain.len().min(700) {
        assert!(Quote::parse(plain.get(..length).unwrap()).is_err(), "{length}");
    }
}

/// A single bit that changes may leave a quote acceptable, in its padding or in the text of its certificates, but what
/// it measures and what it is about never move. `BIFROST_EVERY_BIT=1` tries every bit.
#[test]
fn no_flipped_bit_moves_a_measurement_or_the_report_data() {
    let every = std::env::var_os("BIFROST_EVERY_BIT").is_some();
    for (name, with, date) in [(V4, V4_COLLATERAL, "2025-07-01"), (V5, V5_COLLATERAL, "2026-10-20")] {
        let (plain, collateral) = (file(name).unwrap(), collateral(with).unwrap());
        let quote = Quote::parse(&plain).unwrap();
        let policy = Asked::default().of(&quote);
        let (mut tried, mut accepted) = (0, 0);
        for bit in 0..plain.len() * 8 {
            // All of the signed part by one bit a byte, the rest sparsely.
            let sampled = if bit < 700 * 8 { bit / 8 % 4 == 0 && bit % 8 == bit / 32 % 8 } else { bit % 331 == 0 };
            if !every && !sampled {
                continue;
            }
            tried += 1;
            let mut flipped = plain.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(other) = Quote::parse(&flipped) else { continue };
            let findings = appraise(&other, &collateral, &policy, day(date));
            if failing(&findings.factors).is_empty() {
                accepted += 1;
                assert!(bit / 8 >= 632, "a flip of the signed byte {} is accepted", bit / 8);
                assert_eq!(other.measurements(), quote.measurements(), "bit {bit}");
                assert_eq!(other.report_data(), quote.report_data(), "bit {bit}");
            }
        }
        println!("{name}: {tried} flips, {accepted} accepted with the same report");
        assert!(tried > 250);
    }
}

#[test]
fn the_firmwares_log_explains_the_registers() {
    let (Some(quote), Some(log)) = (quote(COS), file("go-tdx-guest/ccel_data.dat")) else { return };
    let asked = Asked::default().of(&quote);
    let with = |log: &[u8]| {
        let evidence = Evidence { event_log: log.to_vec().into(), ..Evidence::default() };
        judge_registers(&quote, asked.rules(), &evidence, false)
    };
    assert_eq!(EventLog::parse(&log).unwrap().replay(), quote.measurements().rtmr);
    let factors = with(&log);
    assert_eq!(failing(&factors), [""; 0], "{factors:#?}");
    assert_eq!(*how(&factors, "eventlog.replay").0, Outcome::Pass);
    assert_eq!(*how(&with(&[]), "eventlog.replay").0, Outcome::Noted);
    // A digest of the log that changes no longer explains them.
    let mut other = log.clone();
    other[200] ^= 1;
    assert_eq!(failing(&with(&other)), ["eventlog.replay"]);
}

#[test]
fn recorded_logs_are_read() {
    for (name, extensions) in [
        ("coco-trustee/CCEL_AAEL_alibabacloud", 87),
        ("coco-trustee/CCEL_data_ovmf", 20),
        ("dstack/ccel.bin", 18),
        ("attestation-rs/tdx_ccel_live.bin", 20),
        ("go-tdx-guest/ccel_data.dat", 43),
    ] {
        let Some(bytes) = file(name) else { continue };
        let log = EventLog::parse(&bytes).unwrap();
        assert_eq!(log.extensions().len() + log.skipped(), extensions, "{name}");
    }
}

#[test]
fn an_explanation_names_what_is_behind() {
    let explained = |name, with| Some(explain(&quote(name)?, &collateral(with)?.0).unwrap());
    let good = explained(V4, V4_COLLATERAL).unwrap();
    assert!(good.behind.is_empty(), "{good}");
    assert_eq!(good.reached.unwrap().status, Status::UpToDate);

    let below = explained(OLD, OLD_COLLATERAL).unwrap();
    assert_eq!(below.reached, None);
    assert!(!below.behind.is_empty());
    assert!(below.to_string().contains("below every level"), "{below}");
    for behind in &below.behind {
        assert!(behind.have < behind.need && !behind.update.is_empty(), "{behind:?}");
    }
    assert!(serde_json::to_value(&below).unwrap()["behind"][0]["need"].is_u64());

    let Some(cos) = explained(COS, GCP_COLLATERAL) else { return };
    let Some((_, findings)) = judged(COS, GCP_COLLATERAL, "2026-07-05", &Asked::default()) else { return };
    assert_eq!(cos.advisories, findings.claims.unwrap().advisories, "{cos}");
    assert!(!cos.behind.is_empty());
}

#[test]
fn a_bundle_is_looked_up_by_bytes_and_says_how_it_stands() {
    let quote = quote(V4).unwrap();
    let key = tdx::needs(&quote).unwrap();
    assert_eq!(key, CollateralKey { fmspc: Hex([0xb0, 0xc0, 0x6f, 0, 0, 0]), ca: Ca::Platform });
    let Fixed(collateral) = collateral(V4_COLLATERAL).unwrap();
    let mut bundle = Bundle::default();
    let entry = Entry { fmspc: key.fmspc, ca: key.ca, collateral, fetched_at: day("2025-06-20") };
    bundle.put(entry.clone());
    bundle.put(entry);
    assert_eq!(bundle.entries().len(), 1);
    let text = bundle.to_json().unwrap().replace("b0c06f000000", "B0C06F000000");
    let bundle = Bundle::parse(text.as_bytes()).unwrap();
    bundle.tdx(&key).unwrap();
    let findings = appraise(&quote, &bundle, &Asked::default().of(&quote), day("2025-07-01"));
    assert_eq!(failing(&findings.factors), [""; 0]);

    let other = CollateralKey { ca: Ca::Processor, ..key };
    let error = bundle.tdx(&other).unwrap_err().to_string();
    assert!(error.contains("b0c06f000000") && error.contains("the bundle"), "{error}");

    let state = |date| bundle.check(day(date)).remove(0);
    let standing = state("2025-07-01");
    assert_eq!((standing.eval_number, standing.state.as_str()), (17, "valid"));
    assert_eq!(standing.age_hours, Some(11 * 24 + 13));
    assert!(state("2025-09-01").state.contains("expired"));
    assert!(state("2025-06-01").state.contains("check the clock"));
    assert_eq!(state("2025-06-01").age_hours, None);
}

#[test]
fn a_bundle_with_a_chain_of_its_own_is_refused() {
    let Fixed(collateral) = collateral(V5_COLLATERAL).unwrap();
    assert!(collateral.pck_certificate_chain.is_some());
    let entry = Entry { fmspc: Hex([0xb0, 0xc0, 0x6f, 0, 0, 0]), ca: Ca::Platform, collateral, fetched_at: 0 };
    let text = serde_json::to_string(&[&entry]).unwrap();
    let error = Bundle::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("pck_certificate_chain"), "{error}");
    let mut bundle = Bundle::default();
    bundle.put(entry);
    assert!(bundle.entries()[0].collateral.pck_certificate_chain.is_none());
}

/// A chain in the collateral would take the place of the one in the quote; handed to us, it is ignored.
#[test]
fn a_chain_in_collateral_counts_for_nothing() {
    let mut with = collateral(V4_COLLATERAL).unwrap();
    with.0.pck_certificate_chain = collateral(V5_COLLATERAL).unwrap().0.pck_certificate_chain;
    let quote = quote(V4).unwrap();
    let findings = appraise(&quote, &with, &Asked::default().of(&quote), day("2025-07-01"));
    assert_eq!(failing(&findings.factors), [""; 0]);
}

#[test]
fn a_source_with_nothing_names_every_place_it_asked() {
    struct Down;
    impl attest_verify::collateral::CollateralSource for Down {
        fn tdx(
            &self,
            key: &CollateralKey,
        ) -> Result<attest_verify::collateral::QuoteCollateralV3, attest_verify::collateral::CollateralError> {
            let tried = [("https://one", "connection refused"), ("https://two", "timed out")];
            let tried = tried.map(|(place, error)| (place.to_owned(), error.to_owned())).to_vec();
            Err(attest_verify::collateral::CollateralError { wanted: key.to_string(), tried })
        }
    }
    let quote = quote(V4).unwrap();
    let findings = appraise(&quote, &Down, &Asked::default().of(&quote), day("2025-07-01"));
    let (outcome, text) = how(&findings.factors, "collateral.match");
    assert!(matches!(outcome, Outcome::Skipped(_)));
    for part in ["https://one: connection refused", "https://two: timed out"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(findings.factors.iter().all(|factor: &Factor| matches!(factor.outcome, Outcome::Skipped(_))));
}

#[test]
fn another_root_is_not_intels() {
    let (quote, collateral) = (quote(V4).unwrap(), collateral(V4_COLLATERAL).unwrap());
    let policy = Asked::default().of(&quote);
    let tcb = policy.rules().tcb.as_ref().unwrap();
    let with = |root| {
        let now = day("2025-07-01");
        tdx::judge(&quote, &tdx::Appraisal { tcb, ppid: None, collateral: &collateral, root, eval_floor: 0, now })
    };
    let intel = file("dcap-qvl-crate/Intel_SGX_Root_CA.der").unwrap();
    assert_eq!(failing(&with(Some(intel)).factors), [""; 0]);
    let Some(other) = file("sev-crate/vcek_milan.der") else { return };
    assert!(with(Some(other)).claims.is_none());
    assert!(with(Some(vec![])).claims.is_none());
}
