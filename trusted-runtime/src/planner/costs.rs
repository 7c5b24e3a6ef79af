//! What a step costs: seconds by calibration, bytes by the wire formats.
//!
//! Bytes are exact: what the meters of the linear layers count. Seconds are linear in a few counts of the work, with
//! rates that [`super::calibration`] measures; units are in the names.

use super::{PlannedMatrix, graph::Window};
use crate::{
    Error,
    linear::{delegate::MAX_VECTORS, direct::blocks_a_part, integer, local::MANY},
};
use kernels::{Params, PinnedTiles, Ring, Tiling, wire, words::packed_len};
use serde::{Deserialize, Serialize};

/// Rates of the enclave alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnclaveCosts {
    /// A product in the enclave, whatever its size.
    pub local_call_s: f64,
    /// A byte of weights read for a vector, all threads.
    pub local_byte_s: f64,
    /// A multiply-add of a product with many vectors, all threads.
    pub local_multiply_s: f64,
    /// Rounding of an entry or scaling of a product, per word, around a delegated product.
    pub rounding_word_s: f64,
    /// A window, whatever its size.
    pub window_s: f64,
    /// An f32 value that an element-wise operation writes.
    pub window_element_s: f64,
    /// A multiply-add of attention.
    pub attention_multiply_s: f64,
}

/// A way to the evaluator and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathCosts {
    /// A round trip of an empty job, beyond what the evaluator reports.
    pub round_trip_s: f64,
    /// A byte, either way.
    pub wire_byte_s: f64,
}

/// Rates of `direct`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectCosts {
    /// Enclave: a job.
    pub call_s: f64,
    /// Enclave: an input block encrypted and packed.
    pub block_s: f64,
    /// Enclave: an output tile checked and decrypted.
    pub tile_s: f64,
    /// Evaluator: a job.
    pub job_s: f64,
    /// Evaluator: an input block that was still to be unpacked when the enclave began to wait.
    pub evaluator_block_s: f64,
    /// Evaluator: a byte of a pinned matrix, one vector.
    pub pinned_byte_s: f64,
    /// Evaluator: a weight of a fallback matrix, encoded and multiplied.
    pub fallback_weight_s: f64,
    /// Evaluator: a weight and one more vector of the same job, either form.
    pub multiply_s: f64,
    /// The connection.
    pub path: PathCosts,
}

/// Rates of `masked`, online.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MaskedCosts {
    /// Enclave: a job.
    pub call_s: f64,
    /// Enclave: an entry masked and packed.
    pub masked_word_s: f64,
    /// Enclave: a word of an answer unpacked and unmasked.
    pub unmasked_word_s: f64,
    /// Enclave: an entry or a product checked.
    pub checked_word_s: f64,
    /// Evaluator: a job.
    pub job_s: f64,
    /// Evaluator: a weight, one vector.
    pub online_weight_s: f64,
    /// Evaluator: a weight and one more vector of the same job.
    pub multiply_s: f64,
    /// The connection.
    pub path: PathCosts,
}

/// Rates of delegation to one evaluator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DelegatedCosts {
    /// Protocol `direct`.
    pub direct: DirectCosts,
    /// Protocol `masked`.
    pub masked: MaskedCosts,
}

/// Everything that a plan is priced with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The enclave alone.
    pub enclave: EnclaveCosts,
    /// Enclave, evaluator and the link between them; none without an evaluator.
    pub delegated: Option<DelegatedCosts>,
}

/// Where a linear group is computed, and in which form its weights lie there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// In the enclave.
    Enclave,
    /// By the evaluator, on padded words: int8.
    Masked,
    /// By the evaluator, on ciphertexts: tiles in NTT form.
    Pinned,
    /// By the evaluator, on ciphertexts: int8, encoded on the fly.
    Fallback,
}

/// What of a matrix its costs depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of W times planes, and columns: how the matrix is cut.
    pub tiling: Tiling,
    /// int8 planes.
    pub planes: usize,
    /// Bits of a padded word.
    pub log2_t: u32,
    /// Bytes on the evaluator in NTT form.
    pub pinned_bytes: usize,
}

