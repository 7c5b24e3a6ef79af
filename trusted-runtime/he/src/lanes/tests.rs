//! Masks through the whole protocol, with the noise measured; only this module can.

use super::*;
use crate::WeightNorms;
use kernels::{Digits, Int8Matrix, conformance::Numbers, matmul, params::RINGS, wire};

/// The ring that most models are given: the narrowest, with the least room for noise.
fn ring() -> Ring {
    Ring::new(RINGS[0].check().unwrap()).unwrap()
}

/// What an evaluator does: W·B, as messages of a few rows each.
fn evaluate(ring: &Ring, w: &Int8Matrix, words: &[u64], lanes: usize, answer: &mut LaneAnswer) {
    let mut digits = Digits::new(ring, w.cols(), lanes).unwrap();
    digits.set(0, words).unwrap();
    let rows = answer.rows();
    for first in rows.clone().step_by(7) {
        let part = first..(first + 7).min(rows.end);
        let mut out = vec![0; part.len() * lanes];
        matmul::matmul(ring, w, part.clone(), &digits, 0..lanes, &mut out).unwrap();
        let mut message = Vec::new();
        wire::encode(ring.params(), wire::Kind::Lanes, &out, &mut message);
        let [first, count] = [first, part.len()].map(|x| u32::try_from(x).unwrap());
        answer.take(ring, first, count, &message).unwrap();
    }
}

struct Bench {
    ring: Ring,
    w: Int8Matrix,
    challenge: LaneChallenge,
    cipher: LaneCipher,
    scratch: Scratch,
}

impl Bench {
    /// With t = 2^`log2_t`, or the largest that is right.
    fn new(w: Int8Matrix, log2_t: u32) -> Self {
        let log2_t = log2_t.min(norms(&w).largest_log2_t(ring().params()).unwrap());
        let (ring, mut scratch) = (ring(), Scratch::new().unwrap());
        let (n, cols) = (ring.n(), w.cols());
        let challenge = LaneChallenge::draw(&ring, &w, scratch.random());
        let common = Arc::new(PublicPolys::random(&ring, cols + 1, scratch.random()));
        let words: Vec<u64> = (0..cols).flat_map(|j| common.block(j).to_vec()).collect();
        let mut folds = LaneFolds::new(&challenge, n);
        folds.add(&ring, &challenge, 0, cols, &words);
        let sums = folds.finish(&ring);
        let companion = challenge.shards().map(|shard| {
            let mut answer = LaneAnswer::new(shard, n);
            evaluate(&ring, &w, &words, n, &mut answer);
            challenge.verify(&ring, &sums, answer).unwrap()
        });
        let companion = companion.collect();
        let cipher = LaneCipher::new(&ring, (w.rows(), cols), log2_t, common, companion).unwrap();
        Self { ring, w, challenge, cipher, scratch }
    }

    /// A batch's lanes, and the largest noise against W·R.
    fn fill(&mut self, lanes: usize) -> (Vec<Lane>, f64) {
        let mut batch = self.cipher.batch(lanes, self.scratch.random()).unwrap();
        let cols = self.w.cols();
        let at = |j: usize, l: usize| ((l / TOGETHER) * cols + j) * TOGETHER + l % TOGETHER;
        let masks: Vec<u32> = (0..cols * lanes).map(|i| batch.masks[at(i / lanes, i % lanes)]).collect();
        let mut folds = LaneFolds::new(&self.challenge, lanes);
        let mut words = vec![0; self.w.cols() * lanes];
        while let Some(part) = batch.take(5) {
            let at = part.first() * lanes..(part.first() + part.len()) * lanes;
            part.encrypt(&self.challenge, &mut folds, &mut self.scratch, &mut words[at]).unwrap();
        }
        let sums = folds.finish(&self.ring);
        let mut largest = 0f64;
        for shard in self.challenge.shards() {
            let mut answer = LaneAnswer::new(shard.clone(), lanes);
            evaluate(&self.ring, &self.w, &words, lanes, &mut answer);
            let answer = self.challenge.verify(&self.ring, &sums, answer).unwrap();
            largest = largest.max(self.noise(&batch, &masks, &answer));
            let middle = shard.start + shard.len() / 2;
            for rows in [middle..shard.end, shard.start..middle] {
                batch.decrypt(&answer, rows, &mut self.scratch).unwrap();
            }
        }
        (batch.finish().unwrap(), largest)
    }

