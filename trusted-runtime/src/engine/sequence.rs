//! One request on its way: what is computed, what is next, and who is listening.

use super::{
    Event, Finish, Request,
    runner::{Cache, Runner, Site, Work},
    sampler::Sampler,
    scheduler::{Scheduled, Tenant},
    timing::Stopwatch,
};
use crate::{
    Error,
    linear::Call,
    metrics::{Answered, Ended, Metrics, Track},
};
use std::sync::Arc;
use tokio::sync::mpsc;
use zeroize::Zeroizing;

/// A request being served. `C` is the model's cache; it has no pages before the first step.
pub struct Sequence<C> {
    request: Request,
    /// The prompt, and what was made.
    tokens: Zeroizing<Vec<u32>>,
    /// Tokens in the cache.
    done: usize,
    /// Tokens of the prompt that were found in the cache at first.
    found: Option<usize>,
    /// Whether its end was told, and it goes on for its length alone.
    told: bool,
    cache: C,
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

impl<C: Cache> Sequence<C> {
    /// A sequence that has not begun, for `longest` tokens of answer, unseen ones included.
    ///
    /// # Errors
    /// Those of [`Sampler::new`].
    pub fn new<R: Runner<Cache = C>>(
        request: Request,
        longest: usize,
        runner: &R,
        call: Arc<Call>,
        events: mpsc::UnboundedSender<Event>,
    ) -> Result<Self, Error> {
        let mut sampler = Sampler::new(request.sampling.clone(), runner.vocab())?;
        request.prompt.iter().for_each(|t| sampler.note(*t));
        // All the room at once: a vector that grows leaves copies behind.
        let mut tokens = Zeroizing::new(Vec::with_capacity(request.prompt.len() + longest));
        tokens.extend_from_slice(&request.prompt);
        let cache = runner.new_cache(request.salt);
        Ok(Self {
            request,
            tokens,
            done: 0,
            found: None,
            told: false,
            cache,
            sampler,
            call,
            events,
            watch: Stopwatch::start(),
        })
    }

    /// What it does and costs.
    pub fn call(&self) -> &Arc<Call> {
        &self.call
    }

    /// Whether its answer was complete before the model ended it.
    pub fn is_stopped(&self) -> bool {
        self.call.is_stopped()
    }

    /// Whether it needs no further step.
    pub fn is_over(&self) -> bool {
        !self.told && (self.call.is_cancelled() || self.events.is_closed())
    }

    /// Where its next tokens are processed.
    pub fn site(&self) -> Site {
        if self.decoding() { Site::Evaluator } else { self.request.prefill }
    }

    /// The next `count` tokens, for a pass; the last of all known ones ask for logits.
    pub fn work(&mut self, count: usize) -> Work<'_, C> {
        let end = (self.done + count).min(self.tokens.len());
        Work { tokens: &self.tokens[self.done..end], cache: &mut self.cache, logits: end == self.tokens.len() }
    }

    /// Notes that a pass over `count` tokens went well; `logits` are those asked for.
    ///
    /// # Errors
    /// Those of the sampler.
    pub fn advance<R: Runner<Cache = C>>(
        &mut self,
        runner: &R,
        count: usize,
        logits: Option<&mut [f32]>,
        metrics: &Metrics,
    ) -> Result<Outcome, Error> {
        self.done += count;
        let Some(logits) = logits else { return Ok(Outcome::Continue) };
        if self.told {
            // Any token will do: nobody sees what follows from it.
            let any = self.tokens.last().copied().unwrap_or_default();
            self.tokens.push(any);
            return Ok(Outcome::Continue);
        }
        if self.is_over() {
            return Err(Error::Cancelled);
        }
        let sampled = self.sampler.sample(logits)?;
        let token = sampled.id;
        self.sampler.note(token);
        self.tokens.push(token);
        let seconds = self.watch.token(&self.call);
        metrics.token(self.made() == 1, seconds);
        // A closed channel shows at the next step.
        let _ = self.events.send(Event::Token(sampled));
        Ok(if runner.is_end(token) && !self.request.ignore_eos {
            Outcome::Finished(Finish::Stop)
        } else if self.made() == self.request.max_tokens {
            Outcome::Finished(Finish::Length)
        } else {
            Outcome::Continue
        })
    }

    /// Ends the sequence with its answer complete.
    pub fn finish(mut self, finish: Finish, metrics: &Metrics, track: &Track) {
        self.cache.clear();
        self.tell(finish, metrics, track);
    }

    /// Tells the client of the end and goes on unseen.
    pub fn go_on(&mut self, finish: Finish, metrics: &Metrics, track: &Track) {
        self.tell(finish, metrics, track);
        self.told = true;
        // The client's leaving is nothing to it any more.
        self.call = Arc::default();
    }

    /// Whether it goes on unseen.
    pub fn is_unseen(&self) -> bool {
        self.told
    }

    fn tell(&self, finish: Finish, metrics: &Metrics, track: &Track) {
        let tokens = self.made();
        let cached = self.found.unwrap_or(0);
        let (whole, queued, prefill) = self.watch.spans();
        track.answered(Answered { finish, prompt: self.request.prompt.len(), made: tokens, whole, queued, prefill });
        metrics.ended(finish.into(), self.call.meter.snapshot());
        let timing = self.watch.timing(&self.call);
        let _ = self.events.send(Event::Finished { finish, tokens, cached, timing });
    }

    /// Ends the sequence without an answer.
    pub fn fail(self, error: Error, metrics: &Metrics) {
        drop(self.cache);
        metrics.ended(Ended::from(&error), self.call.meter.snapshot());
        let _ = self.events.send(Event::Failed(error));
    }

    /// Tokens made, unseen ones included.
    pub fn made(&self) -> usize {
        self.tokens.len() - self.request.prompt.len()
    }
}

impl<C: Cache> Scheduled for Sequence<C> {
    fn abandoned(&self) -> bool {
        // Somebody waits for the end of an answer that is complete.
        self.is_over() && !self.is_stopped()
    }

    fn tenant(&self) -> &Tenant {
        &self.request.tenant
    }

    fn seat(&mut self) {
        self.watch.seat();
        self.done = self.cache.reuse(&self.tokens);
        self.found.get_or_insert(self.done);
    }

    fn remaining(&self) -> usize {
        self.tokens.len() - self.done
    }

    fn decoding(&self) -> bool {
        self.remaining() == 1 && self.made() > 0
    }

    fn missing(&self, tokens: usize) -> usize {
        self.cache.missing(tokens)
    }

    fn release(&mut self) {
        self.cache.clear();
        self.done = 0;
    }
}
