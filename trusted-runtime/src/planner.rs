//! Fits every matrix to the ring: its tiles, its plaintext modulus t = 2^k, and how large a vector may be.
//!
//! All three follow from the weights and the ring, never from the machine, so every path computes the
//! same integers. A matrix that does not fit is refused by name.

pub mod residency;
pub mod tiling;

use crate::{Error, linear::LinearId, model::quantize::QuantizedMatrix};
use kernels::{Int8Matrix, Ring, Tiling};
use std::collections::HashMap;
use trusted_he::WeightNorms;

/// Least root mean square of the integers that a vector is rounded to. Below 128 the rounding of the activations
/// (uniform, 1/sqrt(12) of a step, 0.23 % of their size) would exceed the rounding of int8 weights, and
/// with it the error that the choice of w8 already accepts.
const LEAST_RMS: f64 = 128.0;

/// A matrix and how it is computed.
pub struct PlannedMatrix {
    /// The integers and their scales.
    pub matrix: QuantizedMatrix,
    /// How the int8 planes are cut.
    pub tiling: Tiling,
    /// k of t = 2^k; at most 32.
    pub log2_t: u32,
    /// Largest `||x_int||_2^2` for which every `|y_int| < t/2`, by Cauchy-Schwarz over the longest row.
    pub norm_limit_squared: u64,
    /// What the noise bound is computed from.
    pub norms: WeightNorms,
}

/// Every matrix of a model, planned.
pub struct Plan {
    /// In the model's order.
    pub matrices: Vec<PlannedMatrix>,
    index: HashMap<LinearId, usize>,
}

impl Plan {
    /// The matrix `id`.
    ///
    /// # Errors
    /// [`Error::Bug`] if the model asks for one that was never planned.
    pub fn matrix(&self, id: LinearId) -> Result<&PlannedMatrix, Error> {
        self.position(id).map(|i| &self.matrices[i])
    }

    /// Position of `id` in `matrices`.
    ///
    /// # Errors
    /// [`Error::Bug`] if the model asks for one that was never planned.
    pub fn position(&self, id: LinearId) -> Result<usize, Error> {
        self.index.get(&id).copied().ok_or_else(|| Error::Bug(format!("{id} is not in the plan")))
    }
}

/// Plans every matrix.
///
/// # Errors
/// [`Error::Model`] naming the matrix that does not fit, with the figures; [`Error::Bug`] on two matrices of
/// one name or inconsistent sizes.
pub fn plan(ring: &Ring, matrices: Vec<QuantizedMatrix>) -> Result<Plan, Error> {
    let mut index = HashMap::new();
    let mut planned = Vec::with_capacity(matrices.len());
    for matrix in matrices {
        if index.insert(matrix.id, planned.len()).is_some() {
            return Err(Error::Bug(format!("{} is planned twice", matrix.id)));
        }
        planned.push(plan_matrix(ring, matrix)?);
    }
    Ok(Plan { matrices: planned, index })
}

#[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53, compared with slack")]
fn plan_matrix(ring: &Ring, matrix: QuantizedMatrix) -> Result<PlannedMatrix, Error> {
    let (id, w) = (matrix.id, &matrix.int8);
    let planes = crate::linear::integer::planes(matrix.weights);
    if w.rows() != matrix.rows * planes || matrix.scales.len() != matrix.rows {
        return Err(Error::Bug(format!(
            "{id} has {} rows, {} int8 rows and {} scales",
            matrix.rows,
            w.rows(),
            matrix.scales.len()
        )));
    }
    let tiling = tiling::choose(w.rows(), w.cols(), ring.n())?;
    let rows = row_norms(w);
    let norms = WeightNorms {
        tile_l2_squared: (0..tiling.tiles())
            .map(|i| rows[tiling.tile_row_range(i)].iter().map(|r| r.l2_squared).sum())
            .max()
            .unwrap_or(0),
        row_l1: rows.iter().map(|r| r.l1).max().unwrap_or(0),
    };
    let longest = rows.iter().map(|r| r.l2_squared).max().unwrap_or(0);
    let refuse = |why: String| {
        Error::Model(format!(
            "{id} ({}x{} int8, longest row {:.0}, heaviest tile {:.0}) does not fit the ring N = {}, log2 q = {:.1}: {why}",
            w.rows(),
            w.cols(),
            (longest as f64).sqrt(),
            (norms.tile_l2_squared as f64).sqrt(),
            ring.n(),
            ring.params().log2_q()
        ))
    };
    let log2_t = norms
        .largest_log2_t(ring.params())
        .ok_or_else(|| refuse("no plaintext modulus keeps decryption errors below 2^-60".into()))?;
    // |y_i|^2 <= ||w_i||^2·||x_int||^2 <= (t/2 - 1)^2.
    let half = (1u64 << (log2_t - 1)) - 1;
    let norm_limit_squared = (half * half).checked_div(longest).unwrap_or(u64::MAX);
    let rms = (norm_limit_squared as f64 / w.cols() as f64).sqrt();
    if rms < LEAST_RMS {
        return Err(refuse(format!(
            "t = 2^{log2_t} leaves {rms:.1} steps of root mean square a vector entry, {LEAST_RMS} are needed"
        )));
    }
    Ok(PlannedMatrix { matrix, tiling, log2_t, norm_limit_squared, norms })
}

