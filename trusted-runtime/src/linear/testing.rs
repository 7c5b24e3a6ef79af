//! Small matrices and vectors, and an evaluator in this process, for the tests of everything that delegates.

mod fake;
mod pair;

pub(crate) use fake::{Fake, Mode, Reply, Seen, failure, packed, reword, unpacked};
pub(crate) use pair::{Pair, SHAPES, Setup, config, runtime, until};

use super::{Group, LinearId};
use crate::{
    model::quantize::{QuantizedMatrix, Weights},
    planner::{self, Plan},
};
use kernels::{Int8Matrix, Ring, params::RINGS};
use std::sync::Arc;

pub(crate) fn ring() -> Ring {
    Ring::new(RINGS[0].check().unwrap()).unwrap()
}

pub(crate) fn id(layer: u32) -> LinearId {
    LinearId { layer, group: Group::Down }
}

fn noise(seed: u64) -> impl Iterator<Item = u64> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::from_fn(move || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        Some(s)
    })
}

/// Layer k holds a matrix of shape `shapes[k]` (rows of W, columns).
pub(crate) fn plan_of(weights: Weights, shapes: &[(usize, usize)]) -> Arc<Plan> {
    let planes = super::integer::planes(weights);
    let matrix = |(layer, &(rows, cols)): (usize, &(usize, usize))| {
        let weight = |x: u64| i8::try_from((x >> 20) % 255).unwrap_or(-100);
        let data = noise(layer as u64 + 1).map(weight).take(planes * rows * cols).collect();
        let scales = (0..rows).map(|r| 0.01 + r as f32 * 1e-4).collect();
        let int8 = Int8Matrix::new(planes * rows, cols, data).unwrap();
        QuantizedMatrix { id: id(u32::try_from(layer).unwrap()), weights, rows, int8, scales }
    };
    Arc::new(planner::plan(&ring(), shapes.iter().enumerate().map(matrix).collect()).unwrap())
}

pub(crate) fn vector(cols: usize, seed: u64) -> Vec<f32> {
    noise(seed + 77).map(|x| (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0).take(cols).collect()
}
