//! Statuses come out as they were asked for, and combine.

use crate::dcap::{NOW, assert_refused, platform, verify};
use dcap_qvl::TcbStatus::{self, *};
use simulator::{CollateralSpec, Td15, TdReport};

#[test]
fn each_status_of_the_platform_comes_out() {
    let quote = platform().quote(&TdReport::default());
    for status in [
        UpToDate,
        SWHardeningNeeded,
        ConfigurationNeeded,
        ConfigurationAndSWHardeningNeeded,
        OutOfDate,
        OutOfDateConfigurationNeeded,
    ] {
        let report = verify(&quote, |spec| spec.status(status)).unwrap();
        assert_eq!(report.status, status.to_string());
        let expected = if status == UpToDate { vec![] } else { vec!["SIMULATED-SA-00001"] };
        assert_eq!(report.advisory_ids, expected, "{status}");
        assert_eq!((report.platform_status.status, report.qe_status.status), (status, UpToDate));
    }
    assert_refused(verify(&quote, |spec| spec.status(Revoked)), "TCB status is invalid: Revoked");
}

#[test]
fn what_is_out_of_date_below_makes_the_whole_out_of_date() {
    let quote = platform().quote(&TdReport::default());
    let cases: [(TcbStatus, TcbStatus, TcbStatus, TcbStatus); 5] = [
        (UpToDate, OutOfDate, UpToDate, OutOfDate),
        (UpToDate, UpToDate, OutOfDate, OutOfDate),
        (ConfigurationNeeded, OutOfDate, UpToDate, OutOfDateConfigurationNeeded),
        (SWHardeningNeeded, UpToDate, OutOfDate, OutOfDate),
        (OutOfDate, UpToDate, UpToDate, OutOfDate),
    ];
    for (status, module_status, qe_status, expected) in cases {
        let report = verify(&quote, |spec| CollateralSpec { status, module_status, qe_status, ..spec }).unwrap();
        assert_eq!(report.status, expected.to_string(), "{status} {module_status} {qe_status}");
    }
}

#[test]
fn advisories_of_all_parts_are_told() {
    let report = verify(&platform().quote(&TdReport::default()), |spec| CollateralSpec {
        advisories: vec!["A".into()],
        module_advisories: vec!["B".into()],
        qe_advisories: vec!["C".into(), "A".into()],
        ..spec
    })
    .unwrap();
    assert_eq!(report.advisory_ids, ["A", "B", "C"]);
}

#[test]
fn a_module_updated_below_a_running_td_asks_for_a_relaunch() {
    let mut current = platform().spec().module.tcb_svn;
    current[0] += 1;
    let td15 = Some(Td15 { current_tcb_svn: Some(current), ..Td15::default() });
    let quote = platform().quote(&TdReport { td15, ..TdReport::default() });
    let report = verify(&quote, |spec| CollateralSpec { module_status: OutOfDate, ..spec }).unwrap();
    assert_eq!(report.status, "TDRelaunchAdvised");
}

#[test]
fn the_level_above_says_what_is_short() {
    let collateral = platform().collateral(&CollateralSpec::at(NOW).status(OutOfDate)).unwrap();
    let info: dcap_qvl::TcbInfo = serde_json::from_str(&collateral.tcb_info).unwrap();
    let spec = platform().spec().clone();
    let short = info.tcb_levels[0].shortfalls(&spec.cpu_svn, spec.pce_svn, Some(&spec.module.tcb_svn)).unwrap();
    let needs: Vec<_> = short.iter().map(|short| (short.component, short.have, short.needs)).collect();
    use dcap_qvl::SvnComponent::{PceSvn, Sgx};
    assert_eq!(needs, [(Sgx(0), 2, 3), (PceSvn, 13, 14)]);
}