struct RowNorms {
    l2_squared: u64,
    l1: u64,
}

fn row_norms(w: &Int8Matrix) -> Vec<RowNorms> {
    let norms = |row: &[i8]| RowNorms {
        // Chunks of 2^16 keep the inner sums inside u32: 2^16·2^14 = 2^30.
        l2_squared: row.chunks(1 << 16).map(|c| u64::from(c.iter().map(|&x| square(x)).sum::<u32>())).sum(),
        l1: row.chunks(1 << 16).map(|c| u64::from(c.iter().map(|&x| u32::from(x.unsigned_abs())).sum::<u32>())).sum(),
    };
    (0..w.rows()).map(|r| norms(w.row(r))).collect()
}

fn square(x: i8) -> u32 {
    u32::from(x.unsigned_abs()) * u32::from(x.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{linear::Group, model::quantize::Weights, planner::residency::Wish};
    use kernels::{PinnedTiles, params::DEFAULT};
    use proto::v1::Residency;

    fn ring() -> Ring {
        Ring::new(DEFAULT.check().unwrap()).unwrap()
    }

    fn matrix(layer: u32, rows: usize, cols: usize, weight: impl Fn(usize) -> i8) -> QuantizedMatrix {
        let int8 = Int8Matrix::new(rows, cols, (0..rows * cols).map(weight).collect()).unwrap();
        let id = LinearId { layer, group: Group::Down };
        QuantizedMatrix { id, weights: Weights::W8, rows, int8, scales: vec![1.0; rows] }
    }

    fn mixed(i: usize) -> i8 {
        i8::try_from((i * 7919) % 255).map_or_else(|_| -64, |x| x - 64)
    }

    #[test]
    fn an_ordinary_matrix_keeps_its_full_range() {
        let plan = plan(&ring(), vec![matrix(3, 576, 1536, mixed)]).unwrap();
        let m = plan.matrix(LinearId { layer: 3, group: Group::Down }).unwrap();
        assert!(m.log2_t >= 30, "{}", m.log2_t);
        assert!(m.norms.log2_failure(ring().params(), m.log2_t) <= -60.0);
        let row: u64 = m.matrix.int8.row(5).iter().map(|&x| u64::from(square(x))).sum();
        let half = 1u64 << (m.log2_t - 1);
        assert!(u128::from(row) * u128::from(m.norm_limit_squared) < u128::from(half) * u128::from(half));
        assert!(plan.matrix(LinearId { layer: 4, group: Group::Down }).is_err());
    }

    #[test]
    fn a_matrix_that_does_not_fit_is_refused_by_name_with_its_figures() {
        let err = plan(&ring(), vec![matrix(7, 64, 60_000, |_| 127)]).err().unwrap().to_string();
        assert!(err.starts_with("blk.7.down (64x60000 int8, longest row 31109"), "{err}");
        assert!(err.contains("N = 2048, log2 q = 51.0") && err.contains("128 are needed"), "{err}");
    }

    #[test]
    fn the_noise_bound_alone_can_refuse() {
        let small = kernels::ParamsLiteral { log_n: 11, q: 1_032_193 }.check().unwrap();
        let err = plan(&Ring::new(small).unwrap(), vec![matrix(0, 64, 60_000, |_| 127)]).err().unwrap().to_string();
        assert!(err.starts_with("blk.0.down") && err.contains("no plaintext modulus"), "{err}");
    }

    #[test]
    fn duplicates_are_refused_and_a_zero_matrix_is_fine() {
        let err = plan(&ring(), vec![matrix(0, 2, 2, mixed), matrix(0, 2, 2, mixed)]).err().unwrap();
        assert!(err.to_string().contains("blk.0.down is planned twice"), "{err}");
        assert_eq!(plan(&ring(), vec![matrix(0, 8, 8, |_| 0)]).unwrap().matrices[0].log2_t, 32);
    }

    #[test]
    fn a_budget_pins_what_fits() {
        let ring = ring();
        let plan = plan(&ring, vec![matrix(0, 64, 64, mixed), matrix(1, 256, 256, mixed)]).unwrap();
        let pinned = PinnedTiles::bytes_for(&ring, &plan.matrices[0].tiling) as u64;
        let large = PinnedTiles::bytes_for(&ring, &plan.matrices[1].tiling) as u64;
        let at = |budget| plan.residency(&ring, Wish::Auto, budget);
        assert_eq!(at(u64::MAX), vec![Residency::Pinned; 2]);
        assert_eq!(at(0), vec![Residency::Fallback; 2]);
        assert_eq!(at(large + 64 * 64), vec![Residency::Fallback, Residency::Pinned]);
        assert_eq!(at(pinned + 256 * 256), vec![Residency::Pinned, Residency::Fallback]);
        assert_eq!(plan.residency(&ring, Wish::Pinned, 0), vec![Residency::Pinned; 2]);
        assert_eq!(plan.residency(&ring, Wish::Fallback, u64::MAX), vec![Residency::Fallback; 2]);
    }
}
