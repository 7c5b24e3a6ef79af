//! A child process with a port, which is always ended.
//!
//! A daemon listens on a port of its own choice and writes it to a file; its standard error is read line by line
//! so that an early death can be explained with its last words. Children run in their own process group (a
//! Ctrl-C at the terminal reaches `bifrost` only, which then ends them in order) and are ended by process id:
//! SIGTERM, a grace period, SIGKILL. Their standard input is a pipe held open here, and they leave when it closes,
//! so that they do not outlive a parent that was killed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use zeroize::Zeroizing;

use crate::Error;

/// Lines of standard error kept for the report of an early death.
const TAIL_LINES: usize = 12;
/// Time between SIGTERM and SIGKILL when a daemon is dropped.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks at a file or a process.
const POLL: Duration = Duration::from_millis(10);

/// Called with every line a daemon writes to standard error.
pub type Watch = Box<dyn Fn(&str) + Send>;

/// What to start.
pub struct Launch {
    /// The program's file; its file name is used in messages.
    pub program: PathBuf,
    /// Arguments, without `--port-file`.
    pub args: Vec<OsString>,
    /// Where the daemon writes the port it listens on; must not exist yet.
    pub port_file: PathBuf,
    /// Additional environment.
    pub envs: Vec<(OsString, OsString)>,
    /// Sees every line of standard error; lines are kept for messages in any case.
    pub watch: Option<Watch>,
    /// Whether it is a runtime in local mode: it gets `--local`, and a fresh key by its standard input.
    pub local: bool,
}

/// A running (or dead) child. Dropping it ends it.
pub struct Daemon {
    name: String,
    child: Child,
    port_file: PathBuf,
    tail: Arc<Mutex<VecDeque<String>>>,
    reader: Option<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Daemon {
    /// Starts the program.
    ///
    /// # Errors
    /// [`Error::File`] when the program is missing (with the command that builds it) or cannot be executed.
    pub fn start(launch: Launch) -> Result<Self, Error> {
        let Launch { program, args, port_file, envs, watch, local } = launch;
        let name = program.file_name().map_or_else(|| "daemon".into(), |name| name.to_string_lossy().into_owned());
        if !program.is_file() {
            return Err(Error::file(program, "no such program; build it with `cargo build --release`"));
        }
        let _ = std::fs::remove_file(&port_file);
        let mut child = Command::new(&program)
            .args(args)
            .arg("--port-file")
            .arg(&port_file)
            .arg("--exit-with-parent")
            .args(local.then_some("--local"))
            .envs(envs)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| Error::file(program, error))?;
        if local {
            let mut key = Zeroizing::new([0; 32]);
            getrandom::fill(&mut *key).map_err(|error| Error::Platform(format!("no entropy: {error}")))?;
            // One that has ended already explains itself.
            let _ = child.stdin.as_mut().map(|stdin| stdin.write_all(key.as_slice()));
        }
        let tail = Arc::new(Mutex::new(VecDeque::new()));
        let reader = child.stderr.take().map(|stderr| {
            let tail = Arc::clone(&tail);
            std::thread::spawn(move || read_lines(BufReader::new(stderr), &tail, watch.as_deref()))
        });
        Ok(Self { name, child, port_file, tail, reader, status: None })
    }

