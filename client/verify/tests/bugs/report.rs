//! Quotes and logs: where what lies, how long it may be, and whose values count.

use crate::{
    COS, OLD, V4, V4_COLLATERAL, V5,
    support::{Asked, collateral, day, failing, file, how, quote},
};
use attest_verify::collateral::Bundle;
use attest_verify::eventlog::{EventLog, replay};
use attest_verify::factor::Outcome;
use attest_verify::tdx::{Quote, QuoteError, judge_registers};
use attest_verify::{Floor, Policy, tdx, verify};
use proto::v1::{Evidence, Platform, RuntimeEvent, RuntimeValues};

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
    let policy = Asked::default().of(&crate::support::quote(V4).unwrap());
    let factors = judge_registers(&extended, policy.rules(), &Evidence::default(), false);
    assert_eq!(failing(&factors), ["mr.rtmr3"]);
}

/// Logs that explain a register perfectly change nothing about what the policy wants of it.
#[test]
fn bug_15_expected_values_come_from_the_policy_alone() {
    let events = [RuntimeEvent { name: "evil".to_owned(), payload: vec![1].into() }];
    let quote = with_rtmr3(&events);
    let replayed = quote.measurements().rtmr[3];
    assert_eq!(replay(&events).unwrap(), replayed);
    let evidence = Evidence { runtime_log: events.to_vec(), ..Evidence::default() };
    let policy = Asked::default().of(&crate::support::quote(V4).unwrap());
    assert_eq!(failing(&judge_registers(&quote, policy.rules(), &evidence, false)), ["mr.rtmr3"]);

    let (Some(recorded), Some(log)) = (crate::support::quote(COS), file("go-tdx-guest/ccel_data.dat")) else { return };
    let rtmr0 = recorded.measurements().rtmr[0].to_string();
    let text = Asked::default().text(&recorded).replace(&rtmr0, &"ab".repeat(48));
    let evidence = Evidence { event_log: log.into(), ..Evidence::default() };
    let factors = judge_registers(&recorded, Policy::parse(&text).unwrap().rules(), &evidence, false);
    assert_eq!(failing(&factors), ["mr.rtmr0"]);
    assert_eq!(*how(&factors, "eventlog.replay").0, Outcome::Pass);
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

/// A recorded quote whose RTMR3 is what these events make it. Its signature is not looked at.
fn with_rtmr3(events: &[RuntimeEvent]) -> Quote {
    const RTMR3: usize = 48 + 472;
    let mut bytes = file(V4).unwrap();
    bytes[RTMR3..RTMR3 + 48].copy_from_slice(&replay(events).unwrap().0);
    Quote::parse(&bytes).unwrap()
}
