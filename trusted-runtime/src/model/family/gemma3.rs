//! Gemma 3, text only: norms on both sides of attention and feed-forward layer and of every query and key head,
//! a gate of GELU, scaled embeddings, and local layers, which see a window and have rotations of their own,
//! between global ones.
//!
//! Canonical norm weights include the 1 that Hugging Face's leave out; rotary pairs are halves of a head.

use super::{Architecture, Decoder, Entry, Family};
use crate::{
    Error,
    linear::{Group, LinearId},
    model::{
        attention::{self, Place},
        block::{Head, Pass, Scope, Stack, gate, rms_norm},
        config::ModelConfig,
        load::{Field, Keys, Layout, Reader, Rope, Sink, Value, gated_block},
        ops,
        rotary::{Pairs, Rotary, Turns},
    },
};
use zeroize::Zeroizing;

pub(super) const ENTRY: Entry = Entry { name: "gemma3", model_type: "gemma3_text", gguf, json };

/// Base of the rotary frequencies of global layers, and of local ones.
const BASES: (f64, f64) = (1e6, 1e4);
/// One layer of so many is global, the last of them.
const PATTERN: usize = 6;

/// What a file of this family adds to the sizes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gemma3 {
    /// Most positions that a position of a local layer sees, itself included.
    window: usize,
    /// Whether a layer sees everything, one per layer.
    global: Vec<bool>,
    /// Base of the rotary frequencies of local layers.
    local_base: f64,
    /// What the frequencies of global layers are divided by.
    stretch: f64,
    /// Scores are divided by the root of this.
    query_width: usize,
}

fn gguf(keys: &Keys<'_>) -> Result<ModelConfig, Error> {
    let sizes = keys.sizes(Architecture::new(Gemma3::default()), "attention.layer_norm_rms_epsilon")?;
    keys.plain_heads(&sizes)?;
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let found = keys.float_or(cap, 0.0)?;
        if found != 0.0 {
            return Err(keys.refused(cap, &found.to_string(), "0 (no soft cap)"));
        }
    }
    let stretch = match keys.optional_text("rope.scaling.type")? {
        None | Some("none") => 1.0,
        Some("linear") => keys.float_or("rope.scaling.factor", 1.0)?,
        Some(other) => return Err(keys.unknown_scaling(other, "linear or none")),
    };
    let pattern = "attention.sliding_window_pattern";
    let global = match keys.get(pattern) {
        Some(Value::Ints(local)) => local.iter().map(|local| *local == 0).collect(),
        _ => every(keys.size_or(pattern, PATTERN)?, sizes.layers),
    };
    // The 27B model alone has another width than its heads' here, and GGUF has no key for it: 62 layers are how
    // llama.cpp recognizes it.
    let query_width = if sizes.layers == 62 { sizes.d_model / sizes.heads.max(1) } else { sizes.head_dim };
    let family = Gemma3 {
        window: keys.size("attention.sliding_window")?,
        global,
        local_base: keys.float_or("rope.freq_base_swa", BASES.1)?,
        stretch,
        query_width,
    };
    let rope_base = keys.float_or("rope.freq_base", BASES.0)?;
    Ok(ModelConfig { architecture: Architecture::new(family), rope_base, ..sizes })
}

fn json(f: &Field<'_>) -> Result<ModelConfig, Error> {
    f.only("hidden_activation", &["gelu_pytorch_tanh"])?;
    f.flag("attention_bias", false)?;
    f.flag("use_bidirectional_attention", false)?;
    f.absent("attn_logit_softcapping")?;
    f.absent("final_logit_softcapping")?;
    let sizes = f.sizes(Architecture::new(Gemma3::default()))?;
    let both = f.get("rope_parameters");
    let (rope, local_base) = if both.is_null() {
        (f.rope(BASES.0)?, f.float_or("rope_local_base_freq", BASES.1)?)
    } else {
        let of = |kind: &str, base| Rope::new(f.file(), &both[kind], base);
        (of("full_attention", BASES.0)?, of("sliding_attention", BASES.1)?.unscaled()?)
    };
    let global = match f.layer_types(&["sliding_attention", "full_attention"])? {
        Some(kinds) => kinds.into_iter().map(|kind| kind == "full_attention").collect(),
        None => {
            let pattern = f.size_or("_sliding_window_pattern", PATTERN)?;
            every(f.size_or("sliding_window_pattern", pattern)?, sizes.layers)
        }
    };
    let family = Gemma3 {
        window: f.size("sliding_window")?,
        global,
        local_base,
        stretch: rope.linear()?,
        query_width: f.size_or("query_pre_attn_scalar", 256)?,
    };
    Ok(ModelConfig {
        architecture: Architecture::new(family),
        head_dim: f.size_or("head_dim", 256)?,
        rope_base: rope.base,
        tied_head: f.tied_head(true),
        ..sizes
    })
}

