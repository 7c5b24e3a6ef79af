//! Which source a runtime uses.

use crate::{
    azure,
    command::ExternalCommand,
    configfs::ConfigfsTsm,
    fs::Files,
    helper::{self, Helper},
    rtmr::{self, Rtmr3},
};
use attest::source::{Source, SourceError};
use proto::v1::RuntimeEvent;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The section `[attestation]` of the runtime's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Where evidence comes from.
    pub source: Choice,
    /// With [`Choice::ExternalCommand`]: the program, by its absolute path, and its arguments.
    pub command: Vec<String>,
    /// With [`Choice::ExternalCommand`]: `tdx`, `sev_snp`, `azure_tdx` or `azure_sev_snp`.
    pub platform: String,
    /// Where the root helper listens.
    pub helper_socket: PathBuf,
}

/// `attestation.source`. Every choice is a TEE; there is none without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The helper if its socket is there, else the kernel's interface, else Azure's virtual TPM if it was built in.
    #[default]
    Auto,
    /// The kernel's interface, which is for root.
    ConfigfsTsm,
    /// The root helper.
    Helper,
    /// A program.
    ExternalCommand,
    /// The virtual TPM below Azure's paravisor; needs the feature of this name.
    AzureVtpm,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            source: Choice::Auto,
            command: Vec::new(),
            platform: String::new(),
            helper_socket: helper::SOCKET.into(),
        }
    }
}

/// Opens the source, extends RTMR3 with `events` where the platform has it, and takes one statement over random report
/// data, so that a source which is returned works. Takes about two seconds on TDX.
///
/// A name in `events` whose last event of this boot is the same is not extended again.
///
/// # Errors
/// [`SourceError::NoTee`] with everything that was looked at; [`SourceError::Quote`] if the TEE is there and does not work.
pub fn open(settings: &Settings, events: &[RuntimeEvent]) -> Result<Box<dyn Source>, SourceError> {
    open_on(crate::fs::System, settings, events)
}

fn open_on<F: Files + Clone>(
    files: F,
    settings: &Settings,
    events: &[RuntimeEvent],
) -> Result<Box<dyn Source>, SourceError> {
    let source: Box<dyn Source> = match settings.source {
        Choice::Helper => Box::new(Helper::open(&settings.helper_socket, events)?),
        Choice::ConfigfsTsm => Box::new(configfs(files.clone(), events)?),
        Choice::ExternalCommand => {
            let source = ExternalCommand::new(settings.command.clone(), &settings.platform)?;
            tracing::info!("runtime measurements are not extended through a program; evidence goes without them");
            Box::new(source)
        }
        Choice::AzureVtpm => azure::open()?,
        Choice::Auto => auto(files.clone(), &settings.helper_socket, events)?,
    };
    let mut report_data = [0; 64];
    files.random(&mut report_data).map_err(|e| SourceError::Quote(format!("random bytes: {e}")))?;
    let collected = source.collect(&report_data)?;
    tracing::info!(source = source.name(), platform = collected.platform.as_str_name(), "evidence available");
    Ok(source)
}

/// Only the absence of a TEE leads on to the next place; a TEE that does not work is an error.
fn auto<F: Files + Clone>(files: F, socket: &Path, events: &[RuntimeEvent]) -> Result<Box<dyn Source>, SourceError> {
    let by_helper = if socket.exists() {
        match Helper::open(socket, events).map_err(SourceError::from) {
            Ok(helper) => return Ok(Box::new(helper)),
            Err(SourceError::NoTee(text)) => text,
            Err(error) => return Err(error),
        }
    } else {
        format!("helper: {} does not exist", socket.display())
    };
    let looked = match configfs(files, events) {
        Ok(source) => return Ok(Box::new(source)),
        Err(SourceError::NoTee(text)) => format!("{by_helper}; {text}"),
        Err(error) => return Err(error),
    };
    if !cfg!(feature = "azure_vtpm") {
        return Err(SourceError::NoTee(looked));
    }
    match azure::open() {
        Err(SourceError::NoTee(text)) => Err(SourceError::NoTee(format!("{looked}; {text}"))),
        found => found,
    }
}

/// First whether there is a TEE, then its register.
fn configfs<F: Files + Clone>(files: F, events: &[RuntimeEvent]) -> Result<ConfigfsTsm<F>, SourceError> {
    let source = ConfigfsTsm::open(files.clone())?;
    let Some(mut rtmr3) = register(files)? else { return Ok(source) };
    for event in events {
        rtmr3.extend(event.clone())?;
    }
    Ok(source.with_runtime_log(rtmr3.log()))
}

/// RTMR3 with its log at the usual place, whose directory is made if it is not there.
///
/// # Errors
/// [`SourceError::Quote`] if the register is there and cannot be used.
pub fn register<F: Files>(files: F) -> Result<Option<Rtmr3<F>>, SourceError> {
    let log = Path::new(rtmr::LOG);
    if let Some(directory) = log.parent()
        && let Err(error) = files.make_dir(directory)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        tracing::warn!(path = %directory.display(), %error, "directory of the register's log cannot be made");
    }
    Ok(Rtmr3::open(files, log.to_owned())?)
}

#[cfg(test)]
mod tests;
