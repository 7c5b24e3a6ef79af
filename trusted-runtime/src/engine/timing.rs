//! What a sequence cost, step by step, and the medians that a client sees.

use crate::linear::{Call, Cost};
use std::time::{Duration, Instant};

/// Measures one sequence from its arrival.
pub struct Stopwatch {
    arrived: Instant,
    /// When it got its first seat.
    seated: Option<Instant>,
    first_token: Option<Duration>,
    /// When the request arrived or the last token was made, and what the call had cost by then.
    last: (Instant, Cost),
    decode: Vec<Step>,
}

/// From one token to the next: wall time, and what delegation took of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    wall: Duration,
    cost: Cost,
}

/// Medians over the decode steps (all tokens but the first); milliseconds and counts per token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// From arrival to the first token, waiting included.
    pub ttft_ms: f64,
    /// Wall time.
    pub decode_ms: f64,
    /// Encryption and decryption, masking and unmasking, and checks.
    pub crypto_ms: f64,
    /// Checks of answers, part of `crypto_ms`.
    pub verify_ms: f64,
    /// What is left of the wall time: everything else in the enclave.
    pub other_ms: f64,
    /// What the evaluator reports.
    pub evaluator_ms: f64,
    /// Waiting for the evaluator beyond what it reports.
    pub wire_ms: f64,
    /// Ciphertext bytes sent.
    pub bytes_up: u64,
    /// Ciphertext bytes received.
    pub bytes_down: u64,
    /// Round trips.
    pub round_trips: u64,
    /// Linear calls repeated, over the whole sequence.
    pub retries: u64,
    /// Decode steps whose linear calls were all masked, and the other steps that delegated.
    pub masked_steps: u64,
    /// Decode steps with a linear call that was direct.
    pub direct_steps: u64,
}

impl Stopwatch {
    /// Starts at the arrival of the request.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { arrived: now, seated: None, first_token: None, last: (now, Cost::default()), decode: Vec::new() }
    }

    /// Notes that it has a seat; the first time counts.
    pub fn seat(&mut self) {
        self.seated.get_or_insert_with(Instant::now);
    }

    /// Seconds since arrival, those before its first seat, and those from there to the first token.
    pub fn spans(&self) -> (f64, f64, f64) {
        let queued = self.seated.map_or(Duration::ZERO, |s| s - self.arrived);
        let prefill = self.first_token.map_or(Duration::ZERO, |t| t.saturating_sub(queued));
        (self.arrived.elapsed().as_secs_f64(), queued.as_secs_f64(), prefill.as_secs_f64())
    }

    /// Notes that a token was made. Returns the seconds that it took, since arrival or since the last one.
    pub fn token(&mut self, call: &Call) -> f64 {
        let (now, cost) = (Instant::now(), call.meter.snapshot());
        let (then, before) = std::mem::replace(&mut self.last, (now, cost));
        let wall = now - then;
        match self.first_token {
            None => self.first_token = Some(wall),
            Some(_) => self.decode.push(Step { wall, cost: since(cost, before) }),
        }
        wall.as_secs_f64()
    }

    /// The medians so far; zeros where there was no decode step.
    pub fn timing(&self, call: &Call) -> Timing {
        let ns = |f: fn(&Step) -> u64| median(self.decode.iter().map(f).collect());
        let ms = |f: fn(&Step) -> u64| millis(ns(f));
        let count = |f: fn(&&Step) -> bool| self.decode.iter().filter(f).count() as u64;
        Timing {
            ttft_ms: self.first_token.map_or(0.0, |t| t.as_secs_f64() * 1e3),
            decode_ms: ms(Step::wall_ns),
            crypto_ms: ms(|s| s.cost.crypto_ns),
            verify_ms: ms(|s| s.cost.verify_ns),
            other_ms: ms(|s| s.wall_ns().saturating_sub(s.cost.crypto_ns + s.cost.evaluator_ns + s.cost.wire_ns)),
            evaluator_ms: ms(|s| s.cost.evaluator_ns),
            wire_ms: ms(|s| s.cost.wire_ns),
            bytes_up: ns(|s| s.cost.bytes_up),
            bytes_down: ns(|s| s.cost.bytes_down),
            round_trips: ns(|s| s.cost.round_trips),
            retries: call.meter.snapshot().retries,
            masked_steps: count(|s| s.cost.masked > 0 && s.cost.direct == 0),
            direct_steps: count(|s| s.cost.direct > 0),
        }
    }
}

impl Step {
    fn wall_ns(&self) -> u64 {
        u64::try_from(self.wall.as_nanos()).unwrap_or(u64::MAX)
    }
}

fn since(now: Cost, before: Cost) -> Cost {
    Cost {
        crypto_ns: now.crypto_ns.saturating_sub(before.crypto_ns),
        verify_ns: now.verify_ns.saturating_sub(before.verify_ns),
        evaluator_ns: now.evaluator_ns.saturating_sub(before.evaluator_ns),
        wire_ns: now.wire_ns.saturating_sub(before.wire_ns),
        bytes_up: now.bytes_up.saturating_sub(before.bytes_up),
        bytes_down: now.bytes_down.saturating_sub(before.bytes_down),
        round_trips: now.round_trips.saturating_sub(before.round_trips),
        retries: now.retries.saturating_sub(before.retries),
        masked: now.masked.saturating_sub(before.masked),
        direct: now.direct.saturating_sub(before.direct),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a duration shown to a person")]
fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// The lower median; 0 of nothing.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.len().checked_sub(1).map_or(0, |last| values[last / 2])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn medians_and_parts() {
        assert_eq!(median(vec![]), 0);
        assert_eq!(median(vec![9, 1, 5]), 5);
        assert_eq!(median(vec![1, 2, 3, 4]), 2);
        let (mut watch, call) = (Stopwatch::start(), Call::default());
        watch.token(&call);
        assert_eq!(watch.timing(&call).decode_ms, 0.0);
        assert!(watch.timing(&call).ttft_ms > 0.0);
        call.meter.bytes_up.fetch_add(1000, Ordering::Relaxed);
        call.meter.retries.fetch_add(2, Ordering::Relaxed);
        call.meter.crypto_ns.fetch_add(u64::from(u32::MAX) << 20, Ordering::Relaxed);
        watch.token(&call);
        let t = watch.timing(&call);
        assert_eq!((t.bytes_up, t.retries, t.other_ms), (1000, 2, 0.0));
    }
}
