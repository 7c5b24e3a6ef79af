//! Requests to an endpoint, one or many at a time, and what each of them got when.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::events::Events;
use super::http::{Endpoint, Fault};
use super::random::Random;

/// When requests begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Load {
    /// So many at any time.
    Closed(usize),
    /// So many a second, whatever became of those before.
    Open(f64),
}

/// How long requests begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Length {
    Requests(usize),
    Time(Duration),
}

/// Who asks: the endpoint, the requests, and the answers that are expected. Holds prompts and answers, so it has no
/// `Debug`.
pub(super) struct Client {
    pub(super) endpoint: Endpoint,
    pub(super) model: String,
    pub(super) prompts: Vec<Vec<u32>>,
    pub(super) max_tokens: u32,
    /// By prompt; none where nothing is verified.
    pub(super) expected: Vec<String>,
    /// Makes salts that nobody has used before.
    pub(super) nonce: String,
}

/// A complete answer; times in milliseconds from the request's begin. Holds generated text, so it has no `Debug`.
pub(super) struct Streamed {
    pub(super) text: String,
    /// The first event with text; none if there was none.
    pub(super) first: Option<f64>,
    /// Between one event with text and the next.
    pub(super) gaps: Vec<f64>,
    pub(super) end: f64,
    /// As the endpoint counts them.
    pub(super) tokens: u64,
}

/// One request.
pub(super) struct Outcome {
    /// Seconds after the begin of the measurement.
    pub(super) began: f64,
    pub(super) result: Result<Streamed, Fault>,
}

/// What a load brought about.
pub(super) struct Measured {
    pub(super) outcomes: Vec<Outcome>,
    /// From the first request's begin to the last one's end.
    pub(super) seconds: f64,
}

impl Client {
    /// The answer to prompt `number`, streamed. Requests with different salts share no computed keys and values.
    ///
    /// # Errors
    /// Whatever keeps it from being a complete answer of the length asked for.
    pub(super) async fn ask(&self, number: usize, salt: &str) -> Result<Streamed, Fault> {
        let begin = Instant::now();
        let prompt = self.prompts.get(number % self.prompts.len().max(1));
        let body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": self.max_tokens, "temperature": 0, "stream": true,
            "ignore_eos": true, "stream_options": {"include_usage": true}, "cache_salt": format!("{}-{salt}", self.nonce),
        });
        let mut answer = self.endpoint.post("/v1/completions", &body).await?;
        let (mut events, mut reading) = (Events::default(), Reading::default());
        while let Some(piece) = answer.piece().await? {
            let now = milliseconds(begin.elapsed());
            for event in events.push(&piece) {
                reading.see(&event, now)?;
            }
        }
        answer.done();
        reading.finish(u64::from(self.max_tokens), milliseconds(begin.elapsed()))
    }

    /// Likewise, compared with the answer that is expected.
    async fn verified(&self, number: usize, salt: &str) -> Result<Streamed, Fault> {
        let answer = self.ask(number, salt).await?;
        match self.expected.get(number % self.prompts.len().max(1)) {
            Some(expected) if *expected != answer.text => {
                let same = expected.bytes().zip(answer.text.bytes()).take_while(|(a, b)| a == b).count();
                let prompt = number % self.prompts.len().max(1);
                Err(Fault::Different(format!(
                    "the answer to prompt {prompt} differs from its single run after {same} bytes"
                )))
            }
            _ => Ok(answer),
        }
    }
}

/// An answer as far as it has come.
#[derive(Default)]
struct Reading {
    text: String,
    first: Option<f64>,
    last: f64,
    gaps: Vec<f64>,
    tokens: Option<u64>,
    done: bool,
}

