//! TCB info and QE identity as far as an explanation needs them, names of components included. Intel PCS API version 4.

use crate::policy::Status;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TcbInfo {
    pub(super) tcb_evaluation_data_number: u32,
    tcb_levels: Vec<Level>,
    #[serde(default)]
    tdx_module_identities: Vec<Module>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Level {
    pub(super) tcb: Tcb,
    pub(super) tcb_date: String,
    pub(super) tcb_status: Status,
    #[serde(default, rename = "advisoryIDs")]
    pub(super) advisory_ids: Vec<String>,
}

#[derive(Clone, Deserialize)]
pub(super) struct Tcb {
    pub(super) sgxtcbcomponents: Vec<Component>,
    #[serde(default)]
    pub(super) tdxtcbcomponents: Vec<Component>,
    pub(super) pcesvn: u16,
}

#[derive(Clone, Deserialize)]
pub(super) struct Component {
    pub(super) svn: u8,
    pub(super) category: Option<String>,
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Module {
    pub(super) id: String,
    pub(super) tcb_levels: Vec<SvnLevel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct QeIdentity {
    pub(super) tcb_levels: Vec<SvnLevel>,
}

/// A level of one number: a module's or a quoting enclave's. The first is the best.
#[derive(Deserialize)]
pub(super) struct SvnLevel {
    pub(super) tcb: Svn,
    #[serde(default, rename = "advisoryIDs")]
    pub(super) advisory_ids: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Svn {
    pub(super) isvsvn: u16,
}

impl TcbInfo {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        read("tcb_info", text)
    }

    /// The levels in the order in which Intel's verification library looks at them, the highest first.
    pub(super) fn sorted(&self) -> Vec<Level> {
        let mut levels = self.tcb_levels.clone();
        let svns = |list: &[Component]| list.iter().map(|component| component.svn).collect::<Vec<_>>();
        levels.sort_by_cached_key(|level| {
            let tcb = &level.tcb;
            std::cmp::Reverse((svns(&tcb.sgxtcbcomponents), tcb.pcesvn, svns(&tcb.tdxtcbcomponents)))
        });
        levels
    }

    /// The module of this version, which is the second SVN; none for a module of TDX 1.0.
    pub(super) fn module(&self, tee_tcb_svn: &[u8; 16]) -> Option<&Module> {
        let [_, version, ..] = *tee_tcb_svn;
        let id = format!("TDX_{version:02X}");
        self.tdx_module_identities.iter().find(|module| version > 0 && module.id.eq_ignore_ascii_case(&id))
    }
}

impl QeIdentity {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        read("qe_identity", text)
    }
}

impl Component {
    /// Category and type, as far as Intel gives them.
    pub(super) fn name(&self) -> String {
        [self.category.as_deref(), self.kind.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }
}

fn read<'a, T: Deserialize<'a>>(field: &str, text: &'a str) -> Result<T, String> {
    if text.len() > crate::collateral::MAX_PART {
        return Err(format!("{field} is {} bytes, expected {} at most", text.len(), crate::collateral::MAX_PART));
    }
    serde_json::from_str(text).map_err(|error| format!("{field}: {error}"))
}
