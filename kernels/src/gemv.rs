//! The local path: the exact product of an int8 matrix with integer vectors, modulo 2^32.

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
    if rows.end > w.rows() || xs.len() != vectors * w.cols() || ys.len() != vectors * rows.len() {
        return Err(Error::Shape(format!(
            "{}x{} matrix, rows {rows:?}, {vectors} vectors: {} inputs, {} outputs",
            w.rows(),
            w.cols(),
            xs.len(),
            ys.len()
        )));
    }
    if xs.iter().any(|x| x.unsigned_abs() >= LIMIT.unsigned_abs()) {
        return Err(Error::Shape("an entry of a vector is not below 2^24".into()));
    }
    // x = 2^12·high + low with |high| <= 2^12 and -2^11 <= low < 2^11.
    #[expect(clippy::cast_possible_truncation, reason = "bounded by the limit just checked")]
    let high: Vec<i16> = xs.iter().map(|x| ((x + 2048) >> 12) as i16).collect();
    #[expect(clippy::cast_possible_truncation, reason = "within 2^11")]
    let low: Vec<i16> = xs.iter().zip(&high).map(|(x, h)| (x - (i32::from(*h) << 12)) as i16).collect();
    cpu::dispatch(isa, Gemv { w, high: &high, low: &low, rows, ys });
    Ok(())
}

struct Gemv<'a> {
    w: &'a Int8Matrix,
    high: &'a [i16],
    low: &'a [i16],
    rows: Range<usize>,
    ys: &'a mut [i32],
}

impl Kernel for Gemv<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let (cols, count) = (self.w.cols(), self.rows.len());
        for first in self.rows.clone().step_by(4) {
            // A last group that is not full reads its last row several times.
            let rows: [&[i8]; 4] = std::array::from_fn(|k| self.w.row((first + k).min(self.rows.end - 1)));
            let vectors = self.high.chunks_exact(cols).zip(self.low.chunks_exact(cols));
            for ((high, low), ys) in vectors.zip(self.ys.chunks_exact_mut(count)) {
                let out = &mut ys[first - self.rows.start..];
                for (y, (high, low)) in out.iter_mut().zip(l.dot4(rows, high, low)) {
                    *y = high.wrapping_shl(12).wrapping_add(low);
                }
            }
        }
    }
}
