//! How closely one way of computing linear layers follows another: teacher-forced, position by position.
//! Quantization is the only reason to differ, so this measures w8 or w16 against f32.
//!
//! Two kinds of text: one that was written for this measurement, and the one that the reference writes itself,
//! greedily, in answer to questions. The second is what a user reads; the first is harder, because at many of its
//! positions no token is clearly the best.

use super::{ChatTemplate, KvCache, Model, Tokenizer};
use crate::{
    Error,
    linear::{Call, Linear},
};
use serde::Serialize;

/// A text written for this measurement; 779 tokens of SmolLM2.
pub const TEXT: &str = include_str!("fidelity.txt");

/// Questions for the reference to answer at some length.
pub const QUESTIONS: [&str; 21] = [
    "Explain how rain forms.",
    "Write a short story about a lighthouse keeper.",
    "What are the benefits of regular exercise?",
    "Describe the city of Paris to a visitor.",
    "How does a bicycle stay upright?",
    "Give me a recipe for vegetable soup.",
    "Why is the sky blue?",
    "Write a Python function that reverses a string.",
    "What is the difference between weather and climate?",
    "Tell me about the life of a honeybee.",
    "How do I prepare for a job interview?",
    "Explain photosynthesis to a child.",
    "Write a letter of apology to a friend.",
    "What causes earthquakes?",
    "List five habits of people who sleep well.",
    "Explain what a database index does.",
    "Describe how bread is baked.",
    "What should I pack for a week in the mountains?",
    "How does a vaccine protect the body?",
    "Write a poem about the sea.",
    "Explain compound interest with an example.",
];

/// Tokens that the reference writes after each of [`QUESTIONS`]: 672 positions in all.
pub const WRITTEN: usize = 32;

/// Positions that share one pass.
const TOGETHER: usize = 64;
/// Longest sequence, whatever the model's context.
const LONGEST: usize = 2048;

/// Text with the reference's opinion of it.
pub struct Passage {
    tokens: Vec<u32>,
    /// The first position that is compared.
    from: usize,
    /// The reference's logits at the positions `from ..`, [positions][vocab].
    logits: Vec<f32>,
}

/// What the reference makes of `tokens`, cut into sequences that fit the context.
///
/// # Errors
/// Those of [`Model::forward_all`].
pub fn read(
    model: &Model,
    reference: &dyn Linear,
    tokens: &[u32],
    progress: &dyn Fn(&str, u64, u64),
) -> Result<Vec<Passage>, Error> {
    let (mut done, mut passages) = (0, Vec::new());
    for sequence in tokens.chunks(model.config().context.min(LONGEST)) {
        let (mut side, mut logits) = (Side::new(model, reference), Vec::new());
        for part in sequence.chunks(TOGETHER) {
            side.advance(part)?;
            logits.extend_from_slice(&side.logits);
            done += part.len() as u64;
            progress("reading with f32", done, tokens.len() as u64);
        }
        passages.push(Passage { tokens: sequence.to_vec(), from: 0, logits });
    }
    Ok(passages)
}

/// [`QUESTIONS`] as token ids, in the model's chat template if it has one.
///
/// # Errors
/// Those of [`ChatTemplate::render`].
pub fn questions(tokenizer: &Tokenizer, chat: Option<&ChatTemplate>) -> Result<Vec<Vec<u32>>, Error> {
    let ask = |question: &&str| match chat {
        Some(chat) => Ok(tokenizer.encode(&chat.render(&[("user", question)])?)),
        None => Ok(tokenizer.encode(question)),
    };
    QUESTIONS.iter().map(ask).collect()
}

/// Lets the reference write `count` tokens after each prompt, always its first choice.
///
/// # Errors
/// Those of [`Model::forward`].
pub fn write(
    model: &Model,
    reference: &dyn Linear,
    prompts: &[Vec<u32>],
    count: usize,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<Vec<Passage>, Error> {
    let mut passages = Vec::new();
    for (done, prompt) in prompts.iter().enumerate() {
        let (call, mut cache, mut last) = (Call::default(), model.new_cache(), Vec::new());
        let (mut tokens, mut logits) = (prompt.clone(), Vec::new());
        model.forward(reference, &call, prompt, &mut cache, &mut last)?;
        logits.extend_from_slice(&last);
        for _ in 1..count {
            let next = u32::try_from(first_choice(&last)).map_err(|e| Error::Bug(format!("vocabulary: {e}")))?;
            tokens.push(next);
            model.forward(reference, &call, &[next], &mut cache, &mut last)?;
            logits.extend_from_slice(&last);
        }
        passages.push(Passage { tokens, from: prompt.len() - 1, logits });
        progress("writing with f32", done as u64 + 1, prompts.len() as u64);
    }
    Ok(passages)
}

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

/// Runs the passages through `model` with `candidate` for the linear layers and compares.
///
/// # Errors
/// Those of [`Model::forward_all`].
pub fn compare(
    model: &Model,
    passages: &[Passage],
    candidate: &dyn Linear,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<Fidelity, Error> {
    let mut sums = Sums::default();
    let vocab = model.config().vocab;
    let total = passages.iter().map(|p| p.logits.len() / vocab).sum::<usize>() as u64;
    for Passage { tokens, from, logits } in passages {
        let mut side = Side::new(model, candidate);
        let mut expected = logits.chunks_exact(vocab);
        for (part, first) in tokens.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
            side.advance(part)?;
            for (position, found) in (first..).zip(side.logits.chunks_exact(vocab)) {
                let next = tokens.get(position + 1).map(|&t| t as usize);
                if position >= *from
                    && let Some(expected) = expected.next()
                {
                    sums.add(expected, found, next);
                }
            }
            progress("comparing with f32", sums.positions as u64, total);
        }
    }
    Ok(sums.finish())
}

/// One run.
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
