//! A seeded generator for choices that are no secrets: which prompts, and when.

/// `SplitMix64`: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, figure 13.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0. Its bias is bound / 2^64.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }

    /// The time to the next event of a Poisson process with `rate` events a second: `-ln(u) / rate`, u in (0, 1].
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub(super) fn pause(&mut self, rate: f64) -> f64 {
        let u = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -u.ln() / rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_generator() {
        // The first outputs for seed 1234567, as in the reference implementation's tests.
        let mut random = Random::new(1_234_567);
        assert_eq!([random.next(), random.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn arrivals_repeat_with_their_seed_and_have_their_rate() {
        let times = |seed| {
            let mut random = Random::new(seed);
            (0..10_000).map(|_| random.pause(4.0)).collect::<Vec<_>>()
        };
        assert_eq!(times(7), times(7));
        assert_ne!(times(7), times(8));
        let mean = times(7).iter().sum::<f64>() / 1e4;
        assert!((0.24..0.26).contains(&mean), "{mean}");
        assert!(times(7).iter().all(|t| t.is_finite() && *t >= 0.0));
    }
}
