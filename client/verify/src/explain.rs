//! Why a platform is not up to date: which security version is behind, what it belongs to, and what raises it.

mod info;

use crate::{
    collateral::QuoteCollateralV3,
    hex::Hex,
    policy::Status,
    tdx::{self, Quote},
};
use info::{Component, Level, TcbInfo};
use serde::Serialize;
use std::fmt;

/// How far a platform is from the best level that Intel lists for it. Made from evidence and collateral whose signatures
/// are checked elsewhere: it explains a verdict and is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The model of the platform.
    pub fmspc: Hex<6>,
    /// Round of Intel's updates that it is held against.
    pub eval_number: u32,
    /// The level that the platform reaches; none if it is below all of them.
    pub reached: Option<Reached>,
    /// Date of the level that it is held against, as Intel writes it.
    pub best_date: String,
    /// What is behind that level, nothing if the platform is up to date.
    pub behind: Vec<Behind>,
    /// Advisories that apply to the reached level and what is behind.
    pub advisories: Vec<String>,
}

/// The level that a platform reaches, its module apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reached {
    /// Intel's verdict.
    pub status: Status,
    /// Date of the level.
    pub date: String,
}

/// One security version that is too low.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Behind {
    /// For example `sgxtcbcomponents[0]`.
    pub component: String,
    /// What Intel calls it, where it does.
    pub name: String,
    /// The platform's.
    pub have: u16,
    /// The level's.
    pub need: u16,
    /// What raises it.
    pub update: String,
}

/// Holds a quote against collateral.
///
/// # Errors
/// A sentence naming what cannot be read.
pub fn explain(quote: &Quote, collateral: &QuoteCollateralV3) -> Result<Explanation, String> {
    let pck = tdx::pck(quote)?;
    let info = TcbInfo::parse(&collateral.tcb_info)?;
    let qe = info::QeIdentity::parse(&collateral.qe_identity)?;
    let (launch, current) = quote.tee_tcb_svn();
    let svn = current.unwrap_or(launch);
    let levels = info.sorted();
    let short = |level: &Level| shortfalls(level, &pck, svn);
    let reached = levels.iter().find(|level| short(level).is_empty());
    let best = levels.iter().find(|level| level.tcb_status == Status::UpToDate).or(levels.first());
    let best = best.ok_or("tcb_info.tcbLevels is empty, expected a level")?;
    let mut behind = short(best);
    let mut advisories: Vec<String> = match reached {
        Some(level) => level.advisory_ids.clone(),
        None => levels.last().map(|level| level.advisory_ids.clone()).unwrap_or_default(),
    };
    if let Some(module) = info.module(svn) {
        let [have, ..] = *svn;
        if let Some(best) = module.tcb_levels.first().filter(|level| level.tcb.isvsvn > u16::from(have)) {
            behind.push(Behind {
                component: format!("tdxModuleIdentities[{}].isvsvn", module.id),
                name: "TDX Module".to_owned(),
                have: have.into(),
                need: best.tcb.isvsvn,
                update: MODULE.to_owned(),
            });
        }
        let level = module.tcb_levels.iter().find(|level| level.tcb.isvsvn <= u16::from(have));
        advisories.extend(level.iter().flat_map(|level| level.advisory_ids.iter().cloned()));
    }
    if let Some(best) = qe.tcb_levels.first().filter(|level| level.tcb.isvsvn > pck.qe_svn) {
        behind.push(Behind {
            component: "qe.isvsvn".to_owned(),
            name: "TD quoting enclave".to_owned(),
            have: pck.qe_svn,
            need: best.tcb.isvsvn,
            update: QUOTING.to_owned(),
        });
        let level = qe.tcb_levels.iter().find(|level| level.tcb.isvsvn <= pck.qe_svn);
        advisories.extend(level.iter().flat_map(|level| level.advisory_ids.iter().cloned()));
    }
    advisories.sort_unstable();
    advisories.dedup();
    Ok(Explanation {
        fmspc: Hex(pck.fmspc),
        eval_number: info.tcb_evaluation_data_number,
        reached: reached.map(|level| Reached { status: level.tcb_status, date: level.tcb_date.clone() }),
        best_date: best.tcb_date.clone(),
        behind,
        advisories,
    })
}

