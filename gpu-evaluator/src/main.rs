//! The process edge: arguments, tracing, configuration, run, exit status.

use clap::Parser;
use gpu_evaluator::{
    Error, allocator,
    config::{Config, ENV_PREFIX},
    server,
    tls::Reload,
};
use std::{io::IsTerminal, path::PathBuf, process::ExitCode};

/// Multiplies ciphertexts by public weights. Holds no key.
///
/// Settings come from defaults (--print-config), a TOML file, BIFROST_EVALUATOR_* variables and these flags;
/// later wins.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// TOML file of settings
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// File that receives the port once it is bound
    #[arg(long, value_name = "PATH")]
    port_file: Option<PathBuf>,
    /// Threads that compute; 0 means one per core
    #[arg(long, value_name = "N")]
    threads: Option<String>,
    /// Memory for resident matrices, e.g. 8GiB
    #[arg(long, value_name = "BYTES")]
    memory_budget: Option<String>,
    /// auto, cpu or cuda
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Directory that keeps uploaded matrices across restarts
    #[arg(long, value_name = "PATH")]
    cache_dir: Option<String>,
    /// Address for Prometheus metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<String>,
    /// This daemon's certificate chain, PEM
    #[arg(long, value_name = "PATH")]
    tls_cert: Option<String>,
    /// Its key, PEM
    #[arg(long, value_name = "PATH")]
    tls_key: Option<String>,
    /// The CA that signs the certificates of runtimes, PEM
    #[arg(long, value_name = "PATH")]
    tls_client_ca: Option<String>,
    /// SHA-256 pins of the keys of runtimes that are let in, with commas between them
    #[arg(long, value_name = "HEX")]
    tls_client_pins: Option<String>,
    /// No TLS and no authentication; loopback only
    #[arg(long)]
    danger_plaintext: bool,
    /// Drains and leaves when standard input ends, as it does when the process that started this one has gone
    #[arg(long)]
    exit_with_parent: bool,
    /// How log lines on standard error are written: for people, or one JSON object each
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Prints every setting with its default and explanation, and exits
    #[arg(long)]
    print_config: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// `EX_USAGE` of sysexits.h.
const BAD_CONFIGURATION: u8 = 64;

fn main() -> ExitCode {
    allocator::fix_sizes();
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(e) => {
            // Help and version are not mistakes.
            let code = if e.use_stderr() { BAD_CONFIGURATION } else { 0 };
            return e.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code));
        }
    };
    if flags.print_config {
        print!("{}", gpu_evaluator::config::DEFAULTS);
        return ExitCode::SUCCESS;
    }
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("gpu-evaluator: {e}");
            if matches!(e, Error::Config(_)) { ExitCode::from(BAD_CONFIGURATION) } else { ExitCode::FAILURE }
        }
    }
}

fn run(flags: Flags) -> Result<(), Error> {
    let file = flags.config.or_else(|| std::env::var_os(format!("{ENV_PREFIX}CONFIG")).map(PathBuf::from));
    let settings: Vec<(&str, String)> = [
        ("listen", flags.listen),
        ("threads", flags.threads),
        ("memory_budget", flags.memory_budget),
        ("backend", flags.backend),
        ("cache_dir", flags.cache_dir),
        ("metrics_listen", flags.metrics_listen),
        ("tls_cert", flags.tls_cert),
        ("tls_key", flags.tls_key),
        ("tls_client_ca", flags.tls_client_ca),
        ("tls_client_pins", flags.tls_client_pins),
        ("danger_plaintext", flags.danger_plaintext.then(|| "true".to_owned())),
    ]
    .into_iter()
    .filter_map(|(key, value)| value.map(|v| (key, v)))
    .collect();
    let config = Config::load(file.as_deref(), std::env::vars(), &settings)?;
    let again = file.clone();
    let reload: Reload = Box::new(move || Config::load(again.as_deref(), std::env::vars(), &settings));
    let filter = tracing_subscriber::EnvFilter::try_new(&config.log)
        .map_err(|e| Error::Config(format!("log is {:?}: {e}", config.log)))?;
    let colours = std::io::stderr().is_terminal();
    // A log that nobody reads any more is no reason to die.
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).log_internal_errors(false);
    match flags.log_format {
        LogFormat::Text => log.with_ansi(colours).init(),
        LogFormat::Json => log.json().init(),
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::Platform(format!("runtime: {e}")))?
        .block_on(server::run(config, (file, reload), flags.port_file.as_deref(), flags.exit_with_parent))
}
