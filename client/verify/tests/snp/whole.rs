//! Evidence of SEV-SNP as it comes over a connection.

use crate::amd::bench::{Bench, binding, policy_of, values, verified};
use crate::case::*;
use attest::Hardware;
use attest_verify::Verdict;
use proto::v1::{Evidence, Platform};

fn evidence(nonce: u8) -> Evidence {
    let case = Case::made(|report| report[0x50..0x90].copy_from_slice(binding(nonce).report_data()));
    Evidence {
        version: attest::VERSION,
        platform: Platform::SevSnp.into(),
        quote: case.report.into(),
        certificates: case.certificates.into(),
        values: Some(values()),
        ..Evidence::default()
    }
}

#[test]
fn evidence_of_this_connection_is_accepted() {
    let policy = policy_of("sev_snp", MILAN, "");
    let outcome = verified::<Bench>(&evidence(7), 7, &policy);
    assert_eq!(failed(&outcome.report.factors), [""; 0]);
    assert_eq!(outcome.report.domain, "BENCH");
    let verified = outcome.verified.unwrap();
    assert_eq!(*verified.transcript(), binding(7).transcript());
}

#[test]
fn evidence_of_another_connection_is_refused_before_its_certificates_are_looked_at() {
    let policy = policy_of("sev_snp", MILAN, "");
    let mut relayed = evidence(7);
    relayed.certificates = b"not looked at".to_vec().into();
    let outcome = verified::<Bench>(&relayed, 6, &policy);
    assert_eq!(failed(&outcome.report.factors), RELAYED);
    assert_eq!(outcome.report.verdict, Verdict::Rejected);
    assert!(outcome.verified.is_none());
}

/// A chip of our own is none of AMD's, whatever it calls itself.
#[test]
fn evidence_under_another_root_is_never_the_hardwares() {
    let policy = policy_of("sev_snp", MILAN, "");
    let mut evidence = evidence(7);
    let binding = attest::Binding::new::<Hardware>(attest::binding::Parts {
        nonce: &[7; 32],
        exporter: &[8; 32],
        spki: &[9; 32],
        values: &values(),
    });
    let case = Case::made(|report| report[0x50..0x90].copy_from_slice(binding.report_data()));
    evidence.quote = case.report.into();
    let (bundle, floor) = (Bundle::default(), attest_verify::Floor::default());
    let outcome = attest_verify::verify::<Hardware>(&evidence, &binding, &policy, &bundle, &floor, NOW);
    assert_eq!(failed(&outcome.report.factors), ["snp.chain"]);
    assert!(outcome.verified.is_none());
}

#[test]
fn a_list_that_is_asked_for_and_nowhere_leaves_the_question_open() {
    let policy = policy_of("sev_snp", &MILAN.replace("require_crl = false\n", ""), "");
    let outcome = verified::<Bench>(&evidence(7), 7, &policy);
    assert_eq!(failed(&outcome.report.factors), ["snp.revocation"]);
    assert_eq!(outcome.report.verdict, Verdict::Unchecked);
    assert!(outcome.verified.is_none());
}

/// Row 10 of the table of reports, for SEV-SNP: what is measured does not move with the nonce.
#[test]
fn bug_10_the_measurement_does_not_move_with_the_nonce() {
    let measured = |nonce| {
        let outcome = verified::<Bench>(&evidence(nonce), nonce, &policy_of("sev_snp", MILAN, ""));
        assert!(outcome.verified.is_some());
        serde_json::to_value(outcome.report.measured).unwrap()
    };
    assert_eq!(measured(1), measured(2));
    assert!(MILAN.contains(measured(1)["snp"]["measurement"].as_str().unwrap()));
}
