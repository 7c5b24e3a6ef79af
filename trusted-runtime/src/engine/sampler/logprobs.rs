//! Log probabilities of the model's own distribution: log-softmax of the logits as they came.

use zeroize::Zeroize;

/// A token's log probability and those of the likeliest tokens in its place. Wiped on drop.
#[derive(Zeroize)]
#[zeroize(drop)]
pub struct Logprobs {
    /// Of the token that was chosen.
    pub chosen: f32,
    /// Token and log probability, likeliest first, then lowest id.
    pub top: Vec<(u32, f32)>,
}

impl Logprobs {
    /// Of the `count` likeliest tokens; that of the chosen one is set once it is known.
    ///
    /// The sum runs over ids in their order, in f64, so it is the same on every machine.
    pub(super) fn of(logits: &[f32], max: f32, count: usize) -> (Self, Normalizer) {
        let sum: f64 = logits.iter().map(|l| libm::exp(f64::from(l - max))).sum();
        let norm = Normalizer(f64::from(max) + libm::log(sum));
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
        if count > 0 {
            for (id, &logit) in (0u32..).zip(logits) {
                // Equal logits keep the order of their ids.
                if top.len() < count || top.last().is_some_and(|(_, least)| logit > *least) {
                    let at = top.partition_point(|(_, other)| *other >= logit);
                    top.insert(at, (id, logit));
                    top.truncate(count);
                }
            }
        }
        for (_, value) in &mut top {
            *value = norm.logprob(*value);
        }
        (Self { chosen: 0.0, top }, norm)
    }
}

/// The logarithm of the sum of all exponentials.
#[derive(Clone, Copy)]
pub(super) struct Normalizer(f64);

impl Normalizer {
    /// `logit - log sum exp`, at most 0.
    #[expect(clippy::cast_possible_truncation, reason = "a log probability is reported in f32")]
    pub(super) fn logprob(self, logit: f32) -> f32 {
        (f64::from(logit) - self.0).min(0.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_the_likeliest_come_first() {
        let logits: Vec<f32> = (0..300).map(|i| libm::sinf(i as f32 * 12.9898) * 4.0).collect();
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (all, norm) = Logprobs::of(&logits, max, 300);
        let sum: f64 = all.top.iter().map(|(_, lp)| libm::exp(f64::from(*lp))).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        assert!(all.top.windows(2).all(|w| w[0].1 > w[1].1 || (w[0].1 == w[1].1 && w[0].0 < w[1].0)));
        let (few, _) = Logprobs::of(&logits, max, 5);
        assert_eq!(few.top[..], all.top[..5]);
        assert_eq!(norm.logprob(max), few.top[0].1);
        let (none, _) = Logprobs::of(&logits, max, 0);
        assert!(none.top.is_empty());
    }

    #[test]
    fn far_logits_stay_finite() {
        let (l, norm) = Logprobs::of(&[1e30, 0.0, -1e30], 1e30, 3);
        assert_eq!(l.top[0], (0, 0.0));
        assert!(norm.logprob(-1e30).is_finite() && norm.logprob(-1e30) < -1e29);
    }
}
