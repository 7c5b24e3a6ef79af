//! `bifrost-quote-helper`: a root process that returns quotes to one unprivileged user.

#![forbid(unsafe_code)]

use attest::source::{Source as _, SourceError};
use clap::{ArgGroup, Parser};
use evidence::{
    choose::register,
    configfs::ConfigfsTsm,
    fs::{Files as _, System},
    helper::serve::{Service, Tee},
};
use std::{
    fs::{self, Permissions},
    io,
    os::unix::{
        fs::{FileTypeExt as _, PermissionsExt as _},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Returns quotes of this TEE guest to one user.
#[derive(Parser)]
#[command(version, group(ArgGroup::new("who").required(true).args(["uid", "user", "check"])))]
struct Cli {
    /// The user that may ask, by number.
    #[arg(long)]
    uid: Option<u32>,
    /// The user that may ask, by a name of /etc/passwd.
    #[arg(long)]
    user: Option<String>,
    /// Listen on a socket of its own, where no service manager hands one over (containers).
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// Say by the exit status whether a helper listens on this socket, and end (container probes).
    #[arg(long, value_name = "PATH")]
    check: Option<PathBuf>,
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
    if let Some(path) = cli.check {
        return UnixStream::connect(&path).map(drop).map_err(|e| (FAILED, format!("{}: {e}", path.display())));
    }
    let allowed = match (cli.uid, cli.user) {
        (Some(uid), _) => uid,
        (None, user) => uid_of(&user.unwrap_or_default()).map_err(|text| (USAGE, text))?,
    };
    let listener = match &cli.listen {
        Some(path) => bind(path).map_err(|e| (FAILED, format!("{}: {e}", path.display())))?,
        None => handed_over().map_err(|text| (USAGE, text))?,
    };
    tracing::info!(allowed, "ready");
    Service::new(find, allowed).run(&listener).map_err(|e| (FAILED, format!("listener: {e}")))
}

fn find() -> Result<Tee<System>, SourceError> {
    let source = Box::new(ConfigfsTsm::open(System)?);
    let rtmr3 = register(System)?;
    tracing::info!(source = source.name(), rtmr3 = rtmr3.is_some(), "quotes available");
    Ok(Tee { source, rtmr3 })
}

/// The socket of the unit, sd_listen_fds(3).
fn handed_over() -> Result<UnixListener, String> {
    let listener = listenfd::ListenFd::from_env().take_unix_listener(0);
    let listener = listener.map_err(|e| format!("socket of the service manager: {e}"))?;
    listener.ok_or_else(|| "no socket from the service manager (bifrost-quote.socket) and no --listen".to_owned())
}

/// Everybody may connect: whom it serves is decided by the peer's user.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o666))?;
    Ok(listener)
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
