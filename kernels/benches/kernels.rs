//! The kernels beside what limits them, in one run: memory bandwidth, tfhe-ntt, each other.
//!
//! Every figure is a median over samples that are taken in turns, so that a change of the machine's speed hits
//! both sides of a ratio. `cargo bench -p kernels --bench kernels [-- FILTER]`.

use kernels::{
    Digits, Fold, Inputs, Int8Matrix, PinnedTiles, Ring, Tiling, answers_on_the_fly, conformance::Numbers, gemv,
    matmul, params, wire,
};
#[path = "support/gemm.rs"]
mod gemm;
#[path = "support/peak.rs"]
mod peak;

use memmap2::MmapMut;
use std::{hint::black_box, time::Instant};

/// Bytes that a sample of a bandwidth touches at least: far more than any cache.
const SPAN: usize = 192 << 20;
/// Samples of each figure.
const SAMPLES: usize = 9;

/// (rows, cols, n_w) of SmolLM2-135M's and GPT-2's linear layers.
const SHAPES: [(usize, usize, usize); 9] = [
    (960, 576, 64),
    (576, 576, 64),
    (3072, 576, 32),
    (576, 1536, 128),
    (49152, 576, 16),
    (2304, 768, 64),
    (768, 768, 64),
    (3072, 768, 64),
    (768, 3072, 128),
];

fn main() {
    let filter = std::env::args().skip(1).find(|a| !a.starts_with("--")).unwrap_or_default();
    // The ring of models like these in w8; BIFROST_RING=1 and 2 are the wider ones.
    let which: usize = std::env::var("BIFROST_RING").map_or(0, |v| v.parse().expect("0, 1 or 2"));
    let ring = Ring::new(params::RINGS[which].check().expect("checked")).expect("an instruction set");
    println!("instruction set {}, N = {}, q of {} bits", ring.isa().name(), ring.n(), ring.params().bits());
    for (name, bench) in [
        ("ntt", transforms as fn(&Ring)),
        ("wire", wire_format),
        ("product", products),
        ("gemv", gemvs),
        ("masked", masked),
        ("matrix", gemm::products),
    ] {
        if name.contains(&filter) {
            bench(&ring);
        }
    }
}

/// Seconds this thread has run, so that other programs on the machine do not count.
fn clock() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Seconds since the first call.
fn wall() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Medians of the seconds that each of `works` takes, taken in turns; and the best of each.
fn medians(samples: usize, cpu: bool, works: &mut [&mut dyn FnMut()]) -> Vec<(f64, f64)> {
    let mut times = vec![vec![]; works.len()];
    for round in 0..=samples {
        for (work, times) in works.iter_mut().zip(&mut times) {
            let start = if cpu { clock() } else { wall() };
            work();
            if round > 0 {
                times.push(if cpu { clock() } else { wall() } - start);
            }
        }
    }
    times
        .iter_mut()
        .map(|t| {
            t.sort_by(f64::total_cmp);
            (t[t.len() / 2], t[0])
        })
        .collect()
}

fn transforms(ring: &Ring) {
    const TIMES: usize = 1000;
    println!(
        "\n{:>6} {:>22} {:>10} {:>10} {:>14}  us: median (best); target 1 at N = 2048",
        "N", "forward", "inverse", "tfhe-ntt", "times faster"
    );
    for log_n in 11..=15 {
        let params = kernels::ParamsLiteral { log_n, q: ring.q() }.check().expect("checked");
        let ring = Ring::with_isa(params, ring.isa());
        let plan = tfhe_ntt::prime64::Plan::try_new(params.n(), params.q()).expect("a prime it takes");
        let words = Numbers(1).residues(params.n(), params.q());
        let (mut a, mut b, mut c) = (words.clone(), words.clone(), words);
        let times = medians(
            21,
            true,
            &mut [
                &mut || (0..TIMES).for_each(|_| ring.forward_residues(black_box(&mut a))),
                &mut || (0..TIMES).for_each(|_| ring.inverse_residues(black_box(&mut b))),
                &mut || (0..TIMES).for_each(|_| plan.fwd(black_box(&mut c))),
            ],
        );
        let us: Vec<(f64, f64)> = times.iter().map(|t| (t.0 * 1e6 / TIMES as f64, t.1 * 1e6 / TIMES as f64)).collect();
        println!(
            "{:>6} {:>11.2} ({:>8.2}) {:>6.2} ({:.2}) {:>6.2} ({:.2}) {:>7.2} ({:.2})",
            params.n(),
            us[0].0,
            us[0].1,
            us[1].0,
            us[1].1,
            us[2].0,
            us[2].1,
            us[2].0 / us[0].0,
            us[2].1 / us[0].1
        );
    }
}

