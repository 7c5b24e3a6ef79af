//! The GPT-2 block: LayerNorm, fused QKV with biases, learned positions, GELU.

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

/// What a GPT-2 model keeps beside its linear weights.
pub(super) struct Gpt2 {
    /// [context][d_model].
    positions: Vec<f32>,
    blocks: Vec<Block>,
    output_norm: Norm,
}

struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

struct Block {
    attention_norm: Norm,
    qkv_bias: Vec<f32>,
    output_bias: Vec<f32>,
    feed_forward_norm: Norm,
    up_bias: Vec<f32>,
    down_bias: Vec<f32>,
}

impl Gpt2 {
    /// Reads all blocks, handing linear weights to `sink`.
    pub(super) fn load(c: &ModelConfig, reader: &Reader<'_>, sink: &mut dyn Sink) -> Result<Self, Error> {
        let (d, ff) = (c.d_model, c.d_ff);
        let norm = |name: &str| -> Result<Norm, Error> {
            Ok(Norm {
                weight: reader.read(&format!("{name}.weight"), &[d])?,
                bias: reader.read(&format!("{name}.bias"), &[d])?,
            })
        };
        let positions = reader.read("position_embd.weight", &[c.context, d])?;
        let mut blocks = Vec::with_capacity(c.layers);
        for (i, layer) in (0..c.layers).zip(0u32..) {
            let weight = |part: &str| format!("blk.{i}.{part}.weight");
            let bias = |part: &str, n: usize| reader.read(&format!("blk.{i}.{part}.bias"), &[n]);
            let mut stack = Stack { reader, sink, layer };
            stack.group(Group::Qkv, &[(&weight("attn_qkv"), 3 * d)], d)?;
            stack.group(Group::Output, &[(&weight("attn_output"), d)], d)?;
            stack.group(Group::GateUp, &[(&weight("ffn_up"), ff)], d)?;
            stack.group(Group::Down, &[(&weight("ffn_down"), d)], ff)?;
            blocks.push(Block {
                attention_norm: norm(&format!("blk.{i}.attn_norm"))?,
                qkv_bias: bias("attn_qkv", 3 * d)?,
                output_bias: bias("attn_output", d)?,
                feed_forward_norm: norm(&format!("blk.{i}.ffn_norm"))?,
                up_bias: bias("ffn_up", ff)?,
                down_bias: bias("ffn_down", d)?,
            });
        }
        Ok(Self { positions, blocks, output_norm: norm("output_norm")? })
    }

    /// Adds the learned positions `start ..` to the embedded tokens `x`, [positions][d_model].
    pub(super) fn add_positions(&self, start: usize, d_model: usize, x: &mut [f32]) {
        ops::add(x, &self.positions[start * d_model..]);
    }

    /// Runs block `layer` on the residual stream `x`, [positions][d_model].
    pub(super) fn block(&self, c: &ModelConfig, layer: u32, x: &mut [f32], pass: &mut Pass<'_>) -> Result<(), Error> {
        let (d, l) = (c.d_model, layer as usize);
        let block = &self.blocks[l];
        let positions = x.len() / d;
        let id = |group| LinearId { layer, group };

        let mut h = Zeroizing::new(vec![0f32; x.len()]);
        block.attention_norm.apply(c, x, &mut h);
        let mut qkv = pass.linear(c, id(Group::Qkv), &h, positions)?;
        add_bias(&mut qkv, &block.qkv_bias);
        for (p, row) in qkv.chunks_exact(3 * d).enumerate() {
            pass.cache.write(l, pass.start + p, &row[d..2 * d], &row[2 * d..]);
        }
        let mut mixed = Zeroizing::new(vec![0f32; x.len()]);
        attention::attend(c, pass.cache, &Queries { layer: l, start: pass.start, qkv: &qkv }, &mut mixed);
        let mut out = pass.linear(c, id(Group::Output), &mixed, positions)?;
        add_bias(&mut out, &block.output_bias);
        ops::add(x, &out);

        block.feed_forward_norm.apply(c, x, &mut h);
        let mut up = pass.linear(c, id(Group::GateUp), &h, positions)?;
        add_bias(&mut up, &block.up_bias);
        for u in up.iter_mut() {
            *u = ops::gelu(*u);
        }
        let mut down = pass.linear(c, id(Group::Down), &up, positions)?;
        add_bias(&mut down, &block.down_bias);
        ops::add(x, &down);
        Ok(())
    }

    /// The last norm, in front of the LM head.
    pub(super) fn output_norm(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]) {
        self.output_norm.apply(c, x, out);
    }
}

impl Norm {
    fn apply(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]) {
        for (x, out) in x.chunks_exact(c.d_model).zip(out.chunks_exact_mut(c.d_model)) {
            ops::layer_norm(x, &self.weight, &self.bias, c.norm_epsilon, out);
        }
    }
}

/// Adds `bias` to every row of `x`.
fn add_bias(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        ops::add(row, bias);
    }
}
