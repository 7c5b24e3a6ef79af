//! One run of a program with bounds on everything.

use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    io::{self, Read, Write},
    os::unix::process::CommandExt as _,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::Duration,
};

/// What one run may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Until its exit.
    pub(super) time: Duration,
    /// Of standard output.
    pub(super) bytes: usize,
}

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It does not start.
    #[error("cannot be started: {0}")]
    Start(io::Error),
    /// Its pipes broke.
    #[error("pipe: {0}")]
    Pipe(io::Error),
    /// It takes too long, and was killed.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Time(Duration),
    /// It writes too much.
    #[error("standard output has more than {0} bytes")]
    TooLong(usize),
    /// It says that it could not.
    #[error("{status}; last line of standard error: {last_line}")]
    Status {
        /// How it ended.
        status: ExitStatus,
        /// What it says of it.
        last_line: String,
    },
}

/// Runs `argv` with `input` on its standard input and returns its standard output.
pub(super) fn run(argv: &[String], input: &[u8], limits: Limits) -> Result<Vec<u8>, RunError> {
    let mut child = start(argv)?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (tell, told) = mpsc::channel();
    let input = input.to_vec();
    thread::spawn(move || {
        let outcome = attend(&mut child, input, limits.bytes);
        // Nobody listens any more after the time is over.
        let _ = tell.send(outcome);
    });
    match told.recv_timeout(limits.time) {
        Ok(outcome) => outcome,
        Err(_) => {
            if let Some(group) = group
                && let Err(error) = kill_process_group(group, Signal::KILL)
            {
                tracing::warn!(%error, "program of the attestation source cannot be killed");
            }
            Err(RunError::Time(limits.time))
        }
    }
}

/// In a process group of its own, so that what it starts ends with it.
fn start(argv: &[String]) -> Result<Child, RunError> {
    let (program, arguments) = argv.split_first().ok_or_else(|| RunError::Start(io::ErrorKind::InvalidInput.into()))?;
    Command::new(program)
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(RunError::Start)
}

fn attend(child: &mut Child, input: Vec<u8>, cap: usize) -> Result<Vec<u8>, RunError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    // A program that takes the report data from its arguments need not read.
    let writer = stdin.map(|mut pipe| thread::spawn(move || pipe.write_all(&input)));
    let errors = stderr.map(|pipe| thread::spawn(move || tail(pipe)));
    let output = stdout.map_or_else(|| Ok(Vec::new()), |pipe| capped(pipe, cap));
    if output.is_err() {
        // It may be waiting for us to read on.
        let _ = child.kill();
    }
    let status = child.wait().map_err(RunError::Pipe)?;
    let last_line = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
    let written = writer.map_or(Ok(()), joined);
    let output = output?;
    if !status.success() {
        return Err(RunError::Status { status, last_line });
    }
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(RunError::Pipe(error)),
        _ => Ok(output),
    }
}

fn joined(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")))
}

fn capped(pipe: impl Read, cap: usize) -> Result<Vec<u8>, RunError> {
    let mut bytes = Vec::new();
    let most = u64::try_from(cap).unwrap_or(u64::MAX).saturating_add(1);
    pipe.take(most).read_to_end(&mut bytes).map_err(RunError::Pipe)?;
    if bytes.len() > cap { Err(RunError::TooLong(cap)) } else { Ok(bytes) }
}

/// The last line that is not empty, of at most the last 4 KiB, without control characters.
fn tail(mut pipe: impl Read) -> String {
    const KEPT: usize = 4096;
    let (mut kept, mut part) = (Vec::new(), [0; KEPT]);
    while let Ok(n @ 1..) = pipe.read(&mut part) {
        kept.extend_from_slice(&part[..n]);
        kept.drain(..kept.len().saturating_sub(KEPT));
    }
    let text = String::from_utf8_lossy(&kept);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing");
    last.chars().filter(|c| !c.is_control()).take(200).collect()
}