fn wire_format(ring: &Ring) {
    let words = Numbers(2).residues(1024 * ring.n(), ring.q());
    let mut bytes = vec![];
    wire::encode(ring.params(), wire::Kind::Ntt, &words, &mut bytes);
    let (len, mut out, mut back) = (bytes.len(), Vec::with_capacity(bytes.len()), words.clone());
    let times = medians(
        21,
        true,
        &mut [
            &mut || {
                out.clear();
                wire::encode(ring.params(), wire::Kind::Ntt, &words, &mut out);
            },
            &mut || wire::decode(ring.params(), wire::Kind::Ntt, &bytes, &mut back).expect("well-formed"),
        ],
    );
    let gb: Vec<f64> = times.iter().map(|t| len as f64 / t.0 / 1e9).collect();
    let best: Vec<f64> = times.iter().map(|t| len as f64 / t.1 / 1e9).collect();
    println!(
        "\nwire: encode {:.2} ({:.2}) GB/s, decode {:.2} ({:.2}) GB/s of message bytes",
        gb[0], best[0], gb[1], best[1]
    );
}

/// Memory to read, in huge pages like the weights.
fn span() -> MmapMut {
    let mut map = MmapMut::map_anon(SPAN).expect("memory");
    let _ = map.advise(memmap2::Advice::HugePage);
    map.fill(1);
    map
}

/// Sums all words, in `threads` threads.
fn read(map: &[u8], threads: usize) {
    let words: &[[u64; 32]] = bytemuck::cast_slice(map);
    if threads == 1 {
        return sum(words);
    }
    std::thread::scope(|scope| {
        for part in words.chunks(words.len() / threads) {
            scope.spawn(move || sum(part));
        }
    });
}

/// From four places at a time, so that more is under way than one walk keeps so.
fn sum(words: &[[u64; 32]]) {
    let quarter = words.len() / 4;
    let mut sums = [[0u64; 32]; 4];
    for line in 0..quarter {
        for (part, sums) in sums.iter_mut().enumerate() {
            for (sum, word) in sums.iter_mut().zip(&words[part * quarter + line]) {
                *sum = sum.wrapping_add(*word);
            }
        }
    }
    black_box(sums);
}

/// Runs `work` on the parts of `0..count`, cut at multiples of `unit`, one part a thread.
fn threaded(threads: usize, count: usize, unit: usize, work: impl Fn(std::ops::Range<usize>) + Sync) {
    if threads == 1 {
        return work(0..count);
    }
    let step = count.div_ceil(unit).div_ceil(threads) * unit;
    std::thread::scope(|scope| {
        for start in (0..count).step_by(step) {
            let work = &work;
            scope.spawn(move || work(start..(start + step).min(count)));
        }
    });
}

