//! How closely one way of computing linear layers follows another: teacher-forced over a text, position by
//! position. Quantization is the only reason to differ, so this measures w8 or w16 against f32.

use super::{KvCache, Model};
use crate::{
    Error,
    linear::{Call, Linear},
};
use serde::Serialize;

/// A text written for this measurement; 779 tokens of SmolLM2.
pub const TEXT: &str = include_str!("fidelity.txt");

/// Positions that share one pass.
const TOGETHER: usize = 64;
/// Longest sequence, whatever the model's context.
const LONGEST: usize = 2048;

/// What [`compare`] found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fidelity {
    /// Positions compared.
    pub positions: usize,
    /// Positions at which both prefer the same token.
    pub agreements: usize,
    /// Perplexity of the text under the reference.
    pub reference_perplexity: f64,
    /// Perplexity of the text under the candidate.
    pub perplexity: f64,
    /// Largest difference of any logit at any position.
    pub max_logit_difference: f32,
}

impl Fidelity {
    /// Share of positions with the same first choice, in [0, 1].
    #[expect(clippy::cast_precision_loss, reason = "counts of positions are far below 2^53")]
    pub fn agreement(&self) -> f64 {
        self.agreements as f64 / self.positions.max(1) as f64
    }
}

/// Runs `tokens` through `model` twice, with `reference` and with `candidate` for the linear layers, cut
/// into sequences that fit the context.
///
/// # Errors
/// Those of [`Model::forward_all`].
pub fn compare(
    model: &Model,
    reference: &dyn Linear,
    candidate: &dyn Linear,
    tokens: &[u32],
    progress: &dyn Fn(&str, u64, u64),
) -> Result<Fidelity, Error> {
    let mut sums = Sums::default();
    for sequence in tokens.chunks(model.config().context.min(LONGEST)) {
        let (mut left, mut right) = (Side::new(model, reference), Side::new(model, candidate));
        for start in (0..sequence.len()).step_by(TOGETHER) {
            let end = (start + TOGETHER).min(sequence.len());
            left.advance(&sequence[start..end])?;
            right.advance(&sequence[start..end])?;
            let vocab = model.config().vocab;
            let rows = left.logits.chunks_exact(vocab).zip(right.logits.chunks_exact(vocab));
            for (position, (a, b)) in (start..).zip(rows) {
                sums.add(a, b, sequence.get(position + 1).map(|&t| t as usize));
            }
            progress("comparing with f32", sums.positions as u64, tokens.len() as u64);
        }
    }
    Ok(sums.finish())
}

/// One of the two runs.
struct Side<'a> {
    model: &'a Model,
    linear: &'a dyn Linear,
    cache: KvCache,
    logits: Vec<f32>,
}

impl<'a> Side<'a> {
    fn new(model: &'a Model, linear: &'a dyn Linear) -> Self {
        Self { model, linear, cache: model.new_cache(), logits: Vec::new() }
    }

    fn advance(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.model.forward_all(self.linear, &Call::default(), tokens, &mut self.cache, &mut self.logits)
    }
}

#[derive(Default)]
struct Sums {
    positions: usize,
    agreements: usize,
    predictions: usize,
    /// Negative log-likelihoods of the next tokens.
    reference: f64,
    candidate: f64,
    largest: f32,
}

impl Sums {
    fn add(&mut self, reference: &[f32], candidate: &[f32], next: Option<usize>) {
        self.positions += 1;
        self.agreements += usize::from(first_choice(reference) == first_choice(candidate));
        self.largest = reference.iter().zip(candidate).fold(self.largest, |m, (a, b)| m.max((a - b).abs()));
        if let Some(next) = next {
            self.predictions += 1;
            self.reference += surprise(reference, next);
            self.candidate += surprise(candidate, next);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of positions are far below 2^53")]
    fn finish(self) -> Fidelity {
        let predictions = self.predictions.max(1) as f64;
        Fidelity {
            positions: self.positions,
            agreements: self.agreements,
            reference_perplexity: libm::exp(self.reference / predictions),
            perplexity: libm::exp(self.candidate / predictions),
            max_logit_difference: self.largest,
        }
    }
}

/// Index of the largest logit, the first of equal ones.
fn first_choice(logits: &[f32]) -> usize {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best })
}

/// -ln softmax(logits)[token].
fn surprise(logits: &[f32], token: usize) -> f64 {
    let largest = f64::from(logits[first_choice(logits)]);
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l) - largest)).sum();
    libm::log(sum) + largest - f64::from(logits[token])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_count_agreement_and_surprise() {
        let mut sums = Sums::default();
        sums.add(&[0.0, 0.0], &[0.0, 1.0], Some(1));
        sums.add(&[0.0, 0.0], &[0.5, 0.0], None);
        let f = sums.finish();
        assert_eq!((f.positions, f.agreements, f.max_logit_difference), (2, 1, 1.0));
        assert!((f.reference_perplexity - 2.0).abs() < 1e-12);
        assert!((f.perplexity - (1.0 + libm::exp(-1.0))).abs() < 1e-12);
        assert!((f.agreement() - 0.5).abs() < 1e-12);
    }
}
