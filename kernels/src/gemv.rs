//! The exact product of an int8 matrix with integer vectors, modulo 2^32: the local path, and the online half of
//! masked delegation.

use crate::{
    Error, Int8Matrix, Isa,
    cpu::{self, Kernel, Lanes},
};
use std::ops::Range;

/// Entries of the vectors are below this in magnitude: 2^24.
pub const LIMIT: i32 = 1 << 24;

/// `ys[v][r - rows.start] = sum_c W[r][c]·xs[v][c] mod 2^32` for the rows in `rows` and every vector `v`.
///
/// `xs` is [vectors][cols]; `ys` is [vectors][rows.len()]. Entries of `xs` are below 2^24 in magnitude; the
/// caller has chosen their scale so that the true sum fits i32, and then the result is that sum.
///
/// # Errors
/// [`Error::Shape`] if a size does not fit or an entry is out of range.
pub fn gemv(
    isa: Isa,
    w: &Int8Matrix,
    xs: &[i32],
    vectors: usize,
    rows: Range<usize>,
    ys: &mut [i32],
) -> Result<(), Error> {
    check(w, xs.len(), vectors, &rows, ys.len())?;
    if xs.iter().any(|x| x.unsigned_abs() >= LIMIT.unsigned_abs()) {
        return Err(Error::Shape("an entry of a vector is not below 2^24".into()));
    }
    // x = 2^12·high + low with |high| <= 2^12 and -2^11 <= low < 2^11.
    #[expect(clippy::cast_possible_truncation, reason = "bounded by the limit just checked")]
    let high: Vec<i16> = xs.iter().map(|x| ((x + 2048) >> 12) as i16).collect();
    #[expect(clippy::cast_possible_truncation, reason = "within 2^11")]
    let low: Vec<i16> = xs.iter().zip(&high).map(|(x, h)| (x - (i32::from(*h) << 12)) as i16).collect();
    cpu::dispatch(isa, Gemv { w, high: &high, low: &low, shift: 12, rows, ys: bytemuck::cast_slice_mut(ys) });
    Ok(())
}

/// `ys[v][r - rows.start] = sum_c W[r][c]·xs[v][c] mod 2^32` for any words: vectors behind a one-time pad.
///
/// `xs` is [vectors][cols]; `ys` is [vectors][rows.len()]. Four rows of weights are read once for all vectors.
///
/// # Errors
/// [`Error::Shape`] if a size does not fit.
pub fn gemv_words(
    isa: Isa,
    w: &Int8Matrix,
    xs: &[u32],
    vectors: usize,
    rows: Range<usize>,
    ys: &mut [u32],
) -> Result<(), Error> {
    check(w, xs.len(), vectors, &rows, ys.len())?;
    let halves = Halves::new(xs);
    halves.multiply(isa, w, rows, ys);
    Ok(())
}

/// Words as pairs of signed 16-bit halves, x = 2^16·high + low mod 2^32: made once, used by all threads of a product.
pub struct Halves {
    high: Vec<i16>,
    low: Vec<i16>,
}

impl Halves {
    /// Splits every word.
    pub fn new(xs: &[u32]) -> Self {
        let low: Vec<i16> = xs.iter().map(|x| (x & 0xffff) as u16 as i16).collect();
        let high = xs.iter().map(|x| (x.wrapping_add(0x8000) >> 16) as u16 as i16).collect();
        Self { high, low }
    }

    /// As [`gemv_words`], over the words split here; `ys` is [vectors][rows.len()].
    ///
    /// # Panics
    /// If the sizes do not fit: `xs` was not whole vectors of `w.cols()`, or `ys` is not as long as said.
    pub fn multiply(&self, isa: Isa, w: &Int8Matrix, rows: Range<usize>, ys: &mut [u32]) {
        let vectors = self.low.len() / w.cols();
        assert!(
            rows.end <= w.rows() && self.low.len() == vectors * w.cols() && ys.len() == vectors * rows.len(),
            "sizes fit"
        );
        cpu::dispatch(isa, Gemv { w, high: &self.high, low: &self.low, shift: 16, rows, ys });
    }
}

fn check(w: &Int8Matrix, inputs: usize, vectors: usize, rows: &Range<usize>, outputs: usize) -> Result<(), Error> {
    if rows.end > w.rows() || inputs != vectors * w.cols() || outputs != vectors * rows.len() {
        return Err(Error::Shape(format!(
            "{}x{} matrix, rows {rows:?}, {vectors} vectors: {inputs} inputs, {outputs} outputs",
            w.rows(),
            w.cols(),
        )));
    }
    Ok(())
}

struct Gemv<'a> {
    w: &'a Int8Matrix,
    high: &'a [i16],
    low: &'a [i16],
    /// x = 2^shift·high + low.
    shift: u32,
    rows: Range<usize>,
    ys: &'a mut [u32],
}

impl Kernel for Gemv<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let (cols, count) = (self.w.cols(), self.rows.len());
        let vectors = self.high.len() / cols;
        for first in self.rows.clone().step_by(4) {
            // A last group that is not full reads its last row several times.
            let rows: [&[i8]; 4] = std::array::from_fn(|k| self.w.row((first + k).min(self.rows.end - 1)));
            let at = first - self.rows.start;
            let full = 4.min(count - at);
            for v in 0..vectors {
                let x = v * cols..(v + 1) * cols;
                let sums = l.dot4(rows, &self.high[x.clone()], &self.low[x]);
                for (y, (high, low)) in self.ys[v * count + at..][..full].iter_mut().zip(sums) {
                    *y = high.cast_unsigned().wrapping_shl(self.shift).wrapping_add(low.cast_unsigned());
                }
            }
        }
    }
}