fn products(ring: &Ring) {
    let map = span();
    println!(
        "\nproduct, one vector: GB/s of pinned weights (8 B each), of the read bandwidth beside it (target 0.8); fallback \
         time / pinned time (target 2.5 at most)"
    );
    println!(
        "{:>16} {:>4} {:>7} {:>20} {:>20} {:>6} {:>10} {:>10}",
        "shape", "n_w", "threads", "pinned GB/s", "read GB/s", "ratio", "fly/pinned", "ms pinned"
    );
    for (rows, cols, wide) in SHAPES {
        let tiling = Tiling::new(rows, cols, ring.n() / wide, wide, ring.n()).expect("fits");
        let mut numbers = Numbers(3);
        let w = numbers.matrix(rows, cols);
        let copies = SPAN.div_ceil(PinnedTiles::bytes_for(ring, &tiling));
        // Both come from memory, not from a cache.
        let int8: Vec<Int8Matrix> = (0..copies).map(|_| w.clone()).collect();
        let pinned: Vec<PinnedTiles> =
            (0..copies).map(|_| PinnedTiles::encode(ring, tiling, &w).expect("memory")).collect();
        let mut inputs = Inputs::for_tiling(ring, &tiling, 1);
        for j in 0..tiling.blocks() {
            inputs.set(0, j, &numbers.residues(ring.n(), ring.q()));
        }
        let bytes = pinned[0].bytes() as f64;
        for threads in [1, 2] {
            let answers = |range: std::ops::Range<usize>, fly: bool, copy: usize| {
                let rows = range.clone().map(|i| tiling.tile_row_range(i).len()).sum();
                let mut out = vec![0; rows];
                if fly {
                    answers_on_the_fly(ring, &tiling, &int8[copy], &inputs, range, &mut out).expect("fits");
                } else {
                    pinned[copy].answers(ring, &inputs, range, &mut out).expect("fits");
                }
                black_box(out);
            };
            let unit = PinnedTiles::GROUP;
            let tiles = tiling.tiles();
            // Threads start once a sample and walk over all copies.
            let walk = |fly: bool| {
                threaded(threads, tiles, unit.min(tiles.div_ceil(threads)), |range| {
                    (0..copies).for_each(|c| answers(range.clone(), fly, c));
                });
            };
            let times = medians(
                SAMPLES,
                threads == 1,
                &mut [
                    &mut || {
                        walk(false);
                    },
                    &mut || read(&map, threads),
                    &mut || {
                        walk(true);
                    },
                ],
            );
            let gb = |t: f64| bytes * copies as f64 / t / 1e9;
            let bandwidth = |t: f64| SPAN as f64 / t / 1e9;
            println!(
                "{:>16} {:>4} {:>7} {:>11.2} ({:>6.2}) {:>11.2} ({:>6.2}) {:>6.2} {:>10.2} {:>10.3}",
                format!("{rows}x{cols}"),
                wide,
                threads,
                gb(times[0].0),
                gb(times[0].1),
                bandwidth(times[1].0),
                bandwidth(times[1].1),
                gb(times[0].0) / bandwidth(times[1].0),
                times[2].0 / times[0].0,
                times[0].0 / copies as f64 * 1e3,
            );
        }
    }
}

fn gemvs(ring: &Ring) {
    let map = span();
    println!("\ngemv, int8 by 24-bit integers, one vector: GB/s of weights, read bandwidth beside it");
    for (rows, cols) in [(49152, 576), (49152, 1536), (49152, 3072)] {
        let rows = rows.max(SPAN / 2 / cols);
        let mut numbers = Numbers(4);
        let data = (0..rows * cols).map(|_| numbers.word().to_le_bytes()[0].cast_signed()).collect();
        let w = Int8Matrix::new(rows, cols, data).expect("fits");
        let x: Vec<i32> = (0..cols).map(|_| i32::try_from(numbers.word() % (1 << 23)).expect("small")).collect();
        for threads in [1, 2] {
            let times = medians(
                SAMPLES,
                threads == 1,
                &mut [
                    &mut || {
                        threaded(threads, rows, 4, |range| {
                            let mut y = vec![0; range.len()];
                            gemv::gemv(ring.isa(), &w, &x, 1, range, &mut y).expect("fits");
                            black_box(y);
                        })
                    },
                    &mut || read(&map, threads),
                ],
            );
            let gb = |t: f64| (rows * cols) as f64 / t / 1e9;
            let bandwidth = |t: f64| SPAN as f64 / t / 1e9;
            println!(
                "{:>16} {threads} threads: {:.2} ({:.2}) GB/s, read {:.2} ({:.2}), ratio {:.2} (target 0.6)",
                format!("{rows}x{cols}"),
                gb(times[0].0),
                gb(times[0].1),
                bandwidth(times[1].0),
                bandwidth(times[1].1),
                gb(times[0].0) / bandwidth(times[1].0)
            );
        }
    }
}

