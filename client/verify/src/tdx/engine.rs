//! The one file that names dcap-qvl.

use super::quote::{Measurements, QuoteError};
use crate::{
    collateral::{Ca, CollateralKey},
    hex::{Hex, HexBytes, Sha384},
    policy::Status,
};
use dcap_qvl::{
    PckCertFlag, QuoteClaims, QuotePolicy, TcbStatus, intel,
    quote::{Report, TDReport10},
    verify::QuoteVerifier,
};
use serde::Serialize;

pub use dcap_qvl::QuoteCollateralV3;
use dcap_qvl::TcbInfo;

mod fault;

pub(super) use fault::{Fault, Kind};

/// A quote as the engine reads it.
pub(super) struct Parsed {
    pub(super) version: u16,
    pub(super) kind: &'static str,
    pub(super) length: usize,
    pub(super) measurements: Measurements,
    pub(super) report_data: [u8; 64],
    pub(super) tee_tcb_svn: [u8; 16],
    pub(super) tee_tcb_svn2: Option<[u8; 16]>,
    pub(super) mr_service_td: Option<Sha384>,
}

/// TDX quotes are of these two versions.
const VERSIONS: [u16; 2] = [4, 5];
/// Intel's number for a TDX domain.
const TDX: u32 = 0x81;
/// A PCK certificate chain in PEM.
const CERT_CHAIN: u16 = 5;
/// Length of the field that holds the length of the signature data.
const LENGTH: usize = 4;

pub(super) fn parse(raw: &[u8]) -> Result<Parsed, QuoteError> {
    let structure = |text: &str| QuoteError::Structure(text.to_owned());
    let quote =
        dcap_qvl::quote::Quote::parse(raw).map_err(|error| QuoteError::Structure(lower(&format!("{error:#}"))))?;
    let (kind, report) = match &quote.report {
        Report::SgxEnclave(_) => return Err(QuoteError::Sgx),
        Report::TD10(report) => ("TD10", report),
        Report::TD15(report) => ("TD15", &report.base),
        Report::TD15Ex(report) => ("TD15Ex", &report.base.base),
    };
    if !VERSIONS.contains(&quote.header.version) || quote.header.tee_type != TDX {
        return Err(QuoteError::Structure(format!(
            "version {} and TEE type {:#x}, expected version 4 or 5 and {TDX:#x}",
            quote.header.version, quote.header.tee_type
        )));
    }
    if quote.inner_cert_type() != CERT_CHAIN {
        return Err(QuoteError::CertData { found: quote.inner_cert_type() });
    }
    let signed = quote.signed_length();
    let length = raw
        .get(signed..signed + LENGTH)
        .and_then(|bytes| bytes.try_into().ok())
        .map(u32::from_le_bytes)
        .and_then(|signature| usize::try_from(signature).ok())
        .ok_or_else(|| structure("signature data has no length"))?;
    let later = quote.report.as_td15();
    Ok(Parsed {
        version: quote.header.version,
        kind,
        length: signed + LENGTH + length,
        measurements: measurements(report),
        report_data: report.report_data,
        tee_tcb_svn: report.tee_tcb_svn,
        tee_tcb_svn2: later.map(|report| report.tee_tcb_svn2),
        mr_service_td: later.map(|report| Hex(report.mr_service_td)),
    })
}

fn measurements(report: &TDReport10) -> Measurements {
    Measurements {
        mr_td: Hex(report.mr_td),
        rtmr: [Hex(report.rt_mr0), Hex(report.rt_mr1), Hex(report.rt_mr2), Hex(report.rt_mr3)],
        attributes: Hex(report.td_attributes),
        xfam: Hex(report.xfam),
        mr_seam: Hex(report.mr_seam),
        mr_config_id: Hex(report.mr_config_id),
        mr_owner: Hex(report.mr_owner),
        mr_owner_config: Hex(report.mr_owner_config),
    }
}

