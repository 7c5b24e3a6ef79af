//! Sampling settings, as written and as checked.

use crate::Error;

/// Sampling settings as a client writes them; absent fields are neutral.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// -2 ..= 2: taken from a logit for each time its token was generated before.
    pub frequency_penalty: Option<f32>,
    /// -2 ..= 2: taken from the logits of tokens that were generated before.
    pub presence_penalty: Option<f32>,
    /// Token and what is added to its logit, -100 ..= 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// 0 ..= 20: how many of the likeliest tokens are reported with each token's log probability.
    pub logprobs: Option<u32>,
    /// Tokens that cannot be chosen among the first so many.
    pub banned: Banned,
}

/// Tokens that cannot be chosen yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Banned {
    /// For how many tokens of the answer.
    pub until: usize,
    /// Which.
    pub ids: Vec<u32>,
}

/// Checked sampling settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    pub(super) temperature: f32,
    pub(super) top_k: usize,
    pub(super) top_p: f32,
    pub(super) min_p: f32,
    pub(super) penalty: f32,
    pub(super) seed: Option<u64>,
    pub(super) frequency: f32,
    pub(super) presence: f32,
    pub(super) bias: Vec<(u32, f32)>,
    pub(super) logprobs: Option<usize>,
    pub(super) banned: Banned,
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
        let logprobs = match self.logprobs {
            Some(n @ 21..) => {
                return Err(Error::Client(format!("sampling.logprobs is {n}, allowed is 0 to 20")));
            }
            n => n.map(|n| n as usize),
        };
        let mut bias = self.logit_bias;
        bias.sort_unstable_by_key(|(id, _)| *id);
        if let Some((id, found)) = bias.iter().find(|(_, b)| !(-100.0..=100.0).contains(b)) {
            return Err(Error::Client(format!("sampling.logit_bias[{id}] is {found}, allowed is -100 to 100")));
        }
        Ok(Sampling {
            temperature: within("temperature", self.temperature, 0.0, "0 to 2", |v| (0.0..=2.0).contains(&v))?,
            top_k,
            top_p: within("top_p", self.top_p, 1.0, "above 0, at most 1", |v| v > 0.0 && v <= 1.0)?,
            min_p: within("min_p", self.min_p, 0.0, "0 to below 1", |v| (0.0..1.0).contains(&v))?,
            penalty: within("repetition_penalty", self.repetition_penalty, 1.0, "above 0, at most 10", |v| {
                v > 0.0 && v <= 10.0
            })?,
            seed: self.seed,
            frequency: within("frequency_penalty", self.frequency_penalty, 0.0, "-2 to 2", |v| {
                (-2.0..=2.0).contains(&v)
            })?,
            presence: within("presence_penalty", self.presence_penalty, 0.0, "-2 to 2", |v| (-2.0..=2.0).contains(&v))?,
            bias,
            logprobs,
            banned: self.banned,
        })
    }
}
