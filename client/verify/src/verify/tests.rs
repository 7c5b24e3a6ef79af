//! The whole check over a recorded quote, with its own report data in place of a binding's.

#[path = "../../tests/support/vectors.rs"]
mod support;

use super::{BINDING, Case, Outcome, examine};
use crate::{Anchor, Floor, Policy, Verdict, collateral::CollateralSource, log::Log};
use attest::{Hardware, binding::Parts};
use proto::v1::{Evidence, Platform, RuntimeEvent, RuntimeValues};
use support::{Asked, Fixed, appraise, collateral, day, failing, file, how, quote};

const QUOTE: &str = "dcap-qvl-crate/tdx_quote";
const COLLATERAL: &str = "dcap-qvl-crate/tdx_quote_collateral.json";

struct Setting {
    evidence: Evidence,
    report_data: [u8; 64],
    policy: Policy,
    collateral: Fixed,
    floor: Floor,
    now: u64,
}

impl Setting {
    fn good() -> Self {
        let recorded = quote(QUOTE).unwrap();
        let now = day("2025-07-01");
        let values = RuntimeValues {
            hpke_key: vec![3; 1216].into(),
            receipt_key: vec![4; 32].into(),
            params_digest: vec![1; 32].into(),
            model_digest: vec![2; 32].into(),
            config_digest: vec![5; 32].into(),
            not_after: now + 3600,
            software: "0.1.0".to_owned(),
        };
        let evidence = Evidence {
            version: attest::VERSION,
            platform: Platform::Tdx.into(),
            quote: file(QUOTE).unwrap().into(),
            values: Some(values),
            ..Evidence::default()
        };
        Self {
            evidence,
            report_data: *recorded.report_data(),
            policy: Asked::default().of(&recorded),
            collateral: collateral(COLLATERAL).unwrap(),
            floor: Floor::default(),
            now,
        }
    }

    fn with<D: Anchor>(&self, source: &dyn CollateralSource) -> Outcome<D> {
        examine(&Case {
            evidence: &self.evidence,
            report_data: &self.report_data,
            transcript: [7; 32],
            policy: &self.policy,
            collateral: source,
            floor: &self.floor,
            now: self.now,
        })
    }

    fn outcome(&self) -> Outcome<Hardware> {
        self.with(&self.collateral)
    }

    /// What fails after one change; nothing may be verified then.
    fn refused(change: impl FnOnce(&mut Self)) -> Vec<&'static str> {
        let mut setting = Self::good();
        change(&mut setting);
        let outcome = setting.outcome();
        assert!(outcome.verified.is_none());
        assert_ne!(outcome.report.verdict, Verdict::Accepted);
        failing(&outcome.report.factors)
    }

    fn values(&mut self) -> &mut RuntimeValues {
        self.evidence.values.as_mut().unwrap()
    }
}

/// A policy text with one thing replaced.
fn changed(from: &str, to: &str) -> impl FnOnce(&mut Setting) {
    move |setting| {
        let recorded = quote(QUOTE).unwrap();
        let text = Asked::default().text(&recorded);
        assert!(text.contains(from), "{from}");
        setting.policy = Policy::parse(&text.replacen(from, to, 1)).unwrap();
    }
}

#[test]
fn good_evidence_is_verified() {
    let setting = Setting::good();
    let outcome = setting.outcome();
    assert_eq!(failing(&outcome.report.factors), [""; 0], "{:#?}", outcome.report.factors);
    let verified = outcome.verified.unwrap();
    assert_eq!(Some(verified.values()), setting.evidence.values.as_ref());
    assert_eq!(verified.transcript(), &[7; 32]);
    assert_eq!(verified.report().domain, "HARDWARE (Intel root)");
    assert_eq!(outcome.report.verdict.exit_code(), 0);
    for code in [BINDING, "quote.signature", "pck.revocation", "mr.td", "mr.rtmr0", "mr.rtmr1", "mr.rtmr2", "mr.rtmr3"]
    {
        assert_eq!(*how(&outcome.report.factors, code).0, crate::factor::Outcome::Pass, "{code}");
    }
    assert_eq!(*how(&outcome.report.factors, "mr.seam").0, crate::factor::Outcome::Noted);
    let json = serde_json::to_value(&outcome.report).unwrap();
    assert_eq!(json["verdict"], "accepted");
    assert_eq!(json["intel"]["status"], "UpToDate");
    assert_eq!(outcome.report.rows().count(), outcome.report.factors.len());
}

