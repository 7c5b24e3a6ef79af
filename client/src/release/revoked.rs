//! Keys that this user has revoked or replaced: remembered here, so that none of them is released again from this host.
//!
//! A runtime forgets with its process; whoever has the key's file on another host knows nothing of it either.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::Error;
use crate::file::{private_dir, replace};
use crate::key::named;
use crate::trust::{Trust, time_of};

/// A folder with a file for every key that was revoked: `WORLD/TENANT/KEY-ID.json`.
pub(super) struct Revoked(PathBuf);

impl Revoked {
    pub(super) fn at(dir: PathBuf) -> Self {
        Self(dir)
    }

    /// Remembers it, before any runtime is told.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Usage`] for a name that no key has.
    pub(super) fn note<W: Trust>(&self, tenant: &str, key_id: &str, why: &str, now: u64) -> Result<(), Error> {
        let path = self.path::<W>(tenant, key_id)?;
        if path.exists() {
            return Ok(());
        }
        private_dir(path.parent().unwrap_or(Path::new(".")))?;
        let note = json!({"world": W::LABEL, "tenant": tenant, "key_id": key_id, "revoked_at": now, "why": why});
        replace(&path, format!("{note}\n").as_bytes())
    }

    /// # Errors
    /// [`Error::Usage`] if this key has been revoked, [`Error::File`] if that cannot be told.
    pub(super) fn allows<W: Trust>(&self, tenant: &str, key_id: &str) -> Result<(), Error> {
        let path = self.path::<W>(tenant, key_id)?;
        let note = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|error| Error::file(&path, error))?,
        };
        // Whatever is in it, it is there.
        let note: serde_json::Value = serde_json::from_slice(&note).unwrap_or_default();
        let when = note["revoked_at"].as_u64().map_or_else(String::new, |at| format!(" at {}", time_of(at)));
        let path = path.display();
        Err(Error::Usage(format!(
            "key {key_id} of tenant {tenant} was revoked{when} ({path}) and is released no more, expected another: `bifrost keygen` makes one"
        )))
    }

    fn path<W: Trust>(&self, tenant: &str, key_id: &str) -> Result<PathBuf, Error> {
        named("tenant", tenant).and_then(|()| named("key_id", key_id)).map_err(Error::Usage)?;
        Ok(self.0.join(W::LABEL).join(tenant).join(format!("{key_id}.json")))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use attest::Hardware;

    use super::*;

    #[test]
    fn what_was_revoked_is_released_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let revoked = Revoked::at(dir.path().join("revoked"));
        let allows = |tenant: &str, key_id: &str| revoked.allows::<Hardware>(tenant, key_id);
        allows("acme", "k-1").unwrap();
        revoked.note::<Hardware>("acme", "k-1", "revoked", 86_400).unwrap();
        revoked.note::<Hardware>("acme", "k-1", "revoked", 2 * 86_400).unwrap();
        let error = allows("acme", "k-1").unwrap_err();
        assert_eq!(error.verdict_code(), 2);
        let error = error.to_string();
        for says in ["key k-1 of tenant acme was revoked at 1970-01-02", "acme/k-1.json", "bifrost keygen"] {
            assert!(error.contains(says), "{error}");
        }
        // Others are others, also where their names run together.
        for (tenant, key_id) in [("acme", "k-2"), ("acme-k", "1"), ("other", "k-1")] {
            allows(tenant, key_id).unwrap();
        }
        let file = dir.path().join("revoked/hardware/acme/k-1.json");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&file, "half").unwrap();
        assert!(allows("acme", "k-1").is_err(), "a note that cannot be read is a note");
        for (tenant, key_id) in [("..", "k"), ("a/b", "k"), ("acme", "../k"), ("acme", "")] {
            assert!(revoked.note::<Hardware>(tenant, key_id, "", 0).is_err(), "{tenant} {key_id}");
        }
    }
}
