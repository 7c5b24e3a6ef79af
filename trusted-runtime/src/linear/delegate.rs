//! What every way of delegating shares: the link, patience with an evaluator that fails, and none with one that lies.

use super::{
    Call,
    link::{EvaluatorConfig, Link, POLL, Residents, Session, clean},
};
use crate::{Error, metrics::Metrics, planner::Plan};
use kernels::Ring;
use proto::v1::{EvaluatorInfo, FailureKind, JobFailure};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Vectors of one job; the contract allows 64.
pub(crate) const MAX_VECTORS: usize = 64;
/// Failed attempts of one call after which it is given up, whatever time is left.
const MAX_ATTEMPTS: u32 = 12;

/// Which check an answer failed; the label values of the alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Products of encrypted activations.
    Direct,
    /// Products of encrypted masks, and of the public polynomials under them.
    Bulk,
    /// Products of masked activations.
    Online,
}

impl Check {
    /// For logs and labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Bulk => "bulk",
            Self::Online => "online",
        }
    }
}

/// Why an attempt gave no numbers.
pub(crate) enum Failure {
    /// The caller does not want them any more.
    Cancelled,
    /// Trying again may help.
    Again(String),
    /// The evaluator has broken the contract; its answers are of no use.
    Hostile(String),
    /// A well-formed answer failed this check.
    Forged(Check),
    /// Our own fault, or our machine's.
    Local(Error),
}

/// One evaluator and what it shall hold.
pub struct Delegate {
    pub(crate) ring: Ring,
    pub(crate) plan: Arc<Plan>,
    /// Digest of each matrix, in the plan's order.
    pub(crate) ids: Vec<[u8; 32]>,
    pub(crate) threads: usize,
    pub(crate) link: Link,
    pub(crate) metrics: Metrics,
    pub(crate) retry_for: Duration,
    pub(crate) deadline: Duration,
    began: Instant,
    /// Milliseconds from `began` to the last linear call.
    last_call: AtomicU64,
}

