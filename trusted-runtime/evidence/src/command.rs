//! Evidence from a program: Alibaba Cloud's tool over libtdx-attest, a script for Azure's vTPM, and the like.
//!
//! The program is started directly and never through a shell, with an environment of `PATH` alone. It gets the 64 bytes of
//! report data on its standard input, and in hexadecimal in place of `{report_data}` in its arguments. Its standard output
//! is the quote itself, or an answer in the form of [`answer`].

pub mod answer;
mod child;

use crate::statement::{self, Unfit};
use answer::AnswerError;
use attest::source::{Collected, Source, SourceError};
use child::Limits;
pub use child::RunError;
use proto::v1::Platform;
use std::time::Duration;

/// What a program and its answer may take.
const LIMITS: Limits = Limits { time: Duration::from_secs(60), bytes: 8 << 20 };

/// A program that returns evidence.
#[derive(Debug)]
pub struct ExternalCommand {
    argv: Vec<String>,
    platform: Platform,
    limits: Limits,
}

/// Why a program gave no evidence.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// No program in the configuration.
    #[error("attestation.command is empty, expected a program and its arguments")]
    NoProgram,
    /// Not an absolute path.
    #[error("attestation.command is {0}, expected an absolute path")]
    Relative(String),
    /// No platform that this could be.
    #[error("attestation.platform is \"{0}\", expected tdx, sev_snp, azure_tdx or azure_sev_snp")]
    Platform(String),
    /// It did not run to its end.
    #[error("{program}: {source}")]
    Run {
        /// The program.
        program: String,
        /// What happened.
        source: RunError,
    },
    /// Its answer cannot be read.
    #[error("answer of {program}: {source}")]
    Answer {
        /// The program.
        program: String,
        /// What is wrong with it.
        source: AnswerError,
    },
    /// Its answer is not about our report data.
    #[error("answer of {program}: {source}")]
    Unfit {
        /// The program.
        program: String,
        /// What is wrong with it.
        source: Unfit,
    },
}

impl From<CommandError> for SourceError {
    fn from(error: CommandError) -> Self {
        let text = error.to_string();
        match error {
            CommandError::NoProgram | CommandError::Relative(_) | CommandError::Platform(_) => Self::NoTee(text),
            _ => Self::Quote(text),
        }
    }
}

impl ExternalCommand {
    /// The program `argv[0]`, an absolute path, with its arguments; `platform` as the configuration has it.
    ///
    /// # Errors
    /// [`CommandError`] of the configuration.
    pub fn new(argv: Vec<String>, platform: &str) -> Result<Self, CommandError> {
        let platform = parse_platform(platform)?;
        match argv.first() {
            None => Err(CommandError::NoProgram),
            Some(program) if !program.starts_with('/') => Err(CommandError::Relative(program.clone())),
            Some(_) => Ok(Self { argv, platform, limits: LIMITS }),
        }
    }

    fn ask(&self, report_data: &[u8; 64]) -> Result<Collected, CommandError> {
        let program = self.argv.first().cloned().unwrap_or_default();
        let hex: String = report_data.iter().map(|b| format!("{b:02x}")).collect();
        let argv: Vec<String> = self.argv.iter().map(|argument| argument.replace("{report_data}", &hex)).collect();
        let output = child::run(&argv, report_data, self.limits)
            .map_err(|source| CommandError::Run { program: program.clone(), source })?;
        let collected = answer::parse(self.platform, output)
            .map_err(|source| CommandError::Answer { program: program.clone(), source })?;
        match statement::check(&collected, report_data) {
            Ok(()) => Ok(collected),
            Err(source) => Err(CommandError::Unfit { program, source }),
        }
    }
}

impl Source for ExternalCommand {
    fn name(&self) -> &'static str {
        "external_command"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        self.ask(report_data).map_err(SourceError::from)
    }
}

fn parse_platform(name: &str) -> Result<Platform, CommandError> {
    match name {
        "tdx" => Ok(Platform::Tdx),
        "sev_snp" => Ok(Platform::SevSnp),
        "azure_tdx" => Ok(Platform::AzureTdx),
        "azure_sev_snp" => Ok(Platform::AzureSevSnp),
        other => Err(CommandError::Platform(other.to_owned())),
    }
}

#[cfg(test)]
mod tests;
