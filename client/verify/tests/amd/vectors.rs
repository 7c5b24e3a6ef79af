//! Recorded evidence, what to say of factors, and damage with a fixed seed.

use attest_verify::factor::{Factor, Outcome};
use std::path::PathBuf;

/// A vector of the repository.
pub(crate) fn own(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)).unwrap()
}

/// What fails for a report about something else: the signature is not looked at.
pub(crate) const RELAYED: [&str; 2] = ["binding.report_data", "snp.signature"];

/// A vector outside of the repository.
pub(crate) fn extra(name: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("BIFROST_EXTRA_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"), PathBuf::from);
    let read = std::fs::read(root.join(name)).ok();
    if read.is_none() {
        println!("skipped: no {name} in {}", root.display());
    }
    read
}

/// Codes of the factors that do not hold.
pub(crate) fn failed(factors: &[Factor]) -> Vec<&'static str> {
    factors.iter().filter(|factor| !factor.holds()).map(|factor| factor.code).collect()
}

/// What a factor found, or why it could not look.
pub(crate) fn found(factors: &[Factor], code: &str) -> String {
    let factor = factors.iter().find(|factor| factor.code == code).unwrap();
    match &factor.outcome {
        Outcome::Skipped(reason) => reason.clone(),
        _ => factor.found.clone(),
    }
}

/// A generator with a fixed seed: xorshift64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }

    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, 0xff),
                2 if at < bytes.len() => bytes[at] = [0, 0x7f, 0x80, 0xff][self.below(4)],
                _ if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
    }
}