impl Delegate {
    /// Starts to connect in the background of `handle`, and does not wait for the evaluator. `masked` asks for the
    /// streams of masked delegation; the enclave's cryptography uses `threads` threads.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration is not usable.
    pub fn open(
        config: &EvaluatorConfig,
        (ring, plan): (&Ring, Arc<Plan>),
        handle: Handle,
        threads: usize,
        masked: bool,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, Error> {
        let ids: Vec<[u8; 32]> = plan.matrices.iter().map(|m| m.matrix.int8.id().0).collect();
        let residents = Residents {
            ring: ring.clone(),
            plan: plan.clone(),
            ids: ids.clone(),
            residency: config.residency,
            budget: config.budget,
            masked,
        };
        Ok(Arc::new(Self {
            ring: ring.clone(),
            plan,
            ids,
            threads: threads.max(1),
            link: Link::open(config, residents, handle)?,
            metrics: metrics.clone(),
            retry_for: config.retry_for,
            deadline: config.deadline,
            began: Instant::now(),
            last_call: AtomicU64::new(0),
        }))
    }

    /// Waits up to `retry_for` until the evaluator holds every matrix.
    ///
    /// # Errors
    /// [`Error::Evaluator`] with the reason if it is not there in time.
    pub fn connect(&self) -> Result<(), Error> {
        self.session().map(drop)
    }

    /// The evaluator, while one is connected.
    pub fn describe(&self) -> Option<EvaluatorInfo> {
        self.link.current().map(|s| s.info().clone())
    }

    /// Bytes of the evaluator's memory, as it says; it is connected after [`Delegate::connect`].
    ///
    /// # Errors
    /// As [`Delegate::connect`].
    pub fn memory_budget(&self) -> Result<u64, Error> {
        self.session().map(|s| s.memory_budget)
    }

    /// The session, waiting up to `retry_for` for it.
    ///
    /// # Errors
    /// As [`Delegate::connect`].
    pub(crate) fn session(&self) -> Result<Arc<Session>, Error> {
        self.link.session(&Call::default(), Instant::now() + self.retry_for)
    }

    /// Whether a linear call happened within `time`.
    pub(crate) fn busy_within(&self, time: Duration) -> bool {
        let last = self.last_call.load(Ordering::Relaxed);
        last > 0 && self.began.elapsed() < Duration::from_millis(last) + time
    }

    /// Tries until there are numbers, with fresh randomness each time, up to `retry_for`. An answer that breaks the
    /// contract or fails its check ends the call: nothing is tried again with that evaluator before its quarantine ends.
    ///
    /// # Errors
    /// [`Error::Evaluator`] with the last reason, [`Error::Cancelled`], and what `attempt` finds wrong here.
    pub(super) fn persist(
        &self,
        call: &Call,
        index: usize,
        mut attempt: impl FnMut(&Session) -> Result<(), Failure>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        let name = self.plan.matrices[index].matrix.id;
        let mut attempts = 0;
        loop {
            let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.last_call.store(now.max(1), Ordering::Relaxed);
            let session = self.link.session(call, start + self.retry_for)?;
            let reason = match attempt(&session) {
                Ok(()) => return Ok(()),
                Err(Failure::Cancelled) => return Err(Error::Cancelled),
                Err(Failure::Local(e)) => return Err(e),
                Err(Failure::Hostile(what)) => {
                    session.close("it has broken the protocol");
                    return Err(Error::Evaluator(format!("at {} {what} ({name})", self.link.endpoint())));
                }
                Err(Failure::Forged(check)) => return Err(self.alarm(&session, index, check)),
                Err(Failure::Again(reason)) => reason,
            };
            attempts += 1;
            let spent = start.elapsed();
            if spent >= self.retry_for || attempts >= MAX_ATTEMPTS {
                return Err(Error::Evaluator(format!(
                    "at {} failed {attempts} times in {:.1} s, last: {reason}",
                    self.link.endpoint(),
                    spent.as_secs_f64()
                )));
            }
            tracing::warn!(matrix = %name, attempts, reason = %reason, "repeating a linear call");
            call.meter.retries.fetch_add(1, Ordering::Relaxed);
            pause(call, Duration::from_millis(10) * 2u32.pow(attempts.min(7)))?;
        }
    }

    /// An answer failed its check: says so everywhere and puts the evaluator in quarantine.
    pub(crate) fn alarm(&self, session: &Session, index: usize, check: Check) -> Error {
        let name = self.plan.matrices[index].matrix.id;
        // The link may have turned to another evaluator since, which must not be accused.
        let liar = session.info().endpoint.trim_end_matches('/');
        self.metrics.forged(check, liar, &name.to_string());
        let what = format!("answers wrongly: the {} check of {name} failed", check.name());
        tracing::error!(evaluator = liar, matrix = %name, check = check.name(), "ALARM: an answer failed its check");
        self.link.ban(session, what.clone());
        Error::Evaluator(format!("at {liar} {what}"))
    }

    /// What a failure message means for the attempt.
    pub(crate) fn refused(&self, session: &Session, failure: &JobFailure) -> Failure {
        let message = clean(&failure.message);
        match failure.kind() {
            FailureKind::MatrixAbsent => {
                // The next session looks up every matrix and uploads what is missing.
                session.close("it has lost a matrix");
                Failure::Again(format!("it has lost a matrix: {message}"))
            }
            FailureKind::Malformed => Failure::Hostile(format!("refuses a job as malformed: {message}")),
            kind => Failure::Again(format!("{}: {message}", kind.as_str_name())),
        }
    }
}

/// Waits unless the call is cancelled.
fn pause(call: &Call, time: Duration) -> Result<(), Error> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// An error of the cryptography outside an attempt.
pub(crate) fn platform(e: trusted_he::Error) -> Error {
    match e {
        trusted_he::Error::Entropy(_) => Error::Platform(e.to_string()),
        trusted_he::Error::Answer(what) => Error::Evaluator(what),
        trusted_he::Error::Forged(_) => Error::Evaluator(e.to_string()),
        trusted_he::Error::Misuse(what) => Error::Bug(what),
    }
}

impl Failure {
    /// An error of the cryptography during an attempt whose answers get this check.
    pub(crate) fn of(e: trusted_he::Error, check: Check) -> Self {
        match e {
            trusted_he::Error::Answer(what) => Self::Hostile(what),
            trusted_he::Error::Forged(_) => Self::Forged(check),
            e => Self::Local(platform(e)),
        }
    }
}
