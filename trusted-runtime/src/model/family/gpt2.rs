//! The GPT-2 block: LayerNorm, fused QKV with biases, learned positions, GELU.

use super::{Architecture, Decoder, Entry, Family};
use crate::{
    Error,
    linear::{Group, LinearId},
    model::{
        attention::Place,
        block::{Pass, Scope, Stack},
        config::ModelConfig,
        load::{Field, Keys, Layout, Reader, Sink, block_part},
        ops,
        rotary::Turns,
    },
};
use zeroize::Zeroizing;

pub(super) const ENTRY: Entry = Entry { name: "gpt2", model_type: "gpt2", gguf, json };

/// Nothing beside the sizes.
#[derive(Debug)]
pub(crate) struct Gpt2;

fn gguf(keys: &Keys<'_>) -> Result<ModelConfig, Error> {
    keys.sizes(Architecture::new(Gpt2), "attention.layer_norm_epsilon")
}

fn json(f: &Field<'_>) -> Result<ModelConfig, Error> {
    f.only("activation_function", &["gelu_new", "gelu_pytorch_tanh"])?;
    f.flag("scale_attn_weights", true)?;
    f.flag("scale_attn_by_inverse_layer_idx", false)?;
    let (d_model, heads) = (f.size("n_embd")?, f.size("n_head")?);
    Ok(ModelConfig {
        architecture: Architecture::new(Gpt2),
        name: f.name(),
        layers: f.size("n_layer")?,
        d_model,
        d_ff: f.size_or("n_inner", 4 * d_model)?,
        heads,
        kv_heads: heads,
        head_dim: d_model / heads.max(1),
        context: f.size("n_positions")?,
        vocab: f.size("vocab_size")?,
        norm_epsilon: f.narrow("layer_norm_epsilon")?,
        rope_base: 0.0,
        tied_head: f.tied_head(true),
        parameters: 0,
    })
}

impl Family for Gpt2 {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn check(&self, c: &ModelConfig) -> Result<(), String> {
        if c.q_width() != c.d_model || c.kv_heads != c.heads {
            return Err(format!(
                "d_model is {}, expected {} heads of {}, each with its own keys and values",
                c.d_model, c.heads, c.head_dim
            ));
        }
        Ok(())
    }

    fn gated(&self) -> bool {
        false
    }

    fn stored(&self, _: &ModelConfig, canonical: &str) -> Option<(String, Layout)> {
        let whole = match canonical {
            "token_embd.weight" => Some("wte.weight"),
            "position_embd.weight" => Some("wpe.weight"),
            "output_norm.weight" => Some("ln_f.weight"),
            "output_norm.bias" => Some("ln_f.bias"),
            "output.weight" => Some("lm_head.weight"),
            _ => None,
        };
        if let Some(name) = whole {
            return Some((name.to_owned(), Layout::Same));
        }
        let (block, part) = block_part(canonical)?;
        let (part, kind) = part.rsplit_once('.')?;
        let (name, linear) = match part {
            "attn_norm" => ("ln_1", false),
            "attn_qkv" => ("attn.c_attn", true),
            "attn_output" => ("attn.c_proj", true),
            "ffn_norm" => ("ln_2", false),
            "ffn_up" => ("mlp.c_fc", true),
            "ffn_down" => ("mlp.c_proj", true),
            _ => return None,
        };
        let layout = if linear && kind == "weight" { Layout::Transposed } else { Layout::Same };
        Some((format!("h.{block}.{name}.{kind}"), layout))
    }

    fn load(&self, c: &ModelConfig, reader: &Reader<'_>, sink: &mut dyn Sink) -> Result<Box<dyn Decoder>, Error> {
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
        Ok(Box::new(Blocks { positions, blocks, output_norm: norm("output_norm")? }))
    }
}

struct Blocks {
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

impl Decoder for Blocks {
    fn begin(&self, c: &ModelConfig, places: &[Place], x: &mut [f32]) -> Vec<Turns> {
        for (x, place) in x.chunks_exact_mut(c.d_model).zip(places) {
            ops::add(x, &self.positions[place.position * c.d_model..][..c.d_model]);
        }
        Vec::new()
    }

    fn block(&self, c: &ModelConfig, layer: u32, x: &mut [f32], pass: &mut Pass<'_>) -> Result<(), Error> {
        let block = &self.blocks[layer as usize];
        let positions = x.len() / c.d_model;
        let id = |group| LinearId { layer, group };

        let mut h = Zeroizing::new(vec![0f32; x.len()]);
        block.attention_norm.apply(c, x, &mut h);
        let mut qkv = pass.linear(c, id(Group::Qkv), &h, positions)?;
        add_bias(&mut qkv, &block.qkv_bias);
        let mixed = pass.attend(c, layer, Scope::all(c), &mut qkv, |_, _, _| {})?;
        let mut out = pass.linear(c, id(Group::Output), &mixed, positions)?;
        add_bias(&mut out, &block.output_bias);
        ops::add(x, &out);

        block.feed_forward_norm.apply(c, x, &mut h);
        let mut up = pass.linear(c, id(Group::GateUp), &h, positions)?;
        add_bias(&mut up, &block.up_bias);
        ops::each(&mut up, ops::gelu);
        let mut down = pass.linear(c, id(Group::Down), &up, positions)?;
        add_bias(&mut down, &block.down_bias);
        ops::add(x, &down);
        Ok(())
    }

    fn output_norm(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]) {
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
