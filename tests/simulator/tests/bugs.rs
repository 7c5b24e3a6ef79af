//! Bug reports of others that the verifier must survive, replayed under the test root.
//! Names and numbers are those of the reports.

use crate::dcap::{NOW, assert_refused, platform, verifier, verify, verify_at};
use dcap_qvl::{QuotePolicy, TcbStatus};
use simulator::{CollateralFlaw, CollateralSpec, QuoteFlaw, Revoked, TdReport};

/// dcap-qvl #125; automata-dcap-attestation #130, #144, #155: a bad status was taken for fine, or overwritten by a better
/// one that was found later.
#[test]
fn a_bad_status_is_neither_fine_nor_overwritten() {
    use TcbStatus::{OutOfDate, Revoked, UpToDate};
    let quote = platform().quote(&TdReport::default());
    let judge = |spec: CollateralSpec| {
        let policy = QuotePolicy::strict(NOW).allow_dynamic_platform(true).allow_smt(true);
        verifier()
            .verify_with_policy(&quote, platform().collateral(&spec).unwrap(), NOW, &policy)
            .map(|claims| claims.tcb.status)
            .map_err(|error| format!("{error:#}"))
    };
    for status in [UpToDate, OutOfDate, Revoked] {
        for module_status in [UpToDate, OutOfDate, Revoked] {
            for qe_status in [UpToDate, OutOfDate, Revoked] {
                let spec = CollateralSpec { status, module_status, qe_status, ..CollateralSpec::at(NOW) };
                let all = [status, module_status, qe_status];
                let found = judge(spec);
                if all == [UpToDate; 3] {
                    assert_eq!(found, Ok(UpToDate));
                } else {
                    let wanted = if all.contains(&Revoked) { "Revoked" } else { "OutOfDate" };
                    let error = found.unwrap_err();
                    assert!(error.contains(wanted), "{all:?}: {error}");
                }
            }
        }
    }
    for status in [
        TcbStatus::ConfigurationNeeded,
        TcbStatus::SWHardeningNeeded,
        TcbStatus::ConfigurationAndSWHardeningNeeded,
        TcbStatus::OutOfDateConfigurationNeeded,
    ] {
        let error = judge(CollateralSpec::at(NOW).status(status)).unwrap_err();
        assert!(error.contains(&status.to_string()), "{status}: {error}");
    }
}

/// gramine #589, dcap-qvl #74: certification data of type 3 (an encrypted PPID) was read as a chain.
#[test]
fn certification_data_that_is_no_chain_is_named() {
    for kind in [1, 2, 3, 4, 6, 7] {
        let quote = platform().flawed_quote(&TdReport::default(), QuoteFlaw::CertificationType(kind));
        assert_refused(verify(&quote, |spec| spec), &format!("Unsupported DCAP PCK cert format: {kind}"));
    }
}

/// guest-components #426, taiko-mono #21824, mobilecoin #852 and #3376, base #4042: debug enclaves were accepted.
#[test]
fn a_debugged_td_is_refused_whatever_its_tcb() {
    for td in [TdReport::default().debug(), TdReport::default().td15().debug()] {
        assert_refused(verify(&platform().quote(&td), |spec| spec), "Debug mode is enabled");
    }
    let quote = platform().flawed_quote(&TdReport::default(), QuoteFlaw::QeDebug);
    assert_refused(verify(&quote, |spec| spec), "Debug mode is enabled");
}

/// attestation-go #23, dstack #1140: revocation was not checked by default, or on some platforms only.
#[test]
fn what_is_revoked_is_refused() {
    let quote = platform().quote(&TdReport::default());
    for certificate in [Revoked::Pck, Revoked::PlatformCa, Revoked::TcbSigner, Revoked::Root] {
        assert_refused(verify(&quote, |spec| spec.revoking(certificate)), "CertRevoked");
    }
    // Without the list nothing is known, which is as bad.
    let mut collateral = platform().collateral(&CollateralSpec::at(NOW)).unwrap();
    collateral.pck_crl = collateral.root_ca_crl.clone();
    assert_refused(verify_at(&quote, &collateral, NOW), "UnknownRevocationStatus");
}

/// dcap-qvl #127: the vendor of the quoting enclave was not looked at.
#[test]
fn another_vendors_quoting_enclave_is_refused() {
    let quote = platform().flawed_quote(&TdReport::default(), QuoteFlaw::VendorId);
    assert_refused(verify(&quote, |spec| spec), "Unknown QE vendor ID");
}

/// dcap-qvl #164: surplus components of a TCB level were ignored.
#[test]
fn surplus_components_are_refused() {
    let quote = platform().quote(&TdReport::default());
    for flaw in [CollateralFlaw::SgxComponents, CollateralFlaw::TdxComponents] {
        assert_refused(verify(&quote, |spec| spec.flawed(flaw)), "expected 16, got 17");
    }
}

/// dcap-qvl #210: the number of a revocation list lost its upper bytes.
#[test]
fn the_number_of_a_revocation_list_is_not_cut() {
    let platform = platform();
    let number = |crl_number| {
        let collateral = platform.collateral(&CollateralSpec { crl_number, ..CollateralSpec::at(NOW) }).unwrap();
        verifier()
            .verify_with_policy(&platform.quote(&TdReport::default()), collateral, NOW, &QuotePolicy::claims_only(NOW))
            .map(|claims| claims.platform.pck_crl_num)
            .map_err(|error| format!("{error:#}"))
    };
    assert_eq!(number(u32::MAX.into()), Ok(u32::MAX));
    let error = number(u64::from(u32::MAX) + 1).unwrap_err();
    assert!(error.contains("CRL number too large"), "{error}");
}
