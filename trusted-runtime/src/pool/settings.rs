//! How many lanes are kept ready, and the memory that this takes.

use crate::{Error, planner::Plan};
use kernels::Ring;
use trusted_he::{Lane, LaneCipher, SHARD_ROWS};

/// What the operator asks for.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Lanes kept ready; 0 for as many as `memory` holds, up to one batch of N.
    pub lanes: usize,
    /// Bytes for masks and what making them needs.
    pub memory: u64,
    /// Refilling threads' buffers that exist at a time.
    pub threads: usize,
}

/// What the pool takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Lanes of a full pool; a multiple of [`LaneCipher::STEP`].
    pub lanes: usize,
    /// A matrix with no more lanes than this is refilled.
    pub low: usize,
    /// Bytes of the companions A' and of A.
    pub fixed: u64,
    /// Bytes of one lane over all matrices.
    pub lane: u64,
    /// Bytes that refilling needs besides.
    pub refill: u64,
}

impl Settings {
    /// The pool that these settings give for a model.
    ///
    /// # Errors
    /// [`Error::Config`] with the figures if the memory is not enough for the smallest pool, or for the lanes asked for.
    pub fn fit(&self, ring: &Ring, plan: &Plan) -> Result<Memory, Error> {
        let shapes = || plan.matrices.iter().map(|m| (m.matrix.int8.rows(), m.matrix.int8.cols()));
        let widest = shapes().map(|(_, cols)| cols).max().unwrap_or(0);
        let fixed = shapes().map(|(rows, _)| LaneCipher::bytes_for(ring, rows)).sum::<usize>() + widest * 8 * ring.n();
        let lane: usize = shapes().map(|(rows, _)| Lane::bytes_for(rows)).sum();
        // Per thread: masks, messages, a shard's answer and what is decrypted of it, for as many lanes as there are.
        let refill = |lanes: usize| {
            let largest = shapes().map(|(rows, cols)| cols * 11 + rows.min(SHARD_ROWS) * 12 + rows * 4).max();
            self.threads * lanes * largest.unwrap_or(0)
        };
        let step = LaneCipher::STEP;
        let size = |bytes: usize| bytes as u64;
        let needs = |lanes: usize| size(fixed) + size(lanes * lane) + size(refill(lanes.min(ring.n())));
        let figures =
            format!("A and its products take {fixed} bytes, a lane {lane}, refilling {step} lanes {}", refill(step));
        let wanted = if self.lanes == 0 { ring.n() } else { self.lanes.next_multiple_of(step) };
        let least = if self.lanes == 0 { step } else { wanted };
        let mut lanes = wanted;
        while lanes > least && needs(lanes) > self.memory {
            lanes -= step;
        }
        if needs(lanes) > self.memory {
            return Err(Error::Config(format!(
                "pool.memory is {} bytes, {lanes} lanes need {} ({figures})",
                self.memory,
                needs(lanes)
            )));
        }
        Ok(Memory {
            lanes,
            low: lanes / 4,
            fixed: size(fixed),
            lane: size(lane),
            refill: size(refill(lanes.min(ring.n()))),
        })
    }
}

impl Memory {
    /// All of it, the pool being full.
    pub fn bytes(&self) -> u64 {
        self.fixed + self.lanes as u64 * self.lane + self.refill
    }

    /// Tells the operator.
    pub(super) fn announce(&self) {
        let Self { lanes, low, fixed, lane, refill } = *self;
        let bytes = self.bytes();
        tracing::info!(lanes, low, bytes, fixed_bytes = fixed, lane_bytes = lane, refill_bytes = refill, "mask pool");
    }
}