impl Shape {
    /// Of a planned matrix.
    pub fn of(ring: &Ring, m: &PlannedMatrix) -> Self {
        Self {
            tiling: m.tiling,
            planes: integer::planes(m.matrix.weights),
            log2_t: m.log2_t,
            pinned_bytes: PinnedTiles::bytes_for(ring, &m.tiling),
        }
    }

    /// int8 weights, which are bytes in that form.
    pub fn weights(&self) -> usize {
        self.tiling.rows() * self.tiling.cols()
    }
}

/// What a node is predicted to cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Prediction {
    /// The enclave's own work: products there, cryptography, rounding, f32.
    pub enclave_s: f64,
    /// What the evaluator will report.
    pub evaluator_s: f64,
    /// Waiting for neither.
    pub wire_s: f64,
    /// Runtime to evaluator, as the meters count.
    pub bytes_up: u64,
    /// Evaluator to runtime.
    pub bytes_down: u64,
}

impl Prediction {
    /// Wall time: a linear call waits for its answer.
    pub fn total_s(&self) -> f64 {
        self.enclave_s + self.evaluator_s + self.wire_s
    }
}

impl std::ops::AddAssign for Prediction {
    fn add_assign(&mut self, other: Self) {
        self.enclave_s += other.enclave_s;
        self.evaluator_s += other.evaluator_s;
        self.wire_s += other.wire_s;
        self.bytes_up += other.bytes_up;
        self.bytes_down += other.bytes_down;
    }
}

impl std::iter::Sum for Prediction {
    fn sum<I: Iterator<Item = Self>>(predictions: I) -> Self {
        predictions.fold(Self::default(), |mut sum, p| {
            sum += p;
            sum
        })
    }
}

/// Tiles of one answer part of a `direct` job, as the daemon `gpu-evaluator` cuts it (its `tiles.rs`). The contract
/// leaves the cut to the evaluator; each part has a header of its own, and that is all that depends on it.
pub fn tiles_a_part(tiling: &Tiling, vectors: usize) -> usize {
    const QUANTUM: usize = PinnedTiles::GROUP;
    let fair = tiling.tiles().div_ceil(8).next_multiple_of(QUANTUM);
    let sendable = (1usize << 15) / (tiling.tile_rows() * vectors.max(1));
    match fair.min(64).min(sendable) {
        few @ 0..QUANTUM => few.max(1),
        many => many / QUANTUM * QUANTUM,
    }
}

/// Bytes up and down of a `direct` product with `vectors` vectors, at most [`MAX_VECTORS`], with `tiles` tiles an answer part.
fn direct_bytes(params: &Params, tiling: &Tiling, vectors: usize, tiles: usize) -> (u64, u64) {
    let (blocks, share) = (tiling.blocks(), blocks_a_part(params, tiling.blocks(), usize::MAX));
    let part = |blocks: usize| wire::encoded_len(params, blocks * params.n());
    let up = blocks / share * part(share) + if blocks.is_multiple_of(share) { 0 } else { part(blocks % share) };
    let answer = |first: usize| {
        let last = (first + tiles).min(tiling.tiles()) - 1;
        let rows = tiling.tile_row_range(last).end - tiling.tile_row_range(first).start;
        wire::encoded_len(params, vectors * rows)
    };
    let down: usize = (0..tiling.tiles()).step_by(tiles).map(answer).sum();
    ((vectors * up) as u64, down as u64)
}

/// Bytes up and down of a product by masks.
fn masked_bytes(shape: &Shape, vectors: usize) -> (u64, u64) {
    let of = |count| (vectors * packed_len(shape.log2_t, count)) as u64;
    (of(shape.tiling.cols()), of(shape.tiling.rows()))
}