/// Rows of W in one call of the offline product, as the evaluator makes them.
const ROWS: usize = 64;

/// Both halves of masked delegation, the offline one for one polynomial a column (fixed A) and all N lanes.
fn masked(ring: &Ring) {
    let map = span();
    let n = ring.n();
    println!(
        "\nmasked: online GB/s of weights and its share of the read bandwidth (target 0.7); offline word-MACs and work \
         per lane beside the online pass (target 0.8 at most); ns to fold a word for a check"
    );
    println!(
        "{:>12} {:>7} {:>12} {:>12} {:>7} {:>12} {:>10} {:>14} {:>8}",
        "shape", "threads", "online GB/s", "read GB/s", "share", "offline G/s", "us/lane", "offline/online", "fold ns"
    );
    for (rows, cols) in SHAPES.map(|(rows, cols, _)| (rows, cols)).into_iter().chain([(50257, 768), (6144, 4096)]) {
        let mut numbers = Numbers(5);
        let copies = SPAN.div_ceil(rows * cols);
        let w: Vec<Int8Matrix> = (0..copies).map(|_| numbers.matrix(rows, cols)).collect();
        let x: Vec<u32> = (0..cols).map(|_| u32::try_from(numbers.word() >> 32).expect("32 bits")).collect();
        let mut digits = Digits::new(ring, cols, n).expect("fits");
        for c in 0..cols {
            digits.set(c, &numbers.residues(n, ring.q())).expect("fits");
        }
        let factors = numbers.residues(512, ring.q());
        let words = numbers.residues(512 * n, ring.q());
        for threads in [1, 2] {
            // A part of the rows is enough to time the offline product.
            let part = rows.min(512);
            let times = medians(
                SAMPLES,
                threads == 1,
                &mut [
                    &mut || {
                        threaded(threads, rows, 4, |range| {
                            let mut y = vec![0; range.len()];
                            for w in &w {
                                gemv::gemv_words(ring.isa(), w, &x, 1, range.clone(), &mut y).expect("fits");
                            }
                            black_box(y);
                        });
                    },
                    &mut || read(&map, threads),
                    &mut || {
                        threaded(threads, part, ROWS, |range| {
                            let mut y = vec![0; ROWS * n];
                            for first in range.clone().step_by(ROWS) {
                                let rows = first..(first + ROWS).min(range.end);
                                let y = &mut y[..rows.len() * n];
                                matmul::matmul(ring, &w[0], rows, &digits, 0..n, y).expect("fits");
                            }
                            black_box(y);
                        });
                    },
                    &mut || {
                        threaded(threads, 512, 8, |range| {
                            let mut fold = Fold::new(n);
                            fold.add(ring, &factors[range.clone()], &words[range.start * n..range.end * n]);
                            black_box(fold.finish(ring));
                        });
                    },
                ],
            );
            let online = times[0].0 / copies as f64;
            let offline = times[2].0 * rows as f64 / part as f64 / n as f64;
            let bandwidth = SPAN as f64 / times[1].0;
            println!(
                "{:>12} {threads:>7} {:>12.2} {:>12.2} {:>7.2} {:>12.2} {:>10.2} {:>14.2} {:>8.2}",
                format!("{rows}x{cols}"),
                (rows * cols) as f64 / online / 1e9,
                bandwidth / 1e9,
                (rows * cols) as f64 / online / bandwidth,
                (rows * cols) as f64 / offline / 1e9,
                offline * 1e6,
                offline / online,
                times[3].0 * 1e9 / (512 * n) as f64,
            );
        }
    }
}
