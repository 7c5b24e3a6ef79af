//! The engine: schedule, run, commit. One thread per protocol, so that a local sequence never waits
//! for an evaluator that is gone; each thread runs its sequences in turns of one step.

pub mod runner;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod timing;

use crate::{Error, linear::Call, metrics::Metrics};
use runner::Runner;
use sampler::{Sampled, Sampling};
use scheduler::{Scheduled, Scheduler};
use sequence::{Outcome, Sequence};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
};
use timing::Timing;
use tokio::sync::mpsc;
use zeroize::{Zeroize, Zeroizing};

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
    /// Sequences that run at a time, per protocol.
    pub max_running: usize,
    /// Prompt positions in one step.
    pub prefill_chunk: usize,
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
            let scheduler = Scheduler::new(limits.max_queue, limits.max_running);
            let state = Mutex::new(State { scheduler, closed: false });
            let shared = Arc::new(Shared { runner, limits, metrics: metrics.clone(), state, wake: Condvar::new() });
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
    pub fn check_room(&self, protocol: Protocol) -> Result<(), Error> {
        let shared = self.shared(protocol)?;
        if shared.lock().scheduler.has_room() { Ok(()) } else { Err(shared.busy(protocol)) }
    }

    /// Queues a sequence.
    ///
    /// # Errors
    /// Those of [`Engine::check_room`], and [`Error::Platform`] without entropy.
    pub fn submit(&self, protocol: Protocol, request: Request) -> Result<Ticket, Error> {
        let shared = self.shared(protocol)?;
        let call = Arc::new(Call::default());
        let (sender, events) = mpsc::unbounded_channel();
        let sequence = Sequence::new(request, shared.runner.vocab(), call.clone(), sender)?;
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
        let mut logits = Zeroizing::new(Vec::with_capacity(self.runner.vocab()));
        while let Some(mut sequence) = self.schedule() {
            let outcome = self.run(&mut sequence, &mut logits);
            logits.as_mut_slice().zeroize();
            self.commit(sequence, outcome);
        }
    }

    /// Waits for the next turn; `None` once the engine is closed.
    fn schedule(&self) -> Option<Sequence<R::Cache>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(sequence) = state.scheduler.schedule() {
                self.report(&state);
                return Some(sequence);
            }
            self.report(&state);
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One step, with a panic turned into an error of this one sequence.
    fn run(&self, sequence: &mut Sequence<R::Cache>, logits: &mut Vec<f32>) -> Result<Outcome, Error> {
        let step = || sequence.step(&self.runner, self.limits.prefill_chunk, logits, &self.metrics);
        catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| Err(Error::Bug("a step panicked".into())))
    }

    /// Gives the sequence its next turn later, or ends it. Its cache is freed before its client hears.
    fn commit(&self, sequence: Sequence<R::Cache>, outcome: Result<Outcome, Error>) {
        let again = match outcome {
            Ok(Outcome::Continue) => Some(sequence),
            Ok(Outcome::Finished(finish)) => {
                sequence.finish(finish, &self.metrics);
                None
            }
            Err(_) if sequence.is_stopped() => {
                sequence.finish(Finish::Stop, &self.metrics);
                None
            }
            Err(error) => {
                sequence.fail(error, &self.metrics);
                None
            }
        };
        let mut state = self.lock();
        state.scheduler.commit(again);
        self.report(&state);
    }

    fn report(&self, state: &State<R::Cache>) {
        self.metrics.load(state.scheduler.waiting(), state.scheduler.running());
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

impl<C> Scheduled for Sequence<C> {
    fn abandoned(&self) -> bool {
        self.is_abandoned()
    }
}

#[cfg(test)]
mod tests;
