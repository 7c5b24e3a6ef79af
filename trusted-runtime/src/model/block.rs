//! What the blocks of every family share: reading stacked groups, one pass over a cache, the feed-forward gate.

use super::{
    attention::{self, Place, Queries},
    config::ModelConfig,
    kv::{KvCache, View},
    load::{Reader, Sink},
    ops,
    rotary::Turns,
};
use crate::{
    Error,
    linear::{Call, Group, Linear, LinearId},
};
use rayon::prelude::*;
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

    /// The groups of a block that has its query, key, value, gate and up rows apart.
    pub(super) fn gated_block(&mut self, c: &ModelConfig) -> Result<(), Error> {
        let (d, q, kv, ff) = (c.d_model, c.q_width(), c.kv_width(), c.d_ff);
        let layer = self.layer;
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        self.group(Group::Qkv, &[(&name("attn_q"), q), (&name("attn_k"), kv), (&name("attn_v"), kv)], d)?;
        self.group(Group::Output, &[(&name("attn_output"), d)], q)?;
        self.group(Group::GateUp, &[(&name("ffn_gate"), ff), (&name("ffn_up"), ff)], d)?;
        self.group(Group::Down, &[(&name("ffn_down"), d)], ff)
    }

    /// The norm `part` of this block, `width` long.
    pub(super) fn norm(&self, part: &str, width: usize) -> Result<Vec<f32>, Error> {
        self.reader.read(&format!("blk.{}.{part}.weight", self.layer), &[width])
    }
}

/// One forward pass over the next positions of some sequences.
pub(super) struct Pass<'a> {
    pub(super) linear: &'a dyn Linear,
    pub(super) call: &'a Call,
    pub(super) sequences: Vec<Touched<'a>>,
    /// Of every row of the residual stream.
    pub(super) places: &'a [Place],
    /// What [`Decoder::begin`](super::family::Decoder::begin) returned.
    pub(super) turns: &'a [Turns],
}

/// A sequence in a pass.
pub(super) struct Touched<'a> {
    pub(super) cache: &'a mut KvCache,
    /// For pages that lie encrypted.
    pub(super) scratch: Zeroizing<Vec<f32>>,
}

/// A vector that attention compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Query,
    Key,
}

/// What one layer's attention sees and how it weighs it.
#[derive(Clone, Copy)]
pub(super) struct Scope {
    /// Factor of every score.
    pub(super) scale: f32,
    /// Most positions that one position sees, itself included.
    pub(super) window: usize,
}

impl Scope {
    /// Everything so far, with the usual factor.
    pub(super) fn all(c: &ModelConfig) -> Self {
        Self { scale: attention::scale(c.head_dim), window: usize::MAX }
    }
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

    /// Lets `prepare` change every query and key head of `qkv`, [rows][q, k, v], given its row in this pass; writes
    /// keys and values to the caches; returns what attention makes of it, [rows][q_width].
    ///
    /// # Errors
    /// What keeps pages from being read.
    pub(super) fn attend(
        &mut self,
        c: &ModelConfig,
        layer: u32,
        scope: Scope,
        qkv: &mut [f32],
        prepare: impl Fn(Head, usize, &mut [f32]),
    ) -> Result<Zeroizing<Vec<f32>>, Error> {
        let (q, kv, layer) = (c.q_width(), c.kv_width(), layer as usize);
        let stride = q + 2 * kv;
        let mut earliest = vec![usize::MAX; self.sequences.len()];
        for (r, (row, place)) in qkv.chunks_exact_mut(stride).zip(self.places).enumerate() {
            let (queries, rest) = row.split_at_mut(q);
            let (keys, values) = rest.split_at_mut(kv);
            queries.chunks_exact_mut(c.head_dim).for_each(|head| prepare(Head::Query, r, head));
            keys.chunks_exact_mut(c.head_dim).for_each(|head| prepare(Head::Key, r, head));
            self.sequences[place.sequence].cache.write(layer, place.position, keys, values);
            let seen = (place.position + 1).saturating_sub(scope.window);
            earliest[place.sequence] = earliest[place.sequence].min(seen);
        }
        let views = self.sequences.iter_mut().zip(earliest);
        let views: Vec<View<'_>> =
            views.map(|(s, from)| s.cache.view(layer, from, &mut s.scratch)).collect::<Result<_, Error>>()?;
        let mut mixed = Zeroizing::new(vec![0f32; qkv.len() / stride * q]);
        attention::attend(c, &Queries { qkv, places: self.places, views: &views, scope }, &mut mixed);
        Ok(mixed)
    }
}

/// RMSNorm of every position.
pub(super) fn rms_norm(c: &ModelConfig, x: &[f32], weight: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks_exact(c.d_model).zip(out.chunks_exact_mut(c.d_model)) {
        ops::rms_norm(x, weight, c.norm_epsilon, out);
    }
}

/// `activation(gate)·up` of every position, from [positions][gate, up].
pub(super) fn gate(c: &ModelConfig, gate_up: &[f32], activation: impl Fn(f32) -> f32 + Sync) -> Zeroizing<Vec<f32>> {
    let mut gated = Zeroizing::new(vec![0f32; gate_up.len() / 2]);
    let one = |(out, both): (&mut [f32], &[f32])| {
        let (gate, up) = both.split_at(c.d_ff);
        for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
            *o = activation(*g) * u;
        }
    };
    if gated.len() < ops::PARALLEL_FROM {
        gated.chunks_exact_mut(c.d_ff).zip(gate_up.chunks_exact(2 * c.d_ff)).for_each(one);
    } else {
        gated.par_chunks_exact_mut(c.d_ff).zip(gate_up.par_chunks_exact(2 * c.d_ff)).for_each(one);
    }
    gated
}
