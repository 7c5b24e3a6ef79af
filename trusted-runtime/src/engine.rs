//! The engine: schedule, run, commit. One thread per protocol, so that a local sequence never waits for an evaluator
//! that is gone. Every step is a pass over the weights for all sequences that run (continuous batching): one token
//! for each that is past its prompt, and some positions of prompts.

pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod timing;

mod policy;
mod step;

pub use policy::Policy;

use crate::model::kv::Salt;
use crate::{
    Error,
    linear::Call,
    metrics::{self, Load, Metrics},
};
use runner::{Runner, Site, pages_of};
use sampler::{Sampled, Sampling};
use scheduler::{Bounds, Scheduler, Tenant, Turn};
use sequence::Sequence;
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};
use timing::Timing;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// How the linear layers of a sequence are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// Inside the enclave.
    Local,
    /// Encrypted activations, multiplied by the evaluator.
    Direct,
    /// One-time-padded activations, multiplied by the evaluator; waits for masks.
    Masked,
    /// Masked where masks are ready, else direct.
    Auto,
}

impl Protocol {
    /// Whether masks are made for it.
    pub fn uses_masks(self) -> bool {
        matches!(self, Self::Masked | Self::Auto)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Direct => "direct",
            Self::Masked => "masked",
            Self::Auto => "auto",
        })
    }
}

/// A checked request: the prompt fits the context together with `max_tokens`.
pub struct Request {
    /// Prompt tokens, at least one.
    pub prompt: Zeroizing<Vec<u32>>,
    /// How many tokens at most, at least one.
    pub max_tokens: usize,
    /// Sampling settings.
    pub sampling: Sampling,
    /// Goes on after an end-of-generation token.
    pub ignore_eos: bool,
    /// Where the prompt is processed.
    pub prefill: Site,
    /// Whose it is.
    pub tenant: Tenant,
    /// Sequences of the same salt share pages.
    pub salt: Salt,
}

/// Why a sequence ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its answer.
    Stop,
    /// `max_tokens` were made.
    Length,
}

/// What a sequence tells its client.
pub enum Event {
    /// One more token.
    Token(Sampled),
    /// The end, with the number of tokens made.
    Finished {
        /// Why.
        finish: Finish,
        /// Tokens made.
        tokens: usize,
        /// Positions of the prompt that were computed before.
        cached: usize,
        /// What it cost.
        timing: Timing,
    },
    /// The end, without an answer.
    Failed(Error),
}

/// Sizes of the queue and of a step.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that may wait, per protocol.
    pub max_queue: usize,
    /// Requests of one tenant that may wait, per protocol.
    pub max_queue_per_tenant: usize,
    /// Sequences that run at a time, per protocol.
    pub max_running: usize,
    /// Prompt positions in one step.
    pub prefill_chunk: usize,
    /// Answers go on unseen until their tokens are a multiple of this, at least 1.
    pub answer_multiple: usize,
}

/// A client's end of a sequence. Dropping it cancels the sequence within one linear layer.
pub struct Ticket {
    /// What the sequence tells; ends after `Finished` or `Failed`.
    pub events: mpsc::UnboundedReceiver<Event>,
    call: Arc<Call>,
}

impl Ticket {
    /// Ends the sequence, within one linear layer, with its answer complete; `Finished` follows.
    pub fn stop(&self) {
        self.call.stop();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.call.cancel();
    }
}

/// Runs sequences of one model, each by its protocol.
pub struct Engine<R: Runner> {
    tracks: Vec<Track<R>>,
}

struct Track<R: Runner> {
    protocol: Protocol,
    shared: Arc<Shared<R>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<R: Runner> {
    runner: R,
    limits: Limits,
    metrics: Metrics,
    track: metrics::Track,
    state: Mutex<State<R::Cache>>,
    wake: Condvar,
}

struct State<C> {
    scheduler: Scheduler<Sequence<C>>,
    closed: bool,
}

impl<R: Runner> Engine<R> {
    /// Starts one thread per protocol in `runners`.
    ///
    /// # Errors
    /// [`Error::Platform`] if a thread cannot be started.
    pub fn start(limits: Limits, metrics: &Metrics, runners: Vec<(Protocol, R)>) -> Result<Self, Error> {
        let mut tracks = Vec::new();
        for (protocol, runner) in runners {
            let bounds = Bounds {
                waiting: limits.max_queue,
                waiting_of_one: limits.max_queue_per_tenant,
                running: limits.max_running,
                prefill: limits.prefill_chunk,
            };
            let state = Mutex::new(State { scheduler: Scheduler::new(bounds), closed: false });
            let (metrics, track) = (metrics.clone(), metrics.track(protocol.to_string()));
            let shared = Arc::new(Shared { runner, limits, metrics, track, state, wake: Condvar::new() });
            let thread = std::thread::Builder::new()
                .name(format!("engine-{protocol}"))
                .spawn({
                    let shared = shared.clone();
                    move || shared.work()
                })
                .map_err(|e| Error::Platform(format!("engine thread: {e}")))?;
            tracks.push(Track { protocol, shared, thread: Some(thread) });
        }
        Ok(Self { tracks })
    }

