//! RTMR3: what the runtime itself adds to the TD's measurements (Linux 6.16 and later).
//!
//! Kernel documentation, ABI/testing/sysfs-devices-virtual-misc-tdx_guest: reading the file gives the register, writing
//! 48 bytes extends it. The firmware's event log never shows such extensions, so they are logged here. The register lives
//! until the guest ends and a process does not, so the log lies in a file that lives as long as the boot; it needs no
//! secrecy and no trust, because whoever verifies replays it.

use crate::fs::Files;
use attest::source::SourceError;
use prost::Message;
use proto::v1::{Evidence, RuntimeEvent};
use sha2::{Digest, Sha384};
use std::{
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

/// The register.
pub const REGISTER: &str = "/sys/devices/virtual/misc/tdx_guest/measurements/rtmr3:sha384";
/// The log of this boot.
pub const LOG: &str = "/run/bifrost-quote/rtmr3.log";
/// Longest name of an event, bytes.
pub const MAX_NAME: usize = 64;
/// Longest payload of an event, bytes.
pub const MAX_PAYLOAD: usize = 1024;
/// Most events of one boot.
pub const MAX_EVENTS: usize = 32;

/// The register and what went into it.
#[derive(Debug)]
pub struct Rtmr3<F> {
    files: F,
    path: PathBuf,
    log: Vec<RuntimeEvent>,
}

/// Why RTMR3 cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The system's error.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// The log is no log.
    #[error("{0} is damaged: remove it and restart the guest")]
    Damaged(String),
    /// Register and log differ.
    #[error(
        "rtmr3 is {found}, expected {expected} by the log of {events} events: something else extended it; restart the guest"
    )]
    Unexplained {
        /// The register, hexadecimal.
        found: String,
        /// What the log gives, hexadecimal.
        expected: String,
        /// Events in the log.
        events: usize,
    },
    /// Too large, or too many.
    #[error("event {name} of rtmr3 has {found} {what}, expected at most {most}")]
    TooMuch {
        /// The event's name.
        name: String,
        /// What there is too much of.
        what: &'static str,
        /// How much.
        found: usize,
        /// How much there may be.
        most: usize,
    },
    /// Quotes have been made.
    #[error("event {0} of rtmr3 differs from the one before the first quote: restart the guest")]
    Sealed(String),
}

impl From<RegisterError> for SourceError {
    fn from(error: RegisterError) -> Self {
        Self::Quote(error.to_string())
    }
}

/// What the register is extended with: `SHA-384(u32_be(len(name)) || name || u32_be(len(payload)) || payload)`.
#[must_use]
pub fn event_digest(event: &RuntimeEvent) -> [u8; 48] {
    let mut hash = Sha384::new();
    for field in [event.name.as_bytes(), event.payload.as_ref()] {
        hash.update(u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(field);
    }
    hash.finalize().into()
}

/// The register after these events: it starts as zeros, and each makes it `SHA-384(register || digest)`.
/// Intel TDX module specification, TDG.MR.RTMR.EXTEND.
#[must_use]
pub fn replay(log: &[RuntimeEvent]) -> [u8; 48] {
    log.iter().fold([0; 48], |register, event| {
        Sha384::new().chain_update(register).chain_update(event_digest(event)).finalize().into()
    })
}

impl<F: Files> Rtmr3<F> {
    /// The register with the log at `path`, or nothing where this platform has no such register or keeps it from us (in a
    /// container `/sys` is read-only); that is said in the log.
    ///
    /// # Errors
    /// [`RegisterError`], if the log does not explain the register among others.
    pub fn open(files: F, path: PathBuf) -> Result<Option<Self>, RegisterError> {
        if let Err(error) = files.writable(Path::new(REGISTER)) {
            tracing::info!(path = REGISTER, %error, "no register for runtime measurements; evidence goes without them");
            return Ok(None);
        }
        let register = files.read(Path::new(REGISTER), 48).map_err(|e| io_error(Path::new(REGISTER), e))?;
        let mut log = read_log(&files, &path)?;
        // A process that died between the log's last event and the register's left one too many.
        let pending = log.split_last().is_some_and(|(_, before)| replay(before) == register.as_slice());
        if pending && replay(&log) != register.as_slice() {
            log.pop();
        }
        if replay(&log) != register.as_slice() {
            let (found, expected) = (hex(&register), hex(&replay(&log)));
            return Err(RegisterError::Unexplained { found, expected, events: log.len() });
        }
        Ok(Some(Self { files, path, log }))
    }

    /// Extends the register, unless the last event of this name is this one: a runtime that starts again says the same.
    ///
    /// # Errors
    /// [`RegisterError`] of size, of the files, or because the register was [sealed](Self::seal).
    pub fn extend(&mut self, event: RuntimeEvent) -> Result<(), RegisterError> {
        let RuntimeEvent { name, payload } = &event;
        let last = self.log.iter().rfind(|e| e.name == *name);
        if last == Some(&event) {
            return Ok(());
        }
        if self.files.exists(&self.sealed()) {
            return Err(RegisterError::Sealed(name.chars().take(MAX_NAME).collect()));
        }
        limit(name, "bytes of name", name.len(), MAX_NAME)?;
        limit(name, "bytes of payload", payload.len(), MAX_PAYLOAD)?;
        limit(name, "events before it", self.log.len(), MAX_EVENTS - 1)?;
        let digest = event_digest(&event);
        self.log.push(event);
        let bytes = Evidence { runtime_log: self.log.clone(), ..Evidence::default() }.encode_to_vec();
        let written = self.replace(&self.path, &bytes).and_then(|()| {
            self.files.write(Path::new(REGISTER), &digest).map_err(|e| io_error(Path::new(REGISTER), e))
        });
        if written.is_err() {
            self.log.pop();
        }
        written
    }

    /// Takes nothing new until the guest ends, whichever process asks.
    ///
    /// # Errors
    /// The system's.
    pub fn seal(&self) -> Result<(), RegisterError> {
        if self.files.exists(&self.sealed()) { Ok(()) } else { self.replace(&self.sealed(), b"sealed\n") }
    }

    /// Every event of this boot, in order.
    #[must_use]
    pub fn log(&self) -> &[RuntimeEvent] {
        &self.log
    }

    fn sealed(&self) -> PathBuf {
        self.path.with_extension("sealed")
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), RegisterError> {
        self.files.replace(path, bytes).map_err(|e| io_error(path, e))
    }
}

fn read_log(files: &impl Files, path: &Path) -> Result<Vec<RuntimeEvent>, RegisterError> {
    const CAP: usize = MAX_EVENTS * (MAX_NAME + MAX_PAYLOAD + 32);
    let bytes = match files.read(path, CAP) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(|e| io_error(path, e))?,
    };
    let evidence = Evidence::decode(bytes.as_slice());
    evidence.map(|e| e.runtime_log).map_err(|_| RegisterError::Damaged(path.display().to_string()))
}

fn limit(name: &str, what: &'static str, found: usize, most: usize) -> Result<(), RegisterError> {
    if found <= most {
        return Ok(());
    }
    Err(RegisterError::TooMuch { name: name.chars().take(MAX_NAME).collect(), what, found, most })
}

fn io_error(path: &Path, source: io::Error) -> RegisterError {
    RegisterError::Io { path: path.display().to_string(), source }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests;
