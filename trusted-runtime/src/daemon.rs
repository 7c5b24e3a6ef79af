//! The process edge: arguments, logs, configuration, exit codes.

use crate::{
    Error,
    attestation::World,
    bench_ops,
    config::Config,
    inspect, plan,
    serve::{self, Start},
};
use clap::{Args, Parser, Subcommand};
use std::{io::IsTerminal, path::PathBuf, process::ExitCode};
use tracing_subscriber::EnvFilter;

/// Serves a language model from inside an enclave; linear layers may run, encrypted, on an evaluator.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: Flags,
    /// How log lines on standard error are written: for people, or one JSON object each.
    #[arg(long, global = true, value_enum, default_value = "text")]
    log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the Inference service (the default).
    Serve(Box<Flags>),
    /// Say who computes what of a model, and what it costs; needs the evaluator that serve would have.
    Plan(Box<PlanArgs>),
    /// Say what a model file holds, and with --fidelity how close its quantizations come to it.
    Inspect {
        /// A GGUF file, a Hugging Face directory, or synthetic:NAME.
        source: String,
        /// Compare w8 and w16 with f32 over several hundred positions; takes minutes.
        #[arg(long)]
        fidelity: bool,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Time the operations that are never delegated, at a model's sizes; prints one JSON object.
    #[command(hide = true)]
    BenchOps {
        /// A GGUF file, a Hugging Face directory, or synthetic:NAME.
        #[arg(long, value_name = "SOURCE")]
        model: String,
    },
}

/// Flags of `plan` beside those of `serve`.
#[derive(Args)]
struct PlanArgs {
    #[command(flatten)]
    flags: Flags,
    /// Memory of the evaluator that may be used, bytes or e.g. 2GiB; all of it unless given.
    #[arg(long, value_name = "SIZE")]
    budget: Option<String>,
    /// Positions of the prompt, which a decode step finds in its cache.
    #[arg(long, value_name = "N", default_value_t = 64)]
    positions: u32,
    /// Let groups stay inside whose delegation is predicted slower.
    #[arg(long)]
    allow_enclave: bool,
    /// Measure costs although they are known from an earlier time.
    #[arg(long)]
    recalibrate: bool,
    /// Decode 16 tokens by the plan and print what they cost beside it.
    #[arg(long)]
    run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Each flag replaces the setting of the configuration file that its help names.
#[derive(Args, Default)]
struct Flags {
    /// A TOML file over the built-in defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print the commented defaults and exit.
    #[arg(long)]
    print_defaults: bool,
    /// listen
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// port_file
    #[arg(long, value_name = "FILE")]
    port_file: Option<String>,
    /// Drain and leave when standard input ends, as it does when the process that started this one has gone.
    #[arg(long)]
    exit_with_parent: bool,
    /// Trust the process that started this one: take a key of 32 bytes from standard input, listen on loopback, attest
    /// nothing
    #[arg(long)]
    local: bool,
    /// metrics_listen
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// threads
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// drain_seconds
    #[arg(long, value_name = "SECONDS")]
    drain_seconds: Option<String>,
    /// model.source
    #[arg(long, value_name = "SOURCE")]
    model: Option<String>,
    /// model.weights: w8 or w16
    #[arg(long)]
    weights: Option<String>,
    /// engine.protocol: masked, auto, direct or local
    #[arg(long)]
    protocol: Option<String>,
    /// engine.max_queue
    #[arg(long, value_name = "N")]
    max_queue: Option<String>,
    /// engine.max_running
    #[arg(long, value_name = "N")]
    max_running: Option<String>,
    /// tls.cert
    #[arg(long, value_name = "PEM")]
    tls_cert: Option<String>,
    /// tls.key
    #[arg(long, value_name = "PEM")]
    tls_key: Option<String>,
    /// tls.client_ca
    #[arg(long, value_name = "PEM")]
    tls_client_ca: Option<String>,
    /// tls.danger_plaintext: no TLS towards clients, loopback only
    #[arg(long)]
    danger_plaintext: bool,
    /// evaluator.endpoint
    #[arg(long, value_name = "URL")]
    evaluator: Option<String>,
    /// evaluator.ca
    #[arg(long, value_name = "PEM")]
    evaluator_ca: Option<String>,
    /// evaluator.cert
    #[arg(long, value_name = "PEM")]
    evaluator_cert: Option<String>,
    /// evaluator.key
    #[arg(long, value_name = "PEM")]
    evaluator_key: Option<String>,
    /// evaluator.pins
    #[arg(long, value_name = "HEX")]
    evaluator_pins: Option<String>,
    /// evaluator.pins_file
    #[arg(long, value_name = "FILE")]
    evaluator_pins_file: Option<String>,
    /// evaluator.danger_plaintext: no TLS towards the evaluator, loopback only
    #[arg(long)]
    evaluator_danger_plaintext: bool,
    /// engine.policy: hybrid_pd_split, hybrid_unified or cpu_tee
    #[arg(long)]
    policy: Option<String>,
    /// engine.kv_backend: plaintext or sealed
    #[arg(long)]
    kv_backend: Option<String>,
    /// engine.kv_file
    #[arg(long)]
    kv_file: Option<String>,
    /// engine.kv_memory
    #[arg(long)]
    kv_memory: Option<String>,
    /// evaluator.residency: pinned, fallback or auto
    #[arg(long)]
    residency: Option<String>,
    /// pool.lanes
    #[arg(long, value_name = "N")]
    lanes: Option<String>,
    /// pool.memory
    #[arg(long, value_name = "BYTES")]
    pool_memory: Option<String>,
    /// evaluator.retry_for_seconds
    #[arg(long, value_name = "SECONDS")]
    retry_for: Option<String>,
}

impl Flags {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let valued = [
            ("listen", &self.listen),
            ("port_file", &self.port_file),
            ("metrics_listen", &self.metrics_listen),
            ("threads", &self.threads),
            ("drain_seconds", &self.drain_seconds),
            ("model.source", &self.model),
            ("model.weights", &self.weights),
            ("engine.protocol", &self.protocol),
            ("engine.policy", &self.policy),
            ("engine.kv_backend", &self.kv_backend),
            ("engine.kv_file", &self.kv_file),
            ("engine.kv_memory", &self.kv_memory),
            ("engine.max_queue", &self.max_queue),
            ("engine.max_running", &self.max_running),
            ("tls.cert", &self.tls_cert),
            ("tls.key", &self.tls_key),
            ("tls.client_ca", &self.tls_client_ca),
            ("evaluator.endpoint", &self.evaluator),
            ("evaluator.ca", &self.evaluator_ca),
            ("evaluator.cert", &self.evaluator_cert),
            ("evaluator.key", &self.evaluator_key),
            ("evaluator.pins", &self.evaluator_pins),
            ("evaluator.pins_file", &self.evaluator_pins_file),
            ("evaluator.residency", &self.residency),
            ("evaluator.retry_for_seconds", &self.retry_for),
            ("pool.lanes", &self.lanes),
            ("pool.memory", &self.pool_memory),
        ];
        let switches = [
            ("tls.danger_plaintext", self.danger_plaintext),
            ("evaluator.danger_plaintext", self.evaluator_danger_plaintext),
        ];
        let valued = valued.into_iter().filter_map(|(path, v)| v.clone().map(|v| (path, v)));
        valued.chain(switches.into_iter().filter(|(_, on)| *on).map(|(path, _)| (path, "true".into()))).collect()
    }
}

