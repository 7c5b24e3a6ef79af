//! Ten thousand lies about masked vectors, one a lane: each is found, and none leaves a number behind.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use kernels::{Digits, Int8Matrix, Isa, Ring, conformance::Numbers, gemv, matmul, params::RINGS, wire};
use std::sync::Arc;
use trusted_he::{
    Error, Lane, LaneAnswer, LaneChallenge, LaneCipher, LaneFolds, LaneSums, PublicPolys, Scratch, Verified,
};

const ROWS: usize = 12;
const COLS: usize = 9;
/// Written where numbers would go.
const NOTHING: i32 = -77_777;

/// What an evaluator does offline, on public data, with the check.
fn multiply(
    ring: &Ring,
    w: &Int8Matrix,
    words: &[u64],
    challenge: &LaneChallenge,
    sums: &LaneSums,
) -> Verified<LaneAnswer> {
    let lanes = words.len() / w.cols();
    let mut digits = Digits::new(ring, w.cols(), lanes).unwrap();
    digits.set(0, words).unwrap();
    let mut out = vec![0; w.rows() * lanes];
    matmul::matmul(ring, w, 0..w.rows(), &digits, 0..lanes, &mut out).unwrap();
    let mut message = Vec::new();
    wire::encode(ring.params(), wire::Kind::Lanes, &out, &mut message);
    let mut answer = LaneAnswer::new(0..w.rows(), lanes);
    answer.take(ring, 0, u32::try_from(w.rows()).unwrap(), &message).unwrap();
    challenge.verify(ring, sums, answer).unwrap()
}

/// What it does online.
fn product(w: &Int8Matrix, x: &[u32]) -> Vec<u32> {
    let mut y = vec![0; w.rows()];
    gemv::gemv_words(Isa::SCALAR, w, x, 1, 0..w.rows(), &mut y).unwrap();
    y
}

struct Bench {
    ring: Ring,
    w: Int8Matrix,
    challenge: LaneChallenge,
    cipher: LaneCipher,
    scratch: Scratch,
    ready: Vec<Lane>,
}

impl Bench {
    fn new(seed: u64, log2_t: u32) -> Self {
        // A ring that has room for this t.
        let ring = Ring::new(RINGS[if log2_t > 24 { 2 } else { 0 }].check().unwrap()).unwrap();
        let (w, mut scratch) = (Numbers(seed).matrix(ROWS, COLS), Scratch::new().unwrap());
        let challenge = LaneChallenge::draw(&ring, &w, scratch.random());
        let common = Arc::new(PublicPolys::random(&ring, COLS, scratch.random()));
        let words: Vec<u64> = (0..COLS).flat_map(|j| common.block(j).to_vec()).collect();
        let mut folds = LaneFolds::new(&challenge, ring.n());
        folds.add(&ring, &challenge, 0, COLS, &words);
        let companion = vec![multiply(&ring, &w, &words, &challenge, &folds.finish(&ring))];
        let cipher = LaneCipher::new(&ring, (ROWS, COLS), log2_t, common, companion).unwrap();
        Self { ring, w, challenge, cipher, scratch, ready: Vec::new() }
    }

    fn lane(&mut self) -> Lane {
        if let Some(lane) = self.ready.pop() {
            return lane;
        }
        let lanes = self.ring.n();
        let mut batch = self.cipher.batch(lanes, self.scratch.random()).unwrap();
        let mut folds = LaneFolds::new(&self.challenge, lanes);
        let mut words = vec![0; COLS * lanes];
        batch.take(COLS).unwrap().encrypt(&self.challenge, &mut folds, &mut self.scratch, &mut words).unwrap();
        let answer = multiply(&self.ring, &self.w, &words, &self.challenge, &folds.finish(&self.ring));
        batch.decrypt(&answer, 0..ROWS, &mut self.scratch).unwrap();
        self.ready = batch.finish().unwrap();
        self.ready.pop().unwrap()
    }

    /// One vector behind a lane of its own; `answer` sees what is sent.
    fn call(&mut self, x: &[i32], answer: impl FnOnce(&[u32]) -> Vec<u32>) -> (Result<(), Error>, Vec<i32>) {
        let (mut sent, mut y) = (vec![0; COLS], vec![NOTHING; ROWS]);
        let masked = self.lane().mask(x, &mut sent).unwrap();
        let answer = answer(&sent);
        (masked.unmask(&answer).and_then(|unproven| unproven.verify(&self.challenge, x, &mut y)), y)
    }
}

