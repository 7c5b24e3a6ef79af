//! Decoder models: files, architectures, tokenizers, quantization. Everything here runs inside the
//! enclave in plain f32, except the linear layers, which go through [`Linear`].

pub mod cache;
pub mod chat;
pub mod config;
pub mod fidelity;
pub mod load;
pub mod quantize;
pub mod tokenizer;

mod attention;
mod block;
mod family;
mod inspect;
mod ops;
mod rotary;
mod source;
mod synthetic;

pub use cache::KvCache;
pub use chat::ChatTemplate;
pub use config::ModelConfig;
pub use family::Architecture;
pub use inspect::{Summary, TypeCount, inspect};
pub use quantize::{QuantizedMatrix, Weights};
pub use source::{FloatModel, LoadOptions, LoadedModel, load, load_float, load_with};
pub use tokenizer::Tokenizer;

use crate::{
    Error,
    linear::{Call, Group, Linear, LinearId},
};
use block::Pass;
use family::Decoder;
use load::{Reader, Sink};
use zeroize::Zeroizing;

/// A decoder without its linear weights.
pub struct Model {
    config: ModelConfig,
    /// [vocab][d_model].
    embedding: Vec<f32>,
    decoder: Box<dyn Decoder>,
}

impl Model {
    /// Reads every tensor, checks it, and hands linear weights to `sink` in the order of
    /// [`ModelConfig::linear_ids`] but for the head, which comes first.
    fn read(mut config: ModelConfig, reader: &Reader<'_>, sink: &mut dyn Sink) -> Result<Self, Error> {
        let (vocab, d) = (config.vocab, config.d_model);
        let embedding = reader.read("token_embd.weight", &[vocab, d])?;
        let head = LinearId { layer: 0, group: Group::Head };
        if config.tied_head {
            sink.matrix(head, vocab, d, &embedding)?;
        } else {
            sink.matrix(head, vocab, d, &reader.read("output.weight", &[vocab, d])?)?;
        }
        let decoder = config.architecture.family().load(&config, reader, sink)?;
        config.parameters = reader.finish()?;
        Ok(Self { config, embedding, decoder })
    }

    /// The sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// An empty cache for one sequence.
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// Appends `tokens` to the sequence in `cache` and sets `logits` to those of the last one, `vocab` long.
    /// On an error the cache holds what it held before.
    ///
    /// # Errors
    /// [`Error::Client`] for no tokens, a token outside the vocabulary, or more positions than the context;
    /// [`Error::Cancelled`]; whatever `linear` returns.
    pub fn forward(
        &self,
        linear: &dyn Linear,
        call: &Call,
        tokens: &[u32],
        cache: &mut KvCache,
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let x = self.hidden(linear, call, tokens, cache, &mut |_, _| {})?;
        self.head(linear, call, &x[x.len() - self.config.d_model..], logits)?;
        cache.commit(tokens.len());
        Ok(())
    }

    /// As [`Model::forward`], but `logits` is [tokens][vocab].
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn forward_all(
        &self,
        linear: &dyn Linear,
        call: &Call,
        tokens: &[u32],
        cache: &mut KvCache,
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let x = self.hidden(linear, call, tokens, cache, &mut |_, _| {})?;
        self.head(linear, call, &x, logits)?;
        cache.commit(tokens.len());
        Ok(())
    }

    /// As [`Model::forward`] without the LM head, for all but the last part of a long prompt.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn prefill(&self, linear: &dyn Linear, call: &Call, tokens: &[u32], cache: &mut KvCache) -> Result<(), Error> {
        self.hidden(linear, call, tokens, cache, &mut |_, _| {})?;
        cache.commit(tokens.len());
        Ok(())
    }

    /// As [`Model::prefill`]; `observe` sees the residual stream, [tokens][d_model], after
    /// every block. For comparing with reference implementations.
    ///
    /// # Errors
    /// As [`Model::forward`].
    pub fn observe(
        &self,
        linear: &dyn Linear,
        tokens: &[u32],
        cache: &mut KvCache,
        observe: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.hidden(linear, &Call::default(), tokens, cache, observe)?;
        cache.commit(tokens.len());
        Ok(())
    }

    /// The residual stream after all blocks, [tokens][d_model]; keys and values are written, not committed.
    fn hidden(
        &self,
        linear: &dyn Linear,
        call: &Call,
        tokens: &[u32],
        cache: &mut KvCache,
        observe: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Zeroizing<Vec<f32>>, Error> {
        let c = &self.config;
        let start = cache.len();
        self.admit(tokens, start)?;
        cache.reserve((start + tokens.len()).min(c.context));
        let mut x = Zeroizing::new(Vec::with_capacity(tokens.len() * c.d_model));
        for &token in tokens {
            x.extend_from_slice(&self.embedding[token as usize * c.d_model..][..c.d_model]);
        }
        let turns = self.decoder.begin(c, start, &mut x);
        let mut pass = Pass { linear, call, cache, start, turns: &turns };
        for (l, layer) in (0..c.layers).zip(0u32..) {
            self.decoder.block(c, layer, &mut x, &mut pass)?;
            observe(l, &x);
        }
        Ok(x)
    }

    fn admit(&self, tokens: &[u32], start: usize) -> Result<(), Error> {
        let c = &self.config;
        if tokens.is_empty() {
            return Err(Error::Client("the prompt is empty".to_owned()));
        }
        if start + tokens.len() > c.context {
            let what = if start == 0 { "prompt" } else { "sequence" };
            return Err(Error::Client(format!(
                "{what} of {} tokens exceeds the model's context of {}",
                start + tokens.len(),
                c.context
            )));
        }
        if tokens.iter().any(|&t| t as usize >= c.vocab) {
            return Err(Error::Client(format!("a token id is outside the vocabulary of {}", c.vocab)));
        }
        Ok(())
    }

    /// Logits of every position in `x`.
    fn head(&self, linear: &dyn Linear, call: &Call, x: &[f32], logits: &mut Vec<f32>) -> Result<(), Error> {
        let c = &self.config;
        let positions = x.len() / c.d_model;
        let mut normed = Zeroizing::new(vec![0f32; x.len()]);
        self.decoder.output_norm(c, x, &mut normed);
        logits.clear();
        logits.resize(positions * c.vocab, 0.0);
        linear.apply(call, LinearId { layer: 0, group: Group::Head }, &normed, positions, logits)
    }
}
