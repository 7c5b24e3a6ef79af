//! Files of an authority: private, whole, and never replaced by accident.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use zeroize::Zeroizing;

use crate::Error;

/// Refuses to go on if one of `paths` exists, unless it is to be replaced.
pub(super) fn absent(paths: &[&Path], replace: bool) -> Result<(), Error> {
    match paths.iter().find(|path| path.exists()) {
        Some(path) if !replace => Err(Error::file(*path, "exists already; --replace replaces it")),
        _ => Ok(()),
    }
}

/// Writes a file that only its owner may read, by rename: nobody reads half of it.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let fresh = path.with_extension("new");
    let written =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh).and_then(|mut file| {
            // A file that was left behind may have another mode.
            file.set_permissions(PermissionsExt::from_mode(0o600))?;
            file.write_all(bytes)?;
            file.sync_all()
        });
    written.and_then(|()| std::fs::rename(&fresh, path)).map_err(|e| Error::file(path, e))
}

/// Reads PEM.
pub(super) fn text(path: &Path) -> Result<Zeroizing<String>, Error> {
    let file = File::open(path).map_err(|e| Error::file(path, e))?;
    let mut text = Zeroizing::new(String::new());
    file.take(LARGEST + 1).read_to_string(&mut text).map_err(|e| Error::file(path, e))?;
    if text.len() as u64 > LARGEST {
        return Err(Error::file(path, format!("larger than {LARGEST} bytes, expected PEM")));
    }
    Ok(text)
}

/// Reads a key that only its owner may read.
pub(super) fn key(path: &Path) -> Result<Zeroizing<String>, Error> {
    let mode = std::fs::metadata(path).map_err(|e| Error::file(path, e))?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::file(
            path,
            format!(
                "mode {mode:o} lets others at the key, expected 600; if others could read it, make a new authority"
            ),
        ));
    }
    text(path)
}

/// No chain of certificates comes near it.
const LARGEST: u64 = 1 << 20;
