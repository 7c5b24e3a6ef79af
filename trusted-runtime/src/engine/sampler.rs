//! From logits to one token: repetition penalty, temperature, top-k, top-p, min-p, a seeded draw.
//!
//! The same logits, settings and seed give the same token on every machine: `libm` exponentials, sums
//! in a fixed order, ties broken by the lowest id.

use crate::Error;
use chacha20::{
    ChaCha20,
    cipher::{KeyIvInit, StreamCipher},
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Sampling settings as a client writes them; absent fields are neutral.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingLiteral {
    /// 0 ..= 2; absent or 0 is greedy.
    pub temperature: Option<f32>,
    /// At least 1: how many of the likeliest tokens stay.
    pub top_k: Option<u32>,
    /// (0, 1]: the probability mass of the likeliest tokens that stay.
    pub top_p: Option<f32>,
    /// [0, 1): the share of the best token's probability that a token needs to stay.
    pub min_p: Option<f32>,
    /// (0, 10]: positive logits of tokens seen before are divided by it, negative ones multiplied.
    pub repetition_penalty: Option<f32>,
    /// Absent: fresh entropy.
    pub seed: Option<u64>,
}

/// Checked sampling settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    penalty: f32,
    seed: Option<u64>,
}

impl SamplingLiteral {
    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Client`] naming the field, what was found and what is allowed.
    pub fn check(self) -> Result<Sampling, Error> {
        let within = |name: &str, value: Option<f32>, neutral: f32, allowed: &str, ok: fn(f32) -> bool| match value {
            None => Ok(neutral),
            Some(v) if ok(v) => Ok(v),
            Some(v) => Err(Error::Client(format!("sampling.{name} is {v}, allowed is {allowed}"))),
        };
        let top_k = match self.top_k {
            Some(0) => return Err(Error::Client("sampling.top_k is 0, allowed is 1 and up, or absent".into())),
            Some(k) => usize::try_from(k).unwrap_or(usize::MAX),
            None => usize::MAX,
        };
        Ok(Sampling {
            temperature: within("temperature", self.temperature, 0.0, "0 to 2", |v| (0.0..=2.0).contains(&v))?,
            top_k,
            top_p: within("top_p", self.top_p, 1.0, "above 0, at most 1", |v| v > 0.0 && v <= 1.0)?,
            min_p: within("min_p", self.min_p, 0.0, "0 to below 1", |v| (0.0..1.0).contains(&v))?,
            penalty: within("repetition_penalty", self.repetition_penalty, 1.0, "above 0, at most 10", |v| {
                v > 0.0 && v <= 10.0
            })?,
            seed: self.seed,
        })
    }
}

/// One sequence's sampler: its settings, the tokens it has seen and its stream of draws.
pub struct Sampler {
    sampling: Sampling,
    seen: Zeroizing<Vec<bool>>,
    draws: Draws,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler over `vocab` tokens.
    ///
    /// # Errors
    /// [`Error::Platform`] if the operating system gives no entropy for an absent seed.
    pub fn new(sampling: Sampling, vocab: usize) -> Result<Self, Error> {
        let room = if sampling.temperature > 0.0 { vocab } else { 0 };
        Ok(Self {
            sampling,
            seen: Zeroizing::new(vec![false; vocab]),
            draws: Draws::new(sampling.seed)?,
            candidates: Candidates(Vec::with_capacity(room)),
        })
    }

    /// Notes a token of the prompt or of the answer, for the repetition penalty.
    pub fn note(&mut self, token: u32) {
        if let Some(seen) = self.seen.get_mut(token as usize) {
            *seen = true;
        }
    }

    /// Chooses the next token; `logits` has one entry per token and is used as scratch.
    ///
    /// # Errors
    /// [`Error::Bug`] if a logit is not finite or their number is not the vocabulary.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, Error> {
        if logits.len() != self.seen.len() {
            return Err(Error::Bug(format!("{} logits for a vocabulary of {}", logits.len(), self.seen.len())));
        }
        if !logits.iter().all(|l| l.is_finite()) {
            return Err(Error::Bug("a logit is not finite".into()));
        }
        let Sampling { temperature, top_k, top_p, min_p, penalty, .. } = self.sampling;
        if penalty != 1.0 {
            for (l, _) in logits.iter_mut().zip(self.seen.iter()).filter(|(_, seen)| **seen) {
                *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
            }
        }
        let (best, max) = argmax(logits);
        if temperature == 0.0 {
            return Ok(best);
        }
        let c = &mut self.candidates;
        c.fill(logits);
        c.keep_top_k(top_k);
        let total = c.weigh(max, temperature);
        if min_p > 0.0 {
            c.0.retain(|c| c.weight >= f64::from(min_p));
        }
        if top_p < 1.0 {
            c.keep_mass(f64::from(top_p) * total);
        }
        let token = c.pick(self.draws.unit()).unwrap_or(best);
        c.0.zeroize();
        Ok(token)
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

#[derive(Clone, Copy, Default, Zeroize)]
struct Candidate {
    id: u32,
    logit: f32,
    /// exp((logit - max) / temperature): the best token has 1.
    weight: f64,
}

/// The tokens still in the running. Allocated once, so that no stale copy is left behind.
struct Candidates(Vec<Candidate>);

impl Candidates {
    fn fill(&mut self, logits: &[f32]) {
        self.0.clear();
        self.0.extend((0u32..).zip(logits).map(|(id, &logit)| Candidate { id, logit, weight: 0.0 }));
    }

    /// Likeliest first, then lowest id.
    fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }

    /// Sorts the `k` likeliest to the front.
    fn sort_head(&mut self, k: usize) {
        if k < self.0.len() {
            self.0.select_nth_unstable_by(k, Self::order);
        }
        let k = k.min(self.0.len());
        self.0[..k].sort_unstable_by(Self::order);
    }

    fn keep_top_k(&mut self, k: usize) {
        if k < self.0.len() {
            self.sort_head(k);
            self.0.truncate(k);
        }
    }

    /// Fills the weights and returns their sum.
    fn weigh(&mut self, max: f32, temperature: f32) -> f64 {
        let mut total = 0.0;
        for c in &mut self.0 {
            c.weight = libm::exp(f64::from(c.logit - max) / f64::from(temperature));
            total += c.weight;
        }
        total
    }

    /// Keeps the shortest run of likeliest tokens whose weights reach `mass`. Sorts a growing head
    /// instead of the whole vocabulary.
    fn keep_mass(&mut self, mass: f64) {
        let mut k = HEAD;
        loop {
            self.sort_head(k);
            let mut sum = 0.0;
            for (i, c) in self.0.iter().take(k).enumerate() {
                sum += c.weight;
                if sum >= mass {
                    self.0.truncate(i + 1);
                    return;
                }
            }
            if k >= self.0.len() {
                return;
            }
            k *= 8;
        }
    }

    /// The token at `unit` in [0, 1) of the cumulative weight.
    fn pick(&self, unit: f64) -> Option<u32> {
        let mut left = unit * self.0.iter().map(|c| c.weight).sum::<f64>();
        let mut last = None;
        for c in self.0.iter().filter(|c| c.weight > 0.0) {
            last = Some(c.id);
            left -= c.weight;
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

impl Drop for Candidates {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// How many candidates are sorted first when looking for a probability mass.
const HEAD: usize = 64;

/// A stream of uniform numbers: ChaCha20 under a key derived from the seed.
struct Draws(ChaCha20);

impl ZeroizeOnDrop for Draws {}

impl Draws {
    fn new(seed: Option<u64>) -> Result<Self, Error> {
        let mut key = Zeroizing::new([0u8; 32]);
        match seed {
            Some(seed) => *key = blake3::derive_key("bifrost 2026 sampler v1", &seed.to_le_bytes()),
            None => getrandom::fill(key.as_mut()).map_err(|e| Error::Platform(format!("no entropy: {e}")))?,
        }
        Ok(Self(ChaCha20::new(&(*key).into(), &[0u8; 12].into())))
    }

    /// Uniform in [0, 1) with 53 bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in f64")]
    fn unit(&mut self) -> f64 {
        let mut word = [0; 8];
        self.0.apply_keystream(&mut word);
        (u64::from_le_bytes(word) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(literal: SamplingLiteral, vocab: usize) -> Sampler {
        Sampler::new(literal.check().expect("valid"), vocab).expect("entropy")
    }

    fn logits(vocab: usize) -> Vec<f32> {
        (0..vocab).map(|i| libm::sinf(i as f32 * 12.9898) * 4.0).collect()
    }

    /// What `literal` draws from the same logits, 400 times.
    fn draws(literal: SamplingLiteral, l: &[f32]) -> Vec<u32> {
        let mut s = sampler(literal, l.len());
        (0..400).map(|_| s.sample(&mut l.to_vec()).expect("finite")).collect()
    }

    #[test]
    fn greedy_takes_the_largest_and_the_lowest_id_on_ties() {
        let mut s = sampler(SamplingLiteral::default(), 5);
        assert_eq!(s.sample(&mut [0.0, 3.0, -1.0, 3.0, 2.0]).expect("finite"), 1);
        assert!(matches!(s.sample(&mut [0.0, f32::NAN, 0.0, 0.0, 0.0]), Err(Error::Bug(_))));
        assert!(matches!(s.sample(&mut [0.0]), Err(Error::Bug(_))));
    }

    #[test]
    fn equal_seeds_draw_equal_tokens_and_others_do_not() {
        let l = logits(1000);
        let with = |seed| SamplingLiteral { temperature: Some(1.0), top_p: Some(0.95), seed, ..Default::default() };
        assert_eq!(draws(with(Some(7)), &l), draws(with(Some(7)), &l));
        assert_ne!(draws(with(Some(7)), &l), draws(with(Some(8)), &l));
        assert_ne!(draws(with(None), &l), draws(with(None), &l));
    }

    #[test]
    fn the_seeded_stream_is_pinned() {
        let l = logits(100);
        let s = SamplingLiteral { temperature: Some(0.9), seed: Some(42), ..Default::default() };
        assert_eq!(draws(s, &l)[..8], PINNED);
    }

    /// Recorded once; a change here changes every user's seeded output.
    const PINNED: [u32; 8] = [61, 93, 49, 47, 48, 90, 50, 92];

    #[test]
    fn filters_keep_the_prefix_that_the_naive_definition_keeps() {
        let l = logits(500);
        let mut order: Vec<u32> = (0..500).collect();
        order.sort_by(|a, b| l[*b as usize].total_cmp(&l[*a as usize]).then(a.cmp(b)));
        let weights: Vec<f64> = order.iter().map(|i| libm::exp(f64::from(l[*i as usize] - 4.0))).collect();
        let total: f64 = weights.iter().sum();
        let base = SamplingLiteral { temperature: Some(1.0), seed: Some(1), ..Default::default() };
        let top_p = |p: f64| {
            let mut sum = 0.0;
            1 + weights
                .iter()
                .position(|w| {
                    sum += w;
                    sum >= p * total
                })
                .expect("p is below 1")
        };
        let min_p = |p: f64| weights.iter().filter(|w| **w >= p * weights[0]).count();
        for (literal, kept) in [
            (SamplingLiteral { top_k: Some(3), ..base }, 3),
            (SamplingLiteral { top_k: Some(1), ..base }, 1),
            (SamplingLiteral { top_p: Some(0.5), ..base }, top_p(0.5)),
            (SamplingLiteral { top_p: Some(0.001), ..base }, 1),
            (SamplingLiteral { min_p: Some(0.5), ..base }, min_p(0.5)),
            (SamplingLiteral { min_p: Some(0.5), top_p: Some(0.1), ..base }, min_p(0.5).min(top_p(0.1))),
        ] {
            let drawn = draws(literal, &l);
            assert!(drawn.iter().all(|t| order[..kept].contains(t)), "{literal:?} left the first {kept}");
            if kept < 8 {
                assert!(order[..kept].iter().all(|t| drawn.contains(t)), "{literal:?} misses some of {kept}");
            }
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        let l = [libm::logf(6.0), libm::logf(3.0), libm::logf(1.0)];
        let mut s = sampler(SamplingLiteral { temperature: Some(1.0), seed: Some(3), ..Default::default() }, 3);
        let mut counts = [0u32; 3];
        for _ in 0..10_000 {
            counts[s.sample(&mut l.to_vec()).expect("finite") as usize] += 1;
        }
        for (count, expected) in counts.iter().zip([6000u32, 3000, 1000]) {
            assert!(count.abs_diff(expected) < 250, "{counts:?}");
        }
    }

    #[test]
    fn the_penalty_pushes_seen_tokens_down_on_both_sides_of_zero() {
        let literal = SamplingLiteral { repetition_penalty: Some(2.0), ..Default::default() };
        let mut s = sampler(literal, 3);
        s.note(0);
        s.note(99);
        assert_eq!(s.sample(&mut [3.0, 2.0, 1.0]).expect("finite"), 1);
        assert_eq!(s.sample(&mut [-1.0, -1.5, -3.0]).expect("finite"), 1);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let d = SamplingLiteral::default;
        for (literal, says) in [
            (SamplingLiteral { temperature: Some(2.5), ..d() }, "sampling.temperature is 2.5, allowed is 0 to 2"),
            (SamplingLiteral { temperature: Some(f32::NAN), ..d() }, "sampling.temperature is NaN"),
            (SamplingLiteral { temperature: Some(-0.1), ..d() }, "sampling.temperature is -0.1"),
            (SamplingLiteral { top_k: Some(0), ..d() }, "sampling.top_k is 0"),
            (SamplingLiteral { top_p: Some(0.0), ..d() }, "sampling.top_p is 0"),
            (SamplingLiteral { top_p: Some(1.1), ..d() }, "sampling.top_p is 1.1"),
            (SamplingLiteral { min_p: Some(1.0), ..d() }, "sampling.min_p is 1"),
            (SamplingLiteral { repetition_penalty: Some(0.0), ..d() }, "sampling.repetition_penalty is 0"),
            (SamplingLiteral { repetition_penalty: Some(f32::INFINITY), ..d() }, "sampling.repetition_penalty is inf"),
        ] {
            let err = literal.check().expect_err("out of range").to_string();
            assert!(err.contains(says), "{err}");
        }
    }
}
