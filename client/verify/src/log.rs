//! The log of accepted evidence: append-only lines of JSON, and the floors that only rise because of it.
//!
//! A log that has grown to a mebibyte is put aside under a number and never touched again; the new one begins with a line
//! of the floors so far. So one file of bounded size says all that there is to know, however long a proxy runs.

mod aside;

use crate::{
    hex::Sha256,
    report::{Measured, Report, Verdict},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::PathBuf,
};

/// What was accepted before, and must not go down again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Floor {
    /// Highest version of a policy that something was accepted by.
    pub policy_version: u32,
    /// Highest evaluation number of collateral that something was accepted with.
    pub eval_number: u32,
    /// Takes going down for a note instead of a failure. For one call, by the word of a person.
    pub accept_rollback: bool,
}

impl Floor {
    pub(crate) fn least_eval_number(&self) -> u32 {
        if self.accept_rollback { 0 } else { self.eval_number }
    }
}

/// One line of the log.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time: u64,
    endpoint: &'a str,
    domain: &'a str,
    platform: &'a str,
    transcript: Sha256,
    measured: Option<&'a Measured>,
    tcb_status: Option<String>,
    advisories: &'a [String],
    eval_number: Option<u32>,
    ppid: Option<String>,
    policy_version: u32,
    policy_digest: Sha256,
    software: &'a str,
}

/// What a [`Floor`] is made of: a line, or the floors of the logs before.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Seen { endpoint: String, policy_version: u32, eval_number: Option<u32> },
    Floors { floors: Floors },
}

/// Highest versions of policies by endpoint, and the highest evaluation number of all.
#[derive(Default, Deserialize, Serialize)]
struct Floors {
    eval_number: u32,
    policy_versions: BTreeMap<String, u32>,
}

impl Floors {
    fn rise(&mut self, entry: Entry) {
        let Self { eval_number, policy_versions } = self;
        let (eval, versions) = match entry {
            Entry::Seen { endpoint, policy_version, eval_number } => {
                (eval_number.unwrap_or(0), BTreeMap::from([(endpoint, policy_version)]))
            }
            Entry::Floors { floors } => (floors.eval_number, floors.policy_versions),
        };
        *eval_number = eval.max(*eval_number);
        for (endpoint, version) in versions {
            let highest = policy_versions.entry(endpoint).or_default();
            *highest = version.max(*highest);
        }
    }
}

/// A log file.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
}

/// Why the log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file system said no.
    #[error("log {path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// Others may read or write it.
    #[error("log {path} has mode {found:03o}, expected 600: nobody else may read or write it")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        found: u32,
    },
    /// A line that is not one of ours.
    #[error("log {path} line {line}: {error}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: usize,
        /// What is wrong with it.
        error: serde_json::Error,
    },
    /// Only what was accepted is logged.
    #[error("evidence was {0}, expected accepted")]
    NotAccepted(Verdict),
}

impl Log {
    /// The log at this path. Nothing is opened yet.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Appends accepted evidence of an endpoint, and returns when it is on the disk.
    ///
    /// # Errors
    /// [`LogError`]; the caller must then not use the evidence.
    pub fn append(&self, endpoint: &str, report: &Report) -> Result<(), LogError> {
        if report.verdict != Verdict::Accepted {
            return Err(LogError::NotAccepted(report.verdict));
        }
        let intel = report.intel.as_ref();
        let line = serde_json::to_string(&Line {
            time: report.checked_at,
            endpoint,
            domain: &report.domain,
            platform: &report.platform,
            transcript: report.transcript,
            measured: report.measured.as_ref(),
            tcb_status: intel.map(|claims| claims.status.to_string()),
            advisories: intel.map_or(&[], |claims| &claims.advisories),
            eval_number: intel.map(|claims| claims.eval_number),
            ppid: intel.map(|claims| crate::hex::encode(&claims.ppid.0)),
            policy_version: report.policy_version,
            policy_digest: report.policy_digest,
            software: report.runtime.as_ref().map_or("", |runtime| &runtime.software),
        })
        .map_err(|error| LogError::Line { path: self.path.clone(), line: 0, error })?;
        let _alone = self.alone()?;
        self.put_aside(LARGEST)?;
        let new = !self.path.exists();
        self.write(&line, new).map_err(|error| self.io(error))?
    }

    fn write(&self, line: &str, new: bool) -> io::Result<Result<(), LogError>> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(PRIVATE).open(&self.path)?;
        if let Err(error) = self.private(&file)? {
            return Ok(Err(error));
        }
        // A line that a crash cut short stays alone on its line.
        let torn = if ends_a_line(&mut file)? { "" } else { "\n" };
        file.write_all(format!("{torn}{line}\n").as_bytes())?;
        file.sync_all()?;
        if new {
            File::open(self.folder())?.sync_all()?;
        }
        Ok(Ok(()))
    }

    /// What evidence of this endpoint must not fall below: the policy's version by what was accepted of the endpoint, the
    /// evaluation number by everything that was accepted. Nothing if there is no log yet.
    ///
    /// # Errors
    /// [`LogError`]: a log that cannot be read is no reason to start anew.
    pub fn floor(&self, endpoint: &str) -> Result<Floor, LogError> {
        let floors = self.floors()?;
        let policy_version = floors.policy_versions.get(endpoint).copied().unwrap_or(0);
        Ok(Floor { policy_version, eval_number: floors.eval_number, accept_rollback: false })
    }

    /// The floors of the log, or of the last one that was put aside if there is none: a crash may have come between.
    fn floors(&self) -> Result<Floors, LogError> {
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.last_aside()? {
                Some(last) => return Self::at(last).floors(),
                None => return Ok(Floors::default()),
            },
            opened => opened.map_err(|error| self.io(error))?,
        };
        self.private(&file).map_err(|error| self.io(error))??;
        let mut floors = Floors::default();
        let mut reader = BufReader::new(file);
        let mut text = String::new();
        let mut line = 0;
        while reader.read_line(&mut text).map_err(|error| self.io(error))? > 0 {
            line += 1;
            match serde_json::from_str::<Entry>(text.trim_end()) {
                Ok(entry) => floors.rise(entry),
                // A crash can cut a line short; whatever follows begins on a line of its own.
                Err(error) if error.is_eof() => {}
                Err(error) => return Err(LogError::Line { path: self.path.clone(), line, error }),
            }
            text.clear();
        }
        Ok(floors)
    }

    fn private(&self, file: &File) -> io::Result<Result<(), LogError>> {
        const OTHERS: u32 = 0o077;
        const PERMISSIONS: u32 = 0o777;
        let found = file.metadata()?.mode() & PERMISSIONS;
        let good = found & OTHERS == 0;
        Ok(if good { Ok(()) } else { Err(LogError::Mode { path: self.path.clone(), found }) })
    }

    fn io(&self, error: io::Error) -> LogError {
        LogError::Io { path: self.path.clone(), error }
    }
}

/// Read and write for the owner.
const PRIVATE: u32 = 0o600;
/// Bytes at which a log is put aside: some thousand lines, read in a few milliseconds.
const LARGEST: u64 = 1 << 20;

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
