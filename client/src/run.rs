//! The process edge of `bifrost`: arguments, signals, one line per error, exit status.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;

use crate::cli::{BenchCommand, Cli, Command, ModelCommand};
use crate::progress::Progress;
use crate::stop::{Stop, signalled};
use crate::trust::{Clock, Trust};
use crate::{Error, bench, collateral, demo, explain, generate, keygen, model, pki, plan, proxy, release, top, verify};

/// Exit status for a bad command line (sysexits `EX_USAGE`).
const USAGE: u8 = 64;
/// The same for the commands that judge, whose statuses 0, 1, 2 and 3 are theirs.
const USAGE_OF_TRUST: u8 = 2;
/// Those commands.
const TRUST: [&str; 5] = ["verify", "explain-tcb", "collateral", "keygen", "release-key"];

/// Everything that `bifrost` does in the world `W`.
#[must_use]
pub fn main<W: Trust>() -> ExitCode {
    if let Some(banner) = W::BANNER {
        eprintln!("{banner}");
    }
    undumpable();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let judges = std::env::args_os().nth(1).is_some_and(|name| TRUST.iter().any(|t| name == OsStr::new(t)));
            let usage = if judges { USAGE_OF_TRUST } else { USAGE };
            return if error.use_stderr() { ExitCode::from(usage) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&cli.command, &Error::Platform(format!("threads for I/O: {error}"))),
    };
    let (progress, stop, clock) = (Arc::new(Progress::default()), Stop::default(), Clock::system());
    // A signal drops the command where it stands; destructors end the daemons and remove the certificates.
    let outcome = runtime.block_on(async {
        // The proxy drains on a signal, so it listens for them itself.
        if let Command::Proxy(args) = &cli.command {
            return proxy::run::<W>(args, &progress, &stop, &clock).await;
        }
        tokio::select! {
            outcome = run::<W>(&cli.command, &progress, &stop, &clock) => outcome,
            Err(error) = signalled() => Err(error),
        }
    });
    progress.idle();
    stop.request();
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome.unwrap_or_else(|error| report(&cli.command, &error))
}

async fn run<W: Trust>(
    command: &Command,
    progress: &Arc<Progress>,
    stop: &Stop,
    clock: &Clock,
) -> Result<ExitCode, Error> {
    match command {
        Command::Demo(args) => demo::run(args, progress, stop).await,
        Command::Generate(args) => generate::run::<W>(args, progress, stop, clock).await,
        Command::Proxy(args) => proxy::run::<W>(args, progress, stop, clock).await,
        Command::Verify(args) => verify::run::<W>(args, progress, clock).await,
        Command::ExplainTcb(args) => explain::run::<W>(args, progress, clock).await,
        Command::Keygen(args) => keygen::run::<W>(args, clock.now()),
        Command::ReleaseKey(args) => release::command::run::<W>(args, progress, clock).await,
        Command::Collateral(command) => collateral::command::run::<W>(command, progress, clock).await,
        Command::Top(args) => top::run(args).await,
        Command::Pki(command) => pki::run(command),
        Command::Bench(BenchCommand::Serve(args)) => bench::serve::run(args, progress, stop).await,
        Command::Bench(BenchCommand::Decode(args)) => bench::decode::run(args, progress, stop).await,
        Command::Bench(BenchCommand::Ops(args)) => bench::ops::run(args, progress, stop).await,
        Command::Model(ModelCommand::Fetch(args)) => model::run_fetch(args, progress, stop).await,
        Command::Model(ModelCommand::Inspect(args)) => model::run_inspect(args, progress, stop).await,
        Command::Model(ModelCommand::Plan(args)) => plan::run(args, progress, stop).await,
    }
}

fn report(command: &Command, error: &Error) -> ExitCode {
    eprintln!("bifrost: {error}");
    let judges = matches!(
        command,
        Command::Verify(_)
            | Command::ExplainTcb(_)
            | Command::Collateral(_)
            | Command::Keygen(_)
            | Command::ReleaseKey(_)
    );
    ExitCode::from(if judges { error.verdict_code() } else { error.exit_code() })
}

/// Keys and prompts pass through here: no core file of them, and no look from other processes of the same user. Where the
/// system does not allow that, its own limits hold.
fn undumpable() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}