    /// File name of the program.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id; valid until the daemon is stopped or found dead.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the daemon has written its port.
    ///
    /// # Errors
    /// [`Error::Daemon`] when it dies first, or is not there after `limit`; both with its last line.
    pub async fn port(&mut self, limit: Duration) -> Result<u16, Error> {
        let deadline = Instant::now() + limit;
        let mut seen = None;
        loop {
            // Two looks must agree, for a daemon that does not write its file atomically.
            let port = read_port(&self.port_file);
            if let (Some(port), true) = (port, port == seen) {
                return Ok(port);
            }
            seen = port;
            self.check()?;
            if Instant::now() > deadline {
                return Err(self.explain(&format!("did not listen within {} s", limit.as_secs())));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// # Errors
    /// [`Error::Daemon`] when the process has ended, with its status; its own error line follows when
    /// it ended by itself.
    pub fn check(&mut self) -> Result<(), Error> {
        match self.exited()? {
            None => Ok(()),
            Some(status) => {
                // The pipe is closed by now, unless a grandchild holds it; there are none.
                if let Some(reader) = self.reader.take() {
                    let _ = reader.join();
                }
                let what = format!("ended early ({status})");
                // Whoever was killed had nothing to say about it.
                if status.signal().is_some() {
                    return Err(Error::Daemon { name: self.name.clone(), reason: what });
                }
                Err(self.explain(&what))
            }
        }
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// [`Error::Daemon`] when it has not ended after `limit`.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus, Error> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exited()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(self.explain(&format!("did not end within {} s", limit.as_secs())));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Sends SIGTERM and does not wait.
    pub fn terminate(&mut self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL and waits for the end: what a crash looks like.
    pub fn kill(&mut self) {
        if !matches!(self.exited(), Ok(Some(_))) {
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
    }

    /// SIGTERM, then SIGKILL when the process is still there after `grace`.
    pub fn stop(&mut self, grace: Duration) {
        self.terminate();
        let deadline = Instant::now() + grace;
        while matches!(self.exited(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
        self.kill();
    }

    /// The last lines of standard error, oldest first.
    #[must_use]
    pub fn last_lines(&self) -> Vec<String> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn exited(&mut self) -> Result<Option<ExitStatus>, Error> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(|error| Error::Daemon {
                name: self.name.clone(),
                reason: format!("cannot be waited for: {error}"),
            })?;
        }
        Ok(self.status)
    }

    /// Signals the process only while it is not reaped, so the id cannot belong to anybody else.
    fn signal(&mut self, signal: Signal) {
        if let Ok(None) = self.exited()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            let _ = kill_process(pid, signal);
        }
    }

    fn explain(&self, what: &str) -> Error {
        let lines = self.last_lines();
        // Both daemons end with one line of their own that says why; the log before it is noise then.
        let own = lines.iter().rev().find_map(|line| line.strip_prefix(&self.name)?.strip_prefix(": "));
        if let Some(own) = own {
            return Error::Daemon { name: self.name.clone(), reason: format!("{what}: {own}") };
        }
        let logged = lines.iter().rev().find(|line| line.contains(" ERROR "));
        let reason = match logged.or_else(|| lines.iter().rev().find(|line| !line.trim().is_empty())) {
            None => format!("{what} and said nothing"),
            Some(last) => format!("{what}: {last}"),
        };
        Error::Daemon { name: self.name.clone(), reason }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop(GRACE);
    }
}

/// Reads lines until the pipe closes; bytes that are not UTF-8 are replaced, not refused.
fn read_lines(mut pipe: impl BufRead, tail: &Mutex<VecDeque<String>>, watch: Option<&(dyn Fn(&str) + Send)>) {
    let mut bytes = Vec::new();
    while matches!(pipe.read_until(b'\n', &mut bytes), Ok(read) if read > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if let Some(watch) = watch {
            watch(&line);
        }
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
}

/// The port in a port file: `4711` or `127.0.0.1:4711`; `None` while there is none.
fn read_port(path: &Path) -> Option<u16> {
    let text = std::fs::read_to_string(path).ok()?;
    text.trim().rsplit(':').next()?.parse().ok().filter(|port| *port != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(dir: &Path, script: &str) -> Daemon {
        let launch = Launch {
            program: "/bin/sh".into(),
            args: vec!["-c".into(), script.into(), "sh".into()],
            port_file: dir.join("port"),
            envs: Vec::new(),
            watch: None,
            local: false,
        };
        Daemon::start(launch).unwrap()
    }

    #[tokio::test]
    async fn port_file_is_read_and_the_child_ends_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell(dir.path(), r#"echo 127.0.0.1:4711 > "$2"; exec sleep 1000"#);
        assert_eq!(daemon.port(Duration::from_secs(20)).await.unwrap(), 4711);
        let pid = daemon.pid();
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(daemon);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[tokio::test]
    async fn early_death_is_reported_with_the_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell(dir.path(), "echo tensor blk.0 is misshapen >&2; exit 3");
        let error = daemon.port(Duration::from_secs(20)).await.unwrap_err().to_string();
        assert!(error.contains("tensor blk.0 is misshapen") && error.contains("exit status: 3"), "{error}");
    }

    #[tokio::test]
    async fn a_daemons_own_error_line_is_all_that_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell(dir.path(), "echo TIME INFO reading >&2; echo sh: magic is 23 >&2; exit 1");
        let error = daemon.port(Duration::from_secs(20)).await.unwrap_err().to_string();
        assert_eq!(error, "sh ended early (exit status: 1): magic is 23");
    }

    #[tokio::test]
    async fn death_by_a_signal_is_all_that_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon = shell(dir.path(), "echo TIME INFO reading >&2; kill -9 $$");
        let error = daemon.port(Duration::from_secs(20)).await.unwrap_err().to_string();
        assert_eq!(error, "sh ended early (signal: 9 (SIGKILL))");
    }

    #[tokio::test]
    async fn a_child_that_ignores_sigterm_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let mut daemon =
            shell(dir.path(), r#"trap "" TERM; echo 1 > "$2.tmp"; echo 4711 > "$2"; while :; do sleep 1; done"#);
        daemon.port(Duration::from_secs(20)).await.unwrap();
        daemon.stop(Duration::from_millis(200));
        assert!(daemon.status.is_some_and(|status| !status.success()));
    }

    #[test]
    fn a_missing_program_says_how_to_build_it() {
        let launch = Launch {
            program: "/nonexistent/gpu-evaluator".into(),
            args: Vec::new(),
            port_file: "/nonexistent/port".into(),
            envs: Vec::new(),
            watch: None,
            local: false,
        };
        let error = Daemon::start(launch).err().unwrap().to_string();
        assert!(error.contains("/nonexistent/gpu-evaluator") && error.contains("cargo build --release"), "{error}");
    }
}
