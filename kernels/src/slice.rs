//! The sliced domain: the transform stopped when its remaining factors are X^n_w - z_k.
//!
//! If n_w is a power of two, the first log2(N/n_w) stages of the negacyclic transform split a polynomial into
//! R = N/n_w remainders of degree below n_w, one modulo each X^n_w - z_k: R slices. Of a product P·B only the
//! coefficients r·n_w + n_w - 1 are wanted. Those belong to the coefficient n_w - 1 of each slice, and no
//! product of two terms wraps onto that one: 2(n_w - 1) < n_w + n_w - 1. With a tile packed as in
//! [`crate::Tiling`] it is a plain dot product over the columns,
//!
//! ```text
//! y_k = sum_c W^_k[c] · B^_k[c],     k = 0 .. R-1, all columns of the matrix at once,
//! ```
//!
//! where W^[c] is the length-R transform of column c of the tile, and the wanted coefficients are the
//! length-R inverse transform of y. So a tile needs log2 R stages instead of log2 N, an output tile is R words
//! instead of N, and its inverse transform is short. The integers are those of the full product.

use crate::{
    Int8Matrix, Tiling,
    cpu::{Field, Kernel, Lanes},
    ntt::{NttTable, centred_pair},
    transform,
};
use std::ops::Range;

/// Rows of `w` are read this many columns at a time, so that ragged edges can be copied.
pub(crate) const PAD: usize = 8;

/// Columns whose products may be added up in 64 bits by [`Lanes::mac`]: 4088·q < 2^63.
pub(crate) const SEGMENT: usize = 4088;

/// Columns whose products may be added up by [`Lanes::sum_add`].
pub(crate) const SUM_SEGMENT: usize = 1016;

/// The transform of the columns `first .. first + WIDTH·width` of tile `i`, times the ring's short factor:
/// `out` is [R][width] vectors up to the limit of a factor. Columns beyond the matrix are zero.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
pub(crate) fn columns<L: Lanes>(
    l: L,
    f: &Field<L::V>,
    table: &NttTable,
    rows: &TileRows<'_>,
    first: usize,
    width: usize,
    out: &mut [L::Block],
) -> f64 {
    let r = out.len() / width;
    let s = &table.short;
    let (s0, s1, s2, s3, s2_neg) = (l.splat(s[0]), l.splat(s[1]), l.splat(s[2]), l.splat(s[3]), l.splat(-s[2]));
    let (a, c) = out.split_at_mut(out.len() / 2);
    let ((a, b), (c, d)) = (a.split_at_mut(out_quarter(r, width)), c.split_at_mut(out_quarter(r, width)));
    let lines = a.chunks_exact_mut(width).zip(b.chunks_exact_mut(width));
    let lines = lines.zip(c.chunks_exact_mut(width).zip(d.chunks_exact_mut(width)));
    let cols = first..first + width * L::WIDTH;
    for (row, ((a, b), (c, d))) in lines.enumerate() {
        let x0 = rows.row(row)[cols.clone()].chunks_exact(L::WIDTH);
        let x1 = rows.row(row + r / 4)[cols.clone()].chunks_exact(L::WIDTH);
        let x2 = rows.row(row + 2 * (r / 4))[cols.clone()].chunks_exact(L::WIDTH);
        let x3 = rows.row(row + 3 * (r / 4))[cols.clone()].chunks_exact(L::WIDTH);
        let out = a.iter_mut().zip(b).zip(c.iter_mut().zip(d));
        for ((((a, b), (c, d)), (x0, x1)), (x2, x3)) in out.zip(x0.zip(x1)).zip(x2.zip(x3)) {
            let (x0, x1, x2, x3) = (l.load_i8(x0), l.load_i8(x1), l.load_i8(x2), l.load_i8(x3));
            // Sums of four products below 2^7·2^39.
            let t = l.mul_small(x0, s0);
            let (even, odd) = (l.mul_add_small(x2, s2, t), l.mul_add_small(x2, s2_neg, t));
            let p = l.mul_add_small(x1, s1, l.mul_small(x3, s3));
            let r = l.mul_add_small(x1, s3, l.mul_small(x3, s1));
            l.store(l.add(even, p), a);
            l.store(l.sub(even, p), b);
            l.store(l.add(odd, r), c);
            l.store(l.sub(odd, r), d);
        }
    }
    let bound = 128.0 * table.short.iter().map(|s| s.abs()).sum::<f64>() / crate::cpu::f64_of(table.q);
    if r == 4 { bound } else { transform::forward_rows(l, f, table.forward(), out, 4..r, bound) }
}