    /// The largest `|q/t·(W·R) - decrypted|` over every row and lane; panics where rounding is wrong.
    fn noise(&self, batch: &Batch<'_>, masks: &[u32], answer: &Verified<LaneAnswer>) -> f64 {
        let (c, n, lanes) = (&self.cipher, self.ring.n(), batch.lanes);
        let (k, q) = (c.grid.log2_t(), i128::from(self.ring.q()));
        let t = 1i128 << k;
        let mut largest = 0;
        for row in answer.get().rows() {
            let mut poly = vec![0; n];
            self.ring.mul_add(&mut poly, &c.companion[row * n..(row + 1) * n], &batch.secret.ntt);
            self.ring.inverse_residues(&mut poly);
            for (l, &b) in answer.get().row(row).iter().enumerate() {
                let x = kernels::modulus::sub(b, poly[l], self.ring.q());
                let y: i128 = self
                    .w
                    .row(row)
                    .iter()
                    .enumerate()
                    .map(|(j, &w)| i128::from(w) * i128::from(masks[j * lanes + l]))
                    .sum();
                // t·noise = t·x - q·y, centred modulo t·q.
                let scaled = (t * i128::from(x) - q * y + t * q / 2).rem_euclid(t * q) - t * q / 2;
                largest = largest.max(scaled.abs() >> k);
                let y = u32::try_from(y.rem_euclid(t)).unwrap();
                assert_eq!(c.grid.decode(x).cast_unsigned() & (u32::MAX >> (32 - k)), y, "row {row}, lane {l}");
            }
        }
        largest as f64
    }
}

/// What the planner computes for rows on their own.
fn norms(w: &Int8Matrix) -> WeightNorms {
    let sum = |r: usize, f: fn(u64) -> u64| w.row(r).iter().map(|x| f(x.unsigned_abs().into())).sum::<u64>();
    WeightNorms {
        tile_l2_squared: (0..w.rows()).map(|r| sum(r, |x| x * x)).max().unwrap(),
        row_l1: (0..w.rows()).map(|r| sum(r, |x| x)).max().unwrap(),
    }
}

fn online(w: &Int8Matrix, x: &[u32]) -> Vec<u32> {
    let mut y = vec![0; w.rows()];
    kernels::gemv::gemv_words(kernels::Isa::SCALAR, w, x, 1, 0..w.rows(), &mut y).unwrap();
    y
}

#[test]
fn lanes_give_the_product_of_what_they_masked() {
    for (rows, cols, log2_t, lanes) in [(40, 33, 32, 64), (5, 200, 20, 32), (1, 1, 32, 2048)] {
        let mut bench = Bench::new(Numbers(rows as u64).matrix(rows, cols), log2_t);
        let log2_t = bench.cipher.grid.log2_t();
        let (ready, _) = bench.fill(lanes);
        assert_eq!(ready.len(), lanes);
        let mut seen = std::collections::HashSet::new();
        for (l, lane) in ready.into_iter().enumerate().take(40) {
            let limit = (1i32 << (log2_t - 1).min(30)) / i32::try_from(cols * 256).unwrap();
            let x: Vec<i32> =
                (0..cols).map(|j| i32::try_from(j * 7919 + l * 31).unwrap() % limit - limit / 2).collect();
            let mut sent = vec![0; cols];
            let masked = lane.mask(&x, &mut sent).unwrap();
            assert!(seen.insert(sent.clone()), "a mask was used twice");
            assert!(sent.iter().all(|&s| u64::from(s) < 1 << log2_t));
            let mut y = vec![0; rows];
            masked.unmask(&online(&bench.w, &sent)).unwrap().verify(&bench.challenge, &x, &mut y).unwrap();
            for (r, y) in y.into_iter().enumerate() {
                let want: i64 = bench.w.row(r).iter().zip(&x).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum();
                assert_eq!(i64::from(y), want, "lane {l}, row {r}");
            }
        }
    }
}

