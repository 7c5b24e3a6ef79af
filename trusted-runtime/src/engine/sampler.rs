//! From logits to one token: penalties and biases, temperature, top-k, top-p, min-p, a seeded draw.
//!
//! The same logits, settings and seed give the same token on every machine: `libm` exponentials, sums
//! in a fixed order, ties broken by the lowest id.

mod candidates;
mod draws;
mod history;
mod logprobs;
mod settings;

use crate::Error;
use candidates::Candidates;
use draws::Draws;
use history::History;

pub use logprobs::Logprobs;
pub use settings::{Banned, Sampling, SamplingLiteral};

/// One sequence's sampler: its settings, the tokens it has seen and its stream of draws.
pub struct Sampler {
    sampling: Sampling,
    history: History,
    draws: Draws,
    candidates: Candidates,
}

/// A token that was chosen.
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// If asked for.
    pub logprobs: Option<Logprobs>,
}

impl Sampler {
    /// A sampler over `vocab` tokens.
    ///
    /// # Errors
    /// [`Error::Platform`] if the operating system gives no entropy for an absent seed.
    pub fn new(sampling: Sampling, vocab: usize) -> Result<Self, Error> {
        let room = if sampling.temperature > 0.0 { vocab } else { 0 };
        Ok(Self {
            history: History::new(vocab),
            draws: Draws::new(sampling.seed)?,
            candidates: Candidates::with_room(room),
            sampling,
        })
    }

    /// Notes a token of the prompt or of the answer, for the repetition penalty.
    pub fn note(&mut self, token: u32) {
        self.history.note(token);
    }

    /// Chooses the next token of the answer; `logits` has one entry per token and is used as scratch.
    ///
    /// # Errors
    /// [`Error::Bug`] if a logit is not finite or their number is not the vocabulary.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, Error> {
        let vocab = self.history.vocab();
        if logits.len() != vocab {
            return Err(Error::Bug(format!("{} logits for a vocabulary of {vocab}", logits.len())));
        }
        if !logits.iter().all(|l| l.is_finite()) {
            return Err(Error::Bug("a logit is not finite".into()));
        }
        let Some(count) = self.sampling.logprobs else {
            return Ok(Sampled { id: self.choose(logits), logprobs: None });
        };
        let (mut logprobs, norm) = Logprobs::of(logits, argmax(logits).1, count);
        let raw = zeroize::Zeroizing::new(logits.to_vec());
        let id = self.choose(logits);
        logprobs.chosen = norm.logprob(raw[id as usize]);
        Ok(Sampled { id, logprobs: Some(logprobs) })
    }

    fn choose(&mut self, logits: &mut [f32]) -> u32 {
        self.history.shape(logits, &self.sampling);
        let id = self.draw(logits);
        self.history.count(id, &self.sampling);
        id
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let (best, max) = argmax(logits);
        if temperature == 0.0 {
            return best;
        }
        let c = &mut self.candidates;
        c.fill(logits);
        c.keep_top_k(top_k);
        let total = c.weigh(max, temperature);
        if min_p > 0.0 {
            c.keep_share(f64::from(min_p));
        }
        if top_p < 1.0 {
            c.keep_mass(f64::from(top_p) * total);
        }
        let token = c.pick(self.draws.unit()).unwrap_or(best);
        c.wipe();
        token
    }
}

/// The largest value and its lowest index.
fn argmax(logits: &[f32]) -> (u32, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &l) in (0u32..).zip(logits) {
        if l > best.1 {
            best = (id, l);
        }
    }
    best
}

#[cfg(test)]
mod tests;
