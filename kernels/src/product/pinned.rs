//! Weights held in NTT form: 8 bytes each, streamed once per call, four output tiles side by side.

use super::{Inputs, check, check_answers, encode_tile, extract, rows_of};
use crate::{
    Error, Int8Matrix, Ring, Tiling,
    cpu::{self, Field, Kernel, Lanes},
    ntt::NttTable,
    slice::{self, SUM_SEGMENT, Sums, TileRows, padded},
};
use memmap2::MmapMut;
use std::ops::Range;

/// Output tiles side by side: one input vector is loaded for so many weight vectors.
const GROUP: usize = 4;
/// How far ahead weights are asked for, in vectors.
const AHEAD: usize = 48;

/// A matrix in NTT form, 8 bytes per weight (and row padding of the last tile).
pub struct PinnedTiles {
    tiling: Tiling,
    sliced: bool,
    /// Sliced: per group of GROUP tiles [R][column vector][tile of the group][packed lanes].
    /// Else: [tile][block][N] words. In huge pages where the system has them.
    data: MmapMut,
}

impl PinnedTiles {
    /// Ranges of tiles given to [`PinnedTiles::answers`] should begin at multiples of this.
    pub const GROUP: usize = GROUP;

    /// Encodes every tile of `w`.
    ///
    /// # Errors
    /// [`Error::Shape`] if matrix and tiling disagree, [`Error::Memory`] if the system gives no memory.
    pub fn encode(ring: &Ring, tiling: Tiling, w: &Int8Matrix) -> Result<Self, Error> {
        check(&tiling, w)?;
        let bytes = Self::bytes_for(ring, &tiling);
        let mut data = MmapMut::map_anon(bytes).map_err(|e| Error::Memory(format!("{bytes} bytes: {e}")))?;
        // Without huge pages everything works, slower.
        #[cfg(target_os = "linux")]
        let _ = data.advise(memmap2::Advice::HugePage);
        let sliced = tiling.is_sliced(ring.n());
        let words: &mut [u64] = bytemuck::cast_slice_mut(&mut data);
        if sliced {
            let out = bytemuck::cast_slice_mut(words);
            cpu::dispatch(ring.isa(), Encode { table: ring.table(), tiling: &tiling, w, out });
        } else {
            let mut small = vec![0i8; ring.n()];
            for (k, out) in words.chunks_exact_mut(ring.n()).enumerate() {
                encode_tile(ring, &tiling, w, k / tiling.blocks(), k % tiling.blocks(), &mut small, out);
            }
        }
        Ok(Self { tiling, sliced, data })
    }

    /// The tiling.
    pub fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Memory that [`PinnedTiles::encode`] will need for a tiling.
    pub fn bytes_for(ring: &Ring, tiling: &Tiling) -> usize {
        let columns = if tiling.is_sliced(ring.n()) {
            ring.n() / tiling.tile_cols() * padded(tiling.cols())
        } else {
            tiling.blocks() * ring.n()
        };
        tiling.tiles() * columns * 8
    }

    /// The useful coefficients of output tiles `tiles` for every vector: `out` is [vectors][rows of those tiles],
    /// values in [0, q). `inputs` come from [`Inputs::for_tiling`].
    ///
    /// # Errors
    /// [`Error::Shape`] if a size does not fit.
    pub fn answers(&self, ring: &Ring, inputs: &Inputs, tiles: Range<usize>, out: &mut [u64]) -> Result<(), Error> {
        check_answers(ring, &self.tiling, inputs, &tiles, out)?;
        if self.sliced {
            let weights = bytemuck::cast_slice(&self.data);
            let table = ring.table();
            cpu::dispatch(ring.isa(), Product { table, tiling: &self.tiling, weights, inputs, tiles, out });
        } else {
            self.whole(ring, inputs, &tiles, out);
        }
        Ok(())
    }

    /// The way for tilings that cannot be sliced: whole products, whole inverse transforms.
    fn whole(&self, ring: &Ring, inputs: &Inputs, tiles: &Range<usize>, out: &mut [u64]) {
        let (n, blocks, rows) = (ring.n(), self.tiling.blocks(), rows_of(&self.tiling, tiles));
        let words: &[u64] = bytemuck::cast_slice(&self.data);
        let mut acc = vec![0; n];
        for (v, out) in out.chunks_exact_mut(rows.max(1)).enumerate() {
            let mut at = 0;
            for i in tiles.clone() {
                acc.fill(0);
                for j in 0..blocks {
                    ring.mul_add(
                        &mut acc,
                        &words[(i * blocks + j) * n..(i * blocks + j + 1) * n],
                        inputs.poly(n, v, j),
                    );
                }
                extract(ring, &self.tiling, i, &mut acc, &mut out[at..]);
                at += self.tiling.tile_row_range(i).len();
            }
        }
    }
}

/// The tiles of group `g`.
fn group(tiling: &Tiling, g: usize) -> Range<usize> {
    g * GROUP..((g + 1) * GROUP).min(tiling.tiles())
}

struct Encode<'a> {
    table: &'a NttTable,
    tiling: &'a Tiling,
    w: &'a Int8Matrix,
    out: &'a mut [f64],
}

