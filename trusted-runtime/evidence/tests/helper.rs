//! The helper as a process: how it refuses, and what a runtime learns on a machine without a TEE.

use attest::source::SourceError;
use evidence::{
    Choice, Settings,
    configfs::REPORTS,
    helper::wire::{Answer, Request},
    open,
};
use std::{
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
};

/// Killed when the test is over.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn helper(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifrost-quote-helper"));
    command.args(arguments).env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
    command
}

fn refusal(arguments: &[&str]) -> (Option<i32>, String) {
    let output = helper(arguments).output().expect("the helper starts");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn bad_arguments_and_no_socket_end_it_with_64() {
    for (arguments, text) in [
        (&[][..], "--uid <UID>|--user <USER>|--check <PATH>"),
        (&["--check", "/nowhere/socket", "--user", "root"], "cannot be used with"),
        (&["--uid", "1", "--user", "root"], "cannot be used with"),
        (&["--user", "nobody-of-that-name"], "user nobody-of-that-name is not in /etc/passwd"),
        (&["--user", "root"], "no socket from the service manager"),
    ] {
        let (code, said) = refusal(arguments);
        assert_eq!(code, Some(64), "{arguments:?}: {said}");
        assert!(said.contains(text), "{arguments:?}: {said}");
    }
    assert_eq!(refusal(&["--uid", "0", "--listen", "/nowhere/socket"]).0, Some(1));
    let (code, said) = refusal(&["--check", "/nowhere/socket"]);
    assert!(code == Some(1) && said.contains("/nowhere/socket: No such file"), "{code:?}: {said}");
}

#[test]
fn a_runtime_on_a_machine_without_a_tee_is_told_so() {
    if Path::new(REPORTS).exists() {
        println!("skipped: {REPORTS} exists, so this may be a TEE guest");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let uid = rustix::process::geteuid().as_raw().to_string();
    let mut command = helper(&["--uid", &uid, "--listen", socket.to_str().unwrap()]);
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    // It says when it is ready.
    let mut log = std::io::BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut log, &mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    assert_eq!(refusal(&["--check", socket.to_str().unwrap()]), (Some(0), String::new()));
    for source in [Choice::Helper, Choice::Auto] {
        let settings = Settings { source, helper_socket: socket.clone(), ..Settings::default() };
        let Err(SourceError::NoTee(text)) = open(&settings, &[]) else { panic!("evidence without a TEE") };
        assert!(text.contains("helper: /sys/kernel/config/tsm/report does not exist"), "{text}");
    }
    let elsewhere = Settings { helper_socket: dir.path().join("none"), ..Settings::default() };
    let Err(SourceError::NoTee(text)) = open(&elsewhere, &[]) else { panic!("evidence without a TEE") };
    assert!(text.contains("none does not exist; /sys/kernel/config/tsm/report does not exist"), "{text}");
}

#[test]
fn the_service_managers_socket_is_taken_over() {
    let activate = Path::new("/usr/bin/systemd-socket-activate");
    if !activate.exists() {
        println!("skipped: {} is not on this machine", activate.display());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let uid = rustix::process::geteuid().as_raw().to_string();
    let mut command = Command::new(activate);
    command.arg("--listen").arg(&socket).arg(env!("CARGO_BIN_EXE_bifrost-quote-helper")).args(["--uid", &uid]);
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut log = std::io::BufReader::new(running.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut log, &mut line).unwrap();
    assert!(line.starts_with("Listening on"), "{line}");
    let mut stream = UnixStream::connect(&socket).unwrap();
    Request::Quote([7; 64]).write(&mut stream).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = Answer::read(&mut stream).unwrap();
    if Path::new(REPORTS).exists() {
        println!("not judged: {REPORTS} exists, so this may be a TEE guest");
    } else {
        assert!(matches!(&answer, Answer::NoTee(text) if text.contains("does not exist")), "{answer:?}");
    }
}
