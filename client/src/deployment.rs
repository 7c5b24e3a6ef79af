//! Both daemons on this machine for one command: started, connected by mutual TLS, waited for, ended.
//!
//! The daemons are separate processes and listen on loopback ports of their own choice. The evaluator gets no
//! model and no key; it learns its matrices from the runtime.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use proto::v1;

use crate::Error;
use crate::certificates::{Certificates, Role};
use crate::cli::{LocalArgs, Protocol};
use crate::daemon::{Daemon, Launch, Watch};
use crate::inference::{Address, Runtime};
use crate::progress::Progress;

/// File name of the daemon that holds the weights and no key.
pub const EVALUATOR: &str = "gpu-evaluator";
/// File name of the daemon that holds the keys.
pub const RUNTIME: &str = "trusted-runtime";

/// A large model takes minutes to load on a small machine; beyond this something hangs.
const START_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Binding a port takes milliseconds.
pub(crate) const LISTEN_LIMIT: Duration = Duration::from_secs(60);
/// Time a complaint about the evaluator has to dissolve.
const COMPLAINT_GRACE: Duration = Duration::from_secs(2);
/// How the runtime's complaint about the evaluator begins; its `reason` field says why.
const EVALUATOR_DOWN: &str = "evaluator connection is down";
const POLL: Duration = Duration::from_millis(50);
/// Time between a broken connection and the sight of the death behind it.
const DEATH_GRACE: Duration = Duration::from_millis(200);

/// The daemon `name`, which lies beside this executable.
///
/// # Errors
/// [`Error::File`] with the command that builds it.
pub fn program(name: &str) -> Result<PathBuf, Error> {
    let own = std::env::current_exe().map_err(|error| Error::Platform(format!("own executable: {error}")))?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::file(path, "no such program beside bifrost; build it with `cargo build --release`"))
}

/// Checks that both daemons lie beside this executable, before anything expensive.
///
/// # Errors
/// As [`program`].
pub fn installed() -> Result<(), Error> {
    program(EVALUATOR)?;
    program(RUNTIME)?;
    Ok(())
}

/// What to start.
pub struct Setup {
    /// A source for `trusted-runtime --model`.
    pub model: String,
    /// The runtime's default protocol; `Local` starts no evaluator.
    pub protocol: Protocol,
    /// Options of the daemons.
    pub daemons: LocalArgs,
}

/// The running daemons. Dropping this ends them and removes their certificates.
pub struct Deployment {
    // Fields are dropped in this order: the runtime before the evaluator it talks to.
    runtime: Daemon,
    evaluator: Option<Daemon>,
    address: Address,
    connection: Runtime,
    description: v1::DescribeResponse,
    _certificates: Certificates,
}

impl Deployment {
    /// Starts the daemons and waits until the model is loaded and, for a delegating protocol, resident on the evaluator.
    ///
    /// # Errors
    /// A missing program, a daemon that ends early or does not get ready; each with its last line.
    pub async fn start(setup: &Setup, progress: &Arc<Progress>) -> Result<Self, Error> {
        let (evaluator_program, runtime_program) = (program(EVALUATOR)?, program(RUNTIME)?);
        let certificates = Certificates::issue()?;
        let complaint = Complaint::default();
        let launch = |name: &'static str, program: PathBuf, args: Vec<OsString>, port_file: &str| Launch {
            program,
            args,
            port_file: certificates.dir().join(port_file),
            envs: vec![("NO_COLOR".into(), "1".into()), ("RUST_BACKTRACE".into(), "0".into())],
            watch: Some(watch(name, progress, setup.daemons.verbose, &complaint)),
            local: name == RUNTIME,
        };

