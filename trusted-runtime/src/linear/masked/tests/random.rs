//! Random lies on all three streams, through everything that lies between a socket and a number.

use super::*;
use crate::{
    linear::{
        delegate::Check,
        testing::{packed, reword, ring},
    },
    metrics::CHECKS,
};
use kernels::wire;
use proto::v1::{BulkHeader, TileAnswer, tile_answer};
use std::{collections::HashMap, sync::Mutex};

/// Small, so that everything that a lie spoils is soon made again; the first two are of one shape.
const SHAPES: [(usize, usize); 3] = [(9, 12), (9, 12), (5, 3)];
/// Lanes of a companion's job.
const ALL: u32 = 2048;

/// How many; `BIFROST_LIES` for more.
fn count() -> u64 {
    std::env::var("BIFROST_LIES").ok().and_then(|text| text.parse().ok()).unwrap_or(200)
}

/// Tells the truth until it is asked to lie once on one of the streams.
#[derive(Default)]
struct Liar {
    state: u64,
    asked: Option<Check>,
    /// Lies told about companions, among all of them.
    companions: u64,
    told: u64,
    /// Earlier answers of a length, of whatever matrix, batch and lane.
    earlier: HashMap<(&'static str, usize), Vec<u64>>,
}

impl Liar {
    /// splitmix64, Vigna 2015.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    /// Words below `modulus`; if a lie is due they become others, also below it.
    fn tell(&mut self, check: Check, words: &mut [u64], modulus: u64) -> bool {
        let truth = words.to_vec();
        let earlier = self.earlier.insert((check.name(), words.len()), truth.clone());
        if self.asked.is_none_or(|asked| asked != check) {
            return false;
        }
        while words == truth {
            let (at, other, by) = (self.below(words.len()), self.below(words.len()), 1 + self.next() % (modulus - 1));
            match self.next() % 9 {
                0 => words[at] = (words[at] + by) % modulus,
                1 => words[at] ^= 1,
                2 => words.swap(at, other),
                3 => words.rotate_left(at),
                4 => words[at] = words[other],
                5 => words[at..].fill(0),
                6 => words
                    .iter_mut()
                    .for_each(|w| *w = u64::try_from(u128::from(*w) * u128::from(by) % u128::from(modulus)).unwrap()),
                7 => words.iter_mut().for_each(|w| *w = (*w + by) % modulus),
                _ => words.copy_from_slice(earlier.as_ref().unwrap_or(&truth)),
            }
            // One bit may lead out of the range.
            words.iter_mut().for_each(|w| *w %= modulus);
        }
        self.asked = None;
        self.told += 1;
        true
    }

    fn online(&mut self, job: &OnlineJob, mut answers: Vec<OnlineAnswer>) -> Reply<OnlineAnswer> {
        if let Some(online_answer::Body::Words(bytes)) = &answers[0].body {
            let mut words: Vec<u64> = unpacked(job.word_bits, bytes, job.vectors).into_iter().map(Into::into).collect();
            self.tell(Check::Online, &mut words, 1 << job.word_bits);
            let words: Vec<u32> = words.into_iter().map(|w| u32::try_from(w).unwrap()).collect();
            answers[0].body = Some(online_answer::Body::Words(packed(job.word_bits, &words, job.vectors)));
        }
        answers.into()
    }

    fn bulk(&mut self, header: &BulkHeader, mut answers: Vec<BulkAnswer>) -> Reply<BulkAnswer> {
        let part = self.below(answers.len());
        if let Some(bulk_answer::Body::Part(_)) = answers[part].body {
            reword(&ring(), header.lanes, &mut answers[part], |words| {
                let lied = self.tell(Check::Bulk, words, ring().q());
                self.companions += u64::from(lied && header.lanes == ALL);
            });
        }
        answers.into()
    }

    fn direct(&mut self, mut answers: Vec<TileAnswer>) -> Reply<TileAnswer> {
        let (ring, at) = (ring(), self.below(answers.len()));
        if let Some(tile_answer::Body::Part(part)) = &mut answers[at].body {
            let count = (part.coefficients.len() - wire::HEADER) * 8 / ring.params().bits() as usize;
            let mut words = vec![0; count];
            wire::decode(ring.params(), wire::Kind::Coefficients, &part.coefficients, &mut words).unwrap();
            self.tell(Check::Direct, &mut words, ring.q());
            let mut bytes = Vec::new();
            wire::encode(ring.params(), wire::Kind::Coefficients, &words, &mut bytes);
            part.coefficients = bytes.into();
        }
        answers.into()
    }
}

/// One at a time, so that each is seen to be found, and nothing else is.
#[test]
fn no_random_lie_becomes_a_number() {
    let pair = Setup { lanes: 32, shapes: &SHAPES, quarantine: Duration::from_millis(1), ..Setup::default() }.start();
    let liar = Arc::new(Mutex::new(Liar { state: 2026, ..Liar::default() }));
    let one = || liar.clone();
    let (a, b, c) = (one(), one(), one());
    pair.fake.online(move |job, answers| a.lock().unwrap().online(job, answers));
    pair.fake.bulk(move |header, answers| b.lock().unwrap().bulk(header, answers));
    pair.fake.direct(move |answers| c.lock().unwrap().direct(answers));
    let masked = pair.masked();
    let alarms = || CHECKS.map(|check| pair.alarms(check.name()));

    for n in 1..=count() {
        let (check, mut expected) = (CHECKS[liar.lock().unwrap().below(3)], alarms());
        expected[CHECKS.iter().position(|&c| c == check).unwrap()] += 1;
        let linear: &dyn Linear = if check == Check::Direct { pair.direct.as_ref() } else { &masked };
        liar.lock().unwrap().asked = Some(check);
        until("the lie to be found", || {
            let (layer, vectors) = (n % 3, 1 + liar.lock().unwrap().below(24));
            // Numbers, if there are any, are compared with those of the local path.
            let result = pair.apply(linear, &Call::default(), u32::try_from(layer).unwrap(), vectors);
            let told = liar.lock().unwrap().told == n;
            if let Err(e) = &result {
                let says = e.to_string();
                let known = ["answers wrongly: the ", "quarantine", " masks for ", "an answer failed its check"];
                assert!(known.iter().any(|k| says.contains(k)), "lie {n}: {says}");
            }
            assert!(!told || check == Check::Bulk || alarms() == expected, "lie {n}, {} was believed", check.name());
            told && alarms() == expected
        });
        pair.connected();
    }
    let liar = liar.lock().unwrap();
    let found = alarms();
    println!("{} lies: {found:?} of {CHECKS:?}, {} about companions; every one found", liar.told, liar.companions);
    assert_eq!((liar.told, found.iter().sum::<u64>()), (count(), count()));
    assert!(found.iter().all(|&n| n > count() / 8) && liar.companions > 0, "{found:?}, {}", liar.companions);
}
