//! `bifrost model plan`: an evaluator on loopback, and the runtime's own planning against it.

use std::ffi::OsString;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;

use crate::certificates::Certificates;
use crate::cli::{LocalArgs, PlanArgs};
use crate::daemon::{Daemon, Launch};
use crate::deployment::{EVALUATOR, LISTEN_LIMIT, RUNTIME, evaluator_args, installed, program, towards};
use crate::progress::Progress;
use crate::report::print;
use crate::stop::Stop;
use crate::{Error, model};

/// Memory that the evaluator gets beyond the budget of the plan, for the matrices that costs are measured with.
const CALIBRATION_MEMORY: u64 = 512 << 20;

/// Starts an evaluator unless the plan needs none, runs `trusted-runtime plan`, and passes its output on.
///
/// # Errors
/// Unknown model, a missing program, an evaluator that does not start; a refusal by the runtime is its own message and
/// exit status.
pub async fn run(args: &PlanArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    installed()?;
    let source = model::resolve_async(&args.model, progress, stop).await?;
    let (protocol, certificates) = (args.policy.protocol(args.protocol), Certificates::issue()?);
    let mut evaluator = None;
    let mut flags = flags(args, &source);
    if protocol.delegates() {
        progress.busy("starting the evaluator");
        let mut daemon = Daemon::start(launch(args, &certificates)?)?;
        flags.extend(towards(&certificates, daemon.port(LISTEN_LIMIT).await?));
        evaluator = Some(daemon);
    }
    progress.idle();
    let program = program(RUNTIME)?;
    let mut command = tokio::process::Command::new(&program);
    command.args(flags).kill_on_drop(true);
    if !args.verbose && std::env::var_os("BIFROST_LOG").is_none() {
        command.env("BIFROST_LOG", "warn");
    }
    if args.run {
        progress.busy("measuring; masks and uploads of a large model take minutes");
    } else {
        progress.busy("loading the model and measuring");
    }
    // What it says against a plan, it says to whoever asked.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = match command.spawn() {
        Ok(child) => child.wait_with_output().await,
        Err(error) => Err(error),
    };
    progress.idle();
    drop(evaluator);
    let output = output.map_err(|error| Error::file(program, error))?;
    print(&String::from_utf8_lossy(&output.stdout))?;
    Ok(output.status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn launch(args: &PlanArgs, certificates: &Certificates) -> Result<Launch, Error> {
    // The runtime is told the budget; the evaluator needs room for what it is measured with as well.
    let memory = args.budget.map(|bytes| bytes.saturating_add(CALIBRATION_MEMORY));
    let local = LocalArgs {
        weights: args.weights,
        threads: args.threads,
        policy: args.policy,
        residency: args.residency,
        evaluator_memory: memory,
        lanes: None,
        pool_memory: None,
        verbose: args.verbose,
    };
    Ok(Launch {
        program: program(EVALUATOR)?,
        args: evaluator_args(&local, certificates),
        port_file: certificates.dir().join("evaluator.port"),
        envs: vec![("NO_COLOR".into(), "1".into()), ("RUST_BACKTRACE".into(), "0".into())],
        watch: None,
        local: false,
    })
}

/// The runtime's flags, without where the evaluator is.
fn flags(args: &PlanArgs, source: &str) -> Vec<OsString> {
    let mut all: Vec<OsString> = ["plan", "--model", source, "--weights", args.weights.name()].map(Into::into).to_vec();
    let protocol = args.policy.protocol(args.protocol);
    all.extend(["--protocol", protocol.name(), "--policy", args.policy.name()].map(Into::into));
    all.extend(["--residency", args.residency.name()].map(Into::into));
    let numbers = [
        ("--budget", args.budget.map(|n| n.to_string())),
        ("--positions", Some(args.positions.to_string())),
        ("--threads", args.threads.map(|n| n.to_string())),
    ];
    for (flag, value) in numbers {
        all.extend(value.into_iter().flat_map(|value| [flag.into(), value.into()]));
    }
    let switches = [
        ("--allow-enclave", args.allow_enclave),
        ("--recalibrate", args.recalibrate),
        ("--run", args.run),
        ("--json", args.json),
    ];
    all.extend(switches.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.into()));
    all
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, ModelCommand};

    #[test]
    fn flags_reach_the_runtime() {
        let line = "bifrost model plan m.gguf --budget 2GiB --policy hybrid_unified --protocol direct --run --json";
        let Command::Model(ModelCommand::Plan(args)) = Cli::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("plan is plan")
        };
        let flags = flags(&args, "/m.gguf");
        let text: Vec<_> = flags.iter().map(|f| f.to_str().unwrap()).collect();
        assert_eq!(text[..3], ["plan", "--model", "/m.gguf"]);
        for pair in [["--protocol", "direct"], ["--policy", "hybrid_unified"], ["--budget", "2147483648"]] {
            assert!(text.windows(2).any(|w| w == pair), "{pair:?} in {text:?}");
        }
        assert!(text.contains(&"--run") && text.contains(&"--json") && !text.contains(&"--recalibrate"));
    }
}
