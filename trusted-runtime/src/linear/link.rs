//! The connection to the evaluator: kept up by a task of its own, shared by all callers.

mod online;
mod peer;
mod session;
mod stream;

pub(crate) use online::NoAnswer;
pub use peer::Peer;
pub(crate) use session::{FRAME, MaskedStreams, Session};
pub(crate) use stream::Event;

use crate::{
    Error,
    linear::Call,
    planner::{Plan, residency::Wish},
};
use identity::Caller;
use kernels::Ring;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, sync::watch, task::JoinHandle};

/// How often a blocked caller looks whether it is still wanted.
pub(crate) const POLL: Duration = Duration::from_millis(2);
/// The reason before there is one.
const NOT_YET: &str = "not connected yet";
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LAST_BACKOFF: Duration = Duration::from_secs(2);
/// HTTP/2 flow control windows: larger than what one layer has in flight, so that it never waits for an update.
const STREAM_WINDOW: u32 = 16 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// Where the evaluator is and how patient to be.
#[derive(Clone)]
pub struct EvaluatorConfig {
    /// `https://host:port`; `http://` only with `danger_plaintext`.
    pub endpoint: String,
    /// Evaluators to turn to while that one is gone, in this order; they are spoken to in the same way.
    pub others: Vec<String>,
    /// Who this runtime is, and which evaluators it speaks to; needed for `https://`.
    pub caller: Option<Arc<Caller>>,
    /// Allows `http://` to a loopback address.
    pub danger_plaintext: bool,
    /// How long one linear call keeps trying while the evaluator is gone or fails.
    pub retry_for: Duration,
    /// How long one job may take.
    pub deadline: Duration,
    /// Which matrices should be held in NTT form.
    pub residency: Wish,
    /// Bytes of its memory that the model may take; all of its budget if none are said.
    pub budget: Option<u64>,
    /// How long an evaluator whose answer failed a check is not spoken to.
    pub quarantine: Duration,
}

impl EvaluatorConfig {
    /// The checked endpoints, with their names.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting, what was found and what is allowed.
    pub fn endpoints(&self) -> Result<Vec<(String, Peer)>, Error> {
        let all = std::iter::once(&self.endpoint).chain(&self.others);
        all.map(|name| Peer::new(name, self).map(|peer| (name.clone(), peer))).collect()
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !out.contains(&text) {
            out = format!("{out}: {text}");
        }
        next = cause.source();
    }
    out
}

/// Text from the other side, made fit for a log line.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// What a session needs to know about the model.
pub(crate) struct Residents {
    pub(crate) ring: Ring,
    pub(crate) plan: Arc<Plan>,
    /// Digest of each matrix, in the plan's order.
    pub(crate) ids: Vec<[u8; 32]>,
    pub(crate) residency: Wish,
    /// Bytes on the evaluator that they may take, if less than its budget.
    pub(crate) budget: Option<u64>,
    /// Whether the streams of masked delegation are wanted.
    pub(crate) masked: bool,
}

#[derive(Clone)]
enum State {
    Down { reason: String, fatal: bool },
    Up(Arc<Session>),
}

/// Keeps one session open and hands it out.
pub(crate) struct Link {
    names: Vec<String>,
    /// Which of them is spoken to, or was last.
    current: Arc<AtomicUsize>,
    handle: Handle,
    state: watch::Receiver<State>,
    keeper: JoinHandle<()>,
    quarantine: Duration,
    bans: Arc<Mutex<Bans>>,
}

/// Evaluators that are not spoken to: until when, and why, by their number; read by the keeper when a session has ended.
type Bans = HashMap<usize, (Instant, String)>;

impl Link {
    /// Starts to connect, and to reconnect whenever a session ends.
    pub(crate) fn open(config: &EvaluatorConfig, residents: Residents, handle: Handle) -> Result<Self, Error> {
        let endpoints = config.endpoints()?;
        let names = endpoints.iter().map(|(name, _)| name.clone()).collect();
        let (publish, state) = watch::channel(State::Down { reason: NOT_YET.into(), fatal: false });
        let (bans, current) = (Arc::<Mutex<Bans>>::default(), Arc::<AtomicUsize>::default());
        let keeper = Keeper { endpoints, residents, publish, bans: bans.clone(), current: current.clone() };
        let keeper = handle.spawn(keeper.keep(handle.clone()));
        Ok(Self { names, current, handle, state, keeper, quarantine: config.quarantine, bans })
    }

    /// The evaluator that is spoken to, or was last.
    pub(crate) fn endpoint(&self) -> &str {
        &self.names[self.current.load(Ordering::Relaxed)]
    }

    /// Ends the session with an evaluator whose answer failed a check, and does not speak to it for a while.
    pub(crate) fn ban(&self, session: &Session, reason: String) {
        // The keeper may have turned to another one since.
        let lied = session.info().endpoint.trim_end_matches('/');
        let at = self.names.iter().position(|name| name.trim_end_matches('/') == lied);
        let (at, until) = (at.unwrap_or(self.current.load(Ordering::Relaxed)), Instant::now() + self.quarantine);
        self.bans.lock().unwrap_or_else(PoisonError::into_inner).insert(at, (until, reason));
        session.close("an answer failed its check");
        // It may have come back under another session while its answer was being checked.
        if let Some(successor) = self.current() {
            successor.close("an answer failed its check");
        }
    }