impl Kernel for Encode<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.table.q);
        let r = self.table.n / self.tiling.tile_cols();
        let steps = padded(self.tiling.cols()) / L::WIDTH;
        let mut scratch = vec![bytemuck::Zeroable::zeroed(); r];
        let out: &mut [L::Block] = bytemuck::cast_slice_mut(self.out);
        for i in 0..self.tiling.tiles() {
            let tiles = group(self.tiling, i / GROUP);
            let base = tiles.start * r * steps;
            let rows = TileRows::new(self.w, self.tiling, i);
            for step in 0..steps {
                slice::columns(l, &f, self.table, &rows, step * L::WIDTH, 1, &mut scratch);
                for (k, block) in scratch.iter().enumerate() {
                    let v = l.pack(&f, l.reduce(&f, l.load(block)));
                    l.store(v, &mut out[base + (k * steps + step) * tiles.len() + i - tiles.start]);
                }
            }
        }
    }
}

struct Product<'a> {
    table: &'a NttTable,
    tiling: &'a Tiling,
    weights: &'a [f64],
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
        let Self { table, tiling, weights, inputs, tiles, out } = self;
        let (r, steps) = (table.n / tiling.tile_cols(), padded(tiling.cols()) / L::WIDTH);
        let weights: &[L::Block] = bytemuck::cast_slice(weights);
        let mut sums: Vec<Sums> = (0..inputs.vectors).map(|_| Sums::new(r, tiles.len())).collect();
        let mut start = tiles.start;
        while start < tiles.end {
            let whole = group(tiling, start / GROUP);
            let part = start..whole.end.min(tiles.end);
            let base = whole.start * r * steps;
            for k in 0..r {
                let at = base + k * steps * whole.len();
                let weights = &weights[at..at + steps * whole.len()];
                for (v, sums) in sums.iter_mut().enumerate() {
                    let input: &[L::Block] = bytemuck::cast_slice(inputs.slices(v).1);
                    let input = &input[k * steps..(k + 1) * steps];
                    let (first, at) = (part.start - whole.start, part.start - tiles.start);
                    if part != whole {
                        for t in 0..part.len() {
                            mac_one(l, &weights[first + t..], whole.len(), input, sums, (k, at + t));
                        }
                        continue;
                    }
                    match whole.len() {
                        1 => mac::<L, 1>(l, weights, input, sums, (k, at)),
                        2 => mac::<L, 2>(l, weights, input, sums, (k, at)),
                        3 => mac::<L, 3>(l, weights, input, sums, (k, at)),
                        _ => mac::<L, GROUP>(l, weights, input, sums, (k, at)),
                    }
                }
            }
            start = part.end;
        }
        let rows = rows_of(tiling, &tiles);
        for (sums, out) in sums.iter_mut().zip(out.chunks_exact_mut(rows.max(1))) {
            sums.finish(l, &f, table);
            write(sums, tiling, &tiles, out);
        }
    }
}

/// Writes the rows of `tiles` in order.
pub(super) fn write(sums: &Sums, tiling: &Tiling, tiles: &Range<usize>, out: &mut [u64]) {
    let mut at = 0;
    for (t, i) in tiles.clone().enumerate() {
        let rows = tiling.tile_row_range(i).len();
        for (r, word) in out[at..at + rows].iter_mut().enumerate() {
            *word = sums.word(r, t);
        }
        at += rows;
    }
}

/// Adds the dot products of T interleaved rows of weights with one input to the sums of slice `at.0`, tiles
/// from `at.1` on.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn mac<L: Lanes, const T: usize>(l: L, weights: &[L::Block], input: &[L::Block], sums: &mut Sums, at: (usize, usize)) {
    let segment = SUM_SEGMENT / L::WIDTH;
    let weights = weights.as_chunks::<T>().0;
    for (weights, input) in weights.chunks(segment).zip(input.chunks(segment)) {
        let mut acc = [l.sum_zero(); T];
        for (weights, input) in weights.iter().zip(input) {
            let input = l.fix(input);
            for t in 0..T {
                if (t * L::WIDTH).is_multiple_of(8) {
                    l.prefetch(weights, t + AHEAD);
                }
                acc[t] = l.sum_add(acc[t], &weights[t], input);
            }
        }
        for (t, acc) in acc.into_iter().enumerate() {
            sums.add_parts(at.0, at.1 + t, l.sum_total(acc));
        }
    }
}

/// [`mac`] of one row of weights, `stride` apart.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn mac_one<L: Lanes>(
    l: L,
    weights: &[L::Block],
    stride: usize,
    input: &[L::Block],
    sums: &mut Sums,
    at: (usize, usize),
) {
    let mut weights = weights.iter().step_by(stride);
    for input in input.chunks(SUM_SEGMENT / L::WIDTH) {
        let mut acc = l.sum_zero();
        for (input, weight) in input.iter().zip(&mut weights) {
            acc = l.sum_add(acc, weight, l.fix(input));
        }
        sums.add_parts(at.0, at.1, l.sum_total(acc));
    }
}
