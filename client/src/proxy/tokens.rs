//! The answers to one request while they are made: one gRPC stream each, merged as their tokens come.
//!
//! Dropping this drops the streams, which cancels the sequences behind them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use futures::stream::{BoxStream, SelectAll, StreamExt, once};
use proto::v1;
use proto::v1::generate_event::Event;
use proto::v1::inference_client::InferenceClient;
use serde_json::{Value, json};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::ask::Ask;
use super::behind::Behind;
use super::gate::Admission;
use super::metrics::{Ended, Metrics, Running};
use super::refusal::Refused;

/// Tokens of one request.
#[derive(Default)]
pub(super) struct Usage {
    /// Of each prompt, by its number.
    prompts: BTreeMap<usize, u32>,
    completion: u64,
    /// Of each prompt, how many were computed before.
    cached: BTreeMap<usize, u32>,
}

impl Usage {
    fn prompt(&self) -> u64 {
        self.prompts.values().map(|n| u64::from(*n)).sum()
    }

    /// OpenAI's object.
    pub(super) fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt(), "completion_tokens": self.completion,
            "total_tokens": self.prompt() + self.completion, "prompt_tokens_details": {"cached_tokens": self.cached.values().map(|n| u64::from(*n)).sum::<u64>()},
        })
    }
}

/// One more thing about answer `.0`.
pub(super) enum Step {
    /// A token.
    Token(usize, v1::Token),
    /// The end of this answer.
    Finished(usize, v1::Finished),
}

type Told = (usize, Option<Result<v1::GenerateEvent, Status>>);

/// Answers being made.
pub(super) struct Answers {
    events: SelectAll<BoxStream<'static, Told>>,
    n: usize,
    open: usize,
    usage: Usage,
    /// When each answer's last token came.
    last: Vec<Option<Instant>>,
    done: Vec<bool>,
    began: Instant,
    failed: bool,
    metrics: Metrics,
    _running: Running,
    admission: Admission,
}

impl Answers {
    /// Asks for all answers at once. Returns when the runtime has taken every one of them.
    ///
    /// # Errors
    /// The runtime's, about the first answer it does not take; the others are cancelled. Or that the way is blocked.
    pub(super) async fn ask(
        behind: &Behind,
        ask: &Ask,
        time: Duration,
        metrics: Metrics,
        admission: Admission,
    ) -> Result<Self, Refused> {
        let began = Instant::now();
        let (running, tenant) = (metrics.running(), admission.tenant().parse::<MetadataValue<Ascii>>());
        let open = |choice, mut client: InferenceClient<Channel>| {
            let mut request = Request::new(ask.request(choice));
            request.set_timeout(time);
            if let Ok(tenant) = &tenant {
                request.metadata_mut().insert("bifrost-tenant", tenant.clone());
            }
            async move {
                let events = client.generate(request).await?.into_inner();
                let told = events.map(move |event| (choice, Some(event)));
                Ok::<BoxStream<'static, Told>, Status>(told.chain(once(async move { (choice, None) })).boxed())
            }
        };
        let choices = ask.choices();
        let opened = behind.ask(|client| try_join_all((0..choices).map(|choice| open(choice, client.clone())))).await;
        let events = opened.inspect_err(|_| metrics.ended(Ended::Error, began.elapsed()))?;
        Ok(Self {
            events: events.into_iter().collect(),
            n: (ask.n as usize).max(1),
            open: choices,
            usage: Usage::default(),
            last: vec![None; choices],
            done: vec![false; choices],
            began,
            failed: false,
            metrics,
            _running: running,
            admission,
        })
    }

    /// The next step; none after the last answer's end. May be dropped and called again.
    ///
    /// # Errors
    /// The runtime's; all answers are over then.
    pub(super) async fn next(&mut self) -> Option<Result<Step, Status>> {
        if self.open == 0 || self.failed {
            return None;
        }
        loop {
            let step = match self.events.next().await? {
                (_, Some(Err(status))) => Err(status),
                (choice, Some(Ok(event))) => match event.event {
                    Some(Event::Started(started)) => {
                        self.usage.prompts.insert(choice / self.n, started.prompt_tokens);
                        continue;
                    }
                    Some(Event::Token(token)) => {
                        self.token(choice);
                        Ok(Step::Token(choice, token))
                    }
                    Some(Event::Finished(finished)) => {
                        self.finished(choice, &finished);
                        Ok(Step::Finished(choice, finished))
                    }
                    None => Err(Status::internal("the runtime sent an event of an unknown kind")),
                },
                (choice, None) if self.done.get(choice) == Some(&true) => continue,
                (_, None) => Err(Status::unavailable("the runtime ended a stream before its answer was complete")),
            };
            self.failed = step.is_err();
            return Some(step);
        }
    }

    /// Tokens so far.
    pub(super) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How long this has been going on.
    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn token(&mut self, choice: usize) {
        self.usage.completion += 1;
        let now = Instant::now();
        let Some(last) = self.last.get_mut(choice) else { return };
        match last.replace(now) {
            None => self.metrics.first_token(now - self.began),
            Some(before) => self.metrics.next_token(now - before),
        }
    }

    fn finished(&mut self, choice: usize, finished: &v1::Finished) {
        self.open = self.open.saturating_sub(1);
        if let Some(done) = self.done.get_mut(choice) {
            *done = true;
        }
        self.usage.prompts.insert(choice / self.n, finished.prompt_tokens);
        self.usage.cached.entry(choice / self.n).or_insert(finished.cached_tokens);
        let ended = if finished.reason() == v1::FinishReason::Length { Ended::Length } else { Ended::Stop };
        self.metrics.ended(ended, self.began.elapsed());
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        let ended = if self.failed { Ended::Error } else { Ended::Abort };
        (0..self.open).for_each(|_| self.metrics.ended(ended, self.began.elapsed()));
        self.metrics.tokens(self.usage.prompt(), self.usage.completion);
        self.admission.charge(self.usage.prompt() + self.usage.completion);
    }
}
