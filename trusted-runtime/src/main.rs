//! `trusted-runtime`, whose evidence is the hardware's.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    trusted_runtime::daemon::main::<attest::Hardware>()
}