#[test]
fn what_is_about_another_connection_is_refused_before_any_certificate() {
    struct Unasked;
    impl CollateralSource for Unasked {
        fn tdx(
            &self,
            _: &crate::collateral::CollateralKey,
        ) -> Result<crate::collateral::QuoteCollateralV3, crate::collateral::CollateralError> {
            panic!("certificates were looked at");
        }
    }
    for at in [0, 31, 32, 63] {
        let mut setting = Setting::good();
        setting.report_data[at] ^= 0x80;
        let outcome = setting.with::<Hardware>(&Unasked);
        assert_eq!(failing(&outcome.report.factors), [BINDING, "quote.signature"]);
        assert_eq!(outcome.report.verdict, Verdict::Rejected);
        assert!(outcome.verified.is_none());
    }
}

#[test]
fn the_public_way_takes_a_binding_alone() {
    let setting = Setting::good();
    let values = setting.evidence.values.clone().unwrap();
    let parts = Parts { nonce: &[0; 32], exporter: &[0; 32], spki: &[0; 32], values: &values };
    let binding = attest::Binding::new::<Hardware>(parts);
    let Setting { evidence, policy, collateral, floor, now, .. } = &setting;
    let outcome = crate::verify::<Hardware>(evidence, &binding, policy, collateral, floor, *now);
    assert_eq!(failing(&outcome.report.factors), [BINDING, "quote.signature"]);
    assert_eq!(outcome.report.transcript.0, binding.transcript());
}

#[test]
fn each_thing_that_is_wrong_has_its_code() {
    assert_eq!(Setting::refused(|s| s.evidence.version += 1), ["evidence.version"]);
    assert_eq!(Setting::refused(|s| s.evidence.platform = 9), ["platform.accepted"]);
    assert_eq!(Setting::refused(|s| s.evidence.platform = Platform::SevSnp.into()), ["platform.accepted"]);
    assert_eq!(Setting::refused(|s| s.evidence.quote = vec![0; 65_537].into()), ["evidence.sizes"]);
    assert_eq!(Setting::refused(|s| s.evidence.event_log = vec![0; (1 << 20) + 1].into()), ["evidence.sizes"]);
    assert_eq!(Setting::refused(|s| s.evidence.quote = vec![0; 5000].into()), ["quote.parse"]);
    assert_eq!(Setting::refused(|s| s.evidence.event_log = vec![0; 100].into()), ["eventlog.replay"]);
    assert_eq!(Setting::refused(|s| s.evidence.values = None), ["runtime.values"]);
    assert_eq!(Setting::refused(|s| s.values().hpke_key = vec![].into()), ["runtime.values"]);
    assert_eq!(Setting::refused(|s| s.values().receipt_key = vec![1; 31].into()), ["runtime.values"]);
    assert_eq!(Setting::refused(|s| s.values().software = "x".repeat(257)), ["runtime.values"]);
    assert_eq!(Setting::refused(|s| s.values().params_digest = vec![9; 32].into()), ["runtime.params_digest"]);
    assert_eq!(Setting::refused(|s| s.values().model_digest = vec![].into()), ["runtime.model_digest"]);
    assert_eq!(Setting::refused(|s| s.values().not_after = s.now), ["runtime.not_after"]);
    let digest = "config_digest = [\"".to_owned() + &"06".repeat(32) + "\"]";
    assert_eq!(Setting::refused(changed("config_digest = \"any\"", &digest)), ["runtime.config_digest"]);
    assert_eq!(Setting::refused(changed("config_digest = \"any\"", "config_digest = []")), ["runtime.config_digest"]);
}

