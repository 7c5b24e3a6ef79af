//! An answer as server-sent events: framing, padding, signs of life, the end.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream::unfold;
use proto::v1;
use serde_json::Value;

use super::ask::Ask;
use super::refusal::Refusal;
use super::shape::{End, Head, Shape};
use super::tokens::{Answers, Step};

/// Padded events are multiples of this many bytes.
const BLOCK: usize = 128;
const COMMENT: &[u8] = b": keep-alive\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// How a stream is told.
pub(super) struct Telling {
    pub(super) head: Head,
    pub(super) usage: bool,
    pub(super) obfuscation: bool,
    pub(super) keep_alive: Duration,
    pub(super) long_run: Duration,
}

/// The state of one stream. Dropping it, with the connection, cancels the answers.
struct Stream {
    telling: Telling,
    /// None once the end is on its way.
    answers: Option<Answers>,
    frames: VecDeque<Bytes>,
    /// Characters of each answer so far.
    told: Vec<usize>,
}

/// The body that tells `answers`.
pub(super) fn body(answers: Answers, ask: &Ask, telling: Telling) -> Body {
    let mut stream = Stream { telling, answers: Some(answers), frames: VecDeque::new(), told: vec![0; ask.choices()] };
    for choice in 0..ask.choices() {
        if stream.telling.head.shape == Shape::Chat {
            let role = stream.telling.head.role(choice);
            stream.event(role);
        }
        if let Some(prompt) = ask.echo.get(choice / (ask.n as usize).max(1)) {
            stream.text(choice, prompt, &[]);
        }
    }
    Body::from_stream(unfold(stream, |mut stream| async {
        let frame = stream.next().await?;
        Some((Ok::<_, Infallible>(frame), stream))
    }))
}

impl Stream {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Some(frame);
            }
            let answers = self.answers.as_mut()?;
            let Ok(step) = tokio::time::timeout(self.telling.keep_alive, answers.next()).await else {
                return Some(Bytes::from_static(COMMENT));
            };
            match step {
                Some(Ok(step)) => self.step(step),
                Some(Err(status)) => {
                    let refusal = Refusal::of_status(&status).after(answers.elapsed(), self.telling.long_run);
                    self.end(Some(refusal.body()));
                }
                None => {
                    let usage = self.telling.usage.then(|| self.telling.head.usage(answers.usage()));
                    self.end(usage);
                }
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Token(choice, token) => {
                let text = token.text.clone();
                self.text(choice, &text, &[token]);
            }
            Step::Finished(choice, finished) => {
                self.text(choice, &finished.text, &[]);
                let end = self.telling.head.end(choice, &End::from(&finished));
                self.event(end);
            }
        }
    }

    /// Tells a piece of text, unless there is nothing in it.
    fn text(&mut self, choice: usize, text: &str, tokens: &[v1::Token]) {
        if text.is_empty() && tokens.iter().all(|token| token.logprob.is_none()) {
            return;
        }
        let offset = self.told.get(choice).copied().unwrap_or(0);
        let event = self.telling.head.text(choice, text, tokens, offset);
        let of = |token: &v1::Token| token.logprob.as_ref().map_or(0, |l| l.text.chars().count());
        if let Some(told) = self.told.get_mut(choice) {
            *told += tokens.iter().map(of).sum::<usize>();
        }
        self.event(event);
    }

    fn event(&mut self, event: Value) {
        self.frames.push_back(frame(event, self.telling.obfuscation));
    }

    /// The last event, if there is one, and the end. What is still made is of no use to anybody then.
    fn end(&mut self, last: Option<Value>) {
        if let Some(last) = last {
            self.event(last);
        }
        self.frames.push_back(Bytes::from_static(DONE));
        self.answers = None;
    }
}

/// One event. Padded, its length says less about the text in it.
fn frame(mut event: Value, padded: bool) -> Bytes {
    let framed = |event: &Value| format!("data: {event}\n\n");
    if padded {
        event["obfuscation"] = Value::from("");
        let missing = framed(&event).len().next_multiple_of(BLOCK) - framed(&event).len();
        event["obfuscation"] = Value::from("x".repeat(missing));
    }
    Bytes::from(framed(&event))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_one_line() {
        let event = json!({"text": "a\nb\r\n"});
        assert_eq!(frame(event, false), Bytes::from_static(b"data: {\"text\":\"a\\nb\\r\\n\"}\n\n"));
    }

    #[test]
    fn padded_events_have_few_lengths() {
        for n in 0..400 {
            let padded = frame(json!({"text": "a".repeat(n)}), true);
            assert_eq!(padded.len() % BLOCK, 0);
            let line = std::str::from_utf8(&padded).unwrap().strip_prefix("data: ").unwrap();
            let event: Value = serde_json::from_str(line).unwrap();
            assert_eq!(event["text"].as_str().unwrap().len(), n);
        }
    }
}
