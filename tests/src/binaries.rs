//! Where the binaries under test are, and how to run one to its end.

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

/// The program `name` in the target directory that the running test was built into.
///
/// # Panics
/// If it is not there: `cargo test --workspace` builds the binaries of every package, `cargo test -p e2e`
/// does not.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own file");
    let deps = test.parent().expect("a file lies in a directory");
    let built = if deps.ends_with("deps") { deps.parent().expect("deps/ lies in a profile's directory") } else { deps };
    let path = built.join(name);
    assert!(
        path.is_file(),
        "{} is missing; run `cargo build --release` (or test with `--workspace`) before the end-to-end tests",
        path.display()
    );
    path
}

/// A program with its streams captured and no variable of ours inherited.
pub fn command(name: &str) -> Command {
    let mut command = Command::new(binary(name));
    command.stdin(Stdio::null());
    for (variable, _) in std::env::vars_os() {
        // The cache stays where the user has it, or the model would be fetched for every test.
        if variable.to_string_lossy().starts_with("BIFROST_") && variable != "BIFROST_CACHE" {
            command.env_remove(variable);
        }
    }
    command
}

/// A runtime in local mode that is expected to refuse to start: its key is zeros, without an end.
///
/// # Panics
/// If this machine has no `/dev/zero`.
pub fn local_runtime() -> Command {
    let mut command = command("trusted-runtime");
    command.args(["serve", "--local"]).stdin(std::fs::File::open("/dev/zero").expect("zeros"));
    command
}

/// Runs a program to its end.
///
/// # Panics
/// If it cannot be started.
pub fn run(name: &str, args: &[&str]) -> Output {
    command(name).args(args).output().unwrap_or_else(|e| panic!("{name}: {e}"))
}