/// What of a level the platform falls short of. With a module of TDX 1.5 and later, whose version is the second SVN, the
/// first two belong to the module's own identity. Intel PCS API version 4, TCB info, step 3 of the comparison.
fn shortfalls(level: &Level, pck: &tdx::Pck, tee_tcb_svn: &[u8; 16]) -> Vec<Behind> {
    let [_, module, ..] = *tee_tcb_svn;
    let modules_own = if module > 0 { 2 } else { 0 };
    let array = |name: &'static str, have: &[u8; 16], need: &[Component], skip: usize| -> Vec<Behind> {
        need.iter()
            .zip(have)
            .enumerate()
            .skip(skip)
            .filter(|(_, (need, have))| need.svn > **have)
            .map(|(at, (need, have))| Behind {
                component: format!("{name}[{at}]"),
                name: need.name(),
                have: (*have).into(),
                need: need.svn.into(),
                update: update(need).to_owned(),
            })
            .collect()
    };
    let mut behind = array("sgxtcbcomponents", &pck.cpu_svn, &level.tcb.sgxtcbcomponents, 0);
    behind.extend(array("tdxtcbcomponents", tee_tcb_svn, &level.tcb.tdxtcbcomponents, modules_own));
    if level.tcb.pcesvn > pck.pce_svn {
        behind.push(Behind {
            component: "pcesvn".to_owned(),
            name: "provisioning certification enclave".to_owned(),
            have: pck.pce_svn,
            need: level.tcb.pcesvn,
            update: QUOTING.to_owned(),
        });
    }
    behind
}

const MODULE: &str =
    "the TDX module: the host's operator loads a newer one, by a BIOS update or with the host's kernel";
const QUOTING: &str = "Intel's quoting packages (DCAP) on the host, followed by a new registration of the platform";
const BIOS: &str = "a BIOS update by the maker of the machine, which carries the microcode, and a restart of the host";
const MICROCODE: &str = "a microcode update by the host's operating system, and a restart of the host";
const LOADER: &str = "the SEAM loader, which comes with a BIOS update or with the host's kernel";
const UNNAMED: &str = "an update of BIOS and microcode; Intel does not name this component";

fn update(component: &Component) -> &'static str {
    let kind = component.kind.as_deref().unwrap_or_default();
    match (kind, component.category.as_deref().unwrap_or_default()) {
        (kind, _) if kind.contains("TDX Module") => MODULE,
        (kind, _) if kind.contains("SEAMLDR") => LOADER,
        (_, "BIOS") => BIOS,
        (kind, _) if kind.contains("Microcode") => MICROCODE,
        (_, "OS/VMM") => "an update of the host's operating system or hypervisor",
        _ => UNNAMED,
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "platform of FMSPC {}, held against round {} of Intel's updates", self.fmspc, self.eval_number)?;
        match &self.reached {
            Some(level) => writeln!(f, "reaches the level of {}, {}", level.date, level.status)?,
            None => writeln!(f, "is below every level that Intel lists")?,
        }
        if self.behind.is_empty() {
            writeln!(f, "nothing is behind the level of {}", self.best_date)?;
        } else {
            writeln!(f, "behind the level of {}:", self.best_date)?;
        }
        for Behind { component, name, have, need, update } in &self.behind {
            let name = if name.is_empty() { "unnamed" } else { name };
            writeln!(f, "  {component} ({name}): has {have}, needs {need}; raised by {update}")?;
        }
        if !self.advisories.is_empty() {
            writeln!(f, "advisories: {}", self.advisories.join(", "))?;
        }
        Ok(())
    }
}
