//! A rate per minute, without a clock of its own.

use std::time::{Duration, Instant};

/// Holds at most one minute's worth, fills evenly, and may be overdrawn by what is known only afterwards.
pub(super) struct Bucket {
    per_minute: f64,
    level: f64,
    seen: Instant,
}

impl Bucket {
    /// A full one.
    pub(super) fn new(per_minute: u32, now: Instant) -> Self {
        let per_minute = f64::from(per_minute);
        Self { per_minute, level: per_minute, seen: now }
    }

    /// How long until it holds `amount`; none if it does.
    pub(super) fn wait(&mut self, amount: f64, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.seen).as_secs_f64();
        self.level = (self.level + elapsed * self.per_minute / 60.0).min(self.per_minute);
        self.seen = self.seen.max(now);
        let missing = amount.min(self.per_minute) - self.level;
        (missing > 1e-9).then(|| Duration::from_secs_f64(missing * 60.0 / self.per_minute))
    }

    /// Takes `amount`, below nothing if need be.
    pub(super) fn take(&mut self, amount: f64) {
        self.level -= amount;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_holds_its_rate_and_debts_are_waited_for() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut bucket = Bucket::new(2, begin);
        for _ in 0..2 {
            assert_eq!(bucket.wait(1.0, begin), None);
            bucket.take(1.0);
        }
        assert_eq!(bucket.wait(1.0, begin), Some(Duration::from_secs(30)));
        assert_eq!(bucket.wait(1.0, at(30)), None);
        bucket.take(4.0);
        assert_eq!(bucket.wait(1.0, at(30)), Some(Duration::from_secs(120)));
        assert_eq!(bucket.wait(1.0, at(150)), None);
        assert_eq!(bucket.wait(2.0, at(100_000)), None);
        assert_eq!(bucket.wait(3.0, at(100_000)), None, "no wait is endless");
    }
}
