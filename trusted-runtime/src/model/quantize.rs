//! Weights as integers.

use crate::linear::LinearId;
use kernels::Int8Matrix;

/// How a weight is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Weights {
    /// One int8 plane.
    W8,
    /// Two int8 planes: W = 256·hi + lo.
    W16,
}

/// One linear layer: `W = diag(scales)·W_int`.
pub struct QuantizedMatrix {
    /// Which one.
    pub id: LinearId,
    /// How `int8` holds `W_int`.
    pub weights: Weights,
    /// Rows of W.
    pub rows: usize,
    /// w8: W_int, `rows` rows. w16: 2·`rows` rows, all hi rows, then all lo rows.
    pub int8: Int8Matrix,
    /// One scale a row of W.
    pub scales: Vec<f32>,
}