/// Every `pattern`th of `layers` layers; none for 0.
fn every(pattern: usize, layers: usize) -> Vec<bool> {
    (1..=layers.min(1 << 16)).map(|l| pattern > 0 && l.is_multiple_of(pattern)).collect()
}

impl Family for Gemma3 {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn check(&self, c: &ModelConfig) -> Result<(), String> {
        c.check_rotary()?;
        if self.window == 0 {
            return Err("sliding_window is 0, expected at least 1".to_owned());
        }
        if self.global.len() != c.layers {
            return Err(format!("{} layers are described, expected {}", self.global.len(), c.layers));
        }
        for (name, value) in [("local rope base", self.local_base), ("rope scaling factor", self.stretch)] {
            if !(value.is_finite() && value >= 1.0) {
                return Err(format!("{name} is {value}, expected at least 1"));
            }
        }
        if self.query_width == 0 {
            return Err("query_pre_attn_scalar is 0, expected at least 1".to_owned());
        }
        Ok(())
    }

    fn stored(&self, _: &ModelConfig, canonical: &str) -> Option<(String, Layout)> {
        if canonical == "output_norm.weight" {
            return Some(("model.norm.weight".to_owned(), Layout::LessOne));
        }
        gated_block(canonical, |part| {
            let name = match part {
                "attn_norm" => "input_layernorm",
                "attn_q_norm" => "self_attn.q_norm",
                "attn_k_norm" => "self_attn.k_norm",
                "post_attention_norm" => "post_attention_layernorm",
                "ffn_norm" => "pre_feedforward_layernorm",
                "post_ffw_norm" => "post_feedforward_layernorm",
                _ => return None,
            };
            Some((name, Layout::LessOne))
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
                after_attention: stack.norm("post_attention_norm", c.d_model)?,
                feed_forward: stack.norm("ffn_norm", c.d_model)?,
                after_feed_forward: stack.norm("post_ffw_norm", c.d_model)?,
            });
        }
        let output_norm = reader.read("output_norm.weight", &[c.d_model])?;
        let rotary =
            [Rotary::new(self.local_base, c.head_dim), Rotary::new(c.rope_base, c.head_dim).slowed(self.stretch)];
        Ok(Box::new(Blocks { family: self.clone(), blocks, output_norm, rotary }))
    }
}

struct Blocks {
    family: Gemma3,
    blocks: Vec<Norms>,
    output_norm: Vec<f32>,
    /// Of local layers, and of global ones.
    rotary: [Rotary; 2],
}

struct Norms {
    attention: Vec<f32>,
    query: Vec<f32>,
    key: Vec<f32>,
    after_attention: Vec<f32>,
    feed_forward: Vec<f32>,
    after_feed_forward: Vec<f32>,
}

impl Decoder for Blocks {
    #[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
    fn begin(&self, c: &ModelConfig, places: &[Place], x: &mut [f32]) -> Vec<Turns> {
        let scale = (c.d_model as f32).sqrt();
        x.iter_mut().for_each(|v| *v *= scale);
        self.rotary.iter().map(|r| r.turns(places)).collect()
    }

    fn block(&self, c: &ModelConfig, layer: u32, x: &mut [f32], pass: &mut Pass<'_>) -> Result<(), Error> {
        let (norms, global) = (&self.blocks[layer as usize], self.family.global[layer as usize]);
        let (positions, turns) = (x.len() / c.d_model, &pass.turns[usize::from(global)]);
        let window = if global { usize::MAX } else { self.family.window };
        let scope = Scope { scale: attention::scale(self.family.query_width), window };
        let id = |group| LinearId { layer, group };

        let mut h = Zeroizing::new(vec![0f32; x.len()]);
        rms_norm(c, x, &norms.attention, &mut h);
        let mut qkv = pass.linear(c, id(Group::Qkv), &h, positions)?;
        let mixed = pass.attend(c, layer, scope, &mut qkv, |kind, p, head| {
            let weight = if kind == Head::Query { &norms.query } else { &norms.key };
            ops::rms_norm_in_place(head, weight, c.norm_epsilon);
            Pairs::Halves.turn(head, turns.at(p));
        })?;
        let out = pass.linear(c, id(Group::Output), &mixed, positions)?;
        rms_norm(c, &out, &norms.after_attention, &mut h);
        ops::add(x, &h);

        rms_norm(c, x, &norms.feed_forward, &mut h);
        let gated = gate(c, &pass.linear(c, id(Group::GateUp), &h, positions)?, ops::gelu);
        let down = pass.linear(c, id(Group::Down), &gated, positions)?;
        rms_norm(c, &down, &norms.after_feed_forward, &mut h);
        ops::add(x, &h);
        Ok(())
    }

    fn output_norm(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]) {
        rms_norm(c, x, &self.output_norm, out);
    }
}