impl Costs {
    /// What `vectors` vectors through a matrix will cost at `place`.
    ///
    /// # Errors
    /// [`Error::Bug`] for a place at an evaluator that these costs know nothing of.
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    pub fn linear(&self, params: &Params, shape: &Shape, place: Place, vectors: usize) -> Result<Prediction, Error> {
        let e = &self.enclave;
        let (rows, cols) = (shape.tiling.rows() as f64, shape.tiling.cols() as f64);
        let (weights, many) = (shape.weights() as f64, vectors as f64);
        if place == Place::Enclave {
            // A few vectors are multiplied one by one, many at once.
            let product = match vectors {
                0..MANY => many * weights * e.local_byte_s,
                _ => weights * e.local_byte_s.max(many * e.local_multiply_s),
            };
            return Ok(Prediction { enclave_s: e.local_call_s + product, ..Prediction::default() });
        }
        let Some(DelegatedCosts { direct, masked }) = &self.delegated else {
            return Err(Error::Bug(format!("{place:?} has no costs: no evaluator was calibrated")));
        };
        let rounding = many * (rows + cols) * e.rounding_word_s;
        // Jobs have a limited number of vectors.
        let jobs = vectors.div_ceil(MAX_VECTORS);
        let of_path = |path: &PathCosts, bytes: u64| jobs as f64 * path.round_trip_s + bytes as f64 * path.wire_byte_s;
        let (jobs_s, more) = (jobs as f64, (vectors - jobs.min(vectors)) as f64);
        if place == Place::Masked {
            let (bytes_up, bytes_down) = masked_bytes(shape, vectors);
            let words =
                cols * masked.masked_word_s + rows * masked.unmasked_word_s + (rows + cols) * masked.checked_word_s;
            return Ok(Prediction {
                enclave_s: jobs_s * masked.call_s + many * words + rounding,
                evaluator_s: jobs_s * (masked.job_s + weights * masked.online_weight_s)
                    + more * weights * masked.multiply_s,
                wire_s: of_path(&masked.path, bytes_up + bytes_down),
                bytes_up,
                bytes_down,
            });
        }
        let (mut bytes_up, mut bytes_down) = (0, 0);
        for first in (0..vectors).step_by(MAX_VECTORS) {
            let vectors = MAX_VECTORS.min(vectors - first);
            let (up, down) = direct_bytes(params, &shape.tiling, vectors, tiles_a_part(&shape.tiling, vectors));
            (bytes_up, bytes_down) = (bytes_up + up, bytes_down + down);
        }
        let (blocks, tiles) = (shape.tiling.blocks() as f64, shape.tiling.tiles() as f64);
        let product = match place {
            Place::Pinned => shape.pinned_bytes as f64 * direct.pinned_byte_s,
            _ => weights * direct.fallback_weight_s,
        };
        Ok(Prediction {
            enclave_s: jobs_s * direct.call_s + many * (blocks * direct.block_s + tiles * direct.tile_s) + rounding,
            evaluator_s: jobs_s * (direct.job_s + product)
                + many * blocks * direct.evaluator_block_s
                + more * weights * direct.multiply_s,
            wire_s: of_path(&direct.path, bytes_up + bytes_down),
            bytes_up,
            bytes_down,
        })
    }