    /// Refuses early, before a prompt is tokenized.
    ///
    /// # Errors
    /// [`Error::Config`] if nothing serves the protocol, [`Error::Busy`] if its queue is full.
    pub fn check_room(&self, protocol: Protocol, tenant: &Tenant) -> Result<(), Error> {
        let shared = self.shared(protocol)?;
        if shared.lock().scheduler.has_room(tenant) { Ok(()) } else { Err(shared.busy(protocol)) }
    }

    /// Queues a sequence.
    ///
    /// # Errors
    /// Those of [`Engine::check_room`], [`Error::Client`] if its keys and values cannot fit even alone, and
    /// [`Error::Platform`] without entropy.
    pub fn submit(&self, protocol: Protocol, request: Request) -> Result<Ticket, Error> {
        let shared = self.shared(protocol)?;
        let (pages, _) = shared.runner.pages();
        let answer = request.max_tokens.next_multiple_of(shared.limits.answer_multiple.max(1));
        let needed = pages_of(request.prompt.len() + answer);
        if needed > pages {
            return Err(Error::Client(format!(
                "prompt and max_tokens need {needed} pages of keys and values, there are {pages} (engine.kv_memory)"
            )));
        }
        let call = Arc::new(Call::default());
        let (sender, events) = mpsc::unbounded_channel();
        let sequence = Sequence::new(request, answer, &shared.runner, call.clone(), sender)?;
        let mut state = shared.lock();
        if state.closed || state.scheduler.admit(sequence).is_err() {
            return Err(shared.busy(protocol));
        }
        shared.report(&state);
        shared.wake.notify_one();
        Ok(Ticket { events, call })
    }

    fn shared(&self, protocol: Protocol) -> Result<&Arc<Shared<R>>, Error> {
        let track = self.tracks.iter().find(|t| t.protocol == protocol);
        track.map(|t| &t.shared).ok_or_else(|| {
            let why = if self.tracks.iter().any(|t| t.protocol == Protocol::Direct) {
                "makes no masks: its engine.protocol is neither masked nor auto"
            } else {
                "has no evaluator configured"
            };
            Error::Config(format!("protocol {protocol} is asked for, but this runtime {why}"))
        })
    }
}

impl<R: Runner> Drop for Engine<R> {
    /// Cancels what runs and waits for the threads.
    fn drop(&mut self) {
        for track in &self.tracks {
            track.shared.lock().closed = true;
            track.shared.wake.notify_all();
        }
        for track in &mut self.tracks {
            if let Some(Err(_)) = track.thread.take().map(JoinHandle::join) {
                tracing::error!(protocol = %track.protocol, "the engine thread panicked");
            }
        }
    }
}

impl<R: Runner> Shared<R> {
    /// The engine thread.
    fn work(&self) {
        let mut logits = Zeroizing::new(Vec::new());
        while let Some(turns) = self.schedule() {
            self.step(turns, &mut logits);
        }
    }

    /// Waits for the next step; `None` once the engine is closed.
    fn schedule(&self) -> Option<Vec<Turn<Sequence<R::Cache>>>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let turns = state.scheduler.schedule(|| self.runner.pages().1);
            self.report(&state);
            if !turns.is_empty() {
                return Some(turns);
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn report(&self, state: &State<R::Cache>) {
        let scheduler = &state.scheduler;
        self.track.load(Load {
            waiting: scheduler.waiting(),
            running: scheduler.running(),
            preemptions: scheduler.preemptions(),
            pages: self.runner.pages(),
            reused: self.runner.reused(),
        });
    }

    fn busy(&self, protocol: Protocol) -> Error {
        let Limits { max_running, max_queue, .. } = self.limits;
        Error::Busy(format!(
            "the {protocol} queue is full: {max_running} requests run and {max_queue} wait (max_running, max_queue)"
        ))
    }

    fn lock(&self) -> MutexGuard<'_, State<R::Cache>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
