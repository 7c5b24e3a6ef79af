//! Seeded mutations of recorded evidence through every way in: nothing panics. `BIFROST_MUTATIONS` is how many of each
//! kind to try; a million of each is the long run.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

#[path = "support/entries.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets use the same functions from another crate")]
mod entries;
#[path = "support/seeds.rs"]
#[expect(unreachable_pub, reason = "the fuzz targets use the same functions from another crate")]
mod seeds;

fn count() -> usize {
    std::env::var("BIFROST_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(5_000)
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

#[test]
fn quotes_do_not_panic() {
    run("quote", count(), &seeds::quotes(), entries::quote);
    // With signatures each takes 10 ms and more.
    run("signed quote", count() / 50, &seeds::quotes(), entries::signed_quote);
}

#[test]
fn event_logs_do_not_panic() {
    assert_eq!(attest_verify::eventlog::EventLog::parse(&seeds::log()).unwrap().extensions().len(), 4);
    run("event log", count(), &[seeds::log()], entries::event_log);
}

#[test]
fn collateral_does_not_panic() {
    let seeds = seeds::collateral();
    attest_verify::collateral::Bundle::parse(&seeds[2]).unwrap();
    run("collateral", count() / 5, &seeds, entries::collateral);
}

#[test]
fn evidence_does_not_panic() {
    assert!(attest_verify::snp::Report::parse(&seeds::snp_report()).is_ok());
    assert!(attest_verify::azure::TpmQuote::parse(&seeds::tpm()[0]).is_ok());
    run("evidence", count(), &seeds::evidence(), entries::evidence);
}
