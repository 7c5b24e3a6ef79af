//! Writes what the targets start from: `seeds DIRECTORY`, one folder for each target below it.

// Instrumented code calls into libFuzzer, so it has to be linked.
use attest_verify_fuzz::seeds;
use libfuzzer_sys as _;
use std::{env, fs, io, path::Path};

fn main() -> io::Result<()> {
    let root = env::args().nth(1).ok_or_else(|| io::Error::other("no directory, expected one"))?;
    let targets = [
        ("quote", seeds::quotes()),
        ("signed_quote", seeds::quotes()),
        ("event_log", vec![seeds::log()]),
        ("collateral", seeds::collateral()),
        ("evidence", seeds::evidence()),
        ("snp_report", vec![seeds::snp_report()]),
        ("hcl_report", seeds::tpm().to_vec()),
    ];
    for (target, seeds) in targets {
        let folder = Path::new(&root).join(target);
        fs::create_dir_all(&folder)?;
        for (index, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{index}")), seed)?;
        }
    }
    Ok(())
}