#[test]
fn each_measurement_counts_and_an_empty_list_accepts_nothing() {
    let recorded = quote(QUOTE).unwrap();
    let m = recorded.measurements();
    let [rtmr0, rtmr1, rtmr2, _] = m.rtmr.map(|register| register.to_string());
    let other = "ab".repeat(48);
    for (from, to, codes) in [
        (m.mr_td.to_string(), other.clone(), vec!["mr.td", "mr.rtmr0"]),
        (rtmr0.clone(), other.clone(), vec!["mr.rtmr0"]),
        (rtmr1, other.clone(), vec!["mr.rtmr1", "mr.rtmr2", "mr.rtmr3"]),
        (rtmr2, other.clone(), vec!["mr.rtmr2", "mr.rtmr3"]),
        (format!("[\"{rtmr0}\"]"), "[]".to_owned(), vec!["mr.rtmr0"]),
        (m.xfam.to_string(), "00".repeat(8), vec!["td.xfam"]),
        (format!("[\"{}\"]", m.xfam), "[]".to_owned(), vec!["td.xfam"]),
        (format!("mr_owner = \"{}\"", m.mr_owner), format!("mr_owner = \"{other}\""), vec!["td.mr_owner"]),
        ("[td]".to_owned(), "[td]\nattributes = \"0000000000000000\"".to_owned(), vec!["td.attributes"]),
        ("platforms = [\"tdx\"]".to_owned(), "platforms = []".to_owned(), vec!["platform.accepted"]),
        (
            "rtmr3 = \"zero\"".to_owned(),
            "rtmr3 = \"replay\"\nevent = [{ name = \"a\", payload = [\"\"] }]".to_owned(),
            vec!["mr.rtmr3"],
        ),
    ] {
        assert_eq!(Setting::refused(changed(&from, &to)), codes, "{from} -> {to}");
    }
}

/// A recorded quote with another RTMR3, of which no signature is looked at here. Offsets: header of 48 bytes, RTMR3 at 472
/// of the TD report.
fn with_rtmr3(register: crate::hex::Sha384) -> crate::tdx::Quote {
    let mut bytes = file(QUOTE).unwrap();
    bytes[48 + 472..48 + 520].copy_from_slice(&register.0);
    let quote = crate::tdx::Quote::parse(&bytes).unwrap();
    assert_eq!(quote.measurements().rtmr[3], register);
    quote
}

#[test]
fn a_runtime_log_is_judged_by_the_policys_events() {
    use crate::{eventlog::replay, tdx::judge_registers};
    let event = |name: &str, payload: &[u8]| RuntimeEvent { name: name.to_owned(), payload: payload.to_vec().into() };
    let (model, stage) = (event("model", &[2; 32]), event("stage", &[0xab, 0xcd]));
    let events = r#"rtmr3 = "replay"
event = [{ name = "model", payload = "model_digest" }, { name = "stage", payload = ["00", "abcd"] }]"#;
    let text = Asked::default().text(&quote(QUOTE).unwrap()).replace("rtmr3 = \"zero\"", events);
    let policy = Policy::parse(&text).unwrap();
    let judged = |extended: &[RuntimeEvent], log: &[RuntimeEvent]| {
        let quote = with_rtmr3(replay(extended).unwrap());
        let values = RuntimeValues { model_digest: vec![2; 32].into(), ..RuntimeValues::default() };
        let evidence = Evidence { runtime_log: log.to_vec(), values: Some(values), ..Evidence::default() };
        let factors = judge_registers(&quote, policy.rules(), &evidence, false);
        failing(&factors).is_empty()
    };
    let good = [model.clone(), stage.clone()];
    assert!(judged(&good, &good));
    // The log says what the policy wants and the register says otherwise.
    assert!(!judged(&[], &good));
    assert!(!judged(&[stage.clone(), model.clone()], &good));
    // The register and the log agree, and the policy wants something else.
    for other in [
        vec![],
        vec![model.clone()],
        vec![stage.clone(), model.clone()],
        vec![model.clone(), stage.clone(), stage.clone()],
        vec![event("model", &[3; 32]), stage.clone()],
        vec![event("modem", &[2; 32]), stage.clone()],
        vec![model.clone(), event("stage", &[0xab, 0xce])],
        vec![model.clone(), event("stage", &[])],
    ] {
        assert!(!judged(&other, &other), "{other:?}");
    }
    // RTMR3 of this one is not zero, and nobody has its log.
    let recorded = quote("dcap-qvl-crate/tdx_quote_td15ex").unwrap();
    let policy = Asked::default().of(&recorded);
    assert_eq!(failing(&judge_registers(&recorded, policy.rules(), &Evidence::default(), false)), ["mr.rtmr3"]);
}

