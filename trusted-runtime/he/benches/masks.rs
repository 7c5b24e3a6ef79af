//! What masked delegation costs the enclave, beside doing the layer itself: one thread, one run.
//!
//! Prices are measured for one column and one row of a full batch, and for one vector online; the local product is
//! measured for every shape, over more weights than a cache holds.

#![expect(clippy::unwrap_used, reason = "a failed step fails the bench")]

use kernels::{
    Digits, Int8Matrix, ParamsLiteral, Ring, conformance::Numbers, gemv, matmul, params::RINGS, wire, words,
};
use rustix::time::{ClockId, clock_gettime};
use std::{hint::black_box, sync::Arc};
use trusted_he::{Lane, LaneAnswer, LaneChallenge, LaneCipher, LaneFolds, PublicPolys, Scratch};

/// Bytes of weights that a sample touches at least.
const SPAN: usize = 192 << 20;

/// The time this thread has run, so that other programs on the machine do not count.
#[derive(Clone, Copy)]
struct Instant(f64);

impl Instant {
    fn now() -> Self {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Self(now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
    }

    fn elapsed(self) -> f64 {
        Self::now().0 - self.0
    }
}

/// Median time of `f` in nanoseconds.
fn median(samples: usize, mut f: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..samples)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed() * 1e9
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A small matrix with everything that a batch needs.
struct Unit {
    ring: Ring,
    w: Int8Matrix,
    challenge: LaneChallenge,
    cipher: LaneCipher,
    scratch: Scratch,
}

/// Nanoseconds for one column or row of a batch of N lanes, and for one lane's column and row online.
#[derive(Default)]
struct Prices {
    draw: f64,
    encrypt: f64,
    pack: f64,
    take: f64,
    verify: f64,
    decrypt: f64,
    finish: f64,
}

fn evaluate(ring: &Ring, w: &Int8Matrix, words: &[u64]) -> Vec<u8> {
    let n = ring.n();
    let mut digits = Digits::new(ring, w.cols(), n).unwrap();
    digits.set(0, words).unwrap();
    let mut out = vec![0; w.rows() * n];
    matmul::matmul(ring, w, 0..w.rows(), &digits, 0..n, &mut out).unwrap();
    let mut message = Vec::new();
    wire::encode(ring.params(), wire::Kind::Lanes, &out, &mut message);
    message
}

impl Unit {
    const ROWS: usize = 512;
    const COLS: usize = 512;
    const LOG2_T: u32 = 26;

    fn new(ring: &Ring) -> Self {
        let w = Numbers(1).matrix(Self::ROWS, Self::COLS);
        let (n, mut scratch) = (ring.n(), Scratch::new().unwrap());
        let challenge = LaneChallenge::draw(ring, &w, scratch.random());
        let common = Arc::new(PublicPolys::random(ring, Self::COLS, scratch.random()));
        let words: Vec<u64> = (0..Self::COLS).flat_map(|j| common.block(j).to_vec()).collect();
        let mut folds = LaneFolds::new(&challenge, n);
        folds.add(ring, &challenge, 0, Self::COLS, &words);
        let mut answer = LaneAnswer::new(0..Self::ROWS, n);
        answer.take(ring, 0, 512, &evaluate(ring, &w, &words)).unwrap();
        let companion = vec![challenge.verify(ring, &folds.finish(ring), answer).unwrap()];
        let cipher = LaneCipher::new(ring, (Self::ROWS, Self::COLS), Self::LOG2_T, common, companion).unwrap();
        Self { ring: ring.clone(), w, challenge, cipher, scratch }
    }

