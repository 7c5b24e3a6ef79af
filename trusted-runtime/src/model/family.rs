//! The families of models, one file each: what its files call sizes and tensors, and its forward pass.
//! A new family is a file here and a line in [`FAMILIES`].

mod gemma3;
pub(super) mod gpt2;
pub(super) mod llama;
pub(super) mod qwen3;

use super::{
    attention::Place,
    block::Pass,
    config::ModelConfig,
    load::{Field, Keys, Layout, Reader, Sink},
    rotary::Turns,
};
use crate::Error;
use serde::{Serialize, Serializer};
use std::{fmt, sync::Arc};

/// Every family that this program computes.
const FAMILIES: [Entry; 4] = [llama::ENTRY, qwen3::ENTRY, gemma3::ENTRY, gpt2::ENTRY];

/// How a family's files are recognized and read.
struct Entry {
    /// GGUF's `general.architecture`, and the name for people.
    name: &'static str,
    /// `model_type` of config.json.
    model_type: &'static str,
    /// The configuration from GGUF metadata.
    gguf: fn(&Keys<'_>) -> Result<ModelConfig, Error>,
    /// The configuration from config.json.
    json: fn(&Field<'_>) -> Result<ModelConfig, Error>,
}

/// What a family computes beside what the sizes say; holds what only this family's files say.
pub(crate) trait Family: fmt::Debug + Send + Sync {
    /// The name for people, as in its [`Entry`].
    fn name(&self) -> &'static str;

    /// Checks what this family's forward pass relies on beside [`ModelConfig::check`].
    ///
    /// # Errors
    /// What was found and what was expected.
    fn check(&self, c: &ModelConfig) -> Result<(), String>;

    /// Whether the feed-forward layer has a gate beside its way up.
    fn gated(&self) -> bool {
        true
    }

    /// The Hugging Face name (without a prefix that some files add) and the layout of a canonical tensor; none
    /// for a tensor that this family does not have.
    fn stored(&self, c: &ModelConfig, canonical: &str) -> Option<(String, Layout)>;

    /// Reads all blocks, handing linear weights to `sink`.
    ///
    /// # Errors
    /// Those of `reader` and `sink`.
    fn load(&self, c: &ModelConfig, reader: &Reader<'_>, sink: &mut dyn Sink) -> Result<Box<dyn Decoder>, Error>;
}

/// The blocks of a loaded model, without its linear weights.
pub(super) trait Decoder: Send + Sync {
    /// Turns embedded tokens, `x` = [rows][d_model], into what the first block reads; returns the rotations of the
    /// rows' places, a table for each set of frequencies.
    fn begin(&self, c: &ModelConfig, places: &[Place], x: &mut [f32]) -> Vec<Turns>;

    /// Runs block `layer` on the residual stream `x`, [rows][d_model].
    ///
    /// # Errors
    /// Those of the linear layers; [`Error::Cancelled`].
    fn block(&self, c: &ModelConfig, layer: u32, x: &mut [f32], pass: &mut Pass<'_>) -> Result<(), Error>;

    /// The last norm, in front of the LM head.
    fn output_norm(&self, c: &ModelConfig, x: &[f32], out: &mut [f32]);
}

/// The family of one model, as its file describes it.
#[derive(Clone, Debug)]
pub struct Architecture(Arc<dyn Family>);

impl Architecture {
    /// The names of all families, for messages.
    pub fn supported() -> String {
        FAMILIES.map(|f| f.name).join(", ")
    }

    pub(super) fn new(family: impl Family + 'static) -> Self {
        Self(Arc::new(family))
    }

    pub(super) fn family(&self) -> &dyn Family {
        &*self.0
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl Serialize for Architecture {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.0.name())
    }
}

/// Reads and checks the configuration of a GGUF file.
///
/// # Errors
/// [`Error::Model`] naming the file and the key.
pub(super) fn from_gguf(keys: &Keys<'_>) -> Result<ModelConfig, Error> {
    let name = keys.architecture();
    let entry = FAMILIES
        .iter()
        .find(|f| f.name == name)
        .ok_or_else(|| unknown(keys.file(), name, &Architecture::supported()))?;
    let config = (entry.gguf)(keys)?;
    config.check(keys.file())?;
    Ok(config)
}

/// Reads and checks the configuration of a config.json.
///
/// # Errors
/// [`Error::Model`] naming the file and the field.
pub(super) fn from_json(f: &Field<'_>) -> Result<ModelConfig, Error> {
    let known = FAMILIES.map(|f| f.model_type).join(", ");
    if !f.get("vision_config").is_null() {
        return f.wrong("vision_config", "none (images are not supported)");
    }
    let Some(name) = f.optional_text("model_type") else { return f.wrong("model_type", &known) };
    let Some(entry) = FAMILIES.iter().find(|f| f.model_type == name) else {
        return Err(unknown(f.file(), name, &known));
    };
    let config = (entry.json)(f)?;
    config.check(f.file())?;
    Ok(config)
}

fn unknown(file: &str, name: &str, known: &str) -> Error {
    Error::Model(format!("{file}: unknown architecture {name:?}, expected one of: {known}"))
}
