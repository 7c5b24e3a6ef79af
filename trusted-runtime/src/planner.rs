//! Fits every matrix to the ring: its tiles, its plaintext modulus t = 2^k, and how large a vector may be.
//!
//! All three follow from the weights and the ring, never from the machine, so every path computes the
//! same integers. A matrix that does not fit is refused by name.

pub mod calibration;
pub mod choice;
pub mod costs;
pub mod graph;
pub mod residency;
pub mod shard;
pub mod tiling;

use crate::{
    Error,
    linear::LinearId,
    model::quantize::{QuantizedMatrix, Weights},
};
use kernels::{Int8Matrix, Isa, Params, Ring, Tiling, params::RINGS};
use std::collections::HashMap;
use trusted_he::WeightNorms;

/// Least root mean square of the integers that a vector is rounded to. Below 128 the rounding of the activations
/// (uniform, 1/sqrt(12) of a step, 0.23 % of their size) would exceed the rounding of int8 weights, and
/// with it the error that the choice of w8 already accepts.
const LEAST_RMS: f64 = 128.0;
/// What a ring should leave to be taken before wider ones, in int8 steps: then the rounding of activations adds at most a
/// quarter to the variance that the rounding of weights causes. The lower plane of `w16` makes its steps 2^8 times as fine.
const WANTED_RMS: f64 = 256.0;
const WANTED_RMS_W16: f64 = 256.0 * WANTED_RMS;

/// Longest vector whose entries are held below 2^15: one entry would have to be a quarter of it to lose precision.
const NARROW: u64 = 1 << 17;

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
    /// Whether every `|x_int|` is held below 2^15, so that products in the enclave need one 16-bit digit: where a vector
    /// that is not nearly all in one entry stays below that anyway.
    pub narrow: bool,
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

/// The ring of a model: the narrowest of [`RINGS`] whose plaintext moduli leave every matrix as fine activations as its
/// weights deserve, or the widest.
///
/// # Errors
/// [`Error::Config`] if the instruction set that `BIFROST_ISA` asks for is not there.
pub fn choose_ring(matrices: &[QuantizedMatrix]) -> Result<Ring, Error> {
    let isa = Isa::detect().map_err(|e| Error::Config(e.to_string()))?;
    let checked = |literal: kernels::ParamsLiteral| literal.check().map_err(|e| Error::Bug(e.to_string()));
    let norms = matrices.iter().map(|m| measure(m, 1 << RINGS[0].log_n)).collect::<Result<Vec<_>, _>>()?;
    for literal in RINGS {
        let params = checked(literal)?;
        let enough = |(m, measured): (&QuantizedMatrix, &Measured)| {
            let wanted = if m.weights == Weights::W16 { WANTED_RMS_W16 } else { WANTED_RMS };
            measured.room(&params).is_some_and(|(_, _, rms)| rms >= wanted)
        };
        if matrices.iter().zip(&norms).all(enough) {
            return Ok(Ring::with_isa(params, isa));
        }
    }
    Ok(Ring::with_isa(checked(kernels::params::DEFAULT)?, isa))
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

fn plan_matrix(ring: &Ring, matrix: QuantizedMatrix) -> Result<PlannedMatrix, Error> {
    let measured = measure(&matrix, ring.n())?;
    let refuse = |why: String| {
        Error::Model(format!(
            "{} ({}x{} int8, longest row {:.0}, heaviest tile {:.0}) does not fit the ring N = {}, log2 q = {:.1}: {why}",
            matrix.id,
            matrix.int8.rows(),
            matrix.int8.cols(),
            root(measured.longest),
            root(measured.norms.tile_l2_squared),
            ring.n(),
            ring.params().log2_q()
        ))
    };
    let (log2_t, norm_limit_squared, rms) = measured
        .room(ring.params())
        .ok_or_else(|| refuse("no plaintext modulus keeps decryption errors below 2^-60".into()))?;
    if rms < LEAST_RMS {
        return Err(refuse(format!(
            "t = 2^{log2_t} leaves {rms:.1} steps of root mean square a vector entry, {LEAST_RMS} are needed"
        )));
    }
    let Measured { tiling, norms, .. } = measured;
    let narrow = norm_limit_squared <= NARROW * NARROW;
    Ok(PlannedMatrix { matrix, tiling, log2_t, norm_limit_squared, narrow, norms })
}

/// What the weights of a matrix say about its noise and its outputs.
struct Measured {
    tiling: Tiling,
    norms: WeightNorms,
    /// Largest `||w_i||_2^2`.
    longest: u64,
}

impl Measured {
    /// log2 t, the largest `||x_int||_2^2` under it, and the root mean square of entries that this is; nothing if no t fits.
    #[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53, compared with slack")]
    fn room(&self, params: &Params) -> Option<(u32, u64, f64)> {
        let log2_t = self.norms.largest_log2_t(params)?;
        // |y_i|^2 <= ||w_i||^2·||x_int||^2 <= (t/2 - 1)^2.
        let half = (1u64 << (log2_t - 1)) - 1;
        let limit = (half * half).checked_div(self.longest).unwrap_or(u64::MAX);
        Some((log2_t, limit, (limit as f64 / self.tiling.cols() as f64).sqrt()))
    }
}

fn measure(matrix: &QuantizedMatrix, n: usize) -> Result<Measured, Error> {
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
    let tiling = tiling::choose(w.rows(), w.cols(), n)?;
    let rows = row_norms(w);
    let norms = WeightNorms {
        tile_l2_squared: (0..tiling.tiles())
            .map(|i| rows[tiling.tile_row_range(i)].iter().map(|r| r.l2_squared).sum())
            .max()
            .unwrap_or(0),
        row_l1: rows.iter().map(|r| r.l1).max().unwrap_or(0),
    };
    Ok(Measured { tiling, norms, longest: rows.iter().map(|r| r.l2_squared).max().unwrap_or(0) })
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn root(squared: u64) -> f64 {
    (squared as f64).sqrt()
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
    use crate::{linear::Group, planner::residency::Wish};
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
    fn wide_rows_and_fine_weights_take_wider_rings() {
        let bits = |matrices: Vec<QuantizedMatrix>| choose_ring(&matrices).unwrap().params().bits();
        assert_eq!(bits(vec![matrix(0, 576, 576, mixed)]), 45);
        assert_eq!(bits(vec![matrix(0, 576, 576, mixed), matrix(1, 576, 1536, mixed)]), 47);
        let w16 = |m: QuantizedMatrix| QuantizedMatrix {
            weights: Weights::W16,
            rows: m.rows / 2,
            scales: vec![1.0; m.rows / 2],
            ..m
        };
        assert_eq!(bits(vec![w16(matrix(0, 1152, 576, mixed))]), 51);
        // The widest does not fit either, and planning says so.
        assert_eq!(bits(vec![matrix(0, 64, 60_000, |_| 127)]), 51);
        let narrow = choose_ring(&[matrix(0, 576, 576, mixed)]).unwrap();
        let plan = plan(&narrow, vec![matrix(0, 576, 576, mixed)]).unwrap();
        let rms = (plan.matrices[0].norm_limit_squared as f64 / 576.0).sqrt();
        assert!(rms >= WANTED_RMS && plan.matrices[0].log2_t < 30, "{rms}");
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
