//! The one integer semantics: what every way of executing a linear layer computes.
//!
//! `x_int = round(x/step)`, with a step per vector so large that no output can leave (-t/2, t/2);
//! `y_int = W_int·x_int` exactly; `y = step·s_i·y_int`. Steps and norms are f64 with a fixed order of
//! operations (IEEE add, multiply, divide, square root), so every machine rounds alike.

use crate::{Error, model::quantize::Weights, planner::PlannedMatrix};
use rayon::prelude::*;
use zeroize::Zeroize;

/// Largest `|x_int|`: the local kernel splits an entry into two 12-bit halves.
const MAX_ENTRY: f64 = 8_388_606.0;
/// Largest `|x_int|` for a matrix that is planned narrow: it fits 16 bits.
const MAX_NARROW: f64 = 32_766.0;
/// 1.5·2^52: adding it rounds an f64 below 2^51 to the nearest integer, ties to even, in the low mantissa bits.
const ROUND: f64 = 6_755_399_441_055_744.0;
const LANES: usize = 8;
/// Entries from which vectors are worth several threads: some microseconds of work.
const PARALLEL_FROM: usize = 1 << 13;

/// int8 planes of a weight format.
pub fn planes(weights: Weights) -> usize {
    match weights {
        Weights::W8 => 1,
        Weights::W16 => 2,
    }
}

/// Vectors as integers: activations, so zeroized on drop and never printed.
pub struct IntVectors {
    /// [vectors][cols]; below 2^23 in magnitude.
    pub ints: Vec<i32>,
    /// One step a vector.
    pub steps: Vec<f64>,
}

impl Drop for IntVectors {
    fn drop(&mut self) {
        self.ints.zeroize();
        self.steps.zeroize();
    }
}

/// Rounds `vectors` vectors, `xs` being [vectors][cols], to the integers that matrix `m` allows.
///
/// # Errors
/// [`Error::Bug`] if sizes do not fit, [`Error::Model`] if an activation is not finite.
pub fn quantize(m: &PlannedMatrix, xs: &[f32], vectors: usize) -> Result<IntVectors, Error> {
    let cols = m.matrix.int8.cols();
    if xs.len() != vectors * cols {
        return Err(Error::Bug(format!("{}: {} inputs for {vectors} vectors of {cols}", m.matrix.id, xs.len())));
    }
    let mut out = IntVectors { ints: vec![0; xs.len()], steps: vec![0.0; vectors] };
    let one = |((x, ints), to): ((&[f32], &mut [i32]), &mut f64)| {
        let step = step(m, x)?;
        let inverse = 1.0 / step;
        for (i, &x) in ints.iter_mut().zip(x) {
            *i = low_bits(f64::from(x) * inverse + ROUND);
        }
        let norm_squared: u64 = ints.iter().map(|&i| u64::from(i.unsigned_abs()) * u64::from(i.unsigned_abs())).sum();
        if norm_squared > m.norm_limit_squared {
            return Err(Error::Bug(format!("{}: a rounded vector is longer than its limit", m.matrix.id)));
        }
        *to = step;
        Ok(())
    };
    if vectors == 1 || xs.len() < PARALLEL_FROM {
        xs.chunks_exact(cols).zip(out.ints.chunks_exact_mut(cols)).zip(&mut out.steps).try_for_each(one)?;
    } else {
        let ints = out.ints.par_chunks_exact_mut(cols);
        xs.par_chunks_exact(cols).zip(ints).zip(&mut out.steps).try_for_each(one)?;
    }
    Ok(out)
}

/// Real outputs of vectors, `ys` being [vectors][rows], from integers [vectors][planes·rows] and a step each.
pub fn dequantize_all(m: &PlannedMatrix, steps: &[f64], sums: &[i32], ys: &mut [f32]) {
    let (rows, int8_rows) = (m.matrix.rows, m.matrix.int8.rows());
    let lo_plane = int8_rows - rows;
    let one = |((ys, sums), step): ((&mut [f32], &[i32]), &f64)| {
        for (row, y) in ys.iter_mut().enumerate() {
            *y = dequantize(m, row, *step, sums[row], sums[lo_plane + row]);
        }
    };
    if steps.len() == 1 || ys.len() < PARALLEL_FROM {
        ys.chunks_exact_mut(rows).zip(sums.chunks_exact(int8_rows)).zip(steps).for_each(one);
    } else {
        ys.par_chunks_exact_mut(rows).zip(sums.par_chunks_exact(int8_rows)).zip(steps).for_each(one);
    }
}

