//! Shapes without weights: `synthetic:NAME` is a model of known sizes with seeded random weights and a
//! byte-level tokenizer, so that a size can be timed without its weights. Its text means nothing.

use super::{
    Tokenizer,
    config::{Architecture, ModelConfig},
    load::Tensors,
    source::Opened,
    tokenizer::{Parts, letters},
};
use crate::Error;
use chacha20::{
    ChaCha20,
    cipher::{KeyIvInit, StreamCipher},
};
use std::collections::BTreeSet;

/// A named shape.
struct Shape {
    name: &'static str,
    architecture: Architecture,
    layers: usize,
    d_model: usize,
    d_ff: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    vocab: usize,
    tied_head: bool,
}

/// Sizes from the models' published configurations. `qwen3-0.6b-shape` has Qwen3-0.6B's sizes in the Llama
/// architecture: without the per-head norms of queries and keys, which cost nothing in comparison.
const SHAPES: [Shape; 5] = [
    Shape {
        name: "gpt2-124m",
        architecture: Architecture::Gpt2,
        layers: 12,
        d_model: 768,
        d_ff: 3072,
        heads: 12,
        kv_heads: 12,
        head_dim: 64,
        context: 1024,
        vocab: 50_257,
        tied_head: true,
    },
    Shape {
        name: "qwen3-0.6b-shape",
        architecture: Architecture::Llama,
        layers: 28,
        d_model: 1024,
        d_ff: 3072,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        context: 40_960,
        vocab: 151_936,
        tied_head: true,
    },
    Shape {
        name: "llama-135m",
        architecture: Architecture::Llama,
        layers: 30,
        d_model: 576,
        d_ff: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        context: 8192,
        vocab: 49_152,
        tied_head: true,
    },
    Shape {
        name: "llama-1b",
        architecture: Architecture::Llama,
        layers: 16,
        d_model: 2048,
        d_ff: 8192,
        heads: 32,
        kv_heads: 8,
        head_dim: 64,
        context: 131_072,
        vocab: 128_256,
        tied_head: true,
    },
    Shape {
        name: "llama-tiny",
        architecture: Architecture::Llama,
        layers: 2,
        d_model: 64,
        d_ff: 160,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        context: 256,
        vocab: 260,
        tied_head: false,
    },
];

/// Random tensors of one shape.
pub(super) struct Synthetic {
    file: String,
    config: ModelConfig,
}

impl Synthetic {
    /// The names that can be opened.
    pub(super) fn names() -> String {
        SHAPES.map(|s| s.name).join(", ")
    }

    /// Opens the shape called `name`.
    pub(super) fn open(name: &str) -> Result<Opened, Error> {
        let shape = SHAPES.iter().find(|s| s.name == name).ok_or_else(|| {
            Error::Model(format!("unknown synthetic model {name:?}, expected one of: {}", Self::names()))
        })?;
        let config = ModelConfig {
            architecture: shape.architecture,
            name: format!("synthetic {}", shape.name),
            layers: shape.layers,
            d_model: shape.d_model,
            d_ff: shape.d_ff,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            context: shape.context,
            vocab: shape.vocab,
            norm_epsilon: 1e-5,
            rope_base: 10_000.0,
            tied_head: shape.tied_head,
            parameters: 0,
        };
        let file = format!("synthetic:{name}");
        config.check(&file)?;
        let tokenizer = tokenizer(&file, config.vocab)?;
        let linear: usize =
            config.linear_ids().iter().map(|id| config.linear_shape(id.group)).map(|(r, c)| r * c).sum();
        let embedding = if config.tied_head { 0 } else { config.vocab * config.d_model };
        let types = vec![("random".to_owned(), 0, (linear + embedding) as u64)];
        let tensors = Box::new(Self { file, config: config.clone() });
        Ok(Opened { config, tokenizer, chat: None, sha256: None, tensors, types })
    }
}

/// Byte tokens, then as many words as the vocabulary needs; nothing ends a generation.
fn tokenizer(file: &str, vocab: usize) -> Result<Tokenizer, Error> {
    let mut tokens: Vec<String> = letters().iter().map(char::to_string).collect();
    tokens.extend((256..vocab).map(|id| format!("\u{120}w{id}")));
    let parts = Parts {
        file,
        pre: "gpt-2",
        types: &vec![1; tokens.len()],
        tokens: &tokens,
        merges: &[],
        bos: None,
        add_bos: None,
        end: BTreeSet::new(),
    };
    Tokenizer::from_parts(parts)
}

impl Tensors for Synthetic {
    fn file(&self) -> &str {
        &self.file
    }

    fn native(&self, canonical: &str) -> String {
        canonical.to_owned()
    }

    fn shape(&self, canonical: &str) -> Option<Vec<usize>> {
        let c = &self.config;
        let (d, gpt2) = (c.d_model, c.architecture == Architecture::Gpt2);
        let part = match canonical.strip_prefix("blk.") {
            Some(rest) => rest.split_once('.').map_or(rest, |(_, part)| part),
            None => canonical,
        };
        Some(match part {
            "token_embd.weight" => vec![c.vocab, d],
            "output.weight" if !c.tied_head => vec![c.vocab, d],
            "position_embd.weight" if gpt2 => vec![c.context, d],
            "attn_qkv.weight" => vec![c.q_width() + 2 * c.kv_width(), d],
            "attn_q.weight" => vec![c.q_width(), d],
            "attn_k.weight" | "attn_v.weight" => vec![c.kv_width(), d],
            "attn_output.weight" => vec![d, c.q_width()],
            "ffn_gate.weight" | "ffn_up.weight" => vec![c.d_ff, d],
            "ffn_down.weight" => vec![d, c.d_ff],
            "attn_qkv.bias" => vec![3 * d],
            "ffn_up.bias" => vec![c.d_ff],
            "attn_norm.weight" | "ffn_norm.weight" | "output_norm.weight" => vec![d],
            "attn_norm.bias" | "ffn_norm.bias" | "output_norm.bias" | "attn_output.bias" | "ffn_down.bias" => vec![d],
            _ => return None,
        })
    }

    /// Uniform weights of variance 1/cols from a stream keyed by the tensor's name; norms are near 1.
    fn read(&self, canonical: &str) -> Result<Vec<f32>, Error> {
        let shape = self.shape(canonical).ok_or_else(|| Error::Bug(format!("{}: no tensor {canonical}", self.file)))?;
        let count: usize = shape.iter().product();
        let key =
            blake3::derive_key("bifrost 2026 synthetic weights v1", format!("{} {canonical}", self.file).as_bytes());
        let mut stream = ChaCha20::new(&key.into(), &[0; 12].into());
        let (center, width) = match (canonical.contains("norm.weight"), shape.as_slice()) {
            (true, _) => (1.0, 0.1),
            (false, [_, cols]) => {
                (0.0, f32::from(u16::try_from(*cols).unwrap_or(u16::MAX)).sqrt().recip() * 3f32.sqrt())
            }
            (false, _) => (0.0, 0.02),
        };
        let mut values = Vec::with_capacity(count);
        let mut bytes = [0u8; 1 << 14];
        while values.len() < count {
            bytes.fill(0);
            stream.apply_keystream(&mut bytes);
            let left = count - values.len();
            values.extend(bytes.chunks_exact(2).take(left).map(|b| {
                let unit = f32::from(i16::from_le_bytes([b[0], b[1]])) / 32_768.0;
                center + width * unit
            }));
        }
        Ok(values)
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
