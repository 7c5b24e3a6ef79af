//! Files: read up to a bound, kept from others, made once.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use crate::Error;

/// What the owner alone may read and write.
const PRIVATE: u32 = 0o600;
/// Permissions of everybody else.
const OTHERS: u32 = 0o077;

/// Reads a file of at most `cap` bytes.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn bounded(path: &Path, cap: usize) -> Result<Vec<u8>, Error> {
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    let mut bytes = Vec::new();
    file.take(cap as u64 + 1).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    if bytes.len() > cap { Err(Error::file(path, format!("more than {cap} bytes"))) } else { Ok(bytes) }
}

/// Reads a secret of at most `cap` bytes from a file that nobody else may read or write.
///
/// # Errors
/// [`Error::File`]: not readable, not a regular file, open to others, too large.
pub(crate) fn secret(path: &Path, cap: usize) -> Result<Zeroizing<Vec<u8>>, Error> {
    let wrong = |reason: String| Error::file(path, reason);
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let about = file.metadata().map_err(|error| wrong(error.to_string()))?;
    if !about.is_file() {
        return Err(wrong("is no regular file".into()));
    }
    let mode = about.mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(wrong(format!("mode is {mode:03o}, expected 600: nobody else may read or write it")));
    }
    if about.len() > cap as u64 {
        return Err(wrong(format!("{} bytes, expected {cap} at most", about.len())));
    }
    // Allocated once, so that no copy is left behind by growing.
    let mut bytes = Zeroizing::new(Vec::with_capacity(cap + 1));
    let read = file.take(cap as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| wrong(error.to_string()))?;
    if bytes.len() > cap { Err(wrong(format!("more than {cap} bytes"))) } else { Ok(bytes) }
}

/// Writes a file that did not exist before and that nobody else may read, and returns when it is on the disk.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn create(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| Error::file(path, error))
}

/// Replaces a file in one step.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map(|_| ()).map_err(|error| error.error)
    };
    write().map_err(|error| Error::file(path, error))
}

/// Makes a folder that nobody else may look into, with what is above it.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn private_dir(path: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| Error::file(path, error))
}

/// Where state is kept: `bifrost` under `$XDG_STATE_HOME`, else under `~/.local/state`.
///
/// # Errors
/// [`Error::Platform`] when the user has no home.
pub(crate) fn state_dir() -> Result<PathBuf, Error> {
    let dirs = directories::BaseDirs::new();
    let state = dirs.as_ref().map(|dirs| dirs.state_dir().unwrap_or_else(|| dirs.data_local_dir()));
    let missing = "no state directory: neither XDG_STATE_HOME nor HOME names one";
    state.map(|dir| dir.join("bifrost")).ok_or_else(|| Error::Platform(missing.into()))
}