impl Reading {
    fn see(&mut self, event: &str, now: f64) -> Result<(), Fault> {
        if event == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let event: Value =
            serde_json::from_str(event).map_err(|_| Fault::Malformed("an event of the stream is not JSON".into()))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let says = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(Fault::Stream(says.to_owned()));
        }
        if let Some(tokens) = event.pointer("/usage/completion_tokens").and_then(Value::as_u64) {
            self.tokens = Some(tokens);
        }
        let text = event.pointer("/choices/0/text").and_then(Value::as_str).unwrap_or_default();
        if !text.is_empty() {
            self.text.push_str(text);
            match self.first {
                None => self.first = Some(now),
                Some(_) => self.gaps.push(now - self.last),
            }
            self.last = now;
        }
        Ok(())
    }

    fn finish(self, expected: u64, end: f64) -> Result<Streamed, Fault> {
        let malformed = |what: &str| Fault::Malformed(what.into());
        if !self.done {
            return Err(malformed("the stream ended without [DONE]"));
        }
        let tokens = self.tokens.ok_or_else(|| malformed("the stream does not tell its usage"))?;
        if tokens != expected {
            return Err(Fault::Length(format!("{tokens} tokens came, {expected} were asked for")));
        }
        Ok(Streamed { text: self.text, first: self.first, gaps: self.gaps, end, tokens })
    }
}

/// Puts `load` on the endpoint. `name` is in the salts and must be another for each call; dropping this ends all requests.
pub(super) async fn run(client: &Arc<Client>, load: Load, length: Length, name: &str, seed: u64) -> Measured {
    let begin = Instant::now();
    let next = Arc::new(AtomicUsize::new(0));
    let more = move |number: usize| match length {
        Length::Requests(count) => number < count,
        Length::Time(time) => begin.elapsed() < time,
    };
    let one = {
        let (client, name) = (client.clone(), name.to_owned());
        move |number: usize| {
            let (client, salt) = (client.clone(), format!("{name}-{number}"));
            async move {
                let began = begin.elapsed().as_secs_f64();
                Outcome { began, result: client.verified(number, &salt).await }
            }
        }
    };
    let mut tasks = JoinSet::new();
    match load {
        Load::Closed(concurrency) => {
            for _ in 0..concurrency {
                let (next, one) = (next.clone(), one.clone());
                tasks.spawn(async move {
                    let mut outcomes = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if !more(number) {
                            return outcomes;
                        }
                        outcomes.push(one(number).await);
                    }
                });
            }
        }
        Load::Open(rate) => {
            let (mut random, mut at) = (Random::new(seed), 0.0);
            for number in 0.. {
                at += random.pause(rate);
                let over = matches!(length, Length::Time(time) if at >= time.as_secs_f64());
                if over || matches!(length, Length::Requests(count) if number >= count) {
                    break;
                }
                tokio::time::sleep_until((begin + Duration::from_secs_f64(at)).into()).await;
                let request = one(number);
                tasks.spawn(async move { vec![request.await] });
            }
        }
    }
    let mut outcomes = tasks.join_all().await.into_iter().flatten().collect::<Vec<Outcome>>();
    outcomes.sort_by(|a, b| a.began.total_cmp(&b.began));
    Measured { outcomes, seconds: begin.elapsed().as_secs_f64() }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(events: &[(&str, f64)]) -> Result<Streamed, Fault> {
        let mut reading = Reading::default();
        for (event, now) in events {
            reading.see(event, *now)?;
        }
        reading.finish(3, 40.0)
    }

    #[test]
    fn times_are_those_of_events_with_text() {
        let text = |t: &str| format!(r#"{{"choices":[{{"index":0,"text":"{t}"}}],"usage":null}}"#);
        let usage = r#"{"choices":[],"usage":{"completion_tokens":3}}"#;
        let (a, b, none) = (text("a"), text("b"), text(""));
        let end = [(usage, 31.0), ("[DONE]", 31.0)];
        let whole =
            read(&[&[(none.as_str(), 5.0), (&a, 10.0), (&none, 20.0), (&b, 30.0)], &end[..]].concat()).ok().unwrap();
        assert_eq!((whole.text.as_str(), whole.first, whole.gaps, whole.tokens), ("ab", Some(10.0), vec![20.0], 3));
        let kind = |events: &[(&str, f64)]| read(events).err().unwrap().kind();
        assert_eq!(kind(&[(usage, 1.0)]), "malformed");
        assert_eq!(kind(&[("[DONE]", 1.0)]), "malformed");
        assert_eq!(kind(&[("{", 1.0)]), "malformed");
        assert_eq!(kind(&[(r#"{"usage":{"completion_tokens":2}}"#, 1.0), ("[DONE]", 1.0)]), "length");
        assert_eq!(kind(&[(r#"{"error":{"message":"no"}}"#, 1.0)]), "stream");
    }
}
