//! The local path: the exact product of an int8 matrix with integer vectors, modulo 2^32.

use crate::{Error, Int8Matrix, Isa};
use std::ops::Range;

/// `ys[v][r - rows.start] = sum_c W[r][c]·xs[v][c] mod 2^32` for the rows in `rows` and every vector `v`.
///
/// `xs` is [vectors][cols]; `ys` is [vectors][rows.len()]. Entries of `xs` are below 2^24 in magnitude; the
/// caller has chosen their scale so that the true sum fits i32, and then the result is that sum.
///
/// # Errors
/// [`Error::Shape`] if a size does not fit.
pub fn gemv(
    isa: Isa,
    w: &Int8Matrix,
    xs: &[i32],
    vectors: usize,
    rows: Range<usize>,
    ys: &mut [i32],
) -> Result<(), Error> {
    let _ = isa;
    if rows.end > w.rows() || xs.len() != vectors * w.cols() || ys.len() != vectors * rows.len() {
        return Err(Error::Shape(format!(
            "{}x{} matrix, rows {rows:?}, {vectors} vectors: {} inputs, {} outputs",
            w.rows(),
            w.cols(),
            xs.len(),
            ys.len()
        )));
    }
    for v in 0..vectors {
        let x = &xs[v * w.cols()..(v + 1) * w.cols()];
        for (o, r) in rows.clone().enumerate() {
            ys[v * rows.len() + o] =
                w.row(r).iter().zip(x).fold(0i32, |acc, (&a, &b)| acc.wrapping_add(i32::from(a).wrapping_mul(b)));
        }
    }
    Ok(())
}
