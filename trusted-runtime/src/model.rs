//! Decoder models: files, architectures, tokenizers, quantization. Everything here runs inside the
//! enclave in plain f32, except the linear layers, which go through [`Linear`].

pub mod chat;
pub mod config;
pub mod fidelity;
pub mod kv;
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
mod timed;

pub use chat::ChatTemplate;
pub use config::ModelConfig;
pub use family::Architecture;
pub use inspect::{Summary, TypeCount, inspect};
pub use kv::KvCache;
pub use quantize::{QuantizedMatrix, Weights};
pub use source::{FloatModel, LoadOptions, LoadedModel, load, load_float, load_with};
pub use timed::{Timed, time};
pub use tokenizer::Tokenizer;

use crate::{
    Error,
    linear::{Call, Group, Linear, LinearId},
};
use attention::Place;
use block::{Pass, Touched};
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

/// What one sequence adds to a pass.
pub struct Part<'a> {
    /// Its next tokens, at least one.
    pub tokens: &'a [u32],
    /// What it has computed so far.
    pub cache: &'a mut KvCache,
    /// Whether the logits after the last token are wanted.
    pub logits: bool,
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

    /// An empty cache for one sequence alone. Sequences that share memory and pages get theirs from a
    /// [`KvPool`](kv::KvPool).
    pub fn new_cache(&self) -> KvCache {
        kv::unbounded(&self.config)
    }

    /// Appends each part's tokens to its sequence, all in one pass; `logits` becomes those of the last position of
    /// every part that asks for them, [parts][vocab]. What a part gets does not depend on the others. On an error all
    /// caches hold what they held before.
    ///
    /// # Errors
    /// [`Error::Client`] for no tokens, a token outside the vocabulary, or more positions than the context;
    /// [`Error::Busy`] for a pool without room; [`Error::Cancelled`]; whatever `linear` returns.
    pub fn forward_parts(
        &self,
        linear: &dyn Linear,
        call: &Call,
        parts: &mut [Part<'_>],
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        let x = self.hidden(linear, call, parts, &mut |_, _| {})?;
        let d = self.config.d_model;
        let (mut last, mut end) = (Zeroizing::new(Vec::new()), 0);
        last.reserve_exact(parts.iter().filter(|p| p.logits).count() * d);
        for part in &*parts {
            end += part.tokens.len() * d;
            if part.logits {
                last.extend_from_slice(&x[end - d..end]);
            }
        }
        logits.clear();
        if !last.is_empty() {
            self.head(linear, call, &last, logits)?;
        }
        parts.iter_mut().for_each(|p| p.cache.commit(p.tokens));
        Ok(())
    }

    /// Appends `tokens` to the sequence in `cache` and sets `logits` to those of the last one, `vocab` long.
    ///
    /// # Errors
    /// As [`Model::forward_parts`].
    pub fn forward(
        &self,
        linear: &dyn Linear,
        call: &Call,
        tokens: &[u32],
        cache: &mut KvCache,
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        self.forward_parts(linear, call, &mut [Part { tokens, cache, logits: true }], logits)
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
        let x = self.hidden(linear, call, &mut [Part { tokens, cache, logits: true }], &mut |_, _| {})?;
        self.head(linear, call, &x, logits)?;
        cache.commit(tokens);
        Ok(())
    }

    /// As [`Model::forward`] without the LM head; `observe` sees the residual stream, [tokens][d_model], after
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
        self.hidden(linear, &Call::default(), &mut [Part { tokens, cache, logits: false }], observe)?;
        cache.commit(tokens);
        Ok(())
    }

    /// The residual stream after all blocks, [rows][d_model], the parts' tokens in their order; keys and values are
    /// written, not committed.
    fn hidden(
        &self,
        linear: &dyn Linear,
        call: &Call,
        parts: &mut [Part<'_>],
        observe: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Zeroizing<Vec<f32>>, Error> {
        let c = &self.config;
        let rows = parts.iter().map(|p| p.tokens.len()).sum();
        let (mut x, mut places) = (Zeroizing::new(Vec::with_capacity(rows * c.d_model)), Vec::with_capacity(rows));
        for (sequence, part) in parts.iter_mut().enumerate() {
            let start = part.cache.len();
            self.admit(part.tokens, start)?;
            part.cache.reserve(part.tokens.len())?;
            for (i, token) in part.tokens.iter().enumerate() {
                x.extend_from_slice(&self.embedding[*token as usize * c.d_model..][..c.d_model]);
                places.push(Place { sequence, position: start + i });
            }
        }
        let turns = self.decoder.begin(c, &places, &mut x);
        let touched = |p| Touched { cache: p, scratch: Zeroizing::default() };
        let sequences = parts.iter_mut().map(|p| touched(&mut *p.cache)).collect();
        let mut pass = Pass { linear, call, sequences, places: &places, turns: &turns };
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
