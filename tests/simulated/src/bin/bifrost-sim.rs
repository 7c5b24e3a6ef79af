//! `bifrost` for runtimes on simulated hardware; takes test keys alone.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    client::main::<simulated::SimulatedWorld>()
}