#[test]
fn masks_are_uniform_and_a_lane_of_one_batch_is_not_one_of_another() {
    let mut bench = Bench::new(Numbers(3).matrix(2, 64), 32);
    let mut sent = vec![0; 64];
    let mut all = Vec::new();
    for _ in 0..2 {
        for lane in bench.fill(2048).0 {
            lane.mask(&[0; 64], &mut sent).unwrap();
            all.push(sent.clone());
        }
    }
    let words: Vec<u32> = all.concat();
    for bit in 0..bench.cipher.grid.log2_t() {
        let ones = words.iter().filter(|&&w| w >> bit & 1 == 1).count() as f64 / words.len() as f64;
        // 262,144 words: a deviation is 0.00098.
        assert!((ones - 0.5).abs() < 0.006, "bit {bit}: {ones}");
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 4096);
}

#[test]
fn a_matrix_in_several_shards() {
    let mut bench = Bench::new(Numbers(4).matrix(crate::SHARD_ROWS + 9, 4), 32);
    let lane = bench.fill(32).0.pop().unwrap();
    let x = [1000, -2000, 77, 5];
    let mut sent = [0; 4];
    let masked = lane.mask(&x, &mut sent).unwrap();
    let mut y = vec![0; bench.w.rows()];
    masked.unmask(&online(&bench.w, &sent)).unwrap().verify(&bench.challenge, &x, &mut y).unwrap();
    assert!(y.iter().any(|&y| y != 0));
}

#[test]
fn noise_over_ten_million_coefficients_stays_below_the_bound() {
    let ring = ring();
    let adversarial = |k: usize| -> Int8Matrix {
        let (rows, cols) = (1280, 96);
        let data = match k {
            0 => vec![127; rows * cols],
            1 => vec![-127; rows * cols],
            // One huge row among small ones.
            2 => {
                (0..rows * cols).map(|i| if i / cols == 700 { 127 } else { i8::try_from(i % 3).unwrap() - 1 }).collect()
            }
            _ => return Numbers(9).matrix(rows, cols),
        };
        Int8Matrix::new(rows, cols, data).unwrap()
    };
    let mut coefficients = 0;
    for k in 0..4 {
        let w = adversarial(k);
        let log2_t = norms(&w).largest_log2_t(ring.params()).unwrap();
        let threshold = ring.q() as f64 / 2f64.powi(i32::try_from(log2_t).unwrap() + 1);
        let mut bench = Bench::new(w, log2_t);
        let (lanes, largest) = bench.fill(ring.n());
        coefficients += lanes.len() * bench.w.rows();
        println!(
            "matrix {k}: t = 2^{log2_t}, largest noise 2^{:.2}, threshold 2^{:.2}",
            largest.log2(),
            threshold.log2()
        );
        assert!(largest < threshold, "matrix {k}: {largest} of {threshold}");
    }
    assert!(coefficients >= 10_000_000, "{coefficients}");
}

