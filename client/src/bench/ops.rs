//! `bifrost bench ops`: what the enclave computes itself, timed inside the runtime's process.

use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::output::{figure, json, table};
use super::plot;
use super::target::source;
use crate::Error;
use crate::cli::OpsArgs;
use crate::deployment::{RUNTIME, program};
use crate::progress::Progress;
use crate::report::print;
use crate::stop::Stop;

/// The object that `trusted-runtime bench-ops` prints, and `--json` after it. Its keys are a contract.
#[derive(Serialize, Deserialize)]
struct Report {
    #[serde(default = "name")]
    bench: String,
    model: String,
    architecture: String,
    operations: Vec<Operation>,
}

/// One operation on one thread.
#[derive(Serialize, Deserialize)]
struct Operation {
    operation: String,
    /// A width, or positions that are seen.
    size: u64,
    /// One call, for one token.
    microseconds: f64,
}

fn name() -> String {
    "ops".into()
}

/// Runs the bench and prints its figures.
///
/// # Errors
/// A model that cannot be had, a runtime that refuses it.
pub async fn run(args: &OpsArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    plot::check(args.output.plot.as_deref())?;
    let source = source(args.model.as_ref(), args.synthetic.as_ref(), progress, stop).await?;
    let program = program(RUNTIME)?;
    let mut command = tokio::process::Command::new(&program);
    command.args(["bench-ops", "--model", &source]).kill_on_drop(true).stdin(Stdio::null());
    progress.busy("timing operations");
    let out = command.stderr(Stdio::piped()).output().await.map_err(|error| Error::file(&program, error))?;
    progress.idle();
    if !out.status.success() {
        let log = String::from_utf8_lossy(&out.stderr);
        let reason = log.lines().last().unwrap_or("said nothing").to_owned();
        return Err(Error::Daemon { name: RUNTIME.into(), reason: format!("ended early ({}): {reason}", out.status) });
    }
    let unreadable = |error| Error::Daemon { name: RUNTIME.into(), reason: format!("printed no figures: {error}") };
    let report: Report = serde_json::from_slice(&out.stdout).map_err(unreadable)?;
    let text = if args.output.json { json(&report) } else { report.table().to_string() };
    print(&format!("{text}\n"))?;
    if let Some(path) = &args.output.plot {
        plot::bars(&[report.bars()], path)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Report {
    fn table(&self) -> comfy_table::Table {
        let mut table = table(&[&format!("{} ({})", self.model, self.architecture), "size", "us a call"]);
        for operation in &self.operations {
            let cells = [operation.operation.clone(), operation.size.to_string(), figure(Some(operation.microseconds))];
            table.add_row(cells);
        }
        table
    }

    fn bars(&self) -> plot::Bars {
        let of = |o: &Operation| (format!("{} {}", o.operation, o.size), vec![Some(o.microseconds / 1e3)]);
        plot::Bars {
            title: "Operations in the enclave, one call".into(),
            names: vec!["one thread"],
            groups: self.operations.iter().map(of).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_runtime_prints_is_read_and_passed_on() {
        let printed =
            r#"{"model":"m","architecture":"llama","operations":[{"operation":"gelu","size":64,"microseconds":0.5}]}"#;
        let report: Report = serde_json::from_str(printed).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json(&report)).unwrap();
        assert_eq!((&value["bench"], &value["operations"][0]["size"]), (&"ops".into(), &64.into()));
        assert!(report.table().to_string().contains("gelu") && report.bars().groups[0].0 == "gelu 64");
    }
}