    /// One whole batch, step by step.
    fn batch(&mut self) -> (Prices, Vec<Lane>) {
        let (n, ring) = (self.ring.n(), &self.ring);
        let (mut words, mut message, mut packed) = (vec![0; Self::COLS * n], Vec::new(), 0.0);
        let start = Instant::now();
        let mut batch = self.cipher.batch(n, self.scratch.random()).unwrap();
        let drawn = Instant::now();
        let mut folds = LaneFolds::new(&self.challenge, n);
        while let Some(part) = batch.take(8) {
            let at = part.first() * n..(part.first() + part.len()) * n;
            part.encrypt(&self.challenge, &mut folds, &mut self.scratch, &mut words[at.clone()]).unwrap();
            let start = Instant::now();
            message.clear();
            wire::encode(ring.params(), wire::Kind::Lanes, &words[at], &mut message);
            packed += start.elapsed();
        }
        let sums = folds.finish(ring);
        let encrypted = Instant::now();
        let back = evaluate(ring, &self.w, &words);
        let evaluated = Instant::now();
        let mut answer = LaneAnswer::new(0..Self::ROWS, n);
        answer.take(ring, 0, 512, &back).unwrap();
        let taken = Instant::now();
        let answer = self.challenge.verify(ring, &sums, answer).unwrap();
        let verified = Instant::now();
        for first in (0..Self::ROWS).step_by(32) {
            batch.decrypt(&answer, first..first + 32, &mut self.scratch).unwrap();
        }
        let decrypted = Instant::now();
        let lanes = batch.finish().unwrap();
        let done = Instant::now();
        let ns = |from: Instant, to: Instant, count: usize| (to.0 - from.0) * 1e9 / count as f64;
        let prices = Prices {
            draw: ns(start, drawn, Self::COLS),
            encrypt: ns(drawn, encrypted, Self::COLS) - packed * 1e9 / Self::COLS as f64,
            pack: packed * 1e9 / Self::COLS as f64,
            take: ns(evaluated, taken, Self::ROWS),
            verify: ns(taken, verified, Self::ROWS),
            decrypt: ns(verified, decrypted, Self::ROWS),
            finish: ns(decrypted, done, Self::ROWS),
        };
        (prices, lanes)
    }
}

/// Nanoseconds of one vector online, per column and per row and column: mask and pack; unpack, unmask and check.
fn online(unit: &mut Unit) -> (f64, f64) {
    let x = vec![100; Unit::COLS];
    let (mut mask, mut open) = (Vec::new(), Vec::new());
    let (mut sent, mut back, mut y) = (vec![0; Unit::COLS], vec![0; Unit::ROWS], vec![0; Unit::ROWS]);
    // The clock costs as much as a short vector: several are timed together.
    const TOGETHER: usize = 32;
    let mut lanes = unit.batch().1.into_iter();
    while lanes.len() >= TOGETHER {
        let (mut masked, mut answers) = (Vec::new(), Vec::new());
        let start = Instant::now();
        for lane in lanes.by_ref().take(TOGETHER) {
            masked.push(lane.mask(&x, &mut sent).unwrap());
            let mut message = Vec::new();
            words::pack(Unit::LOG2_T, &sent, &mut message);
            answers.push(message);
        }
        mask.push(start.elapsed() * 1e9 / TOGETHER as f64);
        for message in &mut answers {
            words::unpack(Unit::LOG2_T, message, &mut sent).unwrap();
            gemv::gemv_words(unit.ring.isa(), &unit.w, &sent, 1, 0..Unit::ROWS, &mut back).unwrap();
            message.clear();
            words::pack(Unit::LOG2_T, &back, message);
        }
        let start = Instant::now();
        for (masked, message) in masked.into_iter().zip(&answers) {
            words::unpack(Unit::LOG2_T, message, &mut back).unwrap();
            masked.unmask(&back).unwrap().verify(&unit.challenge, &x, &mut y).unwrap();
        }
        open.push(start.elapsed() * 1e9 / TOGETHER as f64);
    }
    mask.sort_by(f64::total_cmp);
    open.sort_by(f64::total_cmp);
    (mask[mask.len() / 2] / Unit::COLS as f64, open[open.len() / 2] / (Unit::ROWS + Unit::COLS) as f64)
}

/// Nanoseconds of the layer in the enclave itself, weights from memory, one thread.
fn local(ring: &Ring, rows: usize, cols: usize) -> f64 {
    let copies = SPAN.div_ceil(rows * cols);
    let w: Vec<Int8Matrix> = (0..copies).map(|k| Numbers(k as u64).matrix(rows, cols)).collect();
    let x = vec![12_345; cols];
    let mut y = vec![0; rows];
    median(5, || {
        for w in &w {
            gemv::gemv(ring.isa(), w, &x, 1, 0..rows, &mut y).unwrap();
        }
        black_box(&y);
    }) / copies as f64
}

/// A model's layers: name, shapes, how many of them, and the targets of encrypt + verify + decrypt and of everything.
struct Layers {
    name: &'static str,
    ring: ParamsLiteral,
    shapes: [(usize, usize); 4],
    times: f64,
    targets: (f64, f64),
}

/// With the rings that the runtime chooses for weights like a normal distribution's: 12,288 columns need the widest.
const LAYERS: [Layers; 2] = [
    Layers {
        name: "GPT-2 124M, 12 layers, no head",
        ring: RINGS[0],
        shapes: [(2304, 768), (768, 768), (3072, 768), (768, 3072)],
        times: 12.0,
        targets: (0.15, 0.3),
    },
    Layers {
        name: "Qwen3-8B, one layer",
        ring: RINGS[2],
        shapes: [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)],
        times: 1.0,
        targets: (0.03, 0.05),
    },
];

