//! Costs that were measured before, one file a pair of hosts.

use crate::planner::costs::Costs;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What costs depend on besides the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostPair {
    /// Digest of this machine's id, or of its name.
    pub machine: String,
    /// The evaluator's host without its port, its backend and instruction set; empty without one.
    pub evaluator: String,
    /// Version of this program.
    pub version: String,
    /// Instruction set here.
    pub isa: String,
    /// Compute threads here.
    pub threads: usize,
    /// Bits of q.
    pub q_bits: u32,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    hosts: HostPair,
    costs: Costs,
}

impl HostPair {
    /// `bifrost/costs-DIGEST.json` under the user's cache directory, if there is one.
    fn file(&self) -> Option<PathBuf> {
        let dir = std::env::var_os("XDG_CACHE_HOME").filter(|d| !d.is_empty()).map(PathBuf::from);
        let dir =
            dir.or_else(|| Some(PathBuf::from(std::env::var_os("HOME").filter(|d| !d.is_empty())?).join(".cache")))?;
        let digest = blake3::hash(serde_json::to_string(self).ok()?.as_bytes()).to_hex();
        Some(dir.join("bifrost").join(format!("costs-{}.json", &digest[..16])))
    }

    /// What was measured for this pair, if anything that can be read was.
    pub fn recall(&self) -> Option<Costs> {
        let entry: Entry = serde_json::from_slice(&std::fs::read(self.file()?).ok()?).ok()?;
        (entry.hosts == *self).then_some(entry.costs)
    }

    /// Keeps costs for the next time; that there is no place for them is no reason to fail.
    pub fn remember(&self, costs: &Costs) {
        let Some(file) = self.file() else { return };
        let write = || -> std::io::Result<()> {
            if let Some(dir) = file.parent() {
                std::fs::create_dir_all(dir)?;
            }
            let fresh = file.with_extension(format!("{}.new", std::process::id()));
            std::fs::write(&fresh, serde_json::to_vec_pretty(&Entry { hosts: self.clone(), costs: *costs })?)?;
            std::fs::rename(fresh, &file)
        };
        if let Err(error) = write() {
            tracing::warn!(file = %file.display(), %error, "measured costs are not kept");
        }
    }
}

/// A digest of what names this machine: its id, else its name. The id itself stays here.
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).ok().map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
    let name = read("/etc/machine-id").or_else(|| read("/proc/sys/kernel/hostname")).unwrap_or_default();
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor.lines().find(|l| l.starts_with("model name")).unwrap_or_default();
    blake3::hash(format!("{name} {processor}").as_bytes()).to_hex()[..16].to_owned()
}