fn out_quarter(r: usize, width: usize) -> usize {
    r / 4 * width
}

/// The rows of one tile, R of them: those behind the matrix or the tile are zero, and all are long enough to
/// be read in whole vectors.
pub(crate) struct TileRows<'a> {
    w: &'a Int8Matrix,
    range: Range<usize>,
    /// Rows copied with padding, if the matrix's own are ragged: [rows][padded].
    copy: Vec<i8>,
    padded: usize,
    zero: Vec<i8>,
}

impl<'a> TileRows<'a> {
    pub(crate) fn new(w: &'a Int8Matrix, tiling: &Tiling, tile: usize) -> Self {
        let range = tiling.tile_row_range(tile);
        let padded = padded(w.cols());
        let mut copy = vec![];
        if padded != w.cols() {
            copy.resize(padded * range.len(), 0);
            for (line, row) in copy.chunks_exact_mut(padded).zip(range.clone()) {
                line[..w.cols()].copy_from_slice(w.row(row));
            }
        }
        Self { w, range, copy, padded, zero: vec![0; padded] }
    }

    fn row(&self, r: usize) -> &[i8] {
        if r >= self.range.len() {
            &self.zero
        } else if self.copy.is_empty() {
            self.w.row(self.range.start + r)
        } else {
            &self.copy[r * self.padded..(r + 1) * self.padded]
        }
    }
}

/// Columns with padding: what a slice of an input takes, in words.
pub(crate) fn padded(cols: usize) -> usize {
    cols.next_multiple_of(PAD)
}

/// Takes one polynomial in NTT form (words in [0, q)) back to the sliced domain and writes the slices of block
/// `block` into `centred` and, packed, into `packed`, both [R][padded(cols)]. `words` is overwritten.
pub(crate) struct SliceInput<'a> {
    pub(crate) table: &'a NttTable,
    pub(crate) tiling: &'a Tiling,
    pub(crate) block: usize,
    pub(crate) words: &'a mut [u64],
    pub(crate) centred: &'a mut [f64],
    pub(crate) packed: &'a mut [f64],
}

impl Kernel for SliceInput<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.table.q);
        let (n, wide) = (self.table.n, self.tiling.tile_cols());
        let data: &mut [L::Block] = bytemuck::cast_slice_mut(self.words);
        for block in data.iter_mut() {
            let v = l.load_words(block);
            l.store(v, block);
        }
        let bound = transform::inverse_lanes(l, &f, self.table.inverse(), data, wide);
        if wide > L::WIDTH {
            transform::inverse_rows(l, &f, self.table.inverse(), data, n / wide..n / L::WIDTH, bound);
        }
        for block in data.iter_mut() {
            let v = l.reduce(&f, l.load(block));
            l.store(v, block);
        }
        place(bytemuck::cast_slice(data), self.tiling, self.block, self.centred);
        for block in data.iter_mut() {
            let v = l.pack(&f, l.load(block));
            l.store(v, block);
        }
        place(bytemuck::cast_slice(data), self.tiling, self.block, self.packed);
    }
}

