//! Per-row symmetric quantization of linear weights to the integers that every path computes with.

use crate::{Error, linear::LinearId};
use kernels::Int8Matrix;

/// How many bits the integer weights have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Weights {
    /// One int8 plane.
    #[default]
    W8,
    /// Two int8 planes: W_int = 256·hi + lo.
    W16,
}

impl Weights {
    /// The name used on command lines and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::W8 => "w8",
            Self::W16 => "w16",
        }
    }

    /// Largest magnitude of an integer weight: 127, or 256·127 + 127.
    pub fn largest(self) -> i32 {
        match self {
            Self::W8 => 127,
            Self::W16 => 256 * 127 + 127,
        }
    }
}

impl std::str::FromStr for Weights {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        match s {
            "w8" => Ok(Self::W8),
            "w16" => Ok(Self::W16),
            other => Err(Error::Config(format!("weights {other:?}, expected w8 or w16"))),
        }
    }
}

/// One linear matrix as integers: `W = diag(scales)·W_int`.
#[derive(Clone, Debug)]
pub struct QuantizedMatrix {
    /// Which matrix.
    pub id: LinearId,
    /// Which integers.
    pub weights: Weights,
    /// Rows of W; `int8` has as many for w8, and for w16 twice as many: all hi rows, then all lo rows.
    pub rows: usize,
    /// The integer planes.
    pub int8: Int8Matrix,
    /// One scale per row of W; positive and finite.
    pub scales: Vec<f32>,
}

impl QuantizedMatrix {
    /// Quantizes `values`, [rows][cols]: per row, scale = max|w| / largest and W_int = w / scale rounded to
    /// nearest, ties to even. A row of zeros gets scale 1.
    ///
    /// # Errors
    /// [`Error::Bug`] if the shape does not fit.
    pub fn quantize(id: LinearId, weights: Weights, rows: usize, cols: usize, values: &[f32]) -> Result<Self, Error> {
        if rows == 0 || cols == 0 || values.len() != rows * cols {
            return Err(Error::Bug(format!("{id}: {} values for {rows} by {cols}", values.len())));
        }
        let planes = match weights {
            Weights::W8 => 1,
            Weights::W16 => 2,
        };
        let mut data = vec![0i8; planes * rows * cols];
        let (high, low) = data.split_at_mut(rows * cols);
        let mut scales = Vec::with_capacity(rows);
        for (r, row) in values.chunks_exact(cols).enumerate() {
            let at = r * cols..(r + 1) * cols;
            let scale = row_scale(row, weights);
            let inverse = 1.0 / scale;
            match weights {
                Weights::W8 => {
                    for (q, w) in high[at].iter_mut().zip(row) {
                        *q = low_byte(round(w * inverse, weights));
                    }
                }
                Weights::W16 => {
                    for ((h, l), w) in high[at.clone()].iter_mut().zip(&mut low[at]).zip(row) {
                        let integer = round(w * inverse, weights);
                        *l = low_byte(integer);
                        *h = low_byte((integer - i32::from(*l)) >> 8);
                    }
                }
            }
            scales.push(scale);
        }
        let int8 = Int8Matrix::new(planes * rows, cols, data).map_err(|e| Error::Bug(format!("{id}: {e}")))?;
        Ok(Self { id, weights, rows, int8, scales })
    }

    /// Columns of W.
    pub fn cols(&self) -> usize {
        self.int8.cols()
    }

    /// The integer weight at row `r`, column `c`.
    pub fn integer(&self, r: usize, c: usize) -> i32 {
        let first = i32::from(self.int8.row(r)[c]);
        match self.weights {
            Weights::W8 => first,
            Weights::W16 => 256 * first + i32::from(self.int8.row(self.rows + r)[c]),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "both values of largest() are below 2^24")]
fn row_scale(row: &[f32], weights: Weights) -> f32 {
    let largest = row.iter().fold(0f32, |m, w| m.max(w.abs()));
    let scale = largest / weights.largest() as f32;
    // A row whose scale or its inverse is not a normal number has no weight that matters in f32.
    if scale.is_normal() && (1.0 / scale).is_normal() { scale } else { 1.0 }
}

#[expect(clippy::cast_possible_truncation, reason = "clamped to the range of the weights")]
fn round(value: f32, weights: Weights) -> i32 {
    (value.round_ties_even() as i32).clamp(-weights.largest(), weights.largest())
}

/// The value in [-128, 127] that is congruent to `integer` mod 256.
#[expect(clippy::cast_possible_truncation, reason = "taking the low byte is the point")]
fn low_byte(integer: i32) -> i8 {
    integer as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Group;

    const ID: LinearId = LinearId { layer: 3, group: Group::Down };

    #[test]
    fn every_weight_is_within_half_a_step() {
        let values: Vec<f32> =
            (0..6 * 50).map(|i| ((i * 7919 % 1009) as f32 / 1009.0 - 0.5) * (i / 50) as f32).collect();
        for weights in [Weights::W8, Weights::W16] {
            let q = QuantizedMatrix::quantize(ID, weights, 6, 50, &values).unwrap();
            assert_eq!((q.rows, q.cols(), q.scales.len()), (6, 50, 6));
            for r in 0..6 {
                let mut largest = 0;
                for c in 0..50 {
                    let back = q.scales[r] * q.integer(r, c) as f32;
                    assert!((back - values[r * 50 + c]).abs() <= q.scales[r] * 0.501, "{weights:?} {r} {c}");
                    largest = largest.max(q.integer(r, c).abs());
                }
                assert_eq!(largest, if r == 0 { 0 } else { weights.largest() });
            }
        }
    }

    #[test]
    fn planes_recombine_at_the_extremes() {
        let values = [1.0, -1.0, 0.25, -0.25, 128.0 / 32639.0, -128.0 / 32639.0, 127.0 / 32639.0, -129.0 / 32639.0];
        let q = QuantizedMatrix::quantize(ID, Weights::W16, 1, 8, &values).unwrap();
        let integers: Vec<i32> = (0..8).map(|c| q.integer(0, c)).collect();
        assert_eq!(integers, [32639, -32639, 8160, -8160, 128, -128, 127, -129]);
        assert!(q.int8.row(0).iter().all(|&v| v != -128));
    }

    #[test]
    fn tiny_rows_keep_a_usable_scale() {
        let q = QuantizedMatrix::quantize(ID, Weights::W8, 2, 2, &[1e-42, 0.0, 0.0, 0.0]).unwrap();
        assert_eq!(q.scales, [1.0, 1.0]);
        assert!(QuantizedMatrix::quantize(ID, Weights::W8, 2, 2, &[0.0; 3]).is_err());
    }
}
