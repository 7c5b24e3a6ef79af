//! Writes the certificates and private keys of the fixed simulated authority into a folder.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("SIMULATED: these keys are in the source code and protect nothing");
    let folder = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("tests/simulator/testdata"), PathBuf::from);
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}: {error}", folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(folder)?;
    for (name, content) in simulator::Authority::fixed()?.files()? {
        std::fs::write(folder.join(&name), content)?;
        println!("{}", folder.join(name).display());
    }
    Ok(())
}
