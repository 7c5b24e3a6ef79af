//! Matrix products over a prompt or a batch, beside the peak of the processor's dot products.

use super::{
    medians,
    peak::{STEPS, peak, width},
    threaded,
};
use kernels::{Ring, conformance::Numbers, gemm::Columns, gemv};
use std::hint::black_box;

/// (rows, cols) of SmolLM2-135M's and GPT-2's linear layers.
const SHAPES: [(usize, usize); 6] = [(960, 576), (576, 576), (3072, 576), (576, 1536), (3072, 768), (768, 3072)];

pub(super) fn products(ring: &Ring) {
    println!(
        "\ngemm: G multiply-adds a second over 64 vectors and their share of the peak of dot products of bytes (target \
         0.5); 16 vectors of words, as an evaluator gets them; one vector after the other"
    );
    println!(
        "{:>12} {:>7} {:>10} {:>10} {:>7} {:>10} {:>7} {:>12} {:>10}",
        "shape", "threads", "peak", "64 narrow", "share", "64 words", "share", "16 words", "64 x gemv"
    );
    for (rows, cols) in SHAPES {
        let mut numbers = Numbers(8);
        let w = numbers.matrix(rows, cols);
        let xs: Vec<u32> = (0..64 * cols).map(|_| u32::try_from(numbers.word() >> 32).expect("32 bits")).collect();
        let ints: Vec<i32> = xs.iter().map(|x| (x >> 17).cast_signed() - (1 << 14)).collect();
        for threads in [1, 2] {
            let run = |columns: &Columns| {
                threaded(threads, rows, 4, |range| {
                    let mut ys = vec![0; columns.vectors() * range.len()];
                    columns.multiply(ring.isa(), &w, range, &mut ys).expect("fits");
                    black_box(ys);
                });
            };
            let times = medians(
                15,
                threads == 1,
                &mut [
                    &mut || threaded(threads, threads, 1, |_| peak()),
                    &mut || run(&Columns::narrow(&ints, cols).expect("whole")),
                    &mut || run(&Columns::words(&xs, cols).expect("whole")),
                    &mut || run(&Columns::words(&xs[..16 * cols], cols).expect("whole")),
                    &mut || {
                        threaded(threads, rows, 4, |range| {
                            let mut ys = vec![0; 64 * range.len()];
                            gemv::gemv(ring.isa(), &w, &ints, 64, range, &mut ys).expect("fits");
                            black_box(ys);
                        });
                    },
                ],
            );
            let rate = |i: usize, work: usize| work as f64 / times[i].0 / 1e9;
            let (peak, whole) = (rate(0, STEPS * width() * threads), rows * cols * 64);
            println!(
                "{:>12} {threads:>7} {peak:>10.1} {:>10.1} {:>7.2} {:>10.1} {:>7.2} {:>12.1} {:>10.1}",
                format!("{rows}x{cols}"),
                rate(1, whole),
                rate(1, whole) / peak,
                rate(2, whole),
                rate(2, whole) / peak,
                rate(3, whole / 4),
                rate(4, whole),
            );
        }
    }
}
