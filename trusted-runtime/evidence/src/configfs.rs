//! The kernel's own way: an entry in configfs takes the report data and returns the quote (Linux 6.7 and later).
//!
//! Kernel documentation, ABI/testing/configfs-tsm-report; the errors named here are those of
//! drivers/virt/coco/guest/report.c and tdx-guest.c. A quote takes about a second on TDX, because its driver looks once a
//! second whether the host has answered, and the machine has one buffer for all of them.

mod entry;
mod fault;

pub use fault::Fault;

use crate::{
    MAX_BLOB,
    fs::Files,
    statement::{self, Unfit},
};
use attest::source::{Collected, Source, SourceError};
use entry::Entry;
use proto::v1::{Platform, RuntimeEvent};
use rustix::io::Errno;
use std::{
    io::ErrorKind,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Where the kernel takes requests.
pub const REPORTS: &str = "/sys/kernel/config/tsm/report";
/// Where the kernel shows the firmware's event log (CCEL) of a TDX guest.
pub const EVENT_LOG: &str = "/sys/firmware/acpi/tables/data/CCEL";
/// How long a quote may take, repetitions included. The kernel itself gives up a quote after 30 seconds.
pub const PATIENCE: Duration = Duration::from_secs(45);

/// Quotes through configfs, of TDX or SEV-SNP.
#[derive(Debug)]
pub struct ConfigfsTsm<F> {
    files: F,
    provider: Provider,
    event_log: Vec<u8>,
    runtime_log: Vec<RuntimeEvent>,
}

/// What the kernel says it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    Tdx,
    SevSnp,
}

impl<F: Files> ConfigfsTsm<F> {
    /// Asks the kernel for its provider, by making an entry: that the directory exists proves nothing.
    ///
    /// # Errors
    /// [`Fault`]: not a guest, or not allowed.
    pub fn open(files: F) -> Result<Self, Fault> {
        let provider = {
            let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
            Entry::create(&files)?.provider()?
        };
        let event_log = if provider == Provider::Tdx { event_log(&files) } else { Vec::new() };
        Ok(Self { files, provider, event_log, runtime_log: Vec::new() })
    }

    /// Puts what RTMR3 was extended with into every answer.
    #[must_use]
    pub fn with_runtime_log(mut self, log: &[RuntimeEvent]) -> Self {
        self.runtime_log = log.to_vec();
        self
    }

    /// One entry, one write, one quote.
    fn quote(&self, report_data: &[u8; 64]) -> Result<Collected, Fault> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = Entry::create(&self.files)?;
        entry.ask(report_data)?;
        let quote = entry.answer(PATIENCE)?;
        entry.written_once()?;
        let provider = entry.provider()?;
        if provider != self.provider {
            return Err(Fault::Changed);
        }
        let certificates = if provider == Provider::SevSnp { entry.certificates()? } else { Vec::new() };
        let collected = Collected {
            platform: provider.platform(),
            quote,
            event_log: self.event_log.clone(),
            runtime_log: self.runtime_log.clone(),
            certificates,
            azure: None,
        };
        statement::check(&collected, report_data)?;
        Ok(collected)
    }
}

impl<F: Files> Source for ConfigfsTsm<F> {
    fn name(&self) -> &'static str {
        match self.provider {
            Provider::Tdx => "configfs_tsm (tdx_guest)",
            Provider::SevSnp => "configfs_tsm (sev_guest)",
        }
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        self.quote(report_data).map_err(SourceError::from)
    }
}

impl Provider {
    fn parse(text: &str) -> Result<Self, Fault> {
        match text.trim() {
            "tdx_guest" => Ok(Self::Tdx),
            "sev_guest" => Ok(Self::SevSnp),
            other => Err(Fault::Provider(other.chars().take(40).collect())),
        }
    }

    fn platform(self) -> Platform {
        match self {
            Self::Tdx => Platform::Tdx,
            Self::SevSnp => Platform::SevSnp,
        }
    }
}

/// The log of the boot, or nothing: policies that need it reject evidence without it.
fn event_log(files: &impl Files) -> Vec<u8> {
    match files.read(Path::new(EVENT_LOG), MAX_BLOB) {
        Ok(log) => log,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::info!(path = EVENT_LOG, "this firmware keeps no event log");
            Vec::new()
        }
        Err(error) => {
            tracing::warn!(path = EVENT_LOG, %error, "event log cannot be read; evidence goes without it");
            Vec::new()
        }
    }
}

/// One entry at a time in this process: the kernel has one buffer.
static TURN: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests;