#[test]
fn no_collateral_or_a_wrong_clock_is_no_rejection() {
    let mut setting = Setting::good();
    let empty = crate::collateral::Bundle::default();
    let outcome = setting.with::<Hardware>(&empty);
    assert_eq!((outcome.report.verdict, outcome.report.verdict.exit_code()), (Verdict::Unchecked, 3));
    assert!(outcome.verified.is_none());
    for date in ["2025-06-01", "2026-01-01"] {
        setting.now = day(date);
        setting.values().not_after = setting.now + 1;
        let outcome = setting.outcome();
        assert_eq!(outcome.report.verdict, Verdict::Unchecked, "{date}");
        assert!(how(&outcome.report.factors, "collateral.validity").1.contains("check the clock"));
    }
}

#[test]
fn floors_only_rise() {
    let floor = |policy_version, eval_number| Floor { policy_version, eval_number, accept_rollback: false };
    assert_eq!(Setting::refused(|s| s.floor = floor(4, 0)), ["policy.version"]);
    assert_eq!(Setting::refused(|s| s.floor = floor(0, 18)), ["collateral.eval_number"]);
    let mut setting = Setting::good();
    setting.floor = floor(3, 17);
    assert!(setting.outcome().verified.is_some());
    setting.floor = Floor { accept_rollback: true, ..floor(4, 18) };
    let outcome = setting.outcome();
    assert!(outcome.verified.is_some());
    assert!(how(&outcome.report.factors, "policy.version").1.contains("rollback accepted"));
}

#[test]
fn the_log_remembers_what_was_accepted() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("accepted.jsonl");
    let log = Log::at(&path);
    assert_eq!(log.floor("https://a").unwrap(), Floor::default());
    let good = Setting::good().outcome().report;
    log.append("https://a", &good).unwrap();
    log.append("https://b", &good).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&path).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(first["endpoint"], "https://a");
    assert_eq!(first["tcb_status"], "UpToDate");
    assert_eq!(first["policy_digest"], good.policy_digest.to_string());
    assert_eq!(first["measured"]["tdx"]["mr_td"], quote(QUOTE).unwrap().measurements().mr_td.to_string());
    let floor = log.floor("https://a").unwrap();
    assert_eq!((floor.policy_version, floor.eval_number), (3, 17));
    // The evaluation number is Intel's for everyone, the policy's version is the endpoint's.
    let other = log.floor("https://c").unwrap();
    assert_eq!((other.policy_version, other.eval_number), (0, 17));

    // A line that a crash cut short is passed over, and does not take the next one with it.
    std::fs::write(&path, format!("{text}{}", text.get(..40).unwrap())).unwrap();
    log.append("https://d", &good).unwrap();
    assert_eq!(log.floor("https://d").unwrap().policy_version, 3);

    // A full one is put aside, and what it says stays in force.
    let aside = folder.path().join("accepted.jsonl.1");
    let full = std::fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned() + "\n";
    std::fs::write(&path, full.repeat((1 << 20) / full.len())).unwrap();
    log.append("https://a", &good).unwrap();
    assert!(!aside.exists());
    log.append("https://e", &good).unwrap();
    log.append("https://e", &good).unwrap();
    assert!(aside.exists() && std::fs::metadata(&path).unwrap().len() < 1 << 14);
    let floor = log.floor("https://a").unwrap();
    assert_eq!((floor.policy_version, floor.eval_number), (3, 17));

    let mut rejected = good.clone();
    rejected.verdict = Verdict::Rejected;
    assert!(log.append("https://a", &rejected).unwrap_err().to_string().contains("rejected"));

    std::fs::write(&path, "{\"endpoint\": 3}\n").unwrap();
    assert!(log.floor("https://a").unwrap_err().to_string().contains("line 1"));

    for mode in [0o644, 0o640, 0o602] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(log.append("https://a", &good).unwrap_err().to_string().contains("expected 600"), "{mode:o}");
        assert!(log.floor("https://a").is_err());
    }
}

