//! Weights held as int8: each tile is transformed when it is used.

use super::{Inputs, check, check_answers, encode_tile, extract, pinned::write, rows_of};
use crate::{
    Error, Int8Matrix, Ring, Tiling,
    cpu::{self, Field, Kernel, Lanes},
    ntt::NttTable,
    slice::{self, SEGMENT, Sums, TileRows, padded},
};
use std::ops::Range;

/// Tiles transformed side by side, so that an input vector is loaded once for all of them.
const TILES: usize = 2;
/// Bytes of the transformed columns that are in work, at most: half of a first-level cache.
const SCRATCH: usize = 16 << 10;

/// What [`crate::PinnedTiles::answers`] computes, without residency (`fallback`).
///
/// # Errors
/// [`Error::Shape`] if a size does not fit.
pub fn answers_on_the_fly(
    ring: &Ring,
    tiling: &Tiling,
    w: &Int8Matrix,
    inputs: &Inputs,
    tiles: Range<usize>,
    out: &mut [u64],
) -> Result<(), Error> {
    check(tiling, w)?;
    check_answers(ring, tiling, inputs, &tiles, out)?;
    if tiling.is_sliced(ring.n()) {
        cpu::dispatch(ring.isa(), Product { table: ring.table(), tiling, w, inputs, tiles, out });
    } else {
        whole(ring, tiling, w, inputs, &tiles, out);
    }
    Ok(())
}

/// The way for tilings that cannot be sliced.
fn whole(ring: &Ring, tiling: &Tiling, w: &Int8Matrix, inputs: &Inputs, tiles: &Range<usize>, out: &mut [u64]) {
    let (n, rows) = (ring.n(), rows_of(tiling, tiles));
    let (mut small, mut tile, mut acc) = (vec![0i8; n], vec![0; n], vec![0; inputs.vectors * n]);
    let mut at = 0;
    for i in tiles.clone() {
        acc.fill(0);
        for j in 0..tiling.blocks() {
            encode_tile(ring, tiling, w, i, j, &mut small, &mut tile);
            for (v, acc) in acc.chunks_exact_mut(n).enumerate() {
                ring.mul_add(acc, &tile, inputs.poly(n, v, j));
            }
        }
        for (v, acc) in acc.chunks_exact_mut(n).enumerate() {
            extract(ring, tiling, i, acc, &mut out[v * rows + at..]);
        }
        at += tiling.tile_row_range(i).len();
    }
}

/// A total without what [`Lanes::mac`] added in `steps` steps.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn settle<L: Lanes>(l: L, acc: L::Acc, steps: usize) -> i64 {
    l.total(acc).wrapping_sub(L::DRIFT.wrapping_mul((steps * L::WIDTH).cast_signed() as i64))
}

struct Product<'a> {
    table: &'a NttTable,
    tiling: &'a Tiling,
    w: &'a Int8Matrix,
    inputs: &'a Inputs,
    tiles: Range<usize>,
    out: &'a mut [u64],
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.table.q);
        let Self { table, tiling, w, inputs, tiles, out } = self;
        let (r, steps) = (table.n / tiling.tile_cols(), padded(tiling.cols()) / L::WIDTH);
        let width = (SCRATCH / (TILES * r * 8 * L::WIDTH)).clamp(1, 4);
        let mut scratch = vec![bytemuck::Zeroable::zeroed(); TILES * r * width];
        // [vectors][R] accumulators of the tiles in work.
        let mut acc = vec![[l.zero(); TILES]; inputs.vectors * r];
        let mut sums: Vec<Sums> = (0..inputs.vectors).map(|_| Sums::new(r, tiles.len())).collect();
        for first in tiles.clone().step_by(TILES) {
            // A last tile without partner is worked on twice, and the second result dropped.
            let second = (first + 1).min(tiles.end - 1);
            let pair = [TileRows::new(w, tiling, first), TileRows::new(w, tiling, second)];
            let mut step = 0;
            while step < steps {
                let end = (step + SEGMENT / L::WIDTH).min(steps);
                let count = end - step;
                acc.fill([l.zero(); TILES]);
                while step < end {
                    let width = width.min(end - step);
                    let scratch = &mut scratch[..TILES * r * width];
                    for (rows, scratch) in pair.iter().zip(scratch.chunks_exact_mut(r * width)) {
                        slice::columns(l, &f, table, rows, step * L::WIDTH, width, scratch);
                    }
                    let (one, two) = scratch.split_at(r * width);
                    for (v, acc) in acc.chunks_exact_mut(r).enumerate() {
                        let slices: &[L::Block] = bytemuck::cast_slice(inputs.slices(v).0);
                        let lines = one.chunks_exact(width).zip(two.chunks_exact(width)).enumerate();
                        for ((k, (one, two)), acc) in lines.zip(acc) {
                            let [mut a0, mut a1] = *acc;
                            for ((b, one), two) in
                                slices[k * steps + step..k * steps + step + width].iter().zip(one).zip(two)
                            {
                                let b = l.load(b);
                                let bq = l.quotient(&f, b);
                                a0 = l.mac(&f, a0, l.load(one), b, bq);
                                a1 = l.mac(&f, a1, l.load(two), b, bq);
                            }
                            *acc = [a0, a1];
                        }
                    }
                    step += width;
                }
                for (sums, acc) in sums.iter_mut().zip(acc.chunks_exact(r)) {
                    for (k, acc) in acc.iter().enumerate() {
                        for (t, &acc) in acc.iter().enumerate().take(tiles.end - first) {
                            sums.add(k, first + t - tiles.start, settle(l, acc, count));
                        }
                    }
                }
            }
        }
        let rows = rows_of(tiling, &tiles);
        for (sums, out) in sums.iter_mut().zip(out.chunks_exact_mut(rows.max(1))) {
            sums.finish(l, &f, table);
            write(sums, tiling, &tiles, out);
        }
    }
}