        progress.busy("starting the daemons");
        let mut evaluator = None;
        if setup.protocol.delegates() {
            let args = evaluator_args(&setup.daemons, &certificates);
            evaluator = Some(Daemon::start(launch(EVALUATOR, evaluator_program, args, "evaluator.port"))?);
        }
        let evaluator_port = match &mut evaluator {
            Some(evaluator) => Some(evaluator.port(LISTEN_LIMIT).await?),
            None => None,
        };
        let args = runtime_args(setup, &certificates, evaluator_port);
        let mut runtime = Daemon::start(launch(RUNTIME, runtime_program, args, "runtime.port"))?;
        progress.busy("loading the model");
        let port = runtime.port(START_LIMIT).await?;
        let address = Address {
            url: format!("https://127.0.0.1:{port}"),
            ca: certificates.ca(),
            cert: certificates.cert(Role::Client),
            key: certificates.key(Role::Client),
        };
        let (connection, description) = ready(&mut runtime, evaluator.as_mut(), &address, &complaint).await?;
        progress.idle();
        Ok(Self { runtime, evaluator, address, connection, description, _certificates: certificates })
    }

    /// The connection to the runtime.
    #[must_use]
    pub fn connection(&self) -> &Runtime {
        &self.connection
    }

    /// Where the runtime is, and the certificate it knows us by.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Names and process ids of the daemons.
    #[must_use]
    pub fn processes(&self) -> Vec<(&'static str, u32)> {
        let evaluator = self.evaluator.as_ref().map(|evaluator| (EVALUATOR, evaluator.pid()));
        std::iter::once((RUNTIME, self.runtime.pid())).chain(evaluator).collect()
    }

    /// What the runtime serves, asked when it was ready.
    #[must_use]
    pub fn description(&self) -> &v1::DescribeResponse {
        &self.description
    }

    /// Runs `request` beside the daemons and ends with the death of one as soon as that is noticed.
    ///
    /// # Errors
    /// [`Error::Daemon`] for a daemon that ended, else the request's own.
    pub async fn watch<T>(&mut self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let error = tokio::select! {
            outcome = request => match outcome {
                Err(error @ Error::Runtime(_)) => error,
                outcome => return outcome,
            },
            error = self.death() => return Err(error),
        };
        // A dying runtime closes its connections a moment before it is seen to have died.
        match tokio::time::timeout(DEATH_GRACE, self.death()).await {
            Ok(death) => Err(death),
            Err(_) => Err(error),
        }
    }

    /// Ends when a daemon does.
    async fn death(&mut self) -> Error {
        loop {
            let evaluator = self.evaluator.as_mut().map_or(Ok(()), Daemon::check);
            if let Err(error) = evaluator.and_then(|()| self.runtime.check()) {
                return error;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Deployment {
    fn drop(&mut self) {
        // Both get their SIGTERM before either is waited for.
        self.runtime.terminate();
        if let Some(evaluator) = &mut self.evaluator {
            evaluator.terminate();
        }
    }
}

/// Waits for health and, when there is an evaluator, for the weights to be resident on it.
async fn ready(
    runtime: &mut Daemon,
    mut evaluator: Option<&mut Daemon>,
    address: &Address,
    complaint: &Complaint,
) -> Result<(Runtime, v1::DescribeResponse), Error> {
    let deadline = Instant::now() + START_LIMIT;
    let mut connection = None;
    loop {
        runtime.check()?;
        if let Some(evaluator) = evaluator.as_deref_mut() {
            evaluator.check()?;
        }
        // Our own evaluator on loopback: what does not pass at once will not pass.
        if let Some((at, reason)) = &*complaint.lock().unwrap_or_else(PoisonError::into_inner)
            && at.elapsed() > COMPLAINT_GRACE
        {
            let reason = format!("cannot use the evaluator: {reason}");
            return Err(Error::Daemon { name: runtime.name().into(), reason });
        }
        let late = Instant::now() > deadline;
        match &connection {
            None => match Runtime::connect(address).await {
                Ok(open) => connection = Some(open),
                Err(error) if late || matches!(error, Error::Usage(_) | Error::File { .. }) => return Err(error),
                Err(_) => {}
            },
            Some(open) => {
                if open.serving().await.unwrap_or(false) {
                    let description = open.describe().await?;
                    if evaluator.is_none() || description.evaluator.is_some() {
                        return Ok((open.clone(), description));
                    }
                }
            }
        }
        if late {
            return Err(Error::Daemon {
                name: runtime.name().into(),
                reason: format!("was not ready after {} s", START_LIMIT.as_secs()),
            });
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) fn evaluator_args(daemons: &LocalArgs, certificates: &Certificates) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["--listen".into(), "127.0.0.1:0".into()];
    args.extend(tls(certificates, Role::Evaluator));
    if let Some(threads) = daemons.threads {
        args.extend(["--threads".into(), threads.to_string().into()]);
    }
    if let Some(bytes) = daemons.evaluator_memory {
        args.extend(["--memory-budget".into(), bytes.to_string().into()]);
    }
    args
}

fn runtime_args(setup: &Setup, certificates: &Certificates, evaluator_port: Option<u16>) -> Vec<OsString> {
    let mut args: Vec<OsString> = vec!["serve".into(), "--listen".into(), "127.0.0.1:0".into()];
    args.extend(["--model".into(), OsString::from(&setup.model)]);
    args.extend(["--weights", setup.daemons.weights.name(), "--protocol", setup.protocol.name()].map(Into::into));
    args.extend(["--residency", setup.daemons.residency.name()].map(Into::into));
    args.extend(["--policy", setup.daemons.policy.name()].map(Into::into));
    if let Some(lanes) = setup.daemons.lanes {
        args.extend(["--lanes".into(), lanes.to_string().into()]);
    }
    if let Some(bytes) = setup.daemons.pool_memory {
        args.extend(["--pool-memory".into(), bytes.to_string().into()]);
    }
    args.extend(tls(certificates, Role::Runtime));
    if let Some(port) = evaluator_port {
        args.extend(towards(certificates, port));
    }
    if let Some(threads) = setup.daemons.threads {
        args.extend(["--threads".into(), threads.to_string().into()]);
    }
    args
}

/// Where a runtime's evaluator is, and the files of mutual TLS with it.
pub(crate) fn towards(certificates: &Certificates, port: u16) -> [OsString; 8] {
    [
        "--evaluator".into(),
        format!("https://127.0.0.1:{port}").into(),
        "--evaluator-ca".into(),
        certificates.ca().into(),
        "--evaluator-cert".into(),
        certificates.cert(Role::Runtime).into(),
        "--evaluator-key".into(),
        certificates.key(Role::Runtime).into(),
    ]
}

/// The server side of mutual TLS, which both daemons spell alike.
fn tls(certificates: &Certificates, role: Role) -> [OsString; 6] {
    [
        "--tls-cert".into(),
        certificates.cert(role).into(),
        "--tls-key".into(),
        certificates.key(role).into(),
        "--tls-client-ca".into(),
        certificates.ca().into(),
    ]
}

/// The runtime's last complaint about the evaluator, and when it came.
type Complaint = Arc<Mutex<Option<(Instant, String)>>>;

/// What happens to a daemon's log lines: warnings are passed on, anything else is the line that says what is going
/// on now, and all of them are passed on when asked to. They stay available for error messages in any case.
fn watch(name: &'static str, progress: &Arc<Progress>, verbose: bool, complaint: &Complaint) -> Watch {
    let (progress, complaint) = (Arc::downgrade(progress), Arc::clone(complaint));
    Box::new(move |line| {
        let Some(progress) = progress.upgrade() else { return };
        if verbose {
            progress.say(&format!("{name}: {line}"));
        }
        match message(line) {
            // Announced in the client's own words, on every run.
            Some(("WARN", text)) if text.starts_with("attestation:") => {}
            // All three have the authority of this run.
            Some(("WARN", text)) if text.starts_with("loopback:") => {}
            Some(("WARN", text)) if text.starts_with(EVALUATOR_DOWN) => {
                let reason = text.split_once("reason=").map_or(text, |(_, reason)| reason.trim_matches('"'));
                *complaint.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), reason.to_owned()));
            }
            Some(("WARN" | "ERROR", text)) if !verbose => progress.say(&format!("{name}: {text}")),
            Some(("INFO", text)) if !verbose && name == RUNTIME => progress.refine(&gist(text)),
            _ => {}
        }
    })
}

/// The words of a log message without its `key=value` fields, but with the percentage.
fn gist(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').take_while(|word| !word.contains('=')).collect();
    let percent = text.split(' ').find_map(|word| word.strip_prefix("percent="));
    percent.map_or_else(|| words.join(" "), |percent| format!("{}: {percent} %", words.join(" ")))
}

/// Level and message of a log line of the form `TIME LEVEL message` or `TIME LEVEL module::path: message`; `None`
/// for anything else.
fn message(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.split_once(' ')?;
    let (level, text) = rest.trim_start().split_once(' ')?;
    let text = text.trim_start();
    let text = text
        .split_once(": ")
        .filter(|(head, _)| head.contains("::") && !head.contains(' '))
        .map_or(text, |(_, text)| text);
    ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"].contains(&level).then_some((level, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_are_told_from_other_lines() {
        let line = "2026-11-30T13:00:00.000000Z  WARN evaluator absent";
        assert_eq!(message(line), Some(("WARN", "evaluator absent")));
        let line = "2026-11-30T13:00:00.000000Z  WARN gpu_evaluator::residency: budget: 3 used";
        assert_eq!(message(line), Some(("WARN", "budget: 3 used")));
        assert_eq!(message("trusted-runtime: no such file"), None);
        assert_eq!(message(""), None);
        assert_eq!(gist("uploading weights percent=40 sent=4 total=10"), "uploading weights: 40 %");
        assert_eq!(gist("reading tensors: 12 %"), "reading tensors: 12 %");
    }
}
