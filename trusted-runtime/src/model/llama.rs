//! The Llama block: RMSNorm, rotary positions on interleaved pairs, grouped-query attention, SwiGLU.

use super::{
    attention::{self, Queries},
    block::{Pass, Stack},
    config::ModelConfig,
    load::{Reader, Sink},
    ops,
};
use crate::{
    Error,
    linear::{Group, LinearId},
};
use zeroize::Zeroizing;

/// What a Llama model keeps beside its linear weights.
pub(super) struct Llama {
    blocks: Vec<Norms>,
    output_norm: Vec<f32>,
    /// Rotation per position of pair i, radians: base^(-2i/head_dim), divided by the file's factors.
    frequencies: Vec<f64>,
}

struct Norms {
    attention: Vec<f32>,
    feed_forward: Vec<f32>,
}

impl Llama {
    /// Reads all blocks, handing linear weights to `sink`.
    pub(super) fn load(c: &ModelConfig, reader: &Reader<'_>, sink: &mut dyn Sink) -> Result<Self, Error> {
        let (d, q, kv, ff) = (c.d_model, c.q_width(), c.kv_width(), c.d_ff);
        let mut blocks = Vec::with_capacity(c.layers);
        for (i, layer) in (0..c.layers).zip(0u32..) {
            let name = |part: &str| format!("blk.{i}.{part}.weight");
            let mut stack = Stack { reader, sink, layer };
            stack.group(Group::Qkv, &[(&name("attn_q"), q), (&name("attn_k"), kv), (&name("attn_v"), kv)], d)?;
            stack.group(Group::Output, &[(&name("attn_output"), d)], q)?;
            stack.group(Group::GateUp, &[(&name("ffn_gate"), ff), (&name("ffn_up"), ff)], d)?;
            stack.group(Group::Down, &[(&name("ffn_down"), d)], ff)?;
            blocks.push(Norms {
                attention: reader.read(&name("attn_norm"), &[d])?,
                feed_forward: reader.read(&name("ffn_norm"), &[d])?,
            });
        }
        let output_norm = reader.read("output_norm.weight", &[d])?;
        let mut frequencies = frequencies(c.rope_base, c.head_dim);
        if reader.has("rope_freqs.weight") {
            let factors = reader.read("rope_freqs.weight", &[c.head_dim / 2])?;
            for (f, factor) in frequencies.iter_mut().zip(factors) {
                *f /= f64::from(factor);
            }
        }
        Ok(Self { blocks, output_norm, frequencies })
    }

    /// Runs block `layer` on the residual stream `x`, [positions][d_model].
    pub(super) fn block(&self, c: &ModelConfig, layer: u32, x: &mut [f32], pass: &mut Pass<'_>) -> Result<(), Error> {
        let (d, l) = (c.d_model, layer as usize);
        let norms = &self.blocks[l];
        let positions = x.len() / d;
        let id = |group| LinearId { layer, group };

        let mut h = Zeroizing::new(vec![0f32; x.len()]);
        self.norm(c, x, &norms.attention, &mut h);
        let mut qkv = pass.linear(c, id(Group::Qkv), &h, positions)?;
        self.rotate_and_store(c, l, &mut qkv, pass);
        let mut mixed = Zeroizing::new(vec![0f32; positions * c.q_width()]);
        attention::attend(c, pass.cache, &Queries { layer: l, start: pass.start, qkv: &qkv }, &mut mixed);
        ops::add(x, &pass.linear(c, id(Group::Output), &mixed, positions)?);

        self.norm(c, x, &norms.feed_forward, &mut h);
        let gate_up = pass.linear(c, id(Group::GateUp), &h, positions)?;
        let mut gated = Zeroizing::new(vec![0f32; positions * c.d_ff]);
        for (out, both) in gated.chunks_exact_mut(c.d_ff).zip(gate_up.chunks_exact(2 * c.d_ff)) {
            let (gate, up) = both.split_at(c.d_ff);
            for ((o, g), u) in out.iter_mut().zip(gate).zip(up) {
                *o = ops::silu(*g) * u;
            }
        }
        ops::add(x, &pass.linear(c, id(Group::Down), &gated, positions)?);
        Ok(())
    }

    /// The last norm, in front of the LM head.
    pub(super) fn output_norm(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]) {
        self.norm(c, x, &self.output_norm, out);
    }

    fn norm(&self, c: &ModelConfig, x: &[f32], weight: &[f32], out: &mut [f32]) {
        for (x, out) in x.chunks_exact(c.d_model).zip(out.chunks_exact_mut(c.d_model)) {
            ops::rms_norm(x, weight, c.norm_epsilon, out);
        }
    }

    /// Rotates queries and keys in place and writes keys and values to the cache.
    fn rotate_and_store(&self, c: &ModelConfig, layer: usize, qkv: &mut [f32], pass: &mut Pass<'_>) {
        let (q, kv) = (c.q_width(), c.kv_width());
        for (p, row) in qkv.chunks_exact_mut(q + 2 * kv).enumerate() {
            let (rotated, values) = row.split_at_mut(q + kv);
            let turns = &pass.rotations[p * c.head_dim / 2..(p + 1) * c.head_dim / 2];
            for head in rotated.chunks_exact_mut(c.head_dim) {
                for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(turns) {
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * cos - b * sin;
                    pair[1] = a * sin + b * cos;
                }
            }
            pass.cache.write(layer, pass.start + p, &rotated[q..], values);
        }
    }

    /// (cos, sin) of every pair for the positions `start .. start + positions`, in double precision first.
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
    pub(super) fn rotations(&self, start: usize, positions: usize) -> Vec<(f32, f32)> {
        (start..start + positions)
            .flat_map(|p| {
                self.frequencies.iter().map(move |f| {
                    let angle = p as f64 * f;
                    (libm::cos(angle) as f32, libm::sin(angle) as f32)
                })
            })
            .collect()
    }
}

/// base^(-2i/head_dim) for every pair i (RoFormer, section 3.2.2).
#[expect(clippy::cast_precision_loss, reason = "head_dim is below 2^24")]
pub(super) fn frequencies(base: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| libm::pow(base, -2.0 * i as f64 / head_dim as f64)).collect()
}
