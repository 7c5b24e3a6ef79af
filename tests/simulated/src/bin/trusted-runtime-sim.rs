//! `trusted-runtime` on simulated hardware.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("SIMULATED: this runtime's evidence is made up; it protects nothing");
    trusted_runtime::daemon::main::<simulated::SimulatedWorld>()
}