#[test]
fn the_measurement_does_not_move_with_the_nonce() {
    let recorded = quote(QUOTE).unwrap();
    let collateral = collateral(COLLATERAL).unwrap();
    let findings = appraise(&recorded, &collateral, &Asked::default().of(&recorded), day("2025-07-01"));
    assert!(findings.claims.is_some());
    for (name, at) in [(QUOTE, 568), ("dcap-qvl-crate/tdx_quote_td15ex", 574)] {
        let plain = file(name).unwrap();
        let before = crate::tdx::Quote::parse(&plain).unwrap();
        for offset in 0..64 {
            let mut other = plain.clone();
            other[at + offset] ^= 0xff;
            let after = crate::tdx::Quote::parse(&other).unwrap();
            assert_eq!(after.measurements(), before.measurements());
            assert_ne!(after.report_data(), before.report_data());
            assert_eq!(after.report_data()[offset], !before.report_data()[offset]);
        }
    }
}

/// Recorded evidence of Azure whole, whose TPM quoted another nonce than ours: quote, HCL report, TPM and PCRs together.
#[test]
fn recorded_evidence_below_the_paravisor() {
    let Some(json) = file("attestation-rs/live-evidence.json") else { return };
    let Some(collateral) = collateral("attestation-rs/assembled_collateral_90c06f000000.json") else { return };
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let base64 = |field: &str| crate::azure::base64url(json[field].as_str().unwrap().trim_end_matches('=')).unwrap();
    let hex = |value: &serde_json::Value| crate::hex::decode(value.as_str().unwrap()).unwrap();
    let tpm = &json["tpm_quote"];
    let pcrs: Vec<u8> = tpm["pcrs"].as_array().unwrap().iter().flat_map(hex).collect();
    let recorded = crate::tdx::Quote::parse(&base64("td_quote")).unwrap();
    let pcr = |index: usize| crate::hex::encode(&pcrs[32 * index..32 * index + 32]);
    let rest = format!("[azure.pcr]\n4 = [\"{}\"]\n7 = [\"{}\"]", pcr(4), pcr(7));
    let asked =
        Asked { accept: "\"UpToDate\", \"OutOfDate\"", grace: "OutOfDate = 10000", rest: &rest, ..Asked::default() };
    let text = asked.text(&recorded).replace("platforms = [\"tdx\"]", "platforms = [\"azure_tdx\"]");
    let policy = Policy::parse(&text).unwrap();
    let evidence = Evidence {
        platform: Platform::AzureTdx.into(),
        quote: base64("td_quote").into(),
        azure: Some(proto::v1::AzureEvidence {
            hcl_report: base64("hcl_report").into(),
            tpm_quote: hex(&tpm["message"]).into(),
            tpm_signature: hex(&tpm["signature"]).into(),
            pcrs: pcrs.clone().into(),
        }),
        ..Evidence::default()
    };
    let failed = |evidence: &Evidence, quoted: &[u8]| {
        let case = Case {
            evidence,
            report_data: &[0; 64],
            transcript: [7; 32],
            policy: &policy,
            collateral: &collateral,
            floor: &Floor::default(),
            now: day("2026-03-25"),
        };
        let examined = super::azure::examine_quoted::<Hardware>(&case, crate::azure::Hardware::Tdx, quoted);
        failing(&examined.factors)
    };
    let nonce = b"attestation-test-fixture";
    assert_eq!(failed(&evidence, nonce), [""; 0]);
    assert_eq!(failed(&evidence, &[7; 32]), ["azure.tpm.nonce", BINDING]);
    // A quote of the same kind of machine about something else.
    let other = Evidence { quote: file("coco-trustee/td-quote.bin").unwrap().into(), ..evidence.clone() };
    assert_eq!(failed(&other, nonce)[0], BINDING);
}

#[test]
fn another_domain_has_its_banner_and_its_root() {
    struct Other;
    impl attest::Domain for Other {
        const MODE: &'static str = "other";
        const TAG: &'static [u8] = b"other";
        const ALPN: &'static [u8] = b"other";
        const EXPORTER: &'static [u8] = b"other";
        const RELEASE: &'static [u8] = b"other";
        const BANNER: Option<&'static str> = Some("NOT HARDWARE");
    }
    impl Anchor for Other {
        fn intel_root() -> Option<Vec<u8>> {
            Some(b"no certificate".to_vec())
        }
    }
    let setting = Setting::good();
    let outcome = setting.with::<Other>(&setting.collateral);
    assert_eq!(outcome.report.domain, "NOT HARDWARE");
    assert!(outcome.verified.is_none(), "a quote of Intel's in a world without Intel's root");
    assert!(outcome.report.intel.is_none());
    assert!(setting.outcome().verified.is_some());
}
