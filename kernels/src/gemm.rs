//! The exact product of an int8 matrix with many integer vectors, modulo 2^32: prompts on the local path, and batches.
//!
//! The vectors become columns: a tile is eight of them for each of P planes of 16-bit digits, pairs of entries side by
//! side, so that a multiply-add of pairs (vpmaddwd, vpdpwssd) serves eight vectors with one weight spread over them.
//! Four planes of a tile are multiplied at once: 32 vectors of entries that fit 16 bits, or 16 of any words, which
//! have two digits. Weights are spread to 16 bits once for all vectors.

use crate::{
    Error, Int8Matrix, Isa,
    cpu::{self, DigitPlane, Kernel, Lanes},
};
use std::ops::Range;
use zeroize::Zeroize;

/// Vectors of a plane.
const LANES: usize = 8;
/// Planes of a tile at most.
const PLANES: usize = 4;
/// Pairs of entries in one pass, at most: their planes (up to 128 bytes a pair) stay in the first-level cache. At most
/// 255, so that sums of products of bytes and digits do not overflow.
const PASS: usize = 192;
/// Rows whose weights are spread at a time: they stay in the second-level cache.
const ROWS: usize = 64;

/// Vectors made ready for [`Columns::multiply`]: wiped when dropped.
pub struct Columns {
    cols: usize,
    vectors: usize,
    /// Of one entry: 1 or 2.
    digits: usize,
    /// Planes of a tile: 1, 2 or 4.
    planes: usize,
    /// [tiles][cols/2][planes], the planes being [groups of eight vectors][digits].
    data: Vec<DigitPlane>,
}

impl Drop for Columns {
    fn drop(&mut self) {
        bytemuck_i16(&mut self.data).for_each(|plane| plane.zeroize());
    }
}

fn bytemuck_i16(planes: &mut [DigitPlane]) -> impl Iterator<Item = &mut [i16; 16]> {
    planes.iter_mut().map(|p| &mut p.0)
}

impl Columns {
    /// From `xs`, [vectors][cols], of any words.
    ///
    /// # Errors
    /// [`Error::Shape`] if these are no whole vectors.
    pub fn words(xs: &[u32], cols: usize) -> Result<Self, Error> {
        Self::new(xs, cols, 2)
    }

    /// From `xs`, [vectors][cols], of entries that fit 16 bits: half the work of [`Columns::words`].
    ///
    /// # Errors
    /// [`Error::Shape`] if these are no whole vectors, or an entry does not fit.
    pub fn narrow(xs: &[i32], cols: usize) -> Result<Self, Error> {
        let outside = xs.iter().fold(false, |bad, x| bad | (x.wrapping_add(1 << 15).cast_unsigned() > 0xffff));
        if outside {
            return Err(Error::Shape("an entry of a vector does not fit 16 bits".into()));
        }
        Self::new(bytemuck::cast_slice(xs), cols, 1)
    }

    fn new(xs: &[u32], cols: usize, digits: usize) -> Result<Self, Error> {
        let vectors = xs.len().checked_div(cols).unwrap_or(0);
        if vectors == 0 || xs.len() != vectors * cols {
            return Err(Error::Shape(format!("{} entries are no whole vectors of {cols}", xs.len())));
        }
        let groups = vectors.div_ceil(LANES);
        let planes = (groups * digits).next_power_of_two().min(PLANES);
        let (pairs, width) = (cols.div_ceil(2), planes / digits * LANES);
        let mut data = vec![DigitPlane([0; 16]); vectors.div_ceil(width) * pairs * planes];
        for (v, x) in xs.chunks_exact(cols).enumerate() {
            let tile = &mut data[v / width * pairs * planes..][..pairs * planes];
            let (group, lane) = (v % width / LANES, v % LANES);
            let (twos, rest) = x.as_chunks::<2>();
            let last = rest.first().map(|x| [*x, 0]);
            for (blocks, pair) in tile.chunks_exact_mut(planes).zip(twos.iter().chain(&last)) {
                // x = 2^16·high + low mod 2^32 with signed halves.
                let low = &mut blocks[group * digits].0[2 * lane..2 * lane + 2];
                low.copy_from_slice(&pair.map(|x| (x & 0xffff) as u16 as i16));
                if digits == 2 {
                    let high = &mut blocks[group * digits + 1].0[2 * lane..2 * lane + 2];
                    high.copy_from_slice(&pair.map(|x| (x.wrapping_add(0x8000) >> 16) as u16 as i16));
                }
            }
        }
        Ok(Self { cols, vectors, digits, planes, data })
    }

