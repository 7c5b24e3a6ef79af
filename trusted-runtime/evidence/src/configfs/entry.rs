//! One entry of the kernel's interface, from `mkdir` to `rmdir`.

use super::{Errno, Fault, Files, Provider, REPORTS};
use crate::MAX_BLOB;
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Removed when dropped, however a quote ended.
pub(super) struct Entry<'a, F: Files> {
    files: &'a F,
    path: PathBuf,
}

impl<'a, F: Files> Entry<'a, F> {
    /// A name that nobody else has: of two processes, each has its own.
    pub(super) fn create(files: &'a F) -> Result<Self, Fault> {
        let mut suffix = [0; 8];
        files.random(&mut suffix).map_err(|source| Fault::Io { file: "name", source })?;
        let path = Path::new(REPORTS).join(format!("bifrost-{:016x}", u64::from_be_bytes(suffix)));
        files.make_dir(&path).map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT) => Fault::Absent,
            Some(Errno::NXIO) => Fault::NoProvider,
            Some(Errno::ACCESS | Errno::PERM) => Fault::Denied,
            _ => Fault::Io { file: "directory", source: error },
        })?;
        Ok(Self { files, path })
    }

    /// Writes the report data, once.
    pub(super) fn ask(&self, report_data: &[u8; 64]) -> Result<(), Fault> {
        self.files.write(&self.path.join(INBLOB), report_data).map_err(|error| Fault::of(INBLOB, error))
    }

    /// Reads the quote, which is when it is made. Tries again while the buffer is busy or the wait was interrupted.
    pub(super) fn answer(&self, patience: Duration) -> Result<Vec<u8>, Fault> {
        let start = self.files.elapsed();
        let mut pause = FIRST_PAUSE;
        loop {
            let last = match self.files.read(&self.path.join(OUTBLOB), MAX_BLOB) {
                Ok(quote) => return Ok(quote),
                Err(error) => error,
            };
            if !matches!(Errno::from_io_error(&last), Some(Errno::BUSY | Errno::INTR)) {
                return Err(Fault::of(OUTBLOB, last));
            }
            let spent = self.files.elapsed().saturating_sub(start);
            if spent + pause > patience {
                return Err(Fault::Busy { seconds: spent.as_secs(), last });
            }
            self.files.sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Whether the answer is to our one write.
    pub(super) fn written_once(&self) -> Result<(), Fault> {
        let generation = self.text(GENERATION)?;
        if generation.trim() == "1" {
            return Ok(());
        }
        Err(Fault::Generation(generation.trim().chars().take(20).collect()))
    }

    /// Whose quote it is.
    pub(super) fn provider(&self) -> Result<Provider, Fault> {
        Provider::parse(&self.text(PROVIDER)?)
    }

    /// SEV-SNP: the certificate table that the host put beside the report, if it did.
    pub(super) fn certificates(&self) -> Result<Vec<u8>, Fault> {
        match self.files.read(&self.path.join(AUXBLOB), MAX_BLOB) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(|error| Fault::of(AUXBLOB, error)),
        }
    }

    fn text(&self, file: &'static str) -> Result<String, Fault> {
        let bytes = self.files.read(&self.path.join(file), PAGE).map_err(|error| Fault::of(file, error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl<F: Files> Drop for Entry<'_, F> {
    fn drop(&mut self) {
        if let Err(error) = self.files.remove_dir(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "report entry cannot be removed");
        }
    }
}

const INBLOB: &str = "inblob";
const OUTBLOB: &str = "outblob";
const AUXBLOB: &str = "auxblob";
const GENERATION: &str = "generation";
const PROVIDER: &str = "provider";
/// Longest text attribute of the kernel, bytes.
const PAGE: usize = 4096;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
