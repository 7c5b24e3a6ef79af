//! The process edge of `bifrost`: arguments, signals, one line per error, exit status.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use client::cli::{BenchCommand, Cli, Command, ModelCommand};
use client::progress::Progress;
use client::stop::{Stop, signalled};
use client::{Error, bench, demo, generate, model, pki, plan, proxy, top};

/// Exit status for a bad command line (sysexits `EX_USAGE`).
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Error::Platform(format!("threads for I/O: {error}"))),
    };
    let (progress, stop) = (Arc::new(Progress::default()), Stop::default());
    // A signal drops the command where it stands; destructors end the daemons and remove the certificates.
    let outcome = runtime.block_on(async {
        // The proxy drains on a signal, so it listens for them itself.
        if let Command::Proxy(args) = &cli.command {
            return proxy::run(args, &progress, &stop).await;
        }
        tokio::select! {
            outcome = run(&cli.command, &progress, &stop) => outcome,
            Err(error) = signalled() => Err(error),
        }
    });
    progress.idle();
    stop.request();
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome.unwrap_or_else(|error| report(&error))
}

async fn run(command: &Command, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    match command {
        Command::Demo(args) => demo::run(args, progress, stop).await,
        Command::Generate(args) => generate::run(args, progress, stop).await,
        Command::Proxy(args) => proxy::run(args, progress, stop).await,
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

fn report(error: &Error) -> ExitCode {
    eprintln!("bifrost: {error}");
    ExitCode::from(error.exit_code())
}