    /// Vectors.
    pub fn vectors(&self) -> usize {
        self.vectors
    }

    /// `ys[v][r - rows.start] = sum_c W[r][c]·xs[v][c] mod 2^32` for the rows in `rows`; `ys` is [vectors][rows.len()].
    ///
    /// # Errors
    /// [`Error::Shape`] if a size does not fit.
    pub fn multiply(&self, isa: Isa, w: &Int8Matrix, rows: Range<usize>, ys: &mut [u32]) -> Result<(), Error> {
        if rows.start > rows.end
            || rows.end > w.rows()
            || w.cols() != self.cols
            || ys.len() != self.vectors * rows.len()
        {
            return Err(Error::Shape(format!(
                "{}x{} matrix, rows {rows:?}, {} vectors of {}: {} outputs",
                w.rows(),
                w.cols(),
                self.vectors,
                self.cols,
                ys.len()
            )));
        }
        if rows.is_empty() {
            return Ok(());
        }
        match self.planes {
            1 => cpu::dispatch(isa, Gemm::<1> { w, x: self, rows, ys }),
            2 => cpu::dispatch(isa, Gemm::<2> { w, x: self, rows, ys }),
            _ => cpu::dispatch(isa, Gemm::<PLANES> { w, x: self, rows, ys }),
        }
        Ok(())
    }
}

struct Gemm<'a, const P: usize> {
    w: &'a Int8Matrix,
    x: &'a Columns,
    rows: Range<usize>,
    ys: &'a mut [u32],
}

impl<const P: usize> Kernel for Gemm<'_, P> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let (x, count) = (self.x, self.rows.len());
        let pairs = x.cols.div_ceil(2);
        let pass = pairs.div_ceil(pairs.div_ceil(PASS));
        let mut weights = vec![[0i16; 2]; ROWS.min(count.next_multiple_of(4)) * pairs];
        let mut acc = [[[0i32; LANES]; P]; 4];
        // Of one tile, [rows][planes of sums][8].
        let mut sums = vec![[[0u32; LANES]; P]; ROWS];
        for first in (0..count).step_by(ROWS) {
            let here = ROWS.min(count - first);
            // The last four may repeat the last row.
            for (r, out) in weights.chunks_exact_mut(pairs).enumerate().take(here.next_multiple_of(4)) {
                spread(self.w.row(self.rows.start + first + r.min(here - 1)), out);
            }
            for (tile, planes) in x.data.as_chunks::<P>().0.chunks_exact(pairs).enumerate() {
                for start in (0..pairs).step_by(pass) {
                    let part = start..(start + pass).min(pairs);
                    let fours = weights.chunks_exact(4 * pairs).zip(sums.as_chunks_mut::<4>().0);
                    for (four, sums) in fours.take(here.div_ceil(4)) {
                        let rows = [
                            &four[part.clone()],
                            &four[pairs..][part.clone()],
                            &four[2 * pairs..][part.clone()],
                            &four[3 * pairs..][part.clone()],
                        ];
                        l.digit_rows(rows, &planes[part.clone()], &mut acc);
                        for (acc, sums) in acc.iter().zip(sums) {
                            for (acc, sums) in acc.iter().zip(sums) {
                                for (acc, sum) in acc.iter().zip(sums) {
                                    let before = if start == 0 { 0 } else { *sum };
                                    *sum = before.wrapping_add(acc.cast_unsigned());
                                }
                            }
                        }
                    }
                }
                let groups = P / x.digits;
                for v in 0..(groups * LANES).min(x.vectors - tile * groups * LANES) {
                    let (low, lane) = (v / LANES * x.digits, v % LANES);
                    let at = (tile * groups * LANES + v) * count + first;
                    let ys = self.ys[at..at + here].iter_mut().zip(&sums);
                    match x.digits {
                        1 => ys.for_each(|(y, sums)| *y = sums[low][lane]),
                        _ => ys.for_each(|(y, sums)| *y = sums[low][lane].wrapping_add(sums[low + 1][lane] << 16)),
                    }
                }
            }
        }
        acc.zeroize();
        sums.iter_mut().for_each(|s| s.zeroize());
    }
}

/// The weights of one row as pairs; an odd last one has a zero beside it.
pub(crate) fn spread(row: &[i8], out: &mut [[i16; 2]]) {
    let (twos, rest) = row.as_chunks::<2>();
    for (out, two) in out.iter_mut().zip(twos) {
        *out = two.map(i16::from);
    }
    if let [last] = rest {
        out[twos.len()] = [i16::from(*last), 0];
    }
}
