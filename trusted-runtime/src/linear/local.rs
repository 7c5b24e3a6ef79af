//! Linear layers inside the enclave: the reference that delegation must equal to the bit.

use super::{Call, Linear, LinearId, integer};
use crate::{
    Error,
    planner::{Plan, PlannedMatrix},
};
use kernels::{Ring, gemm::Columns, gemv::gemv};
use std::{ops::Range, sync::Arc};
use zeroize::Zeroizing;

/// Below this many weights a product is faster on one thread than handed around.
const PARALLEL_WEIGHTS: usize = 1 << 16;

/// From so many vectors on a product with all of them at once is faster.
pub(crate) const MANY: usize = 5;

/// Integer matrix products over a thread pool. Results do not depend on the number of threads: every
/// row is one exact integer sum.
pub struct LocalLinear {
    ring: Ring,
    plan: Arc<Plan>,
    threads: usize,
    pool: Option<rayon::ThreadPool>,
}

/// Vectors for [`gemv`], [vectors][cols], or made ready for a product with many at once.
#[derive(Clone, Copy)]
enum Inputs<'a> {
    Few(&'a [i32]),
    Many(&'a Columns),
}

/// A run of rows and its sums, [plane][vectors][rows.len()].
struct Part<'a> {
    rows: Range<usize>,
    sums: &'a mut [i32],
    result: Result<(), Error>,
}

impl LocalLinear {
    /// Uses `threads` threads, the caller's included.
    ///
    /// # Errors
    /// [`Error::Platform`] if the threads cannot be started.
    pub fn new(ring: Ring, plan: Arc<Plan>, threads: usize) -> Result<Self, Error> {
        let threads = threads.max(1);
        Ok(Self { ring, plan, threads, pool: super::helpers(threads, "local")? })
    }

    /// Rows `rows` of W for every vector, into `out`: [plane][vectors][rows.len()].
    fn rows(
        &self,
        m: &PlannedMatrix,
        x: Inputs<'_>,
        vectors: usize,
        rows: Range<usize>,
        out: &mut [i32],
    ) -> Result<(), Error> {
        let (isa, w) = (self.ring.isa(), &m.matrix.int8);
        for (plane, out) in out.chunks_exact_mut(vectors * rows.len()).enumerate() {
            let first = plane * m.matrix.rows;
            let rows = first + rows.start..first + rows.end;
            match x {
                Inputs::Few(ints) => gemv(isa, w, ints, vectors, rows, out),
                Inputs::Many(columns) => columns.multiply(isa, w, rows, bytemuck::cast_slice_mut(out)),
            }
            .map_err(|e| Error::Bug(format!("{}: {e}", m.matrix.id)))?;
        }
        Ok(())
    }
}

impl Linear for LocalLinear {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let m = self.plan.matrix(id)?;
        let rows = m.matrix.rows;
        super::check_sizes(m, xs, vectors, ys)?;
        let x = integer::quantize(m, xs, vectors)?;
        let planes = integer::planes(m.matrix.weights);
        let mut y = Zeroizing::new(vec![0i32; planes * vectors * rows]);
        let pool = self.pool.as_ref().filter(|_| m.matrix.int8.data().len() * vectors >= PARALLEL_WEIGHTS);
        // Four rows a step: kernels may work on several rows at once.
        let step = if pool.is_some() { rows.div_ceil(self.threads).next_multiple_of(4) } else { rows };
        let mut parts = Vec::new();
        let mut rest = y.as_mut_slice();
        for start in (0..rows).step_by(step) {
            let part = start..(start + step).min(rows);
            let (head, tail) = rest.split_at_mut(planes * vectors * part.len());
            parts.push(Part { rows: part, sums: head, result: Ok(()) });
            rest = tail;
        }
        let many = if vectors < MANY {
            None
        } else if m.narrow {
            Some(Columns::narrow(&x.ints, m.matrix.int8.cols()))
        } else {
            Some(Columns::words(bytemuck::cast_slice(&x.ints), m.matrix.int8.cols()))
        };
        let many = many.transpose().map_err(|e| Error::Bug(format!("{}: {e}", m.matrix.id)))?;
        let work = |p: &mut Part<'_>| {
            let x = many.as_ref().map_or(Inputs::Few(&x.ints), Inputs::Many);
            p.result = self.rows(m, x, vectors, p.rows.clone(), p.sums);
        };
        match (pool, parts.split_first_mut()) {
            (Some(pool), Some((first, others))) => pool.in_place_scope(|scope| {
                for p in others {
                    scope.spawn(|_| work(p));
                }
                work(first);
            }),
            _ => parts.iter_mut().for_each(work),
        }
        for Part { rows: part, sums, result } in parts {
            result?;
            let at = |plane: usize, v: usize, i: usize| sums[(plane * vectors + v) * part.len() + i];
            let lo_plane = planes - 1;
            for v in 0..vectors {
                for (i, row) in part.clone().enumerate() {
                    ys[v * rows + row] = integer::dequantize(m, row, x.steps[v], at(0, v, i), at(lo_plane, v, i));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::testing::{id, plan_of, ring, vector};
    use crate::model::quantize::Weights;

    #[test]
    fn the_result_is_the_integer_product_for_any_thread_count() {
        for weights in [Weights::W8, Weights::W16] {
            for (rows, cols, vectors) in [(3, 5, 1), (577, 130, 1), (260, 129, 3), (1030, 70, 32), (130, 257, 70)] {
                let plan = plan_of(weights, &[(rows, cols)]);
                let m = &plan.matrices[0];
                let xs: Vec<f32> = (0..vectors).flat_map(|v| vector(cols, v as u64)).collect();
                let ints = integer::quantize(m, &xs, vectors).unwrap();
                let mut want = Vec::new();
                for v in 0..vectors {
                    for r in 0..rows {
                        let dot = |row: usize| -> i64 {
                            let x = &ints.ints[v * cols..(v + 1) * cols];
                            m.matrix.int8.row(row).iter().zip(x).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum()
                        };
                        let y = if weights == Weights::W8 { dot(r) } else { 256 * dot(r) + dot(rows + r) };
                        #[expect(clippy::cast_possible_truncation, reason = "the result type")]
                        want.push((y as f64 * (ints.steps[v] * f64::from(m.matrix.scales[r]))) as f32);
                    }
                }
                for threads in [1, 2, 5] {
                    let local = LocalLinear::new(ring(), plan.clone(), threads).unwrap();
                    let mut ys = vec![f32::NAN; vectors * rows];
                    local.apply(&Call::default(), id(0), &xs, vectors, &mut ys).unwrap();
                    assert_eq!(ys, want, "{weights:?} {rows}x{cols} {vectors} {threads}");
                }
            }
        }
    }

    #[test]
    fn cancelled_calls_and_wrong_sizes_do_nothing() {
        let plan = plan_of(Weights::W8, &[(4, 3)]);
        let local = LocalLinear::new(ring(), plan, 1).unwrap();
        let call = Call::default();
        assert!(matches!(local.apply(&call, id(0), &[0.0; 3], 1, &mut [0.0; 5]), Err(Error::Bug(_))));
        assert!(matches!(local.apply(&call, id(9), &[0.0; 3], 1, &mut [0.0; 4]), Err(Error::Bug(_))));
        call.cancel();
        assert!(matches!(local.apply(&call, id(0), &[0.0; 3], 1, &mut [0.0; 4]), Err(Error::Cancelled)));
    }
}
