//! One request on its way: what is computed, what is next, and who is listening.

use super::{Event, Finish, Request, runner::Runner, sampler::Sampler, timing::Stopwatch};
use crate::{
    Error,
    linear::Call,
    metrics::{Ended, Metrics},
};
use std::{sync::Arc, time::Instant};
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// A request being served. `C` is the model's cache; it exists from the first step on.
pub struct Sequence<C> {
    request: Request,
    /// Prompt positions in the cache.
    prefilled: usize,
    /// The last token made, not yet in the cache.
    last: Zeroizing<u32>,
    made: usize,
    cache: Option<C>,
    sampler: Sampler,
    call: Arc<Call>,
    events: mpsc::UnboundedSender<Event>,
    watch: Stopwatch,
}

/// What a step led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is more to do.
    Continue,
    /// The answer is complete.
    Finished(Finish),
}

impl<C> Sequence<C> {
    /// A sequence that has not begun.
    ///
    /// # Errors
    /// Those of [`Sampler::new`].
    pub fn new(
        request: Request,
        vocab: usize,
        call: Arc<Call>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Result<Self, Error> {
        let mut sampler = Sampler::new(request.sampling.clone(), vocab)?;
        request.prompt.iter().for_each(|t| sampler.note(*t));
        let (last, watch) = (Zeroizing::new(0), Stopwatch::start());
        Ok(Self { request, prefilled: 0, last, made: 0, cache: None, sampler, call, events, watch })
    }

    /// Whether the client is gone.
    pub fn is_abandoned(&self) -> bool {
        self.call.is_cancelled() || self.events.is_closed()
    }

    /// Whether its answer was complete before the model ended it.
    pub fn is_stopped(&self) -> bool {
        self.call.is_stopped()
    }

    /// Runs one step: a chunk of the prompt, or one token. `logits` is scratch.
    ///
    /// # Errors
    /// Those of the model, and [`Error::Cancelled`] when the client is gone; the sequence is over then.
    pub fn step<R: Runner<Cache = C>>(
        &mut self,
        runner: &R,
        prefill_chunk: usize,
        logits: &mut Vec<f32>,
        metrics: &Metrics,
    ) -> Result<Outcome, Error> {
        if self.is_abandoned() {
            return Err(Error::Cancelled);
        }
        let (began, before) = (Instant::now(), self.call.meter.snapshot());
        let cache = self.cache.get_or_insert_with(|| runner.new_cache());
        let prompt = &self.request.prompt;
        if self.prefilled < prompt.len() {
            let end = (self.prefilled + prefill_chunk.max(1)).min(prompt.len());
            let chunk = &prompt[self.prefilled..end];
            if end < prompt.len() {
                runner.prefill(&self.call, chunk, cache)?;
                self.prefilled = end;
                return Ok(Outcome::Continue);
            }
            runner.forward(&self.call, chunk, cache, logits)?;
            self.prefilled = end;
        } else {
            runner.forward(&self.call, std::slice::from_ref(&*self.last), cache, logits)?;
        }
        let sampled = self.sampler.sample(logits)?;
        *self.last = sampled.id;
        self.sampler.note(*self.last);
        self.made += 1;
        let seconds = self.watch.token(&self.call, began, before);
        metrics.token(self.made == 1, seconds);
        // A closed channel shows at the next step.
        let _ = self.events.send(Event::Token(sampled));
        Ok(if runner.is_end(*self.last) && !self.request.ignore_eos {
            Outcome::Finished(Finish::Stop)
        } else if self.made == self.request.max_tokens {
            Outcome::Finished(Finish::Length)
        } else {
            Outcome::Continue
        })
    }

    /// Ends the sequence with its answer complete.
    pub fn finish(mut self, finish: Finish, metrics: &Metrics) {
        self.cache = None;
        metrics.ended(finish.into(), self.call.meter.snapshot());
        let timing = self.watch.timing(&self.call);
        let _ = self.events.send(Event::Finished { finish, tokens: self.made, timing });
    }

    /// Ends the sequence without an answer.
    pub fn fail(mut self, error: Error, metrics: &Metrics) {
        self.cache = None;
        metrics.ended(Ended::from(&error), self.call.meter.snapshot());
        let _ = self.events.send(Event::Failed(error));
    }
}
