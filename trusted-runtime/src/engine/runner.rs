//! What the engine runs: a model together with one way of executing its linear layers.

use crate::{Error, linear::Call};

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
