//! What the engine runs: a model together with the ways of executing its linear layers.

use crate::{
    Error,
    linear::{Call, Linear, LinearId},
    model::{
        KvCache, Model, Part, Tokenizer,
        kv::{KvPool, PAGE, Salt},
    },
};
use std::sync::Arc;

/// Where the linear layers of a pass are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// In the enclave.
    Enclave,
    /// By the evaluator; in the enclave where there is none.
    Evaluator,
}

/// What a sequence has computed so far, in pages of a pool.
pub trait Cache: Send {
    /// Takes over what the pool knows of the beginning of `tokens`, not all of them; how many positions.
    fn reuse(&mut self, tokens: &[u32]) -> usize;

    /// Pages that `positions` more positions need beyond those at hand.
    fn missing(&self, positions: usize) -> usize;

    /// Gives all pages back.
    fn clear(&mut self);
}

/// What one sequence adds to a pass.
pub struct Work<'a, C> {
    /// Its next tokens, at least one.
    pub tokens: &'a [u32],
    /// What it has computed so far.
    pub cache: &'a mut C,
    /// Whether the logits after the last token are wanted.
    pub logits: bool,
}

/// A model as the engine sees it.
pub trait Runner: Send + Sync + 'static {
    /// What a sequence has computed so far.
    type Cache: Cache;

    /// Number of token ids, and of logits.
    fn vocab(&self) -> usize;

    /// Whether a token ends an answer.
    fn is_end(&self, token: u32) -> bool;

    /// An empty cache, which shares pages with those of the same salt.
    fn new_cache(&self, salt: Salt) -> Self::Cache;

    /// Pages of the pool, and those that can be had now.
    fn pages(&self) -> (usize, usize);

    /// Positions looked for among the pages of others, and found, so far.
    fn reused(&self) -> (u64, u64);

    /// Whether both sites are the same, so that one pass serves all.
    fn is_uniform(&self) -> bool;

    /// Appends tokens to all caches in one pass; `logits` becomes those of the works that want them, [works][vocab].
    ///
    /// # Errors
    /// Those of the model and of its linear layers; [`Error::Cancelled`] within one linear layer of `call` being
    /// cancelled. The caches are as before then.
    fn run(
        &self,
        site: Site,
        call: &Call,
        works: &mut [Work<'_, Self::Cache>],
        logits: &mut Vec<f32>,
    ) -> Result<(), Error>;
}

/// A loaded model with its ways of executing linear layers.
pub struct ModelRunner {
    model: Arc<Model>,
    tokenizer: Arc<Tokenizer>,
    enclave: Arc<dyn Linear>,
    evaluator: Option<Arc<dyn Linear>>,
    pool: Arc<KvPool>,
}

impl ModelRunner {
    /// All over the same weights; sequences take their pages from `pool`.
    pub fn new(
        (model, tokenizer): (Arc<Model>, Arc<Tokenizer>),
        enclave: Arc<dyn Linear>,
        evaluator: Option<Arc<dyn Linear>>,
        pool: Arc<KvPool>,
    ) -> Self {
        Self { model, tokenizer, enclave, evaluator, pool }
    }
}

/// Pages that hold so many positions.
pub fn pages_of(positions: usize) -> usize {
    positions.div_ceil(PAGE)
}

impl Cache for KvCache {
    fn reuse(&mut self, tokens: &[u32]) -> usize {
        KvCache::reuse(self, tokens)
    }

    fn missing(&self, positions: usize) -> usize {
        KvCache::missing(self, positions)
    }

    fn clear(&mut self) {
        KvCache::clear(self);
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

    fn new_cache(&self, salt: Salt) -> KvCache {
        self.pool.cache(salt)
    }

    fn pages(&self) -> (usize, usize) {
        (self.pool.capacity(), self.pool.available())
    }

    fn reused(&self) -> (u64, u64) {
        self.pool.reused()
    }

    fn is_uniform(&self) -> bool {
        self.evaluator.is_none()
    }

    fn run(
        &self,
        site: Site,
        call: &Call,
        works: &mut [Work<'_, KvCache>],
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let linear = match (site, &self.evaluator) {
            (Site::Evaluator, Some(linear)) => linear,
            _ => &self.enclave,
        };
        let mut parts: Vec<Part<'_>> =
            works.iter_mut().map(|w| Part { tokens: w.tokens, cache: w.cache, logits: w.logits }).collect();
        self.model.forward_parts(&Watched(&**linear), call, &mut parts, logits)
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
