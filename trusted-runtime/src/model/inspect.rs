//! What a model is, without running it.

use super::{
    config::ModelConfig,
    load::Sink,
    source::{LoadOptions, Opened},
};
use crate::{Error, linear::LinearId};
use serde::Serialize;

/// A model file in figures.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// What was opened.
    pub source: String,
    /// SHA-256 of what was read; none for synthetic models.
    pub sha256: Option<String>,
    /// The sizes.
    #[serde(flatten)]
    pub config: ModelConfig,
    /// Tensors by element type.
    pub tensor_types: Vec<TypeCount>,
    /// Multiply-accumulates per token in the linear layers, the head included.
    pub linear_weights: u64,
    /// Which tokenizer.
    pub tokenizer: String,
    /// Tokens that end a generation.
    pub end_tokens: Vec<u32>,
    /// Whether the model says how a conversation becomes a prompt.
    pub chat_template: bool,
}

/// How many tensors have one element type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeCount {
    /// Name of the type.
    #[serde(rename = "type")]
    pub name: String,
    /// Tensors of this type.
    pub tensors: usize,
    /// Weights in them.
    pub weights: u64,
}

/// Reads `source` and checks all of it, every tensor included, as loading does.
///
/// # Errors
/// As [`super::load`].
pub fn inspect(source: &str, progress: &dyn Fn(&str, u64, u64)) -> Result<Summary, Error> {
    let opened = Opened::new(&LoadOptions { source, expected_sha256: None, progress })?;
    let mut count = Count(0);
    let model = opened.read(progress, &mut count)?;
    let tensor_types =
        opened.types.into_iter().map(|(name, tensors, weights)| TypeCount { name, tensors, weights }).collect();
    Ok(Summary {
        source: source.to_owned(),
        sha256: opened.sha256,
        config: model.config().clone(),
        tensor_types,
        linear_weights: count.0,
        tokenizer: opened.tokenizer.kind().to_owned(),
        end_tokens: opened.tokenizer.eog().collect(),
        chat_template: opened.chat.is_some(),
    })
}

/// Counts weights and drops them.
struct Count(u64);

impl Sink for Count {
    fn matrix(&mut self, _: LinearId, _: usize, _: usize, weights: &[f32]) -> Result<(), Error> {
        self.0 += weights.len() as u64;
        Ok(())
    }
}
