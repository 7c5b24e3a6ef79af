//! Qwen3, dense: Llama with RMSNorm of every query and key head, and heads as wide as they like.
//!
//! Rotary pairs are halves of a head, in GGUF as in Hugging Face's files.

use super::{Architecture, Decoder, Entry, Family};
use crate::{
    Error,
    linear::{Group, LinearId},
    model::{
        attention::Place,
        block::{Head, Pass, Scope, Stack, gate, rms_norm},
        config::ModelConfig,
        load::{Field, Keys, Layout, Reader, Sink, gated_block},
        ops,
        rotary::{Pairs, Rotary, Turns},
    },
};
use zeroize::Zeroizing;

pub(super) const ENTRY: Entry = Entry { name: "qwen3", model_type: "qwen3", gguf, json };

/// Nothing beside the sizes.
#[derive(Debug)]
pub(crate) struct Qwen3;

fn gguf(keys: &Keys<'_>) -> Result<ModelConfig, Error> {
    let sizes = keys.sizes(Architecture::new(Qwen3), "attention.layer_norm_rms_epsilon")?;
    keys.plain_heads(&sizes)?;
    keys.unscaled()?;
    Ok(ModelConfig { rope_base: keys.float_or("rope.freq_base", 1e6)?, ..sizes })
}

fn json(f: &Field<'_>) -> Result<ModelConfig, Error> {
    f.only("hidden_act", &["silu"])?;
    f.flag("attention_bias", false)?;
    f.flag("use_sliding_window", false)?;
    f.layer_types(&["full_attention"])?;
    let sizes = f.sizes(Architecture::new(Qwen3))?;
    // Qwen3's own default, whatever hidden_size and heads are.
    let head_dim = f.size_or("head_dim", 128)?;
    Ok(ModelConfig { head_dim, rope_base: f.rope(1e6)?.unscaled()?, ..sizes })
}

impl Family for Qwen3 {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn check(&self, c: &ModelConfig) -> Result<(), String> {
        c.check_rotary()
    }

    fn stored(&self, _: &ModelConfig, canonical: &str) -> Option<(String, Layout)> {
        gated_block(canonical, |part| match part {
            "attn_q_norm" => Some(("self_attn.q_norm", Layout::Same)),
            "attn_k_norm" => Some(("self_attn.k_norm", Layout::Same)),
            _ => None,
        })
    }

    fn load(&self, c: &ModelConfig, reader: &Reader<'_>, sink: &mut dyn Sink) -> Result<Box<dyn Decoder>, Error> {
        let mut blocks = Vec::with_capacity(c.layers);
        for (_, layer) in (0..c.layers).zip(0u32..) {
            let mut stack = Stack { reader, sink, layer };
            stack.gated_block(c)?;
            blocks.push(Norms {
                attention: stack.norm("attn_norm", c.d_model)?,
                query: stack.norm("attn_q_norm", c.head_dim)?,
                key: stack.norm("attn_k_norm", c.head_dim)?,
                feed_forward: stack.norm("ffn_norm", c.d_model)?,
            });
        }
        let output_norm = reader.read("output_norm.weight", &[c.d_model])?;
        Ok(Box::new(Blocks { blocks, output_norm, rotary: Rotary::new(c.rope_base, c.head_dim) }))
    }
}

struct Blocks {
    blocks: Vec<Norms>,
    output_norm: Vec<f32>,
    rotary: Rotary,
}

struct Norms {
    attention: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    feed_forward: Vec<f32>,
}

impl Decoder for Blocks {
    fn begin(&self, _: &ModelConfig, places: &[Place], _: &mut [f32]) -> Vec<Turns> {
        vec![self.rotary.turns(places)]
    }

    fn block(&self, c: &ModelConfig, layer: u32, x: &mut [f32], pass: &mut Pass<'_>) -> Result<(), Error> {
        let norms = &self.blocks[layer as usize];
        let (positions, turns) = (x.len() / c.d_model, &pass.turns[0]);
        let id = |group| LinearId { layer, group };

        let mut h = Zeroizing::new(vec![0f32; x.len()]);
        rms_norm(c, x, &norms.attention, &mut h);
        let mut qkv = pass.linear(c, id(Group::Qkv), &h, positions)?;
        let mixed = pass.attend(c, layer, Scope::all(c), &mut qkv, |kind, p, head| {
            let weight = if kind == Head::Query { &norms.query } else { &norms.key };
            ops::rms_norm_in_place(head, weight, c.norm_epsilon);
            Pairs::Halves.turn(head, turns.at(p));
        })?;
        ops::add(x, &pass.linear(c, id(Group::Output), &mixed, positions)?);

        rms_norm(c, x, &norms.feed_forward, &mut h);
        let gated = gate(c, &pass.linear(c, id(Group::GateUp), &h, positions)?, ops::silu);
        ops::add(x, &pass.linear(c, id(Group::Down), &gated, positions)?);
        Ok(())
    }

    fn output_norm(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]) {
        rms_norm(c, x, &self.output_norm, out);
    }
}
