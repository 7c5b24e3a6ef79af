//! The guest as a source of evidence.

use crate::dcap::{assert_refused, platform, verify};
use attest::source::Source;
use attest::{Domain, Hardware};
use sha2::{Digest, Sha384};
use simulator::{QuoteFlaw, Simulated, SimulatedTdx, TdReport, replay};

#[test]
fn evidence_is_about_the_report_data() {
    let guest = SimulatedTdx::new(platform().clone());
    for byte in [7, 8] {
        let collected = guest.collect(&[byte; 64]).unwrap();
        assert_eq!(collected.platform, proto::v1::Platform::Tdx);
        assert!(collected.event_log.is_empty() && collected.certificates.is_empty() && collected.azure.is_none());
        let report = verify(&collected.quote, |spec| spec).unwrap();
        assert_eq!(report.report.as_td10().unwrap().report_data, [byte; 64]);
        assert_eq!(report.report.as_td10().unwrap().rt_mr3, [0; 48]);
    }
}

#[test]
fn rtmr3_follows_from_the_log() {
    let guest = SimulatedTdx::running(platform().clone(), TdReport::default().td15());
    guest.extend("model", b"weights");
    guest.extend("config", b"");
    let collected = guest.collect(&[0; 64]).unwrap();
    let names: Vec<_> = collected.runtime_log.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names, ["model", "config"]);

    // By hand, as the contract has it.
    let model = Sha384::digest(b"\0\0\0\x05model\0\0\0\x07weights");
    let config = Sha384::digest(b"\0\0\0\x06config\0\0\0\0");
    let once = Sha384::digest([[0; 48].as_slice(), &model].concat());
    let twice: [u8; 48] = Sha384::digest([once.as_slice(), &config].concat()).into();

    let report = verify(&collected.quote, |spec| spec).unwrap();
    assert_eq!(report.report.as_td10().unwrap().rt_mr3, twice);
    assert_eq!(replay([0; 48], &collected.runtime_log), twice);
}

#[test]
fn a_register_that_did_not_start_at_zero_does_not_replay() {
    let mut td = TdReport::default();
    td.rtmrs[3] = [1; 48];
    let guest = SimulatedTdx::running(platform().clone(), td);
    guest.extend("model", b"weights");
    let collected = guest.collect(&[0; 64]).unwrap();
    let report = verify(&collected.quote, |spec| spec).unwrap();
    assert_ne!(report.report.as_td10().unwrap().rt_mr3, replay([0; 48], &collected.runtime_log));
}

#[test]
fn a_flawed_guest_has_flawed_quotes() {
    let guest = SimulatedTdx::new(platform().clone()).flawed(QuoteFlaw::QuoteSignature);
    assert_refused(verify(&guest.collect(&[0; 64]).unwrap().quote, |spec| spec), "ISV enclave report signature");
}

#[test]
fn no_tag_is_shared_with_the_real_thing() {
    assert_ne!(Simulated::MODE, Hardware::MODE);
    assert_ne!(Simulated::TAG, Hardware::TAG);
    assert_ne!(Simulated::ALPN, Hardware::ALPN);
    assert_ne!(Simulated::EXPORTER, Hardware::EXPORTER);
    assert_ne!(Simulated::RELEASE, Hardware::RELEASE);
    assert_eq!((Simulated::BANNER, Hardware::BANNER), (Some("SIMULATED"), None));
}