    /// Whether the first attempt to connect, uploads included, is still under way.
    pub(crate) fn is_starting(&self) -> bool {
        matches!(&*self.state.borrow(), State::Down { reason, .. } if reason == NOT_YET)
    }

    /// The session, if there is one now.
    pub(crate) fn current(&self) -> Option<Arc<Session>> {
        match &*self.state.borrow() {
            State::Up(session) if session.is_open() => Some(session.clone()),
            _ => None,
        }
    }

    /// Waits for a session until `until`. Blocks.
    ///
    /// # Errors
    /// [`Error::Evaluator`] with the last reason, at once if waiting cannot help; [`Error::Cancelled`].
    pub(crate) fn session(&self, call: &Call, until: Instant) -> Result<Arc<Session>, Error> {
        if let Some(session) = self.current() {
            return Ok(session);
        }
        let start = Instant::now();
        let mut state = self.state.clone();
        loop {
            if call.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let now = state.borrow_and_update().clone();
            match now {
                State::Up(session) if session.is_open() => return Ok(session),
                State::Down { reason, fatal: true } => {
                    return Err(Error::Evaluator(format!("at {} refused: {reason}", self.endpoint())));
                }
                State::Down { reason, .. } if Instant::now() >= until => {
                    let waited = start.elapsed().as_secs_f64();
                    return Err(Error::Evaluator(format!(
                        "at {} is gone for {waited:.1} s: {reason}",
                        self.endpoint()
                    )));
                }
                State::Up(_) if Instant::now() >= until + LAST_BACKOFF => {
                    return Err(Error::Evaluator(format!("at {} has closed its session", self.endpoint())));
                }
                _ => {
                    let _ = self.handle.block_on(async { tokio::time::timeout(POLL, state.changed()).await });
                }
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
        if let Some(session) = self.current() {
            session.close("the runtime is done with it");
        }
    }
}

/// Opens a session, and another one when that has ended.
struct Keeper {
    endpoints: Vec<(String, Peer)>,
    residents: Residents,
    publish: watch::Sender<State>,
    bans: Arc<Mutex<Bans>>,
    current: Arc<AtomicUsize>,
}

impl Keeper {
    /// Stays with an evaluator as long as it can be reached, then tries them all in turn.
    async fn keep(self, handle: Handle) {
        let mut backoff = FIRST_BACKOFF;
        let mut said = String::new();
        let mut refused = false;
        // Evaluators that were tried in vain since the last session.
        let mut failed = 0;
        loop {
            let at = self.current.load(Ordering::Relaxed);
            let (name, endpoint) = &self.endpoints[at];
            let mut opened = false;
            let (reason, fatal) = match Session::open(endpoint, &self.residents, handle.clone(), refused).await {
                Ok((session, end)) => {
                    backoff = FIRST_BACKOFF;
                    said.clear();
                    opened = true;
                    failed = 0;
                    self.publish.send_replace(State::Up(session.clone()));
                    // Whoever bans it from here on sees this session; whoever did before has not.
                    if self.ban(at).is_some() {
                        session.close("an answer failed its check");
                    }
                    (end.await.unwrap_or_else(|_| "the session task ended".into()), false)
                }
                Err(e) => (e.reason, e.fatal),
            };
            if let Some((until, why)) = self.ban(at) {
                let seconds = until.saturating_duration_since(Instant::now()).as_secs_f64();
                tracing::error!(evaluator = name, seconds, reason = %why, "evaluator is in quarantine");
                if self.turn(at) {
                    continue;
                }
                self.publish.send_replace(State::Down { reason: format!("it is in quarantine: {why}"), fatal: true });
                tokio::time::sleep_until(until.into()).await;
                self.bans.lock().unwrap_or_else(PoisonError::into_inner).remove(&at);
                continue;
            }
            // Figures such as bytes in use may change from one attempt to the next; that is no news.
            let news = reason.replace(|c: char| c.is_ascii_digit(), "");
            if news != said {
                // The reason comes last and without quotes: it may hold quotes of its own.
                tracing::warn!(evaluator = name, reason = %reason, "evaluator connection is down; retrying");
                said = news;
            }
            refused = fatal;
            failed += usize::from(!opened);
            let others_left = !opened && self.turn(at) && failed % self.endpoints.len() != 0;
            // While there are others to turn to, nothing is final.
            self.publish.send_replace(State::Down { reason, fatal: fatal && !others_left });
            if others_left {
                continue;
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(LAST_BACKOFF);
        }
    }

    /// Turns to the next evaluator that may be spoken to; false if there is none but this.
    fn turn(&self, from: usize) -> bool {
        let count = self.endpoints.len();
        let next = (1..count).map(|step| (from + step) % count).find(|at| self.ban(*at).is_none());
        let Some(next) = next else { return false };
        let (from, to) = (&self.endpoints[from].0, &self.endpoints[next].0);
        tracing::warn!(from, to, "turning to another evaluator");
        self.current.store(next, Ordering::Relaxed);
        true
    }

    /// Why an evaluator is not spoken to now.
    fn ban(&self, at: usize) -> Option<(Instant, String)> {
        let mut bans = self.bans.lock().unwrap_or_else(PoisonError::into_inner);
        if bans.get(&at).is_some_and(|(until, _)| *until <= Instant::now()) && self.endpoints.len() > 1 {
            bans.remove(&at);
        }
        bans.get(&at).cloned()
    }
}