    /// What an enclave window will cost.
    #[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
    pub fn window(&self, window: &Window) -> Prediction {
        let e = &self.enclave;
        let work = window.elements as f64 * e.window_element_s + window.attention as f64 * e.attention_multiply_s;
        Prediction { enclave_s: e.window_s + work, ..Prediction::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        linear::{
            Call,
            testing::{SHAPES, Setup, ring},
        },
        model::quantize::Weights,
    };
    use kernels::params::RINGS;

    #[test]
    fn bytes_are_what_the_meters_count() {
        for (weights, threads) in [(Weights::W8, 1), (Weights::W16, 2)] {
            let shapes = [SHAPES[0], SHAPES[1], SHAPES[2], (300, 700)];
            let pair = Setup { weights, threads, lanes: 32, shapes: &shapes, ..Setup::default() }.start();
            let ring = ring();
            let costs = Costs { delegated: Some(DelegatedCosts::default()), ..Costs::default() };
            for (layer, m) in (0u32..).zip(&pair.plan.matrices) {
                for vectors in [1, 3] {
                    let shape = Shape::of(&ring, m);
                    let (direct, masked) = (Call::default(), Call::default());
                    pair.apply(pair.direct.as_ref(), &direct, layer, vectors).unwrap();
                    pair.apply(&pair.masked(), &masked, layer, vectors).unwrap();
                    let counted = |call: &Call| (call.meter.snapshot().bytes_up, call.meter.snapshot().bytes_down);
                    // The evaluator in this process answers in two halves.
                    let halves = m.tiling.tiles().div_ceil(2);
                    assert_eq!(direct_bytes(ring.params(), &m.tiling, vectors, halves), counted(&direct), "{shape:?}");
                    let predicted = costs.linear(ring.params(), &shape, Place::Masked, vectors).unwrap();
                    assert_eq!((predicted.bytes_up, predicted.bytes_down), counted(&masked), "{shape:?}");
                }
            }
        }
    }

    /// One of everything, in distinguishable rates.
    fn priced() -> Costs {
        let path = PathCosts { round_trip_s: 1e-4, wire_byte_s: 1e-9 };
        let direct = DirectCosts {
            block_s: 3e-5,
            tile_s: 5e-6,
            pinned_byte_s: 1e-10,
            fallback_weight_s: 3e-9,
            multiply_s: 1e-9,
            path,
            ..DirectCosts::default()
        };
        let masked = MaskedCosts {
            masked_word_s: 1e-9,
            online_weight_s: 1e-10,
            multiply_s: 2e-11,
            path,
            ..MaskedCosts::default()
        };
        let enclave =
            EnclaveCosts { local_byte_s: 1e-10, local_multiply_s: 5e-11, window_s: 1e-6, ..EnclaveCosts::default() };
        Costs { enclave, delegated: Some(DelegatedCosts { direct, masked }) }
    }

    fn shape(rows: usize, cols: usize) -> Shape {
        let ring = Ring::new(RINGS[0].check().unwrap()).unwrap();
        let tiling = crate::planner::tiling::choose(rows, cols, ring.n()).unwrap();
        Shape { tiling, planes: 1, log2_t: 26, pinned_bytes: PinnedTiles::bytes_for(&ring, &tiling) }
    }

    #[test]
    fn seconds_follow_the_counts() {
        let (costs, shape) = (priced(), shape(2304, 768));
        let params = RINGS[0].check().unwrap();
        let at = |place, vectors| costs.linear(&params, &shape, place, vectors).unwrap();
        let weights = 2304.0 * 768.0;
        assert!((at(Place::Enclave, 1).total_s() - weights * 1e-10).abs() < 1e-12);
        assert!((at(Place::Enclave, 64).total_s() - 64.0 * weights * 5e-11).abs() < 1e-9);
        let pinned = at(Place::Pinned, 1);
        let (blocks, tiles) = (shape.tiling.blocks() as f64, shape.tiling.tiles() as f64);
        assert!((pinned.enclave_s - blocks * 3e-5 - tiles * 5e-6).abs() < 1e-12);
        assert!(at(Place::Fallback, 1).evaluator_s > 3.0 * pinned.evaluator_s);
        assert_eq!(at(Place::Fallback, 1).bytes_up, pinned.bytes_up);
        // A second job has a second round trip.
        let wire = |vectors| {
            let p = at(Place::Masked, vectors);
            p.wire_s - (p.bytes_up + p.bytes_down) as f64 * 1e-9
        };
        assert!((wire(64) - 1e-4).abs() < 1e-12 && (wire(65) - 2e-4).abs() < 1e-12);
        assert_eq!(at(Place::Masked, 65).bytes_up, 65 * packed_len(26, 768) as u64);
    }

    #[test]
    fn an_evaluator_that_nobody_measured_has_no_price() {
        let costs = Costs { delegated: None, ..priced() };
        let params = RINGS[0].check().unwrap();
        assert!(costs.linear(&params, &shape(64, 64), Place::Enclave, 1).is_ok());
        assert!(costs.linear(&params, &shape(64, 64), Place::Masked, 1).is_err());
    }

    #[test]
    fn parts_of_answers_are_cut_as_the_daemon_does() {
        let cut = |rows, cols, vectors| tiles_a_part(&shape(rows, cols).tiling, vectors);
        assert_eq!(cut(64, 64, 1), 4);
        let large = shape(49_152, 576).tiling;
        let group = tiles_a_part(&large, 1);
        assert!(group <= 64 && group.is_multiple_of(4) && group * large.tile_rows() <= 1 << 15, "{group}");
        assert!(tiles_a_part(&large, 64) >= 1);
    }
}
