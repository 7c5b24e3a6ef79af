//! `bifrost`, which trusts hardware.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    client::main::<attest::Hardware>()
}
