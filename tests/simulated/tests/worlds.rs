//! The programs of the simulated world say so, and have nothing to do with keys of the real one.

#![forbid(unsafe_code)]

use std::{
    fs,
    process::{Command, Output, Stdio},
};

fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).stdin(Stdio::null()).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn both_programs_say_simulated_before_anything_else() {
    for (program, args) in [
        (env!("CARGO_BIN_EXE_bifrost-sim"), &["collateral", "show", "/nonexistent"][..]),
        (env!("CARGO_BIN_EXE_trusted-runtime-sim"), &["serve"][..]),
    ] {
        let out = run(program, args);
        assert!(!out.status.success());
        assert!(text(&out.stderr).starts_with("SIMULATED"), "{}", text(&out.stderr));
    }
}

#[test]
fn simulated_evidence_stays_on_loopback_unless_told_otherwise() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../testdata/tiny/tiny-gpt2.gguf");
    let args = ["serve", "--listen", "0.0.0.0:0", "--protocol", "local", "--model", model];
    let out = run(env!("CARGO_BIN_EXE_trusted-runtime-sim"), &args);
    let told = text(&out.stderr);
    assert!(out.status.code() == Some(64) && told.contains("simulated evidence is for loopback addresses"), "{told}");
}

#[test]
fn keys_of_tenants_are_refused_here() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let made = run(env!("CARGO_BIN_EXE_bifrost-sim"), &["keygen", "--tenant", "acme", "--out", &path("test.key")]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let key = fs::read_to_string(path("test.key")).expect("written");
    assert!(key.contains("test = true"), "marked");
    // As a production key has it.
    fs::write(path("test.key"), key.replace("test = true", "test = false")).expect("written");
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../../client/verify/policy.example.toml");
    let (key, log) = (path("test.key"), path("log"));
    let args = ["release-key", "--runtime", "attested://127.0.0.1:1", "--policy", policy, "--tenant-key", &key];
    let out = run(env!("CARGO_BIN_EXE_bifrost-sim"), &[&args[..], &["--yes", "--attestation-log", &log]].concat());
    let told = text(&out.stderr);
    assert!(out.status.code() == Some(2) && told.contains("test"), "{told}");
}
