//! `bifrost-quote-helper`: a root process that returns quotes to one unprivileged user, started by systemd's socket.

#![forbid(unsafe_code)]

use clap::Parser;
use evidence::{
    choose::register,
    configfs::ConfigfsTsm,
    fs::{Files as _, System},
    helper::serve::Service,
};
use std::{io, path::Path, process::ExitCode};

/// Returns quotes of this TEE guest to one user. Socket activation only: see bifrost-quote.socket.
#[derive(Parser)]
#[command(version)]
#[group(required = true, multiple = false)]
struct Cli {
    /// The user that may ask, by number.
    #[arg(long)]
    uid: Option<u32>,
    /// The user that may ask, by a name of /etc/passwd.
    #[arg(long)]
    user: Option<String>,
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| {
        let code = if error.use_stderr() { USAGE.into() } else { 0 };
        // Nothing can be done if standard error is closed.
        let _ = error.print();
        std::process::exit(code)
    });
    tracing_subscriber::fmt().with_writer(io::stderr).with_ansi(false).without_time().init();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, text)) => {
            tracing::error!("{text}");
            ExitCode::from(code)
        }
    }
}

/// Serves until the process is ended. An error comes with its exit status.
fn run(cli: Cli) -> Result<(), (u8, String)> {
    let allowed = match cli {
        Cli { uid: Some(uid), .. } => uid,
        Cli { user, .. } => uid_of(&user.unwrap_or_default()).map_err(|text| (USAGE, text))?,
    };
    let listener = listenfd::ListenFd::from_env().take_unix_listener(0);
    let listener = listener.map_err(|e| (USAGE, format!("socket of the service manager: {e}")))?;
    let listener =
        listener.ok_or((USAGE, "no socket from the service manager: see bifrost-quote.socket".to_owned()))?;
    let source = ConfigfsTsm::open(System).map_err(|e| (FAILED, e.to_string()))?;
    let rtmr3 = register(System).map_err(|e| (FAILED, e.to_string()))?;
    tracing::info!(allowed, rtmr3 = rtmr3.is_some(), "quotes available");
    Service::new(Box::new(source), rtmr3, allowed).run(&listener).map_err(|e| (FAILED, format!("listener: {e}")))
}

/// The third field of the user's line, passwd(5).
fn uid_of(user: &str) -> Result<u32, String> {
    const PASSWD: &str = "/etc/passwd";
    let passwd = System.read(Path::new(PASSWD), 1 << 20).map_err(|e| format!("{PASSWD}: {e}"))?;
    let text = String::from_utf8_lossy(&passwd);
    let line = text.lines().find(|line| line.split(':').next() == Some(user));
    let uid = line.and_then(|line| line.split(':').nth(2)).and_then(|uid| uid.parse().ok());
    uid.ok_or_else(|| format!("user {user} is not in {PASSWD}"))
}

/// Bad arguments or no socket: starting again would not help.
const USAGE: u8 = 64;
const FAILED: u8 = 1;
