//! Simulated evidence holds under the test root and nowhere else.

use crate::dcap::{NOW, assert_refused, platform, verifier, verify, verify_at};
use dcap_qvl::quote::Report;
use dcap_qvl::verify::QuoteVerifier;
use dcap_qvl::{QuoteCollateralV3, QuotePolicy, intel};
use simulator::{Authority, CollateralSpec, Platform, TdReport};
use std::path::{Path, PathBuf};

/// 1 July 2025: when the real quote below was up to date.
const JULY_2025: u64 = 1_751_328_000;

#[test]
fn a_quote_of_version_4_is_up_to_date() {
    let td = TdReport::new([0xa5; 64]);
    let report = verify(&platform().quote(&td), |spec| spec).unwrap();
    assert_eq!(report.status, "UpToDate");
    assert_eq!(report.advisory_ids, [""; 0]);
    assert_eq!(report.ppid, b"BIFROST-SIM-PPID");
    let Report::TD10(found) = &report.report else { panic!("no TD 1.0 report: {:?}", report.report) };
    assert_eq!(found.report_data, [0xa5; 64]);
    assert_eq!(&found.mr_td, b"BIFROST-SIMULATED-TD-NOT-A-REAL-MEASUREMENT.....");
    assert_eq!([found.rt_mr0, found.rt_mr1, found.rt_mr2, found.rt_mr3], td.rtmrs);
}

#[test]
fn a_quote_of_version_5_is_up_to_date() {
    let report = verify(&platform().quote(&TdReport::new([0xa5; 64]).td15()), |spec| spec).unwrap();
    assert_eq!(report.status, "UpToDate");
    let Report::TD15(found) = &report.report else { panic!("no TD 1.5 report: {:?}", report.report) };
    assert_eq!(found.base.report_data, [0xa5; 64]);
    assert_eq!(found.tee_tcb_svn2, found.base.tee_tcb_svn);
    assert_eq!(found.mr_service_td, [0; 48]);
}

#[test]
fn the_platform_is_described_in_its_certificate() {
    let platform = platform();
    let quote = platform.quote(&TdReport::default());
    let collateral = platform.collateral(&CollateralSpec { crl_number: 7, ..CollateralSpec::at(NOW) }).unwrap();
    let claims = verifier().verify_with_policy(&quote, collateral, NOW, &QuotePolicy::claims_only(NOW)).unwrap();
    let (pck, spec) = (&claims.platform.pck, platform.spec());
    assert_eq!(&pck.fmspc, b"SIMTDX");
    assert_eq!((pck.cpu_svn, pck.pce_svn, pck.sgx_type), (spec.cpu_svn, spec.pce_svn, 1));
    assert_eq!(pck.platform_instance_id, Some(spec.instance));
    assert_eq!((claims.platform.pck_crl_num, claims.platform.root_ca_crl_num), (7, 7));
    assert_eq!((claims.tcb.eval_data_number, claims.qe.tcb_eval_data_number), (20, 20));
    let parsed = dcap_qvl::quote::Quote::parse(&quote).unwrap();
    assert_eq!(intel::quote_ca(&parsed).unwrap(), dcap_qvl::config::PckCa::Platform);
}

#[test]
fn strict_policies_refuse_it_for_what_they_refuse_of_real_platforms() {
    let platform = platform();
    let quote = platform.quote(&TdReport::default());
    let check = |policy: QuotePolicy| {
        let collateral = platform.collateral(&CollateralSpec::at(NOW)).unwrap();
        verifier()
            .verify_with_policy(&quote, collateral, NOW, &policy)
            .map(|claims| claims.tcb.status.to_string())
            .map_err(|error| format!("{error:#}"))
    };
    let strict = QuotePolicy::strict(NOW);
    assert!(check(strict.clone()).unwrap_err().contains("Dynamic platform"));
    let dynamic = strict.allow_dynamic_platform(true);
    assert!(check(dynamic.clone()).unwrap_err().contains("SMT"));
    assert_eq!(check(dynamic.allow_smt(true)).unwrap(), "UpToDate");
}

#[test]
fn intel_vouches_for_none_of_it() {
    let platform = platform();
    let collateral = platform.collateral(&CollateralSpec::at(NOW)).unwrap();
    for td in [TdReport::default(), TdReport::default().td15()] {
        let error = QuoteVerifier::new_prod().verify(&platform.quote(&td), &collateral, NOW).unwrap_err();
        assert!(format!("{error:#}").contains("root CA CRL"), "{error:#}");
    }
}

#[test]
fn another_authority_vouches_for_none_of_it() {
    let other = Platform::new(Authority::new().unwrap()).unwrap();
    let quote = other.quote(&TdReport::default());
    assert_refused(verify(&quote, |spec| spec), "Failed to verify certificate chain");
    let collateral = other.collateral(&CollateralSpec::at(NOW)).unwrap();
    assert_refused(verify_at(&quote, &collateral, NOW), "Failed to parse root CA CRL");
}

#[test]
fn real_evidence_does_not_hold_under_the_test_root() {
    let Some(folder) = real_vectors() else {
        println!("skipped: no dcap-qvl-crate/tdx_quote below BIFROST_EXTRA_VECTORS or client/verify/testdata");
        return;
    };
    let quote = std::fs::read(folder.join("tdx_quote")).unwrap();
    let collateral = std::fs::read(folder.join("tdx_quote_collateral.json")).unwrap();
    let collateral: QuoteCollateralV3 = serde_json::from_slice(&collateral).unwrap();
    let real = QuoteVerifier::new_prod().verify(&quote, &collateral, JULY_2025).unwrap();
    assert_eq!(real.status, "UpToDate");

    assert_refused(verify_at(&quote, &collateral, JULY_2025), "Failed to parse root CA CRL");
    assert_refused(verify(&quote, |spec| spec), "Failed to verify certificate chain");

    let simulated = platform().quote(&TdReport::default());
    let error = QuoteVerifier::new_prod().verify(&simulated, &collateral, JULY_2025).unwrap_err();
    assert!(format!("{error:#}").contains("Failed to verify certificate chain"), "{error:#}");
}

#[test]
fn the_fixed_authority_is_the_same_everywhere() {
    let (one, other) = (Authority::fixed().unwrap(), Authority::fixed().unwrap());
    assert_eq!(one.files().unwrap(), other.files().unwrap());
    let (one, other) = (Platform::new(one).unwrap(), Platform::new(other).unwrap());
    assert_eq!(one.quote(&TdReport::default()), other.quote(&TdReport::default()));
    let spec = CollateralSpec::at(NOW);
    assert_eq!(one.collateral(&spec).unwrap(), other.collateral(&spec).unwrap());
}

#[test]
fn the_committed_files_are_those_of_the_fixed_authority() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let files = Authority::fixed().unwrap().files().unwrap();
    assert_eq!(files.len(), 6);
    for (name, content) in files {
        assert!(std::fs::read(folder.join(&name)).unwrap() == content, "{name} differs: run simulator-authority");
    }
}

#[test]
fn every_new_authority_is_another() {
    let (one, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    assert_ne!(one.root_der(), other.root_der());
    assert_ne!(one.root_der(), Authority::fixed().unwrap().root_der());
}

/// The folder of a real quote with its collateral.
fn real_vectors() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let extra = std::env::var_os("BIFROST_EXTRA_VECTORS").map(PathBuf::from);
    [extra, Some(root.join("client/verify/testdata")), Some(root.join("../shared/vectors"))]
        .into_iter()
        .flatten()
        .map(|folder| folder.join("dcap-qvl-crate"))
        .find(|folder| folder.join("tdx_quote").is_file())
}