#[test]
fn ten_thousand_lies_about_masks_are_all_found() {
    let mut bench = Bench::new(Numbers(5).matrix(12, 9), 32);
    let (ring, lanes) = (bench.ring.clone(), 32);
    let q = ring.q();
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let batch = bench.cipher.batch(lanes, bench.scratch.random()).unwrap();
        let mut folds = LaneFolds::new(&bench.challenge, lanes);
        let mut words = vec![0; 9 * lanes];
        batch.take(9).unwrap().encrypt(&bench.challenge, &mut folds, &mut bench.scratch, &mut words).unwrap();
        let mut answer = LaneAnswer::new(0..12, lanes);
        evaluate(&ring, &bench.w, &words, lanes, &mut answer);
        jobs.push((folds.finish(&ring), answer.into_words()));
    }
    let verdict = |job: usize, words: &[u64]| {
        let mut answer = LaneAnswer::new(0..12, lanes);
        let mut message = Vec::new();
        wire::encode(ring.params(), wire::Kind::Lanes, words, &mut message);
        answer.take(&ring, 0, 12, &message).unwrap();
        bench.challenge.verify(&ring, &jobs[job].0, answer).map(drop)
    };
    let mut random = Numbers(6);
    for round in 0..10_000 {
        let job = random.below(2);
        let mut lie = jobs[job].1.clone();
        let at = random.below(lie.len());
        match round % 7 {
            0 => lie[at] ^= 1 << random.below(50),
            1 => lie[at] = random.word() % q,
            2 => lie = jobs[1 - job].1.clone(),
            3 => lie[at] = jobs[1 - job].1[at],
            4 => lie.swap(at, (at + 1 + random.below(lanes * 12 - 1)) % (lanes * 12)),
            5 => lie.rotate_left(lanes * (1 + random.below(11))),
            _ => lie.iter_mut().for_each(|y| *y = kernels::modulus::mul(*y, 3, q)),
        }
        lie.iter_mut().for_each(|y| *y %= q);
        if lie != jobs[job].1 {
            assert!(matches!(verdict(job, &lie), Err(Error::Forged(_))), "round {round}");
        }
    }
    verdict(0, &jobs[0].1).unwrap();
    verdict(1, &jobs[1].1).unwrap();
    assert!(matches!(verdict(0, &jobs[1].1), Err(Error::Forged(_))));
}

#[test]
fn malformed_rows_and_unfinished_batches_are_refused() {
    let mut bench = Bench::new(Numbers(7).matrix(6, 4), 16);
    let ring = bench.ring.clone();
    let message = |words: &[u64]| {
        let mut bytes = Vec::new();
        wire::encode(ring.params(), wire::Kind::Lanes, words, &mut bytes);
        bytes
    };
    let refused = |first, rows, bytes: &[u8]| match LaneAnswer::new(0..6, 32).take(&ring, first, rows, bytes) {
        Err(Error::Answer(why)) => why,
        _ => panic!("accepted {first} {rows}"),
    };
    assert!(refused(0, 0, &[]).contains("0 rows from 0"));
    assert!(refused(5, 2, &message(&[0; 64])).contains("asked were 0..6"));
    assert!(refused(u32::MAX, u32::MAX, &[]).contains("asked were"));
    assert!(refused(0, 1, &message(&[0; 31])).contains("31 residues, expected 32"));
    assert!(refused(0, 1, &message(&[ring.q(); 32])).contains("is not below q"));
    let mut answer = LaneAnswer::new(0..6, 32);
    answer.take(&ring, 1, 2, &message(&[0; 64])).unwrap();
    assert!(
        matches!(answer.take(&ring, 2, 1, &message(&[0; 32])), Err(Error::Answer(why)) if why == "answers row 2 twice")
    );
    let sums = LaneFolds::new(&bench.challenge, 32).finish(&ring);
    assert!(matches!(bench.challenge.verify(&ring, &sums, answer), Err(Error::Misuse(_))));
    for lanes in [0, 31, 33, 4096] {
        assert!(bench.cipher.batch(lanes, bench.scratch.random()).is_err(), "{lanes}");
    }
    let batch = bench.cipher.batch(32, bench.scratch.random()).unwrap();
    assert!(batch.take(3).is_some() && batch.take(3).is_some() && batch.take(1).is_none());
    assert!(batch.finish().is_err());
    let lane = bench.fill(32).0.pop().unwrap();
    assert!(lane.mask(&[0; 3], &mut [0; 4]).is_err());
}