fn main() {
    for layers in LAYERS {
        report(&layers);
    }
    println!(
        "crypto: encrypt, verify, decrypt, per lane; all: with the wire format of both ways, masking and opening online"
    );
}

fn report(layers: &Layers) {
    let ring = Ring::new(layers.ring.check().unwrap()).unwrap();
    let n = ring.n() as f64;
    let mut unit = Unit::new(&ring);
    // As in a pool: new lanes take the place of older ones.
    let mut held = Vec::new();
    let samples: Vec<Prices> = (0..15)
        .map(|_| {
            let (prices, lanes) = unit.batch();
            held = lanes;
            prices
        })
        .collect();
    drop(held);
    let price = |f: fn(&Prices) -> f64| {
        let mut all: Vec<f64> = samples.iter().map(f).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2] / n
    };
    let mut poly = vec![1; ring.n()];
    let inverse = median(501, || ring.inverse_residues(black_box(&mut poly))) / n;
    let bits = ring.params().bits();
    println!(
        "{}, N = {n}, q of {bits} bits, one thread's own time; ns for one coefficient, medians of 15 batches",
        ring.isa().name()
    );
    let columns = [
        ("inverse NTT, for comparison", inverse),
        ("column: masks drawn", price(|p| p.draw)),
        ("column: encrypted and folded", price(|p| p.encrypt)),
        ("column: packed for the wire", price(|p| p.pack)),
        ("row: unpacked and checked for range", price(|p| p.take)),
        ("row: folded and compared", price(|p| p.verify)),
        ("row: decrypted", price(|p| p.decrypt)),
        ("row: made into lanes", price(|p| p.finish)),
    ];
    for (name, ns) in columns {
        println!("{name:<40} {ns:>8.2}");
    }
    let (mask, open) = online(&mut unit);
    println!("{:<40} {mask:>8.2}", "online, per column: masked and packed");
    println!("{:<40} {open:>8.2}", "online, per column and row: opened");
    let [_, draw, encrypt, pack, take, verify, decrypt, finish] = columns.map(|c| c.1);
    let (column, row) = (draw + encrypt, verify + decrypt + finish);
    let (mut alone, mut crypto, mut all) = (0.0, 0.0, 0.0);
    for (rows, cols) in layers.shapes {
        let (m, n) = (rows as f64, cols as f64);
        alone += local(&ring, rows, cols) * layers.times;
        crypto += (n * column + m * row) * layers.times;
        all += (n * (column + pack + mask + open) + m * (row + take + open)) * layers.times;
    }
    println!(
        "\n{:<34} {:>10} {:>10} {:>7} {:>7} {:>10} {:>7} {:>7}",
        "shape", "local ms", "crypto ms", "ratio", "target", "all ms", "ratio", "target"
    );
    println!(
        "{:<34} {:>10.2} {:>10.3} {:>7.3} {:>7} {:>10.3} {:>7.3} {:>7}\n",
        layers.name,
        alone / 1e6,
        crypto / 1e6,
        crypto / alone,
        layers.targets.0,
        all / 1e6,
        all / alone,
        layers.targets.1
    );
}
