//! The sizes of a model from GGUF metadata.

use super::gguf::{Gguf, Value};
use crate::{
    Error,
    model::{config::ModelConfig, family::Architecture},
};

/// The metadata keys of a file's architecture: `size("block_count")` is `llama.block_count` in a Llama file.
pub(crate) struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// # Errors
    /// [`Error::Model`] if the file names no architecture.
    pub(crate) fn new(gguf: &'a Gguf) -> Result<Self, Error> {
        Ok(Self { gguf, architecture: gguf.text("general.architecture")? })
    }

    /// Name of the file.
    pub(crate) fn file(&self) -> &str {
        self.gguf.file()
    }

    /// Name of the architecture.
    pub(crate) fn architecture(&self) -> &'a str {
        self.architecture
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// The value, if the key is there.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.gguf.get(&self.key(key))
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize, Error> {
        self.gguf.size(&self.key(key))
    }

    pub(crate) fn size_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        self.gguf.size_or(&self.key(key), default)
    }

    pub(crate) fn float_or(&self, key: &str, default: f64) -> Result<f64, Error> {
        if self.get(key).is_none() { Ok(default) } else { self.gguf.float(&self.key(key)) }
    }

    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>, Error> {
        self.gguf.optional_text(&self.key(key))
    }

    /// Refuses any size `key` but `expected` and absence; `meaning` says what `expected` is.
    pub(crate) fn only_size(&self, key: &str, expected: usize, meaning: &str) -> Result<(), Error> {
        match self.size_or(key, expected)? {
            found if found == expected => Ok(()),
            found => Err(self.refused(key, &found.to_string(), &format!("{expected} ({meaning})"))),
        }
    }

    /// The error about a key that is `found` where only `expected` is computed.
    pub(crate) fn refused(&self, key: &str, found: &str, expected: &str) -> Error {
        Error::Model(format!("{}: metadata key {} is {found}, expected {expected}", self.file(), self.key(key)))
    }

    /// Refuses heads that are turned only in part or have values of another width.
    pub(crate) fn plain_heads(&self, c: &ModelConfig) -> Result<(), Error> {
        self.only_size("attention.value_length", c.head_dim, "head_dim")?;
        self.only_size("rope.dimension_count", c.head_dim, "head_dim")
    }

    /// Refuses rotary positions that are scaled by a rule; a tensor of factors is no rule.
    pub(crate) fn unscaled(&self) -> Result<(), Error> {
        match self.optional_text("rope.scaling.type")? {
            None | Some("none") => Ok(()),
            Some(other) => Err(self.unknown_scaling(other, "none")),
        }
    }

    /// The error about rotary positions scaled by a rule that is not computed.
    pub(crate) fn unknown_scaling(&self, found: &str, expected: &str) -> Error {
        Error::Model(format!("{}: rope scaling {found:?} is not supported, expected {expected}", self.file()))
    }

    /// The sizes that every family has, with the epsilon of `norm`; rotary base 0.
    ///
    /// # Errors
    /// [`Error::Model`] naming the key or the tensor.
    pub(crate) fn sizes(&self, architecture: Architecture, norm: &str) -> Result<ModelConfig, Error> {
        let (file, tensors) = (self.file(), self.gguf.tensors());
        let heads = self.size("attention.head_count")?;
        let d_model = self.size("embedding_length")?;
        let vocab = match tensors.get("token_embd.weight").map(|t| t.shape.as_slice()) {
            Some([vocab, width]) if *width == d_model => *vocab,
            Some(shape) => {
                return Err(Error::Model(format!(
                    "{file}: tensor token_embd.weight has shape {shape:?}, expected [vocabulary, {d_model}]"
                )));
            }
            None => return Err(Error::Model(format!("{file}: tensor token_embd.weight is missing"))),
        };
        #[expect(clippy::cast_possible_truncation, reason = "GGUF stores it as f32")]
        let norm_epsilon = self.gguf.float(&self.key(norm))? as f32;
        Ok(ModelConfig {
            architecture,
            name: self.gguf.optional_text("general.name")?.unwrap_or("unnamed").to_owned(),
            layers: self.size("block_count")?,
            d_model,
            d_ff: self.size("feed_forward_length")?,
            heads,
            kv_heads: self.size_or("attention.head_count_kv", heads)?,
            head_dim: self.size_or("attention.key_length", d_model / heads.max(1))?,
            context: self.size("context_length")?,
            vocab,
            norm_epsilon,
            rope_base: 0.0,
            tied_head: !tensors.contains_key("output.weight"),
            parameters: 0,
        })
    }
}