/// The collateral that a quote has to be checked with, from its PCK certificate.
///
/// # Errors
/// [`QuoteError::Structure`] if the certificate is not one of Intel's PCK certificates.
pub fn needs(quote: &super::Quote) -> Result<CollateralKey, QuoteError> {
    let pck = pck(quote).map_err(QuoteError::Structure)?;
    Ok(CollateralKey { fmspc: Hex(pck.fmspc), ca: pck.ca })
}

/// What a PCK certificate says, before anything is verified.
pub(crate) struct Pck {
    pub(crate) fmspc: [u8; 6],
    pub(crate) ca: Ca,
    pub(crate) cpu_svn: [u8; 16],
    pub(crate) pce_svn: u16,
    pub(crate) qe_svn: u16,
}

pub(crate) fn pck(quote: &super::Quote) -> Result<Pck, String> {
    fn text(error: impl std::fmt::Display) -> String {
        format!("PCK certificate: {}", lower(&format!("{error:#}")))
    }
    let quote = dcap_qvl::quote::Quote::parse(quote.bytes()).map_err(text)?;
    // ISVSVN of an enclave report: Intel SDM volume 3D, table 40-21.
    let [low, high] = [258, 259].map(|at| quote.qe_report().get(at).copied().unwrap_or_default());
    let qe_svn = u16::from_le_bytes([low, high]);
    let chain = intel::extract_cert_chain(&quote).map_err(text)?;
    let leaf = chain.first().ok_or("PCK certificate: the chain is empty, expected a leaf and its issuers")?;
    let extension = intel::parse_pck_extension(leaf).map_err(text)?;
    let ca = match intel::pck_ca(leaf).map_err(text)?.as_id_str() {
        "platform" => Ca::Platform,
        _ => Ca::Processor,
    };
    Ok(Pck { fmspc: extension.fmspc, ca, cpu_svn: extension.cpu_svn, pce_svn: extension.pce_svn, qe_svn })
}

/// What the signatures prove about a platform. Nothing here is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Claims {
    /// The platform's, its module's and its quoting enclave's status put together.
    pub status: Status,
    /// Date of the matched TCB level, the module's if that is older; seconds since 1970.
    pub level_date: u64,
    /// The quoting enclave's status.
    pub qe_status: Status,
    /// Date of its level.
    pub qe_date: u64,
    /// Every advisory that applies.
    pub advisories: Vec<String>,
    /// The lower of the numbers of TCB info and QE identity.
    pub eval_number: u32,
    /// Model of the platform.
    pub fmspc: Hex<6>,
    /// The machine.
    pub ppid: HexBytes,
    /// The platform has several packages.
    pub dynamic_platform: bool,
    /// Intel keeps its platform keys.
    pub cached_keys: bool,
    /// It has simultaneous multithreading.
    pub smt: bool,
    /// Seconds since 1970 after which some part of the collateral is no longer valid.
    pub expires: u64,
    /// Number of the PCK revocation list.
    pub pck_crl: u32,
}

/// Checks every signature, the revocation lists and the TCB, with the root of Intel or another.
///
/// # Errors
/// [`Fault`] saying what did not hold.
pub(super) fn verify(
    quote: &[u8],
    mut collateral: QuoteCollateralV3,
    root: Option<Vec<u8>>,
    now: u64,
    debug: Debug,
) -> Result<Claims, Fault> {
    // It would take the place of the chain in the quote.
    collateral.pck_certificate_chain = None;
    let debug = debug == Debug::Described;
    let verifier =
        root.map_or_else(QuoteVerifier::new_prod, QuoteVerifier::new).allow_debug(debug).allow_service_td(debug);
    // Every verdict is ours: the engine is asked for claims alone.
    let policy = QuotePolicy::claims_only(now);
    let claims = verifier.verify_with_policy(quote, collateral, now, &policy);
    claims.map(|claims| described(&claims)).map_err(|error| Fault::of(&format!("{error:#}")))
}

