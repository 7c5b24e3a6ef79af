//! Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU; Llama 3's stretched rotations.
//!
//! Canonical query and key rows are in the order of neighbouring rotary pairs, as GGUF has them.

use super::{Architecture, Decoder, Entry, Family};
use crate::{
    Error,
    linear::{Group, LinearId},
    model::{
        attention::Place,
        block::{Pass, Scope, Stack, gate, rms_norm},
        config::ModelConfig,
        load::{Field, Keys, Layout, Reader, Sink, gated_block},
        ops,
        rotary::{Pairs, Rotary, Turns},
    },
};
use zeroize::Zeroizing;

pub(super) const ENTRY: Entry = Entry { name: "llama", model_type: "llama", gguf, json };

/// What a file of this family may add to the sizes.
#[derive(Debug, Default)]
pub(crate) struct Llama {
    /// Divisors of the rotary frequencies that config.json asks for; GGUF has a tensor of them.
    factors: Option<Vec<f32>>,
}

fn gguf(keys: &Keys<'_>) -> Result<ModelConfig, Error> {
    let sizes = keys.sizes(Architecture::new(Llama::default()), "attention.layer_norm_rms_epsilon")?;
    keys.plain_heads(&sizes)?;
    keys.only_size("expert_count", 0, "no experts")?;
    keys.unscaled()?;
    Ok(ModelConfig { rope_base: keys.float_or("rope.freq_base", 10_000.0)?, ..sizes })
}

fn json(f: &Field<'_>) -> Result<ModelConfig, Error> {
    f.only("hidden_act", &["silu"])?;
    f.flag("attention_bias", false)?;
    f.flag("mlp_bias", false)?;
    let sizes = f.sizes(Architecture::new(Llama::default()))?;
    let rope = f.rope(10_000.0)?;
    let factors = rope.llama3()?.map(|stretch| stretch.factors(rope.base, sizes.head_dim));
    Ok(ModelConfig { architecture: Architecture::new(Llama { factors }), rope_base: rope.base, ..sizes })
}

impl Family for Llama {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn check(&self, c: &ModelConfig) -> Result<(), String> {
        c.check_rotary()
    }

    fn stored(&self, c: &ModelConfig, canonical: &str) -> Option<(String, Layout)> {
        gated_block(canonical, |part| match part {
            "attn_q" => Some(("self_attn.q_proj", Layout::Halves(c.heads))),
            "attn_k" => Some(("self_attn.k_proj", Layout::Halves(c.kv_heads))),
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
                feed_forward: stack.norm("ffn_norm", c.d_model)?,
            });
        }
        let output_norm = reader.read("output_norm.weight", &[c.d_model])?;
        let mut rotary = Rotary::new(c.rope_base, c.head_dim);
        if reader.has(FACTORS) {
            rotary = rotary.divided(&reader.read(FACTORS, &[c.head_dim / 2])?);
        } else if let Some(factors) = &self.factors {
            rotary = rotary.divided(factors);
        }
        Ok(Box::new(Blocks { blocks, output_norm, rotary }))
    }
}

/// GGUF's divisors of the rotary frequencies.
const FACTORS: &str = "rope_freqs.weight";

struct Blocks {
    blocks: Vec<Norms>,
    output_norm: Vec<f32>,
    rotary: Rotary,
}

struct Norms {
    attention: Vec<f32>,
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
        let mixed = pass.attend(c, layer, Scope::all(c), &mut qkv, |_, p, head| {
            Pairs::Neighbours.turn(head, turns.at(p));
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
