//! The two documents that say which security versions are current.
//!
//! Source: Intel PCS API version 4, "Get TDX TCB Info" (version 3 of the document) and "Get TD Quoting Enclave Identity"
//! (version 2).

use crate::collateral::{CollateralFlaw, CollateralSpec};
use crate::instant;
use crate::marker::marker;
use crate::quote::{QE_FLAGS, QE_PRODUCT, qe_signer};
use crate::{PlatformSpec, SimulatorError};
use dcap_qvl::TcbStatus;
use serde_json::{Value, json};

/// The TCB info of the platform's family, as the bytes that are signed.
///
/// There is a level that the platform meets, with the status asked for. If that is one an update would cure, a level
/// above it is up to date: one more in the first component of the CPU and in the provisioning enclave.
///
/// # Errors
/// [`SimulatorError::Time`] for a date that cannot be written.
pub(crate) fn tcb_info(platform: &PlatformSpec, spec: &CollateralSpec) -> Result<String, SimulatorError> {
    let flaw = |other| spec.flaw == Some(other);
    let fmspc = if flaw(CollateralFlaw::Fmspc) { *b"SIMTD2" } else { platform.fmspc };
    let mut above = platform.cpu_svn;
    above[0] = above[0].saturating_add(1);
    let newest = level(
        tcb(spec.flaw, &above, platform.pce_svn.saturating_add(1), &platform.module.tcb_svn),
        spec.issue_date,
        TcbStatus::UpToDate,
        &[],
    )?;
    let met = level(
        tcb(spec.flaw, &platform.cpu_svn, platform.pce_svn, &platform.module.tcb_svn),
        spec.tcb_date,
        spec.status,
        &spec.advisories,
    )?;
    let levels = match (flaw(CollateralFlaw::NoMatchingLevel), cured_by_update(spec.status)) {
        (true, _) => vec![newest],
        (false, true) => vec![newest, met],
        (false, false) => vec![met],
    };
    let module = json!({
        "mrsigner": hex(&platform.module.signer),
        "attributes": hex(&platform.module.attributes),
        "attributesMask": hex(&[0xff; 8]),
    });
    let [isvsvn, major, ..] = platform.module.tcb_svn;
    let mut identity = module.clone();
    identity["id"] = format!("TDX_{major:02X}").into();
    identity["tcbLevels"] = svn_levels(isvsvn.into(), spec.module_status, &spec.module_advisories, spec)?;
    Ok(json!({
        "id": "TDX",
        "version": 3,
        "issueDate": instant::text(spec.issue_date)?,
        "nextUpdate": instant::text(spec.next_update)?,
        "fmspc": hex(&fmspc),
        "pceId": hex(&platform.pce_id),
        "tcbType": 0,
        "tcbEvaluationDataNumber": spec.eval_number,
        "tdxModule": module,
        "tdxModuleIdentities": [identity],
        "tcbLevels": levels,
    })
    .to_string())
}

/// The identity of the quoting enclave, as the bytes that are signed.
///
/// # Errors
/// [`SimulatorError::Time`] for a date that cannot be written.
pub(crate) fn qe_identity(platform: &PlatformSpec, spec: &CollateralSpec) -> Result<String, SimulatorError> {
    let signer = if spec.flaw == Some(CollateralFlaw::QeSigner) { marker("QE-ANOTHER-SIGNER") } else { qe_signer() };
    let mut attributes = [0; 16];
    attributes[0] = QE_FLAGS;
    let mut mask = [0; 16];
    mask[..8].fill(0xff);
    mask[0] = 0xfb;
    Ok(json!({
        "id": "TD_QE",
        "version": 2,
        "issueDate": instant::text(spec.issue_date)?,
        "nextUpdate": instant::text(spec.next_update)?,
        "tcbEvaluationDataNumber": spec.eval_number,
        "miscselect": hex(&[0; 4]),
        "miscselectMask": hex(&[0xff; 4]),
        "attributes": hex(&attributes),
        "attributesMask": hex(&mask),
        "mrsigner": hex(&signer),
        "isvprodid": QE_PRODUCT,
        "tcbLevels": svn_levels(platform.qe_svn, spec.qe_status, &spec.qe_advisories, spec)?,
    })
    .to_string())
}

/// Levels of something with one security version: the one met and, where an update would help, one above it.
fn svn_levels(
    svn: u16,
    status: TcbStatus,
    advisories: &[String],
    spec: &CollateralSpec,
) -> Result<Value, SimulatorError> {
    let mut levels = Vec::new();
    if cured_by_update(status) {
        let above = json!({ "isvsvn": svn.saturating_add(1) });
        levels.push(level(above, spec.issue_date, TcbStatus::UpToDate, &[])?);
    }
    levels.push(level(json!({ "isvsvn": svn }), spec.tcb_date, status, advisories)?);
    Ok(levels.into())
}

fn level(tcb: Value, date: u64, status: TcbStatus, advisories: &[String]) -> Result<Value, SimulatorError> {
    let mut level = json!({ "tcb": tcb, "tcbDate": instant::text(date)?, "tcbStatus": status.to_string() });
    if !advisories.is_empty() {
        level["advisoryIDs"] = advisories.into();
    }
    Ok(level)
}

fn tcb(flaw: Option<CollateralFlaw>, cpu_svn: &[u8], pce_svn: u16, tdx_svn: &[u8]) -> Value {
    let components = |svns: &[u8], overlong| -> Vec<Value> {
        let surplus = if flaw == Some(overlong) { &[0][..] } else { &[] };
        svns.iter().chain(surplus).map(|svn| json!({ "svn": svn })).collect()
    };
    json!({
        "sgxtcbcomponents": components(cpu_svn, CollateralFlaw::SgxComponents),
        "pcesvn": pce_svn,
        "tdxtcbcomponents": components(tdx_svn, CollateralFlaw::TdxComponents),
    })
}

/// Whether a newer version of something would change this status.
fn cured_by_update(status: TcbStatus) -> bool {
    matches!(status, TcbStatus::OutOfDate | TcbStatus::OutOfDateConfigurationNeeded)
}

/// Upper case, as in most of what Intel serves.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
