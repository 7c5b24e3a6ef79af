//! Plans for several evaluators: each holds some rows of every matrix.

use super::{NARROW, Plan, PlannedMatrix, measure};
use crate::{Error, linear::integer::planes, model::quantize::QuantizedMatrix};
use kernels::{Int8Matrix, Ring};
use std::ops::Range;

/// The rows of shard `index` of `count` of a matrix of `rows` rows.
pub fn rows(rows: usize, index: usize, count: usize) -> Range<usize> {
    rows * index / count..rows * (index + 1) / count
}

impl Plan {
    /// The plan of shard `index` of `count`. Activations are rounded as the whole matrix asks, so that every shard computes
    /// its rows of the same integers.
    ///
    /// # Errors
    /// [`Error::Config`] if a matrix has fewer rows than there are shards, [`Error::Model`] if rows alone do not fit the
    /// plaintext modulus of the whole.
    pub fn shard(&self, ring: &Ring, index: usize, count: usize) -> Result<Self, Error> {
        let matrices = self.matrices.iter().map(|m| shard(ring, m, index, count)).collect::<Result<_, _>>()?;
        Ok(Self { matrices, index: self.index.clone() })
    }
}

fn shard(ring: &Ring, m: &PlannedMatrix, index: usize, count: usize) -> Result<PlannedMatrix, Error> {
    let (whole, id) = (&m.matrix, m.matrix.id);
    if whole.rows < count {
        return Err(Error::Config(format!("{id} has {} rows, too few for {count} evaluators", whole.rows)));
    }
    let (own, cols) = (rows(whole.rows, index, count), whole.int8.cols());
    let mut data = Vec::with_capacity(planes(whole.weights) * own.len() * cols);
    for plane in 0..planes(whole.weights) {
        let first = plane * whole.rows;
        data.extend_from_slice(&whole.int8.data()[(first + own.start) * cols..(first + own.end) * cols]);
    }
    let int8 = Int8Matrix::new(planes(whole.weights) * own.len(), cols, data);
    let int8 = int8.map_err(|e| Error::Bug(format!("{id}: {e}")))?;
    let scales = whole.scales[own.clone()].to_vec();
    let matrix = QuantizedMatrix { id, weights: whole.weights, rows: own.len(), int8, scales };
    let measured = measure(&matrix, ring.n())?;
    let fits = measured.room(ring.params()).is_some_and(|(log2_t, ..)| log2_t >= m.log2_t);
    if !fits {
        return Err(Error::Model(format!(
            "{id}: rows {own:?} alone do not fit t = 2^{} of the whole matrix; use fewer evaluators",
            m.log2_t
        )));
    }
    let (log2_t, norm_limit_squared) = (m.log2_t, m.norm_limit_squared);
    let narrow = norm_limit_squared <= NARROW * NARROW;
    Ok(PlannedMatrix { matrix, tiling: measured.tiling, log2_t, norm_limit_squared, narrow, norms: measured.norms })
}

#[cfg(test)]
mod tests {
    use crate::{
        linear::testing::{plan_of, ring},
        model::quantize::Weights,
    };

    #[test]
    fn shards_are_the_rows_of_the_whole() {
        for weights in [Weights::W8, Weights::W16] {
            let plan = plan_of(weights, &[(5, 9), (300, 70)]);
            for count in [1, 2, 3] {
                let shards: Vec<_> = (0..count).map(|i| plan.shard(&ring(), i, count).expect("rows enough")).collect();
                for (k, whole) in plan.matrices.iter().enumerate() {
                    let mut row = 0;
                    for m in shards.iter().map(|s| &s.matrices[k]) {
                        assert_eq!((m.log2_t, m.norm_limit_squared), (whole.log2_t, whole.norm_limit_squared));
                        for r in 0..m.matrix.rows {
                            for c in 0..whole.matrix.int8.cols() {
                                assert_eq!(m.matrix.integer(r, c), whole.matrix.integer(row + r, c));
                            }
                            assert_eq!(m.matrix.scales[r], whole.matrix.scales[row + r]);
                        }
                        row += m.matrix.rows;
                    }
                    assert_eq!(row, whole.matrix.rows);
                }
            }
            let error = plan.shard(&ring(), 0, 6).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("has 5 rows, too few for 6 evaluators"), "{error}");
        }
    }
}
