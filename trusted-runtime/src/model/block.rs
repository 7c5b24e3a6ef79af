//! What the blocks of every architecture share: reading stacked groups, and one pass over a cache.

use super::{
    cache::KvCache,
    config::ModelConfig,
    load::{Reader, Sink},
};
use crate::{
    Error,
    linear::{Call, Group, Linear, LinearId},
};
use zeroize::Zeroizing;

/// Reads the linear groups of one block.
pub(super) struct Stack<'a, 'r> {
    pub(super) reader: &'a Reader<'r>,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) layer: u32,
}

impl Stack<'_, '_> {
    /// Reads `parts` (name, rows), each `cols` wide, stacks them by rows and hands them on.
    pub(super) fn group(&mut self, group: Group, parts: &[(&str, usize)], cols: usize) -> Result<(), Error> {
        let id = LinearId { layer: self.layer, group };
        if let [(name, rows)] = parts {
            return self.sink.matrix(id, *rows, cols, &self.reader.read(name, &[*rows, cols])?);
        }
        let rows: usize = parts.iter().map(|p| p.1).sum();
        let mut stacked = Vec::with_capacity(rows * cols);
        for (name, rows) in parts {
            stacked.extend_from_slice(&self.reader.read(name, &[*rows, cols])?);
        }
        self.sink.matrix(id, rows, cols, &stacked)
    }
}

/// One forward pass: positions `start ..` of the sequence in `cache`.
pub(super) struct Pass<'a> {
    pub(super) linear: &'a dyn Linear,
    pub(super) call: &'a Call,
    pub(super) cache: &'a mut KvCache,
    pub(super) start: usize,
    /// (cos, sin) per position and pair; empty without rotary positions.
    pub(super) rotations: &'a [(f32, f32)],
}

impl Pass<'_> {
    /// `W·xs` for every position, wiped when dropped.
    pub(super) fn linear(
        &self,
        c: &ModelConfig,
        id: LinearId,
        xs: &[f32],
        positions: usize,
    ) -> Result<Zeroizing<Vec<f32>>, Error> {
        if self.call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let mut ys = Zeroizing::new(vec![0f32; positions * c.linear_shape(id.group).0]);
        self.linear.apply(self.call, id, xs, positions, &mut ys)?;
        Ok(ys)
    }
}
