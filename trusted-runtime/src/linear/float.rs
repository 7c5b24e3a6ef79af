//! The f32 twin: linear layers in plain f32, the yardstick for quantized weights.

use super::{Call, Linear, LinearId};
use crate::{Error, model::load::Sink};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Every linear matrix of a model in f32. Sums run in eight lanes in a fixed order, so results do not depend
/// on threads or on how many vectors a call has.
#[derive(Default)]
pub struct FloatLinear {
    matrices: BTreeMap<LinearId, Matrix>,
}

struct Matrix {
    rows: usize,
    cols: usize,
    /// [rows][cols].
    weights: Vec<f32>,
}

const LANES: usize = 8;
/// Vectors that share one reading of a row.
const TOGETHER: usize = 4;
/// Rows per unit of parallel work.
const ROWS: usize = 32;

impl Sink for FloatLinear {
    fn matrix(&mut self, id: LinearId, rows: usize, cols: usize, weights: &[f32]) -> Result<(), Error> {
        self.matrices.insert(id, Matrix { rows, cols, weights: weights.to_vec() });
        Ok(())
    }
}

impl Linear for FloatLinear {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let m = self.matrices.get(&id).ok_or_else(|| Error::Bug(format!("no matrix {id}")))?;
        if xs.len() != vectors * m.cols || ys.len() != vectors * m.rows {
            return Err(Error::Bug(format!("{id}: {} inputs, {} outputs, {vectors} vectors", xs.len(), ys.len())));
        }
        if vectors == 1 {
            ys.par_chunks_mut(ROWS).enumerate().for_each(|(i, ys)| {
                for (y, row) in ys.iter_mut().zip(m.weights[i * ROWS * m.cols..].chunks_exact(m.cols)) {
                    *y = dot(row, [xs])[0];
                }
            });
            return Ok(());
        }
        // [rows][vectors], so that every thread writes its own rows; then transposed.
        let mut by_row = zeroize::Zeroizing::new(vec![0f32; ys.len()]);
        by_row.par_chunks_mut(ROWS * vectors).enumerate().for_each(|(i, out)| {
            let rows = &m.weights[i * ROWS * m.cols..];
            for v in (0..vectors).step_by(TOGETHER) {
                for (out, row) in out.chunks_exact_mut(vectors).zip(rows.chunks_exact(m.cols)) {
                    let x = |k: usize| &xs[(v + k) * m.cols..(v + k + 1) * m.cols];
                    if v + TOGETHER <= vectors {
                        out[v..v + TOGETHER].copy_from_slice(&dot(row, [x(0), x(1), x(2), x(3)]));
                    } else {
                        for (k, y) in out[v..].iter_mut().enumerate() {
                            *y = dot(row, [x(k)])[0];
                        }
                    }
                }
            }
        });
        for (r, row) in by_row.chunks_exact(vectors).enumerate() {
            for (v, y) in row.iter().enumerate() {
                ys[v * m.rows + r] = *y;
            }
        }
        Ok(())
    }
}

/// The dot products of `row` with each of `xs`, each the same as if it were alone.
#[inline]
fn dot<const V: usize>(row: &[f32], xs: [&[f32]; V]) -> [f32; V] {
    let mut acc = [[0f32; LANES]; V];
    let whole = row.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let w: &[f32; LANES] = row[at..at + LANES].try_into().expect("LANES long");
        for v in 0..V {
            let x: &[f32; LANES] = xs[v][at..at + LANES].try_into().expect("LANES long");
            for i in 0..LANES {
                acc[v][i] += w[i] * x[i];
            }
        }
    }
    let mut out = [0f32; V];
    for v in 0..V {
        for at in whole..row.len() {
            acc[v][at - whole] += row[at] * xs[v][at];
        }
        let a = acc[v];
        out[v] = ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Group;

    #[test]
    fn matches_double_precision_and_itself() {
        let (rows, cols, vectors) = (70, 45, 7);
        let value = |i: usize| ((i * 7919) % 1009) as f32 / 1009.0 - 0.5;
        let w: Vec<f32> = (0..rows * cols).map(value).collect();
        let xs: Vec<f32> = (0..vectors * cols).map(|i| value(i + 17)).collect();
        let id = LinearId { layer: 0, group: Group::Down };
        let mut linear = FloatLinear::default();
        linear.matrix(id, rows, cols, &w).unwrap();
        let mut ys = vec![0f32; vectors * rows];
        linear.apply(&Call::default(), id, &xs, vectors, &mut ys).unwrap();
        for v in 0..vectors {
            let x = &xs[v * cols..(v + 1) * cols];
            let mut one = vec![0f32; rows];
            linear.apply(&Call::default(), id, x, 1, &mut one).unwrap();
            assert_eq!(one, &ys[v * rows..(v + 1) * rows]);
            for r in 0..rows {
                let exact: f64 = (0..cols).map(|c| f64::from(w[r * cols + c]) * f64::from(x[c])).sum();
                assert!((f64::from(one[r]) - exact).abs() < 1e-5);
            }
        }
        let call = Call::default();
        assert!(matches!(linear.apply(&call, id, &xs, 1, &mut ys), Err(Error::Bug(_))));
        call.cancel();
        assert!(matches!(linear.apply(&call, id, &xs, vectors, &mut ys), Err(Error::Cancelled)));
    }
}