#[test]
fn ten_thousand_lies_about_masked_vectors_are_all_found() {
    let mut lies = 0;
    let mut random = Numbers(11);
    for (seed, log2_t) in [(1, 24), (2, 32)] {
        let mut bench = Bench::new(seed, log2_t);
        let (w, other) = (bench.w.clone(), Numbers(seed + 100).matrix(ROWS, COLS));
        // Nine weights of at most 127: sums are below 2^23.
        let draw = |random: &mut Numbers| -> Vec<i32> {
            (0..COLS).map(|_| i32::try_from(random.below(14_001)).unwrap() - 7000).collect()
        };
        let (mut old, mut kind) = (vec![0; ROWS], 0);
        while kind < 5000 {
            let x = draw(&mut random);
            let mut honest = Vec::new();
            let t = u32::MAX >> (32 - log2_t);
            let (result, y) = bench.call(&x, |sent| {
                honest = product(&w, sent);
                let mut lie = honest.clone();
                let row = random.below(ROWS);
                let next = (row + 1 + random.below(ROWS - 1)) % ROWS;
                let word = u32::try_from(random.word() >> 32).unwrap();
                match kind % 14 {
                    0 => lie[row] ^= 1 << random.below(log2_t as usize),
                    1 => lie[row] = word,
                    2 => lie = old.clone(),
                    3 => lie[row] = old[row],
                    4 => lie = product(&other, sent),
                    5 => lie.swap(row, next),
                    6 => lie.rotate_left(1 + random.below(ROWS - 1)),
                    7 => lie.iter_mut().for_each(|y| *y = y.wrapping_mul(word | 2)),
                    8 => lie.fill(0),
                    9 => lie.iter_mut().for_each(|y| *y = y.wrapping_neg()),
                    // What a check by plain sums would not see.
                    10 => {
                        lie[row] = lie[row].wrapping_add(word);
                        lie[next] = lie[next].wrapping_sub(word);
                    }
                    // A true product, of another vector.
                    11 => {
                        let mut sent = sent.to_vec();
                        let col = random.below(COLS);
                        sent[col] = sent[col].wrapping_add(word | 1);
                        lie = product(&w, &sent);
                    }
                    12 => lie.iter_mut().for_each(|y| *y = y.wrapping_add(1)),
                    _ => lie.iter_mut().for_each(|y| *y = u32::try_from(random.word() >> 32).unwrap()),
                }
                lie
            });
            old.clone_from(&honest);
            // What differs only above t is no lie: those bits are never looked at.
            if result.is_ok() {
                assert_truth(&w, &x, &y);
                let harmless = matches!(kind % 14, 1 | 3 | 5 | 10 | 11 | 7);
                assert!(harmless, "kind {} of t = 2^{log2_t} was believed", kind % 14);
                continue;
            }
            assert!(matches!(result, Err(Error::Forged("the product of masked activations"))), "kind {}", kind % 14);
            assert!(y.iter().all(|&y| y == NOTHING), "a number got out");
            (lies, kind) = (lies + 1, kind + 1);
            if kind % 500 == 0 {
                bench.challenge = LaneChallenge::draw(&bench.ring, &w, bench.scratch.random());
                let (result, y) = bench.call(&x, |sent| product(&w, sent).iter().map(|y| y ^ !t).collect());
                result.unwrap();
                assert_truth(&w, &x, &y);
            }
        }
    }
    assert_eq!(lies, 10_000);
}

fn assert_truth(w: &Int8Matrix, x: &[i32], y: &[i32]) {
    for (r, &y) in y.iter().enumerate() {
        let want: i64 = w.row(r).iter().zip(x).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum();
        assert_eq!(i64::from(y), want, "row {r}");
    }
}

#[test]
fn answers_of_another_size_are_refused() {
    let mut bench = Bench::new(3, 24);
    for rows in [0, ROWS - 1, ROWS + 1, 2 * ROWS] {
        let (result, y) = bench.call(&[5; COLS], |_| vec![0; rows]);
        assert!(matches!(result, Err(Error::Misuse(_))), "{rows}");
        assert!(y.iter().all(|&y| y == NOTHING));
    }
}
