//! Shapes without weights: `synthetic:NAME` is a model of known sizes with seeded random weights and a
//! byte-level tokenizer, so that a size can be timed without its weights. Its text means nothing.
//! `synthetic:NAME@LAYERS` has the first LAYERS layers alone and a vocabulary of at most 4096, so that a layer of a
//! large model can be timed where the model does not fit.

use super::{
    Tokenizer,
    config::ModelConfig,
    family::{Architecture, gpt2::Gpt2, llama::Llama, qwen3::Qwen3},
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
    family: fn() -> Architecture,
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

/// GPT-2 of some size.
const fn gpt2(name: &'static str, layers: usize, d_model: usize, heads: usize) -> Shape {
    Shape {
        name,
        family: || Architecture::new(Gpt2),
        layers,
        d_model,
        d_ff: 4 * d_model,
        heads,
        kv_heads: heads,
        head_dim: d_model / heads,
        context: 1024,
        vocab: 50_257,
        tied_head: true,
    }
}

/// Qwen3 of some size.
const fn qwen3(name: &'static str, layers: usize, d_model: usize, d_ff: usize, heads: usize) -> Shape {
    Shape {
        name,
        family: || Architecture::new(Qwen3),
        layers,
        d_model,
        d_ff,
        heads,
        kv_heads: 8,
        head_dim: 128,
        context: 40_960,
        vocab: 151_936,
        tied_head: false,
    }
}

/// Sizes from the models' published configurations.
const SHAPES: [Shape; 10] = [
    gpt2("gpt2-124m", 12, 768, 12),
    gpt2("gpt2-355m", 24, 1024, 16),
    gpt2("gpt2-774m", 36, 1280, 20),
    gpt2("gpt2-1.5b", 48, 1600, 25),
    Shape { tied_head: true, ..qwen3("qwen3-0.6b", 28, 1024, 3072, 16) },
    qwen3("qwen3-8b", 36, 4096, 12_288, 32),
    Shape {
        name: "llama3-8b",
        layers: 32,
        d_model: 4096,
        d_ff: 14_336,
        head_dim: 128,
        context: 8192,
        tied_head: false,
        ..LLAMA_1B
    },
    LLAMA_1B,
    Shape {
        name: "smollm2-135m",
        layers: 30,
        d_model: 576,
        d_ff: 1536,
        heads: 9,
        kv_heads: 3,
        context: 8192,
        vocab: 49_152,
        ..LLAMA_1B
    },
    Shape {
        name: "llama-tiny",
        layers: 2,
        d_model: 64,
        d_ff: 160,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        context: 256,
        vocab: 260,
        tied_head: false,
        ..LLAMA_1B
    },
];

/// Llama 3.2 1B.
const LLAMA_1B: Shape = Shape {
    name: "llama-1b",
    family: || Architecture::new(Llama::default()),
    layers: 16,
    d_model: 2048,
    d_ff: 8192,
    heads: 32,
    kv_heads: 8,
    head_dim: 64,
    context: 131_072,
    vocab: 128_256,
    tied_head: true,
};

/// Vocabulary of a shape that is cut to some of its layers: embedding and head are no part of a layer, and for a
/// large model they would be most of what is left.
const CUT_VOCABULARY: usize = 4096;

/// Random tensors of one shape.
pub(super) struct Synthetic {
    file: String,
    /// Key of the weights: a shape's, whether cut or not.
    seed: String,
}

impl Synthetic {
    /// The names that can be opened.
    pub(super) fn names() -> String {
        SHAPES.map(|s| s.name).join(", ")
    }

    /// Opens the shape called `name`, or `NAME@LAYERS`.
    pub(super) fn open(name: &str) -> Result<Opened, Error> {
        let (base, cut) = name.split_once('@').map_or((name, None), |(base, cut)| (base, Some(cut)));
        let base = base.strip_suffix("-shape").unwrap_or(base);
        let shape = SHAPES.iter().find(|s| s.name == base).ok_or_else(|| {
            Error::Model(format!(
                "unknown synthetic model {name:?}, expected one of: {}; or one of them and @LAYERS for its first layers",
                Self::names()
            ))
        })?;
        let (layers, vocab) = match cut {
            None => (shape.layers, shape.vocab),
            Some(cut) => match cut.parse().ok().filter(|n| (1..=shape.layers).contains(n)) {
                Some(layers) => (layers, shape.vocab.min(CUT_VOCABULARY)),
                None => {
                    return Err(Error::Model(format!(
                        "synthetic model {base} cut to {cut:?} layers, expected 1 to {}",
                        shape.layers
                    )));
                }
            },
        };
        let config = ModelConfig {
            architecture: (shape.family)(),
            name: format!("synthetic {name}"),
            layers,
            d_model: shape.d_model,
            d_ff: shape.d_ff,
            heads: shape.heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            context: shape.context,
            vocab,
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
        let tensors = Box::new(Self { file, seed: format!("synthetic:{base}") });
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

    /// Nothing that a model can do without.
    fn has(&self, _canonical: &str) -> bool {
        false
    }

    fn shape(&self, _canonical: &str, wanted: &[usize]) -> Option<Vec<usize>> {
        Some(wanted.to_vec())
    }

    /// Uniform weights of variance 1/cols from a stream keyed by the tensor's name; norms are near 1.
    fn read(&self, canonical: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let count: usize = shape.iter().product();
        let key =
            blake3::derive_key("bifrost 2026 synthetic weights v1", format!("{} {canonical}", self.seed).as_bytes());
        let mut stream = ChaCha20::new(&key.into(), &[0; 12].into());
        let (center, width) = match (canonical.contains("norm.weight"), shape) {
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
