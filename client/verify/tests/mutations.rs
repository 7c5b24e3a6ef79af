//! Seeded mutations of recorded evidence through every way in: nothing panics. `BIFROST_MUTATIONS` is how many of each
//! kind to try; a million of each is the long run.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "support/entries.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets use the same functions from another crate")]
mod entries;

use prost::Message as _;
use proto::v1::{Evidence, Platform, RuntimeEvent, RuntimeValues};
use std::path::Path;

fn count() -> usize {
    std::env::var("BIFROST_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000)
}

fn recorded(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/dcap-qvl-crate").join(name)).unwrap()
}

/// xorshift64*, Vigna 2016: the same mutations on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound.max(1)).unwrap()).unwrap()
    }
}

fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        let length = random.below(64).min(bytes.len() - at);
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + length)),
            2 => {
                let piece = bytes.get(at..at + length).unwrap().to_vec();
                bytes.splice(at..at, piece);
            }
            3 => {
                let odd = [0u32, 1, 0x7fff_ffff, u32::MAX, 0x0001_0000];
                let odd = odd[random.below(odd.len())].to_le_bytes();
                let end = (at + 4).min(bytes.len());
                bytes.splice(at..end, odd);
            }
            4 => bytes.extend(vec![u8::try_from(random.below(256)).unwrap(); length]),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

fn run(name: &str, times: usize, seeds: &[Vec<u8>], entry: fn(&[u8])) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for seed in seeds {
        entry(seed);
        entry(&[]);
    }
    for _ in 0..times {
        let seed = &seeds[random.below(seeds.len())];
        entry(&mutated(seed, &mut random));
    }
    println!("{name}: {times} mutations of {} seeds", seeds.len());
}

fn quotes() -> Vec<Vec<u8>> {
    ["tdx_quote", "tdx_quote_td15ex", "tdx_quote_outdated", "sgx_quote"].map(recorded).to_vec()
}

#[test]
fn quotes_do_not_panic() {
    run("quote", count(), &quotes(), entries::quote);
    // With signatures each takes 10 ms and more.
    run("signed quote", count() / 50, &quotes(), entries::signed_quote);
}

/// A log of a few entries, since no recorded one is in the repository.
fn log() -> Vec<u8> {
    let mut spec = b"Spec ID Event03\0".to_vec();
    spec.extend([0, 0, 0, 0, 0, 2, 0, 2, 2, 0, 0, 0, 0x0b, 0, 32, 0, 0x0c, 0, 48, 0, 0]);
    let mut bytes = [1u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    bytes.extend([0; 20]);
    bytes.extend(u32::try_from(spec.len()).unwrap().to_le_bytes());
    bytes.extend(spec);
    for (index, kind) in [(1u32, 0x8000_0008u32), (u32::MAX, 3), (2, 6), (3, 13), (4, 6)] {
        bytes.extend(index.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(2u32.to_le_bytes());
        bytes.extend([0x0b, 0]);
        bytes.extend([6; 32]);
        bytes.extend([0x0c, 0]);
        bytes.extend([7; 48]);
        bytes.extend(5u32.to_le_bytes());
        bytes.extend(*b"event");
    }
    bytes.extend([0xff; 64]);
    bytes
}

#[test]
fn event_logs_do_not_panic() {
    assert_eq!(attest_verify::eventlog::EventLog::parse(&log()).unwrap().extensions().len(), 4);
    run("event log", count(), &[log()], entries::event_log);
}

#[test]
fn collateral_does_not_panic() {
    let one = recorded("tdx_quote_collateral.json");
    let text = String::from_utf8(one.clone()).unwrap();
    let bundle = format!(r#"[{{"fmspc":"B0C06F000000","ca":"platform","fetched_at":1,"collateral":{text}}}]"#);
    attest_verify::collateral::Bundle::parse(bundle.as_bytes()).unwrap();
    let seeds = [one, recorded("tdx_quote_outdated_collateral.json"), bundle.into_bytes()];
    run("collateral", count() / 5, &seeds, entries::collateral);
}

#[test]
fn evidence_does_not_panic() {
    let values = RuntimeValues {
        hpke_key: vec![3; 1216].into(),
        receipt_key: vec![4; 32].into(),
        params_digest: vec![1; 32].into(),
        model_digest: vec![2; 32].into(),
        config_digest: vec![5; 32].into(),
        not_after: u64::MAX,
        software: "0.1.0".to_owned(),
    };
    let seeds: Vec<Vec<u8>> = quotes()
        .into_iter()
        .map(|quote| Evidence {
            version: attest::VERSION,
            platform: Platform::Tdx.into(),
            quote: quote.into(),
            event_log: log().into(),
            runtime_log: vec![RuntimeEvent { name: "model".to_owned(), payload: vec![1; 32].into() }],
            values: Some(values.clone()),
            ..Evidence::default()
        })
        .map(|evidence| evidence.encode_to_vec())
        .collect();
    run("evidence", count(), &seeds, entries::evidence);
}
