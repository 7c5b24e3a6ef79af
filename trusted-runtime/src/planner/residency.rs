//! Which matrices the evaluator should hold in NTT form under a memory budget.

use super::{Plan, PlannedMatrix};
use kernels::{PinnedTiles, Ring};
use proto::v1::Residency;
use std::collections::HashSet;

/// What the operator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wish {
    /// As many as fit the evaluator's budget, the largest first.
    #[default]
    Auto,
    /// All of them, NTT form.
    Pinned,
    /// None of them: int8, encoded on the fly.
    Fallback,
}

impl Plan {
    /// One residency a matrix, in the plan's order. `budget` is the evaluator's memory in bytes.
    ///
    /// A pinned tile saves one forward transform a product and costs 7 bytes a weight whatever matrix it is
    /// of, so the largest matrices that fit use a budget best.
    pub fn residency(&self, ring: &Ring, wish: Wish, budget: u64) -> Vec<Residency> {
        let all = |r| vec![r; self.matrices.len()];
        match wish {
            Wish::Pinned => all(Residency::Pinned),
            Wish::Fallback => all(Residency::Fallback),
            Wish::Auto => {
                let size = |i: usize| -> (u64, u64) {
                    let m = &self.matrices[i];
                    (PinnedTiles::bytes_for(ring, &m.tiling) as u64, m.matrix.int8.data().len() as u64)
                };
                let mut order: Vec<usize> = (0..self.matrices.len()).collect();
                order.sort_by_key(|&i| (std::cmp::Reverse(size(i).0), i));
                let mut left = budget.saturating_sub((0..self.matrices.len()).map(|i| size(i).1).sum());
                let mut out = all(Residency::Fallback);
                for i in order {
                    let more = size(i).0.saturating_sub(size(i).1);
                    if more <= left {
                        left -= more;
                        out[i] = Residency::Pinned;
                    }
                }
                out
            }
        }
    }

    /// [`Plan::residency`], if the evaluator can hold all of it.
    ///
    /// # Errors
    /// The figures, and what may help.
    pub fn fit(&self, ring: &Ring, ids: &[[u8; 32]], wish: Wish, budget: u64) -> Result<Vec<Residency>, String> {
        let residency = self.residency(ring, wish, budget);
        let needed = self.resident_bytes(ring, ids, &residency);
        if needed <= budget {
            return Ok(residency);
        }
        let (form, hint) = match wish {
            Wish::Pinned => ("pinned", "; raise its memory budget, or set evaluator.residency to auto"),
            Wish::Auto | Wish::Fallback => ("int8 (fallback)", "; raise its memory budget"),
        };
        Err(format!("its memory budget is {budget} bytes, needed are {needed} for {form} weights{hint}"))
    }

    /// Bytes that the evaluator needs to hold the matrices so; equal matrices (`ids` has their digests) are held once.
    pub fn resident_bytes(&self, ring: &Ring, ids: &[[u8; 32]], residency: &[Residency]) -> u64 {
        let mut seen = HashSet::new();
        let of = |((m, id), residency): ((&PlannedMatrix, &[u8; 32]), &Residency)| match residency {
            _ if !seen.insert(*id) => 0,
            Residency::Pinned => PinnedTiles::bytes_for(ring, &m.tiling) as u64,
            _ => m.matrix.int8.data().len() as u64,
        };
        self.matrices.iter().zip(ids).zip(residency).map(of).sum()
    }
}
