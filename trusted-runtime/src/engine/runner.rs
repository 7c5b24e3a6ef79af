//! What the engine runs: a model together with one way of executing its linear layers.

use crate::{
    Error,
    linear::{Call, Linear, LinearId},
    model::{KvCache, Model, Tokenizer},
};
use std::sync::Arc;

/// A model as the engine sees it.
pub trait Runner: Send + Sync + 'static {
    /// What a sequence has computed so far.
    type Cache: Send;

    /// Number of token ids, and of logits.
    fn vocab(&self) -> usize;

    /// Whether a token ends an answer.
    fn is_end(&self, token: u32) -> bool;

    /// An empty cache.
    fn new_cache(&self) -> Self::Cache;

    /// Appends `tokens` to the cache; `logits` becomes those of the last position.
    ///
    /// # Errors
    /// Those of the model and of its linear layers; [`Error::Cancelled`] within one linear layer of
    /// `call` being cancelled. The cache is unusable then.
    fn forward(&self, call: &Call, tokens: &[u32], cache: &mut Self::Cache, logits: &mut Vec<f32>)
    -> Result<(), Error>;

    /// Appends `tokens` to the cache, with no interest in logits.
    ///
    /// # Errors
    /// As [`Runner::forward`].
    fn prefill(&self, call: &Call, tokens: &[u32], cache: &mut Self::Cache) -> Result<(), Error>;
}

/// A loaded model with one way of executing its linear layers.
pub struct ModelRunner {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    linear: Arc<dyn Linear>,
}

impl ModelRunner {
    /// All three over the same weights.
    pub fn new(model: Arc<Model>, tokenizer: Arc<Tokenizer>, linear: Arc<dyn Linear>) -> Self {
        Self { model, tokenizer, linear }
    }
}

impl Runner for ModelRunner {
    type Cache = KvCache;

    fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    fn is_end(&self, token: u32) -> bool {
        self.tokenizer.is_eog(token)
    }

    fn new_cache(&self) -> KvCache {
        self.model.new_cache()
    }

    fn forward(&self, call: &Call, tokens: &[u32], cache: &mut KvCache, logits: &mut Vec<f32>) -> Result<(), Error> {
        self.model.forward(&Watched(&*self.linear), call, tokens, cache, logits)
    }

    fn prefill(&self, call: &Call, tokens: &[u32], cache: &mut KvCache) -> Result<(), Error> {
        self.model.prefill(&Watched(&*self.linear), call, tokens, cache)
    }
}

/// Looks before every linear layer whether the call is still wanted.
struct Watched<'a>(&'a dyn Linear);

impl Linear for Watched<'_> {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.0.apply(call, id, xs, vectors, ys)
    }
}