/// Copies slices of n_w words to the columns of block `block` in lines of padded columns.
fn place(slices: &[f64], tiling: &Tiling, block: usize, out: &mut [f64]) {
    let cols = tiling.block_cols(block);
    let lines = out.chunks_exact_mut(padded(tiling.cols()));
    for (slice, line) in slices.chunks_exact(tiling.tile_cols()).zip(lines) {
        line[cols.clone()].copy_from_slice(&slice[..cols.len()]);
    }
}

/// Sums of the slices of some output tiles: a sum is p0 + 2^26·p1 + 2^52·p2 + 2^78·p3, each part an exact
/// number below 2^50, laid out [R][width].
pub(crate) struct Sums {
    width: usize,
    parts: [Vec<f64>; 4],
}

#[expect(clippy::cast_precision_loss, reason = "parts of 26 and at most 38 bits")]
impl Sums {
    /// Zeros for `slices` by `tiles`.
    pub(crate) fn new(slices: usize, tiles: usize) -> Self {
        let width = tiles.next_multiple_of(PAD);
        Self { width, parts: [(); 4].map(|()| vec![0.0; slices * width]) }
    }

    /// Adds a signed sum.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    pub(crate) fn add(&mut self, slice: usize, tile: usize, x: i64) {
        let at = slice * self.width + tile;
        self.parts[0][at] += (x & LOW) as f64;
        self.parts[1][at] += (x >> 26) as f64;
    }

    /// Adds what [`Lanes::sum_total`] gives.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    pub(crate) fn add_parts(&mut self, slice: usize, tile: usize, x: [u64; 3]) {
        let at = slice * self.width + tile;
        let low = |x: u64| (x.cast_signed() & LOW) as f64;
        let high = |x: u64| (x >> 26).cast_signed() as f64;
        self.parts[0][at] += low(x[0]);
        self.parts[1][at] += high(x[0]) + low(x[1]);
        self.parts[2][at] += high(x[1]) + low(x[2]);
        self.parts[3][at] += high(x[2]);
    }

    /// The coefficients: the inverse transform over the slices, in place; the result is in the first part as
    /// u64 words.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    pub(crate) fn finish<L: Lanes>(&mut self, l: L, f: &Field<L::V>, table: &NttTable) {
        let slices = self.parts[0].len() / self.width;
        let [p0, p1, p2, p3] = &mut self.parts;
        let data: &mut [L::Block] = bytemuck::cast_slice_mut(p0);
        let p1: &[L::Block] = bytemuck::cast_slice(p1);
        let p2: &[L::Block] = bytemuck::cast_slice(p2);
        let p3: &[L::Block] = bytemuck::cast_slice(p3);
        let (w, wq) = centred_pair((1 << 26) % table.q, table.q);
        let (w, wq) = (l.splat(w), l.splat(wq));
        // Horner: (((p3·2^26 + p2)·2^26 + p1)·2^26 + p0, each step below 1/2 + 3/4.
        for (((p0, p1), p2), p3) in data.iter_mut().zip(p1).zip(p2).zip(p3) {
            let x = l.mul(f, l.reduce(f, l.load(p3)), w, wq);
            let x = l.mul(f, l.add(x, l.reduce(f, l.load(p2))), w, wq);
            let x = l.mul(f, l.add(x, l.reduce(f, l.load(p1))), w, wq);
            let x = l.add(x, l.reduce(f, l.load(p0)));
            l.store(l.reduce(f, x), p0);
        }
        transform::inverse_rows(l, f, table.inverse(), data, 1..slices, 1.0);
        let (w, wq) = centred_pair(table.unscale, table.q);
        let (w, wq) = (l.splat(w), l.splat(wq));
        for block in data.iter_mut() {
            let v = l.mul(f, l.load(block), w, wq);
            l.store_words(f, v, block);
        }
    }

    /// After [`Sums::finish`]: row `r` of tile `tile`, in [0, q).
    pub(crate) fn word(&self, r: usize, tile: usize) -> u64 {
        self.parts[0][r * self.width + tile].to_bits()
    }
}

/// The low 26 bits.
const LOW: i64 = (1 << 26) - 1;