/// Whether a domain under debug or with service domains is an error or is described to the end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Debug {
    /// Always the first thing asked.
    Refused,
    /// For the report of evidence that is rejected already.
    Described,
}

fn described(claims: &QuoteClaims) -> Claims {
    let pck = &claims.platform.pck;
    let current = claims.platform.current_tcb_level.iter().flat_map(|level| level.advisory_ids.iter());
    let mut advisories: Vec<String> = claims.tcb.advisory_ids.iter().chain(current).cloned().collect();
    advisories.sort_unstable();
    advisories.dedup();
    Claims {
        status: status(claims.tcb.status),
        level_date: claims.platform.tcb_date_tag,
        qe_status: status(claims.qe.tcb_level.tcb_status),
        qe_date: crate::time::parse(&claims.qe.tcb_level.tcb_date).unwrap_or_default(),
        advisories,
        eval_number: claims.tcb.eval_data_number,
        fmspc: Hex(pck.fmspc),
        ppid: HexBytes(pck.ppid.clone()),
        dynamic_platform: pck.dynamic_platform == PckCertFlag::True,
        cached_keys: pck.cached_keys == PckCertFlag::True,
        smt: pck.smt_enabled == PckCertFlag::True,
        expires: claims.earliest_expiration_date,
        pck_crl: claims.platform.pck_crl_num,
    }
}

/// A TDX module as Intel rates it.
pub(super) struct Module {
    pub(super) id: String,
    pub(super) svn: u8,
    pub(super) status: Status,
    pub(super) date: u64,
}

/// How the TCB info rates the module of these SVNs; `None` for a module that it rates with the platform. The caller has
/// checked the signature.
pub(super) fn module(collateral: &QuoteCollateralV3, svn: &[u8; 16]) -> Result<Option<Module>, String> {
    let info = tcb_info(collateral)?;
    let Some(identity) = info.tdx_module_identity(svn).map_err(|error| lower(&error.to_string()))? else {
        return Ok(None);
    };
    let level = identity.tcb_levels.iter().find(|level| level.shortfall(svn).is_none());
    let level =
        level.ok_or_else(|| format!("SVN {} of {} is below every level that Intel lists", svn[0], identity.id))?;
    Ok(Some(Module {
        id: identity.id.clone(),
        svn: svn[0],
        status: status(level.tcb_status),
        date: crate::time::parse(&level.tcb_date).unwrap_or_default(),
    }))
}

pub(crate) fn tcb_info(collateral: &QuoteCollateralV3) -> Result<TcbInfo, String> {
    serde_json::from_str(&collateral.tcb_info).map_err(|error| format!("tcb_info: {error}"))
}

pub(super) fn status(status: TcbStatus) -> Status {
    match status {
        TcbStatus::UpToDate => Status::UpToDate,
        TcbStatus::SWHardeningNeeded => Status::SWHardeningNeeded,
        TcbStatus::ConfigurationNeeded => Status::ConfigurationNeeded,
        TcbStatus::ConfigurationAndSWHardeningNeeded => Status::ConfigurationAndSWHardeningNeeded,
        TcbStatus::OutOfDate => Status::OutOfDate,
        TcbStatus::OutOfDateConfigurationNeeded => Status::OutOfDateConfigurationNeeded,
        TcbStatus::TDRelaunchAdvised => Status::TDRelaunchAdvised,
        TcbStatus::TDRelaunchAdvisedConfigurationNeeded => Status::TDRelaunchAdvisedConfigurationNeeded,
        TcbStatus::Revoked => Status::Revoked,
    }
}

/// Its texts begin with a capital letter, ours do not.
fn lower(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) if !letters.clone().next().is_some_and(char::is_uppercase) => {
            first.to_lowercase().chain(letters).collect()
        }
        _ => text.to_owned(),
    }
}
