//! Everything that can be asked to be wrong is found, and for the right reason.

use crate::dcap::{NOW, assert_refused, platform, verify, verify_at};
use simulator::{CollateralFlaw, CollateralSpec, Platform, PlatformSpec, QuoteFlaw, Revoked, TdReport};

const DAY: u64 = 24 * 60 * 60;

#[test]
fn flawed_quotes_are_refused() {
    let cases = [
        (QuoteFlaw::VendorId, "Unknown QE vendor ID"),
        (QuoteFlaw::AttestationKeyType, "Unsupported DCAP attestation key type"),
        (QuoteFlaw::CertificationType(3), "Unsupported DCAP PCK cert format: 3"),
        (QuoteFlaw::QuoteSignature, "ISV enclave report signature is invalid"),
        (QuoteFlaw::QeReportSignature, "Signature is invalid for qe_report in quote"),
        (QuoteFlaw::QeReportData, "QE report hash mismatch"),
        (QuoteFlaw::QeSigner, "QE MRSIGNER mismatch"),
        (QuoteFlaw::QeDebug, "QE report validation failed: Debug mode is enabled"),
        (QuoteFlaw::ModuleSigner, "TDX module MRSIGNER mismatch"),
    ];
    for (flaw, reason) in cases {
        for td in [TdReport::default(), TdReport::default().td15()] {
            assert_refused(verify(&platform().flawed_quote(&td, flaw), |spec| spec), reason);
        }
    }
}

#[test]
fn flawed_collateral_is_refused() {
    let cases = [
        (CollateralFlaw::TcbInfoSignature, "Signature is invalid for tcb_info"),
        (CollateralFlaw::QeIdentitySignature, "Signature is invalid for qe_identity"),
        (CollateralFlaw::RootCrlSignature, "Failed to parse root CA CRL"),
        (CollateralFlaw::PckCrlSignature, "Failed to verify certificate chain"),
        (CollateralFlaw::SignedByPlatform, "TCB Info signer must be issued directly by the root CA"),
        (CollateralFlaw::Fmspc, "Fmspc mismatch"),
        (CollateralFlaw::NoMatchingLevel, "No matching TCB level found"),
        (CollateralFlaw::SgxComponents, "SGX component count mismatch: expected 16, got 17"),
        (CollateralFlaw::TdxComponents, "TDX component count mismatch: expected 16, got 17"),
        (CollateralFlaw::QeSigner, "QE MRSIGNER mismatch"),
    ];
    for (flaw, reason) in cases {
        for td in [TdReport::default(), TdReport::default().td15()] {
            assert_refused(verify(&platform().quote(&td), |spec| spec.flawed(flaw)), reason);
        }
    }
}

#[test]
fn every_signed_byte_is_covered() {
    let platform = platform();
    for (td, signed) in [(TdReport::new([3; 64]), 48 + 584), (TdReport::new([3; 64]).td15(), 48 + 6 + 648)] {
        let quote = platform.quote(&td);
        // Past the header: what is wrong there has errors of its own.
        for at in (60..signed).step_by(41) {
            let mut turned = quote.clone();
            turned[at] ^= 0x80;
            assert_refused(verify(&turned, |spec| spec), "ISV enclave report signature is invalid");
        }
    }
}

#[test]
fn platforms_of_one_authority_do_not_stand_in_for_each_other() {
    let spec = PlatformSpec { ppid: *b"BIFROST-SIM-TWO.", ..PlatformSpec::default() };
    let other = Platform::certified(platform().authority().clone(), spec).unwrap();
    let quote = other.quote(&TdReport::default());
    assert_eq!(verify(&quote, |spec| spec).unwrap().ppid, b"BIFROST-SIM-TWO.");
    // The other is revoked, not this one.
    assert_eq!(verify(&quote, |spec| spec.revoking(Revoked::Pck)).unwrap().status, "UpToDate");
    // A chain that comes with collateral takes the place of the quote's own.
    let mut collateral = platform().collateral(&CollateralSpec::at(NOW)).unwrap();
    collateral.pck_certificate_chain = Some(platform().pck_chain());
    assert_refused(verify_at(&quote, &collateral, NOW), "Signature is invalid for qe_report in quote");
}

#[test]
fn service_tds_are_refused() {
    let quote = platform().quote(&TdReport::default().service_td());
    assert_refused(verify(&quote, |spec| spec), "Invalid MR service TD");
}

#[test]
fn attributes_that_weaken_a_td_are_refused() {
    let cases = [
        ([0x00, 0, 0, 0x00, 0, 0, 0, 0], "SEPT_VE_DISABLE is not enabled"),
        ([0x00, 0, 0, 0x30, 0, 0, 0, 0], "TD migration is enabled"),
        ([0x02, 0, 0, 0x10, 0, 0, 0, 0], "Reserved bits in TD attributes are set"),
        ([0x10, 0, 0, 0x10, 0, 0, 0, 0], "TD profiling is enabled"),
    ];
    for (attributes, reason) in cases {
        let td = TdReport { attributes, ..TdReport::default() };
        assert_refused(verify(&platform().quote(&td), |spec| spec), reason);
    }
}

#[test]
fn collateral_has_a_beginning_and_an_end() {
    let quote = platform().quote(&TdReport::default());
    let collateral = platform().collateral(&CollateralSpec::at(NOW)).unwrap();
    let CollateralSpec { issue_date, next_update, .. } = CollateralSpec::at(NOW);
    assert_refused(verify_at(&quote, &collateral, issue_date - 1), "TCBInfo issue date is in the future");
    assert_eq!(verify_at(&quote, &collateral, issue_date).unwrap().status, "UpToDate");
    assert_eq!(verify_at(&quote, &collateral, next_update).unwrap().status, "UpToDate");
    assert_refused(verify_at(&quote, &collateral, next_update + 1), "TCBInfo expired");
}

#[test]
fn revocation_lists_expire() {
    let quote = platform().quote(&TdReport::default());
    assert_refused(verify(&quote, |spec| CollateralSpec { crl_next_update: NOW - 1, ..spec }), "CrlExpired");
}

#[test]
fn certificates_hold_for_a_century() {
    let quote = platform().quote(&TdReport::default());
    let at = |now| verify_at(&quote, &platform().collateral(&CollateralSpec::at(now)).unwrap(), now);
    let (first, last) = (1_577_836_800, 4_733_510_400);
    assert_refused(at(first - DAY), "CertNotValidYet");
    assert_eq!(at(first).unwrap().status, "UpToDate");
    assert_eq!(at(last).unwrap().status, "UpToDate");
    assert_refused(at(last + DAY), "CertExpired");
}

#[test]
fn times_that_cannot_be_written_are_errors() {
    for spec in [
        CollateralSpec { issue_date: u64::MAX, ..CollateralSpec::at(NOW) },
        CollateralSpec { tcb_date: u64::MAX, ..CollateralSpec::at(NOW) },
        CollateralSpec { crl_next_update: 0, ..CollateralSpec::at(NOW) },
        CollateralSpec::at(u64::MAX),
    ] {
        assert!(platform().collateral(&spec).is_err(), "{spec:?}");
    }
}
