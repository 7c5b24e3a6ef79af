//! The sizes of a model from GGUF metadata.

use super::gguf::Gguf;
use crate::{
    Error,
    model::config::{Architecture, ModelConfig},
};

/// Reads and checks the configuration.
///
/// # Errors
/// [`Error::Model`] naming the file and the key.
pub(crate) fn gguf_config(g: &Gguf) -> Result<ModelConfig, Error> {
    let file = g.file();
    let architecture = Architecture::parse(file, g.text("general.architecture")?)?;
    let key = |k: &str| format!("{architecture}.{k}");
    let heads = g.size(&key("attention.head_count"))?;
    let d_model = g.size(&key("embedding_length"))?;
    let head_dim = g.size_or(&key("attention.key_length"), d_model / heads.max(1))?;
    let embedding = g.tensors().get("token_embd.weight");
    let vocab = match embedding.map(|t| t.shape.as_slice()) {
        Some([vocab, width]) if *width == d_model => *vocab,
        Some(shape) => {
            return Err(Error::Model(format!(
                "{file}: tensor token_embd.weight has shape {shape:?}, expected [vocabulary, {d_model}]"
            )));
        }
        None => return Err(Error::Model(format!("{file}: tensor token_embd.weight is missing"))),
    };
    let (norm, rope_base) = match architecture {
        Architecture::Llama => {
            refuse_other_llamas(g, head_dim)?;
            let base = key("rope.freq_base");
            let base = if g.get(&base).is_some() { g.float(&base)? } else { 10_000.0 };
            ("attention.layer_norm_rms_epsilon", base)
        }
        Architecture::Gpt2 => ("attention.layer_norm_epsilon", 0.0),
    };
    #[expect(clippy::cast_possible_truncation, reason = "GGUF stores it as f32")]
    let norm_epsilon = g.float(&key(norm))? as f32;
    let config = ModelConfig {
        architecture,
        name: g.optional_text("general.name")?.unwrap_or("unnamed").to_owned(),
        layers: g.size(&key("block_count"))?,
        d_model,
        d_ff: g.size(&key("feed_forward_length"))?,
        heads,
        kv_heads: g.size_or(&key("attention.head_count_kv"), heads)?,
        head_dim,
        context: g.size(&key("context_length"))?,
        vocab,
        norm_epsilon,
        rope_base,
        tied_head: !g.tensors().contains_key("output.weight"),
        parameters: 0,
    };
    config.check(file)?;
    Ok(config)
}

/// Variants that share the name `llama` but compute something else.
fn refuse_other_llamas(g: &Gguf, head_dim: usize) -> Result<(), Error> {
    let file = g.file();
    let same = [
        ("llama.attention.value_length", head_dim, "head_dim"),
        ("llama.rope.dimension_count", head_dim, "head_dim"),
        ("llama.expert_count", 0, "no experts"),
    ];
    for (key, expected, meaning) in same {
        let found = g.size_or(key, expected)?;
        if found != expected {
            return Err(Error::Model(format!(
                "{file}: metadata key {key} is {found}, expected {expected} ({meaning})"
            )));
        }
    }
    match g.optional_text("llama.rope.scaling.type")? {
        None | Some("none") => Ok(()),
        Some(other) => Err(Error::Model(format!("{file}: rope scaling {other:?} is not supported, expected none"))),
    }
}
