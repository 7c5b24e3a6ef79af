//! `trusted-runtime bench-ops`: what the enclave's own operations cost, measured in the process that does them.

use crate::{
    Error,
    model::{self, Timed},
    progress::Progress,
};
use serde::Serialize;
use std::io::Write as _;

/// What is printed.
#[derive(Serialize)]
struct Report {
    model: String,
    architecture: String,
    operations: Vec<Timed>,
}

/// Prints one JSON object about the operations at the sizes of `source`.
///
/// # Errors
/// Those of reading the model; [`Error::Platform`] if stdout is closed.
pub fn run(source: &str) -> Result<(), Error> {
    let config = model::inspect(source, &Progress::default().callback())?.config;
    let operations = model::time(&config)?;
    let report = Report { architecture: config.architecture.to_string(), model: config.name, operations };
    let text = serde_json::to_string(&report).map_err(|e| Error::Bug(format!("report: {e}")))?;
    writeln!(std::io::stdout(), "{text}").map_err(|e| Error::Platform(format!("stdout: {e}")))
}
