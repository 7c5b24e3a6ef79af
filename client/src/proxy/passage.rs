//! The way of requests to the runtime: open to one that has proved what it is, blocked otherwise.
//!
//! One task makes every connection to an attested runtime, so that there is one place where the way is opened or blocked.
//! A connection that is replaced serves its streams to their end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::metrics::Metrics;
use super::refusal::Refusal;
use crate::attested::{Attested, Failure, Kind, VerifiedRuntime};
use crate::inference::Runtime;
use crate::progress::Progress;
use crate::trust::Trust;

/// The first wait after a failure; it doubles with each further one.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest, unless attestations are more frequent anyway.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// For an attestation that a request waits for. A quote takes about a second, and others may wait before us.
const RENEWAL: Duration = Duration::from_secs(75);

/// A way that may be used.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) runtime: Runtime,
    /// Counts the attempts, so that nobody renews what was renewed meanwhile.
    pub(super) number: u64,
}

#[derive(Clone)]
enum State {
    Open(Open),
    Blocked { why: String, number: u64 },
}

/// The way to the runtime. Cheap to clone.
#[derive(Clone)]
pub(super) struct Passage {
    state: watch::Receiver<State>,
    /// Number of the first connection that is not known to be over; absent where nothing is attested.
    wish: Option<Arc<watch::Sender<u64>>>,
}

/// What keeps the way to an attested runtime.
pub(super) struct Keeper<W> {
    pub(super) attested: Arc<Attested<W>>,
    /// Between two attestations.
    pub(super) every: Duration,
    pub(super) metrics: Metrics,
    pub(super) progress: Arc<Progress>,
}

impl Passage {
    /// To a runtime that is known by its certificate.
    pub(super) fn fixed(runtime: Runtime) -> Self {
        let (_, state) = watch::channel(State::Open(Open { runtime, number: 0 }));
        Self { state, wish: None }
    }

    /// To a runtime that proves what it is now, and then again and again. Returns after the first attempt, whatever came
    /// of it.
    pub(super) async fn attested<W: Trust>(keeper: Keeper<W>) -> Self {
        let (wish, mut wished) = watch::channel(0);
        let (mut state, mut wait) = keeper.attempt(0, 0).await;
        let (tell, told) = watch::channel(state.clone());
        tokio::spawn(async move {
            let mut failures = u32::from(matches!(state, State::Blocked { .. }));
            let mut number = 0;
            while !tell.is_closed() {
                let over = async {
                    let gone =
                        wished.wait_for(|first| matches!(state, State::Open(_)) && *first > number).await.is_err();
                    if gone {
                        std::future::pending::<()>().await;
                    }
                };
                // Nobody can hurry an attempt after a failure.
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    () = over => {}
                }
                number += 1;
                (state, wait) = keeper.attempt(number, failures).await;
                failures = if matches!(state, State::Open(_)) { 0 } else { failures.saturating_add(1) };
                tell.send_replace(state.clone());
            }
        });
        Self { state: told, wish: Some(Arc::new(wish)) }
    }

    /// The way, if it is open.
    ///
    /// # Errors
    /// 503 with codes and no details.
    pub(super) fn open(&self) -> Result<Open, Refusal> {
        // Nobody attests any more if the task has died: what it saw last is worth nothing.
        let kept = self.wish.is_none() || self.state.has_changed().is_ok();
        match &*self.state.borrow() {
            State::Open(_) if !kept => Err(Refusal::unattested("the proxy has stopped attesting")),
            State::Open(open) => Ok(open.clone()),
            State::Blocked { why, .. } => Err(Refusal::unattested(why.clone())),
        }
    }

    /// Whether the runtime proves what it is.
    pub(super) fn attests(&self) -> bool {
        self.wish.is_some()
    }

    /// The connection of this number is over.
    pub(super) fn lost(&self, number: u64) {
        if let Some(wish) = &self.wish {
            wish.send_if_modified(|first| {
                let news = *first <= number;
                *first = (*first).max(number + 1);
                news
            });
        }
    }

    /// Waits until the connection of this number is replaced, or until that failed.
    pub(super) async fn renew(&self, number: u64) {
        self.lost(number);
        let mut state = self.state.clone();
        let _ = tokio::time::timeout(RENEWAL, state.wait_for(|state| state.number() > number)).await;
    }
}

impl State {
    fn number(&self) -> u64 {
        match self {
            Self::Open(Open { number, .. }) | Self::Blocked { number, .. } => *number,
        }
    }
}

impl<W: Trust> Keeper<W> {
    /// One attempt, and how long its outcome lasts.
    async fn attempt(&self, number: u64, failures: u32) -> (State, Duration) {
        match self.attested.verified().await {
            Ok(verified) => {
                self.metrics.accepted(Instant::now());
                if number == 0 || failures > 0 {
                    let (endpoint, instance) = (verified.endpoint(), attest_verify::hex::Hex(*verified.instance()));
                    self.progress.say(&format!("attestation  accepted: {endpoint}, instance {instance}"));
                }
                let wait = due(self.every, &verified, self.attested.terms().now());
                (State::Open(Open { runtime: verified.inference(), number }), wait)
            }
            Err(failure) => {
                self.metrics.blocked(failure.kind());
                let wait = backoff(failures).min(self.every).max(FIRST_WAIT);
                let seconds = wait.as_secs();
                self.progress.say(&format!("attestation  BLOCKED, again in {seconds} s: {failure}"));
                (State::Blocked { why: told(&failure), number }, wait)
            }
        }
    }
}

/// What clients are told: codes; values are in the log.
fn told(failure: &Failure) -> String {
    let what = failure.coarse();
    match failure.kind() {
        Kind::Locked => what,
        _ => format!("{what}; the proxy's log has the details"),
    }
}

/// Until the next attestation: as configured, and well before the evidence ends.
fn due<W: Trust>(every: Duration, verified: &VerifiedRuntime<W>, now: u64) -> Duration {
    sooner(every, verified.values().not_after.saturating_sub(now))
}

fn sooner(every: Duration, left: u64) -> Duration {
    every.min(Duration::from_secs(left - left / 5)).max(FIRST_WAIT)
}

fn backoff(failures: u32) -> Duration {
    FIRST_WAIT.saturating_mul(2u32.saturating_pow(failures)).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_later_and_later_and_renewals_before_evidence_ends() {
        let waits: Vec<u64> = [0, 1, 2, 5, 6, 40].into_iter().map(|n| backoff(n).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 32, 60, 60]);
        let every = Duration::from_secs(600);
        assert_eq!(sooner(every, 3600), every);
        assert_eq!(sooner(every, 300), Duration::from_secs(240));
        assert_eq!(sooner(every, 0), FIRST_WAIT);
    }
}