/// The smallest step (up to rounding) for which `||x_int||^2` stays within the limit and every entry in range.
#[expect(clippy::cast_precision_loss, reason = "a limit that is checked exactly afterwards")]
fn step(m: &PlannedMatrix, x: &[f32]) -> Result<f64, Error> {
    let (mut squares, mut largest) = ([0f64; LANES], [0f32; LANES]);
    let mut finite = true;
    for chunk in x.chunks(LANES) {
        for (l, &x) in chunk.iter().enumerate() {
            squares[l] += f64::from(x) * f64::from(x);
            largest[l] = largest[l].max(x.abs());
            finite &= x.is_finite();
        }
    }
    if !finite {
        return Err(Error::Model(format!("{}: an activation is not finite", m.matrix.id)));
    }
    let norm = squares.iter().sum::<f64>().sqrt();
    let largest = f64::from(largest.iter().fold(0f32, |a, &b| a.max(b)));
    if largest == 0.0 {
        return Ok(1.0);
    }
    // ||round(x/step)|| <= ||x||/step + sqrt(cols)/2, the triangle inequality with |rounding| <= 1/2.
    let room = (m.norm_limit_squared as f64).sqrt() - (x.len() as f64).sqrt() / 2.0 - 1.0;
    let most = if m.narrow { MAX_NARROW } else { MAX_ENTRY };
    Ok((norm / room).max(largest / most) * (1.0 + f64::EPSILON * 64.0))
}

/// The integer that `v - ROUND` is, for `|v - ROUND| < 2^31`.
#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the low 32 bits in two's complement")]
fn low_bits(v: f64) -> i32 {
    v.to_bits() as u32 as i32
}

/// Writes `y = step·s_i·y_int` for output row `row` of one vector. `hi` and `lo` are the products of the
/// planes; for w8 there is `hi` alone and `lo` is ignored.
#[inline]
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "|y_int| < 2^40 is exact in f64; f32 is the result type"
)]
pub fn dequantize(m: &PlannedMatrix, row: usize, step: f64, hi: i32, lo: i32) -> f32 {
    let y = match m.matrix.weights {
        Weights::W8 => i64::from(hi),
        Weights::W16 => 256 * i64::from(hi) + i64::from(lo),
    };
    (y as f64 * (step * f64::from(m.matrix.scales[row]))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        linear::{Group, LinearId},
        model::quantize::QuantizedMatrix,
        planner,
    };
    use kernels::{Int8Matrix, Ring, params::DEFAULT};
    use proptest::prelude::*;

    fn planned(cols: usize, weight: i8) -> planner::Plan {
        let int8 = Int8Matrix::new(4, cols, vec![weight; 4 * cols]).unwrap();
        let id = LinearId { layer: 0, group: Group::Head };
        let m = QuantizedMatrix { id, weights: Weights::W8, rows: 4, int8, scales: vec![0.5; 4] };
        planner::plan(&Ring::new(DEFAULT.check().unwrap()).unwrap(), vec![m]).unwrap()
    }

    proptest! {
        #[test]
        fn outputs_cannot_overflow(seed in any::<u64>(), cols in 1usize..600, exponent in -60i32..60, spiky in any::<bool>()) {
            let plan = planned(cols, -127);
            let m = &plan.matrices[0];
            let mut s = seed | 1;
            let x: Vec<f32> = (0..cols).map(|i| {
                s ^= s << 13; s ^= s >> 7; s ^= s << 17;
                let u = (s >> 40) as f32 / (1 << 23) as f32 - 1.0;
                u * 2f32.powi(exponent) * if spiky && i == 0 { 1000.0 } else { 1.0 }
            }).collect();
            let v = quantize(m, &x, 1).unwrap();
            let y: i64 = v.ints.iter().map(|&i| -127 * i64::from(i)).sum();
            prop_assert!(y.abs() < 1 << (m.log2_t - 1));
            for (&i, &x) in v.ints.iter().zip(&x) {
                prop_assert!(i.abs() < 1 << 23);
                prop_assert!((f64::from(x) / v.steps[0] - f64::from(i)).abs() <= 0.5001);
            }
        }
    }

    #[test]
    fn the_same_sign_everywhere_reaches_the_limit_but_not_beyond() {
        let plan = planned(576, 127);
        let v = quantize(&plan.matrices[0], &[1e-3; 576], 1).unwrap();
        let y: i64 = v.ints.iter().map(|&i| 127 * i64::from(i)).sum();
        let limit = 1i64 << (plan.matrices[0].log2_t - 1);
        assert!(y < limit && y > limit / 100 * 98, "{y}");
    }

    #[test]
    fn zero_vectors_subnormals_and_bad_activations() {
        let plan = planned(3, 1);
        let m = &plan.matrices[0];
        assert_eq!(quantize(m, &[0.0; 3], 1).unwrap().ints, [0; 3]);
        assert!(quantize(m, &[f32::from_bits(1); 3], 1).unwrap().ints.iter().all(|&i| i > 1 << 22));
        assert!(quantize(m, &[f32::MAX; 3], 1).unwrap().ints.iter().all(|&i| i > 1 << 22));
        let err = quantize(m, &[1.0, f32::NAN, 0.0], 1).err().unwrap().to_string();
        assert_eq!(err, "head: an activation is not finite");
        assert!(quantize(m, &[f32::INFINITY, 0.0, 0.0], 1).is_err());
        assert!(quantize(m, &[0.0; 4], 1).is_err());
    }

    #[test]
    fn rounding_is_to_the_nearest_ties_to_even() {
        for (x, r) in [(0.5, 0), (1.5, 2), (-0.5, 0), (-1.5, -2), (2.4999, 2), (-2.5001, -3), (8_388_606.0, 8_388_606)]
        {
            assert_eq!(low_bits(x + ROUND), r, "{x}");
        }
    }
}
