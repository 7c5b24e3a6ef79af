//! The disk cache: one file per matrix, named by content hash, never trusted without hashing again.
//!
//! `magic "BFC1" | rows u32 LE | cols u32 LE | rows·cols int8`, row-major. Files appear by rename, so a crash
//! leaves at most a temporary file, which the next start removes.

use crate::{Error, header::hex};
use kernels::{Int8Matrix, MatrixId};
use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

const MAGIC: [u8; 4] = *b"BFC1";
const EXTENSION: &str = "int8";
const TEMPORARY: &str = "partial";

/// A directory of matrices.
pub struct Cache {
    dir: PathBuf,
    serial: AtomicU64,
}

impl Cache {
    /// Opens the directory, making it if needed, and removes what an interrupted write left.
    ///
    /// # Errors
    /// [`Error::Platform`] naming the directory if it cannot be made or written.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let at = |e: io::Error| Error::Platform(format!("cache directory {}: {e}", dir.display()));
        fs::create_dir_all(dir).map_err(at)?;
        for entry in fs::read_dir(dir).map_err(at)? {
            let path = entry.map_err(at)?.path();
            if path.extension().is_some_and(|e| e == TEMPORARY) {
                fs::remove_file(&path).map_err(at)?;
            }
        }
        let probe = dir.join(format!("probe-{}.{TEMPORARY}", std::process::id()));
        fs::write(&probe, []).and_then(|()| fs::remove_file(&probe)).map_err(at)?;
        Ok(Self { dir: dir.to_owned(), serial: AtomicU64::new(0) })
    }

    /// The matrix with this digest, if a sound file holds it. A file that does not is deleted and reported.
    pub fn load(&self, id: &MatrixId) -> Option<Int8Matrix> {
        let path = self.path(id);
        match read(&path) {
            Ok(matrix) if matrix.id() == *id => Some(matrix),
            Ok(_) => self.discard(&path, "its content does not have the hash in its name"),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) if e.kind() == io::ErrorKind::InvalidData => self.discard(&path, &e.to_string()),
            Err(e) => {
                tracing::warn!("cache file {}: {e}", path.display());
                None
            }
        }
    }

    /// Writes a matrix whose digest is `id`. A failure costs an upload after the next restart, so it is
    /// reported and not an error.
    pub fn store(&self, id: &MatrixId, matrix: &Int8Matrix) {
        let path = self.path(id);
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let temporary = self.dir.join(format!("{}-{serial}.{TEMPORARY}", std::process::id()));
        if let Err(e) = write(&temporary, matrix).and_then(|()| fs::rename(&temporary, &path)) {
            tracing::warn!("cache file {}: {e}", path.display());
            // It may not have come into being at all.
            let _ = fs::remove_file(&temporary);
        }
    }

    fn discard(&self, path: &Path, why: &str) -> Option<Int8Matrix> {
        crate::metrics::cache_corrupt();
        match fs::remove_file(path) {
            Ok(()) => tracing::warn!("cache file {}: {why}; deleted", path.display()),
            Err(e) => tracing::warn!("cache file {}: {why}; deleting it: {e}", path.display()),
        }
        None
    }

    fn path(&self, id: &MatrixId) -> PathBuf {
        self.dir.join(format!("{}.{EXTENSION}", hex(&id.0)))
    }
}

/// Invalid data is `InvalidData`; everything else is the machine's.
fn read(path: &Path) -> io::Result<Int8Matrix> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut file = fs::File::open(path)?;
    let mut head = [0u8; 12];
    let size = file.metadata()?.len();
    if size < head.len() as u64 {
        return Err(invalid(format!("{size} bytes, a header has {}", head.len())));
    }
    file.read_exact(&mut head)?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (rows, cols) = (word(4), word(8));
    let body = u64::from(rows) * u64::from(cols);
    if head[..4] != MAGIC || body.checked_add(head.len() as u64) != Some(size) {
        return Err(invalid(format!("{size} bytes that are not a {rows}x{cols} matrix")));
    }
    let mut data = Vec::with_capacity(usize::try_from(body).unwrap_or(0));
    let mut chunk = vec![0u8; 1 << 20];
    loop {
        let got = file.read(&mut chunk)?;
        if got == 0 {
            break;
        }
        data.extend(chunk[..got].iter().map(|&b| b.cast_signed()));
    }
    Int8Matrix::new(rows as usize, cols as usize, data).map_err(|e| invalid(e.to_string()))
}

fn write(path: &Path, matrix: &Int8Matrix) -> io::Result<()> {
    let size = |n: usize| u32::try_from(n).map_err(|_| io::Error::other("a side of more than 2^32"));
    let mut file = fs::File::create(path)?;
    file.write_all(&MAGIC)?;
    file.write_all(&size(matrix.rows())?.to_le_bytes())?;
    file.write_all(&size(matrix.cols())?.to_le_bytes())?;
    let mut bytes = Vec::with_capacity(1 << 20);
    for chunk in matrix.data().chunks(1 << 20) {
        bytes.clear();
        bytes.extend(chunk.iter().map(|&w| w.cast_unsigned()));
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> Int8Matrix {
        Int8Matrix::new(3, 5, (0..15).map(|i| i * 17 % 127 - 60).collect()).expect("shape")
    }

    #[test]
    fn what_is_stored_is_loaded_after_reopening() {
        let dir = tempfile::tempdir().expect("directory");
        let (m, id) = (matrix(), matrix().id());
        let cache = Cache::open(dir.path()).expect("open");
        assert!(cache.load(&id).is_none());
        cache.store(&id, &m);
        fs::write(dir.path().join("1-0.partial"), b"half").expect("write");
        assert_eq!(Cache::open(dir.path()).expect("open").load(&id), Some(m));
        assert_eq!(fs::read_dir(dir.path()).expect("list").count(), 1, "leftovers are gone");
    }

    #[test]
    fn corrupt_files_are_deleted_and_not_served() {
        let dir = tempfile::tempdir().expect("directory");
        let (m, id) = (matrix(), matrix().id());
        let cache = Cache::open(dir.path()).expect("open");
        cache.store(&id, &m);
        let good = fs::read(cache.path(&id)).expect("file");
        let mut flipped = good.clone();
        flipped[20] ^= 1;
        let mut shape = good.clone();
        shape[4] = 4;
        let mut magic = good.clone();
        magic[0] ^= 1;
        for bad in [flipped, shape, magic, good[..good.len() - 1].to_vec(), good[..5].to_vec(), Vec::new()] {
            fs::write(cache.path(&id), &bad).expect("write");
            assert!(cache.load(&id).is_none());
            assert!(!cache.path(&id).exists(), "deleted");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().expect("directory");
        let file = dir.path().join("file");
        fs::write(&file, []).expect("write");
        let err = Cache::open(&file.join("below")).err().expect("not a directory");
        assert!(err.to_string().starts_with("cache directory ") && err.to_string().contains("below"), "{err}");
    }
}
