//! The JSON of answers: OpenAI's objects for chats and for completions, whole and in pieces.

use proto::v1;
use serde_json::{Map, Value, json};

use super::tokens::Usage;

/// Which of the two kinds an answer is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all objects of one answer have in common.
pub(super) struct Head {
    pub(super) shape: Shape,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
}

/// Why an answer ended.
pub(super) struct End {
    pub(super) reason: &'static str,
    /// vLLM's `stop_reason`: the stop text or token.
    pub(super) stop: Value,
}

impl Shape {
    /// How ids of answers begin.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Self::Chat => "chatcmpl-",
            Self::Text => "cmpl-",
        }
    }

    fn object(self, whole: bool) -> &'static str {
        match (self, whole) {
            (Self::Chat, true) => "chat.completion",
            (Self::Chat, false) => "chat.completion.chunk",
            (Self::Text, _) => "text_completion",
        }
    }

    /// Log probabilities of consecutive tokens; `offset` is the text before them, in characters.
    fn logprobs(self, tokens: &[v1::Token], offset: usize) -> Value {
        if tokens.iter().all(|token| token.logprob.is_none()) {
            return Value::Null;
        }
        match self {
            Self::Chat => {
                let entry =
                    |l: &v1::TokenLogprob| json!({"token": l.text, "logprob": l.logprob, "bytes": &l.bytes[..]});
                let content = tokens.iter().filter_map(|token| {
                    let mut all = entry(token.logprob.as_ref()?);
                    all["top_logprobs"] = token.top.iter().map(entry).collect();
                    Some(all)
                });
                json!({"content": content.collect::<Vec<_>>(), "refusal": null})
            }
            Self::Text => legacy_logprobs(tokens, offset),
        }
    }
}

/// The completions' own form, in which the chosen token is among the likeliest.
fn legacy_logprobs(tokens: &[v1::Token], mut offset: usize) -> Value {
    let (mut texts, mut values, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let Some(chosen) = &token.logprob else { continue };
        let top = token.top.iter().chain([chosen]).map(|l| (l.text.clone(), json!(l.logprob)));
        tops.push(Value::Object(top.collect::<Map<_, _>>()));
        texts.push(chosen.text.clone());
        values.push(chosen.logprob);
        offsets.push(offset);
        offset += chosen.text.chars().count();
    }
    json!({"tokens": texts, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets})
}

impl Head {
    fn object(&self, whole: bool, choices: Value, usage: Option<Value>) -> Value {
        let mut object = json!({
            "id": self.id, "object": self.shape.object(whole), "created": self.created, "model": self.model,
            "choices": choices,
        });
        if let Some(usage) = usage {
            object["usage"] = usage;
        }
        object
    }

    /// The first piece of answer `index` of a chat.
    pub(super) fn role(&self, index: usize) -> Value {
        let delta = json!({"role": "assistant", "content": ""});
        self.piece(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}))
    }

    /// A piece of text with the token it came with, after `offset` characters.
    pub(super) fn text(&self, index: usize, text: &str, tokens: &[v1::Token], offset: usize) -> Value {
        let logprobs = self.shape.logprobs(tokens, offset);
        self.piece(match self.shape {
            Shape::Chat => {
                json!({"index": index, "delta": {"content": text}, "logprobs": logprobs, "finish_reason": null})
            }
            Shape::Text => json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null}),
        })
    }

    /// The last piece of answer `index`.
    pub(super) fn end(&self, index: usize, end: &End) -> Value {
        let mut choice = json!({
            "index": index, "logprobs": null, "finish_reason": end.reason, "stop_reason": end.stop,
        });
        match self.shape {
            Shape::Chat => choice["delta"] = json!({}),
            Shape::Text => choice["text"] = json!(""),
        }
        self.piece(choice)
    }

    /// The usage, after the last piece.
    pub(super) fn usage(&self, usage: &Usage) -> Value {
        self.object(false, json!([]), Some(usage.json()))
    }

    fn piece(&self, choice: Value) -> Value {
        self.object(false, json!([choice]), None)
    }

    /// Answer `index` in one piece.
    pub(super) fn choice(&self, index: usize, text: &str, tokens: &[v1::Token], end: &End) -> Value {
        let logprobs = self.shape.logprobs(tokens, 0);
        let mut choice = json!({
            "index": index, "logprobs": logprobs, "finish_reason": end.reason, "stop_reason": end.stop,
        });
        match self.shape {
            Shape::Chat => choice["message"] = json!({"role": "assistant", "content": text, "refusal": null}),
            Shape::Text => choice["text"] = json!(text),
        }
        choice
    }

    /// All answers in one piece.
    pub(super) fn whole(&self, choices: Vec<Value>, usage: &Usage) -> Value {
        self.object(true, Value::Array(choices), Some(usage.json()))
    }
}

impl From<&v1::Finished> for End {
    fn from(finished: &v1::Finished) -> Self {
        let reason = match finished.reason() {
            v1::FinishReason::Length => "length",
            _ => "stop",
        };
        let stop = match (finished.stop_token_id, finished.stop.as_str()) {
            (Some(id), _) => json!(id),
            (None, "") => Value::Null,
            (None, text) => json!(text),
        };
        Self { reason, stop }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(shape: Shape) -> Head {
        Head { shape, id: "x".into(), created: 7, model: "m".into() }
    }

    fn token(text: &str, logprob: f32, top: &[(&str, f32)]) -> v1::Token {
        let of = |text: &str, logprob| v1::TokenLogprob {
            text: text.into(),
            bytes: text.as_bytes().to_vec().into(),
            logprob,
            ..Default::default()
        };
        let top = top.iter().map(|(text, logprob)| of(text, *logprob)).collect();
        v1::Token { logprob: Some(of(text, logprob)), top, ..Default::default() }
    }

    #[test]
    fn log_probabilities_have_both_forms() {
        let tokens = [token("é", -0.5, &[("é", -0.5), ("b", -2.0)]), token("c", -3.0, &[("d", -0.25)])];
        let chat = head(Shape::Chat).text(0, "éc", &tokens, 0);
        let content = &chat["choices"][0]["logprobs"]["content"];
        assert_eq!(content[0]["bytes"], json!([0xc3, 0xa9]));
        assert_eq!(content[0]["top_logprobs"][1], json!({"token": "b", "logprob": -2.0, "bytes": [98]}));
        let text = head(Shape::Text).choice(0, "éc", &tokens, &End { reason: "stop", stop: Value::Null });
        let expected = json!({
            "tokens": ["é", "c"], "token_logprobs": [-0.5, -3.0], "text_offset": [0, 1],
            "top_logprobs": [{"é": -0.5, "b": -2.0}, {"d": -0.25, "c": -3.0}],
        });
        assert_eq!(text["logprobs"], expected);
        assert!(head(Shape::Chat).text(0, "x", &[v1::Token::default()], 0)["choices"][0]["logprobs"].is_null());
    }

    #[test]
    fn ends_carry_what_ended_them() {
        let finished =
            |stop: &str, id| v1::Finished { reason: 1, stop: stop.into(), stop_token_id: id, ..Default::default() };
        let end = |f: v1::Finished| head(Shape::Chat).end(1, &End::from(&f))["choices"][0].clone();
        assert_eq!(end(finished("##", None))["stop_reason"], "##");
        assert_eq!(end(finished("", Some(3)))["stop_reason"], 3);
        let plain = end(finished("", None));
        assert!(plain["stop_reason"].is_null() && plain["finish_reason"] == "stop" && plain["delta"] == json!({}));
        assert_eq!(End::from(&v1::Finished { reason: 2, ..Default::default() }).reason, "length");
    }
}
