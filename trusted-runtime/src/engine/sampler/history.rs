//! What a sequence's own past, and its client, do to its next logits.

use super::Sampling;
use zeroize::Zeroizing;

/// Tokens that were seen, and how often each was generated.
pub(super) struct History {
    seen: Zeroizing<Vec<bool>>,
    /// Empty while no penalty asks for it.
    generated: Zeroizing<Vec<u32>>,
    made: usize,
}

impl History {
    pub(super) fn new(vocab: usize) -> Self {
        Self { seen: Zeroizing::new(vec![false; vocab]), generated: Zeroizing::default(), made: 0 }
    }

    pub(super) fn vocab(&self) -> usize {
        self.seen.len()
    }

    /// Notes a token of the prompt or of the answer, for the repetition penalty.
    pub(super) fn note(&mut self, token: u32) {
        if let Some(seen) = self.seen.get_mut(token as usize) {
            *seen = true;
        }
    }

    /// Counts a token of the answer.
    pub(super) fn count(&mut self, token: u32, sampling: &Sampling) {
        self.made += 1;
        if sampling.frequency != 0.0 || sampling.presence != 0.0 {
            if self.generated.is_empty() {
                *self.generated = vec![0; self.seen.len()];
            }
            if let Some(count) = self.generated.get_mut(token as usize) {
                *count += 1;
            }
        }
    }

    /// Bans, biases and the repetition penalty, then `l -= count·frequency + (count > 0)·presence`.
    #[expect(clippy::cast_precision_loss, reason = "a count of tokens")]
    pub(super) fn shape(&self, logits: &mut [f32], sampling: &Sampling) {
        let mut change = |id: u32, f: &dyn Fn(f32) -> f32| {
            if let Some(l) = logits.get_mut(id as usize) {
                *l = f(*l);
            }
        };
        if self.made < sampling.banned.until {
            sampling.banned.ids.iter().for_each(|id| change(*id, &|_| f32::NEG_INFINITY));
        }
        sampling.bias.iter().for_each(|(id, bias)| change(*id, &|l| l + bias));
        let penalty = sampling.penalty;
        if penalty != 1.0 {
            for (l, _) in logits.iter_mut().zip(self.seen.iter()).filter(|(_, seen)| **seen) {
                *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
            }
        }
        for (l, count) in logits.iter_mut().zip(self.generated.iter()).filter(|(_, count)| **count > 0) {
            *l -= *count as f32 * sampling.frequency + sampling.presence;
        }
    }
}