/// Runs the program whose evidence is of world `W`.
pub fn main<W: World>() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let code = if e.use_stderr() { EXIT_CONFIG } else { 0 };
            // A closed stdout or stderr leaves nobody to tell.
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    let filter = match filter() {
        Ok(filter) => filter,
        Err(error) => return failed(&error),
    };
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        // A log that nobody reads any more is no reason to die.
        .log_internal_errors(false);
    match cli.log_format {
        LogFormat::Text => log.with_ansi(ansi).init(),
        LogFormat::Json => log.json().init(),
    }
    let outcome = match cli.command {
        Some(Command::Inspect { source, fidelity, json }) => inspect::run(&source, fidelity, json),
        Some(Command::BenchOps { model }) => bench_ops::run(&model),
        Some(Command::Plan(args)) => plan_of(&args),
        Some(Command::Serve(flags)) => run::<W>(&flags),
        None => run::<W>(&cli.serve),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &Error) -> ExitCode {
    eprintln!("trusted-runtime: {error}");
    ExitCode::from(if matches!(error, Error::Config(_)) { EXIT_CONFIG } else { 1 })
}

/// What is logged: `BIFROST_LOG`, else everything from "info" up.
fn filter() -> Result<EnvFilter, Error> {
    let Some(value) = std::env::var_os("BIFROST_LOG").filter(|v| !v.is_empty()) else {
        return Ok(EnvFilter::new("info"));
    };
    let refuse = |e: &dyn std::fmt::Display| {
        Error::Config(format!("BIFROST_LOG is {value:?}, expected levels such as \"info\" or \"info,h2=warn\": {e}"))
    };
    let text = value.to_str().ok_or_else(|| refuse(&"it is not UTF-8"))?;
    EnvFilter::try_new(text).map_err(|e| refuse(&e))
}

fn run<W: World>(flags: &Flags) -> Result<(), Error> {
    if flags.print_defaults {
        print!("{}", crate::config::DEFAULTS);
        return Ok(());
    }
    let config = configuration(flags)?;
    let runtime = network(&config)?;
    let outcome = {
        let start = Start { exit_with_parent: flags.exit_with_parent, local: flags.local };
        runtime.block_on(serve::serve::<W>(&config, start))
    };
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn plan_of(args: &PlanArgs) -> Result<(), Error> {
    let config = configuration(&args.flags)?;
    let options = plan::Options {
        budget: args.budget.clone(),
        positions: args.positions as usize,
        allow_enclave: args.allow_enclave,
        recalibrate: args.recalibrate,
        run: args.run,
        json: args.json,
    };
    let runtime = network(&config)?;
    let outcome = plan::run(&config, &options, runtime.handle());
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    outcome
}

fn configuration(flags: &Flags) -> Result<Config, Error> {
    let environment = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    Config::load(flags.config.as_deref(), environment, &flags.settings())
}

fn network(config: &Config) -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.compute_threads().clamp(2, MAX_NETWORK_THREADS))
        .enable_all()
        .build()
        .map_err(|e| Error::Platform(format!("threads for the network: {e}")))
}

/// `EX_USAGE` of sysexits.h: bad arguments or configuration.
const EXIT_CONFIG: u8 = 64;
/// TLS towards the evaluator is the only heavy work on them.
const MAX_NETWORK_THREADS: usize = 4;
