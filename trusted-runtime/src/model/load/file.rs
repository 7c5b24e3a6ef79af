//! Files are read whole, once, and hashed as they are read: what was checked is what is used.

use crate::Error;
use sha2::{Digest, Sha256};
use std::{fs::File, io::Read, path::Path};

/// Reports (stage, done, total); called often.
pub(crate) type Progress<'a> = &'a dyn Fn(&str, u64, u64);

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes of a file and their SHA-256 in hexadecimal.
///
/// # Errors
/// [`Error::Model`] naming the file and the reason.
pub(crate) fn read_and_hash(path: &Path, progress: Progress<'_>) -> Result<(Vec<u8>, String), Error> {
    let name = path.display().to_string();
    let fail = |e: std::io::Error| Error::Model(format!("{name}: {e}"));
    let mut file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if !meta.is_file() {
        return Err(Error::Model(format!("{name}: not a file")));
    }
    let total = usize::try_from(meta.len()).map_err(|_| Error::Model(format!("{name}: too large")))?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(total).map_err(|_| Error::Platform(format!("{name}: no memory for {total} bytes")))?;
    let mut hash = Sha256::new();
    loop {
        let start = bytes.len();
        let read = file.by_ref().take(8 << 20).read_to_end(&mut bytes).map_err(fail)?;
        if read == 0 {
            break;
        }
        hash.update(&bytes[start..]);
        progress("reading the model", bytes.len() as u64, total.max(bytes.len()) as u64);
    }
    Ok((bytes, hex(&hash.finalize())))
}
