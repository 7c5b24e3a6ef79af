//! The parameters of `/v1/chat/completions`.

use proto::v1;
use proto::v1::generate_request::Input;
use serde_json::{Value, json};

use super::ask::{Ask, bounded, model, shared};
use super::fields::{Fields, wrong};
use super::refusal::Refusal;
use super::shape::Shape;

/// Checks the body of a chat request; `served` are the names of the model.
///
/// # Errors
/// 400 naming the parameter, 404 for another model.
pub(super) fn parse(body: &[u8], served: &[&str]) -> Result<Ask, Refusal> {
    let mut fields = Fields::parse(body)?;
    model(&mut fields, served)?;
    let mut ask = shared(&mut fields, Shape::Chat)?;
    for name in ["tools", "functions"] {
        fields.only(name, &[json!([])])?;
    }
    for name in ["tool_choice", "function_call"] {
        fields.only(name, &[json!("none"), json!("auto")])?;
    }
    fields.only("modalities", &[json!(["text"])])?;
    fields.only("add_generation_prompt", &[json!(true)])?;
    // Tools are refused above, so it changes nothing.
    fields.ignore(&["parallel_tool_calls"]);
    let newer = fields.integer("max_completion_tokens", 1..=u32::MAX)?;
    let older = fields.integer("max_tokens", 1..=u32::MAX)?;
    match (newer, older) {
        (Some(a), Some(b)) if a != b => {
            let message = format!("max_tokens is {b} and max_completion_tokens is {a}; give one of them");
            return Err(Refusal::param("max_tokens", message));
        }
        (Some(tokens), _) => {
            (ask.generation.max_tokens, ask.max_tokens_name) = (tokens, "max_completion_tokens");
        }
        (None, Some(tokens)) => ask.generation.max_tokens = tokens,
        (None, None) => ask.generation.fill_context = true,
    }
    let logprobs = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=20)?;
    if top.is_some() && !logprobs {
        return Err(Refusal::param("top_logprobs", "top_logprobs needs logprobs to be true"));
    }
    if let Some(sampling) = ask.generation.sampling.as_mut().filter(|_| logprobs) {
        sampling.logprobs = Some(top.unwrap_or(0));
    }
    let messages = fields.take("messages").ok_or_else(|| Refusal::param("messages", "messages is missing"))?;
    ask.inputs.push(Input::Chat(chat(messages)?));
    fields.finish("")?;
    bounded(ask)
}

/// The messages of a chat.
///
/// # Errors
/// 400 naming the message.
pub(super) fn chat(messages: Value) -> Result<v1::Chat, Refusal> {
    let Value::Array(messages) = messages else { return Err(wrong("messages", &messages, "an array")) };
    if messages.is_empty() {
        return Err(Refusal::param("messages", "messages is empty"));
    }
    let messages = messages.into_iter().enumerate();
    Ok(v1::Chat {
        messages: messages.map(|(at, value)| message(&format!("messages[{at}]"), value)).collect::<Result<_, _>>()?,
    })
}

fn message(at: &str, value: Value) -> Result<v1::ChatMessage, Refusal> {
    let mut fields = Fields::of(value, at)?;
    let role = match fields.take("role") {
        Some(Value::String(role)) => role,
        Some(other) => return Err(wrong(&format!("{at}.role"), &other, "a string")),
        None => return Err(Refusal::param(format!("{at}.role"), format!("{at}.role is missing"))),
    };
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        _ => {
            let message =
                format!("{at}.role is unknown or not supported, known are system, developer, user, assistant");
            return Err(Refusal::param(format!("{at}.role"), message));
        }
    };
    let name = format!("{at}.content");
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let parts = parts.into_iter().enumerate().map(|(i, part)| text_of(&format!("{name}[{i}]"), part));
            parts.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        Some(other) => return Err(wrong(&name, &other, "a string or an array of text parts")),
        None => return Err(Refusal::param(name.clone(), format!("{name} is missing"))),
    };
    fields.finish(at)?;
    Ok(v1::ChatMessage { role: role.into(), content })
}

/// The text of a part of a message; images and sounds are refused.
fn text_of(at: &str, part: Value) -> Result<String, Refusal> {
    let mut part = Fields::of(part, at)?;
    if part.take("type") != Some(json!("text")) {
        let message = format!("{at}.type is not \"text\"; this endpoint serves text only");
        return Err(Refusal::param(format!("{at}.type"), message));
    }
    match part.take("text") {
        Some(Value::String(text)) => part.finish(at).map(|()| text),
        Some(other) => Err(wrong(&format!("{at}.text"), &other, "a string")),
        None => Err(Refusal::param(format!("{at}.text"), format!("{at}.text is missing"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(extra: Value) -> Result<Ask, Refusal> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(body.to_string().as_bytes(), &["m", "M 1"])
    }

    #[test]
    fn the_minimum_has_openais_defaults() {
        let ask = parsed(json!({})).ok().unwrap();
        let sampling = ask.generation.sampling.clone().unwrap();
        assert_eq!((sampling.temperature, sampling.logprobs, ask.n), (Some(1.0), None, 1));
        assert!(ask.generation.fill_context && ask.generation.max_tokens == 0 && ask.stream.is_none());
        assert!(parsed(json!({"model": "M 1"})).is_ok());
    }

    #[test]
    fn every_parameter_out_of_range_is_named() {
        let part = |part| json!({"messages": [{"role": "user", "content": [part]}]});
        for (extra, param) in [
            (json!({"temperature": 2.1}), "temperature"),
            (json!({"temperature": "1"}), "temperature"),
            (json!({"top_p": 0}), "top_p"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"min_p": 1}), "min_p"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
            (json!({"frequency_penalty": -2.5}), "frequency_penalty"),
            (json!({"presence_penalty": 3}), "presence_penalty"),
            (json!({"logit_bias": {"5": 101}}), "logit_bias"),
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": []}), "logit_bias"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"n": 0}), "n"),
            (json!({"n": 17}), "n"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"max_completion_tokens": -1}), "max_completion_tokens"),
            (json!({"max_completion_tokens": 1, "max_tokens": 2}), "max_tokens"),
            (json!({"min_tokens": -1}), "min_tokens"),
            (json!({"cache_salt": 7}), "cache_salt"),
            (json!({"stop": ""}), "stop"),
            (json!({"stop": ["a", "b", "c", "d", "e"]}), "stop"),
            (json!({"stop": [1]}), "stop"),
            (json!({"stop_token_ids": [-1]}), "stop_token_ids"),
            (json!({"logprobs": 3}), "logprobs"),
            (json!({"top_logprobs": 3}), "top_logprobs"),
            (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
            (json!({"stream": "yes"}), "stream"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"stream": true, "stream_options": {"x": 1}}), "stream_options.x"),
            (json!({"stream": true, "stream_options": {"include_usage": 1}}), "stream_options.include_usage"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"response_format": {"type": "json_schema", "json_schema": {}}}), "response_format"),
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"functions": [{}]}), "functions"),
            (json!({"modalities": ["text", "audio"]}), "modalities"),
            (json!({"audio": {"voice": "x"}}), "audio"),
            (json!({"store": true}), "store"),
            (json!({"service_tier": "flex"}), "service_tier"),
            (json!({"reasoning_effort": "low"}), "reasoning_effort"),
            (json!({"skip_special_tokens": false}), "skip_special_tokens"),
            (json!({"banana": 1}), "banana"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": "Hi"}), "messages"),
            (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].role"),
            (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
            (json!({"messages": [{"role": "user", "content": "x", "name": "y"}]}), "messages[0].name"),
            (part(json!({"type": "image_url"})), "messages[0].content[0].type"),
            (part(json!({"type": "text"})), "messages[0].content[0].text"),
            (json!({"model": null}), "model"),
        ] {
            let refusal = parsed(extra.clone()).err().unwrap_or_else(|| panic!("{extra} was taken"));
            assert_eq!((refusal.status.as_u16(), refusal.param.as_deref()), (400, Some(param)), "{extra}");
        }
        let other = parsed(json!({"model": "gpt-4"})).err().unwrap();
        assert_eq!((other.status.as_u16(), other.code), (404, Some("model_not_found")));
        for body in ["{", "[]", "\"x\"", "{\"model\": 1e999}"] {
            assert_eq!(parse(body.as_bytes(), &["m"]).err().unwrap().status, 400, "{body}");
        }
    }

    #[test]
    fn what_is_harmless_is_taken() {
        for extra in [
            json!({"user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "safety_identifier": "s"}),
            json!({"tools": [], "tool_choice": "none", "parallel_tool_calls": true, "modalities": ["text"]}),
            json!({"response_format": {"type": "text"}, "stop": null, "banana": null, "top_k": -1}),
            json!({"stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false}}),
            json!({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}]}),
        ] {
            assert!(parsed(extra.clone()).is_ok(), "{extra}");
        }
    }

    #[test]
    fn values_arrive() {
        let ask = parsed(json!({
            "seed": -1, "n": 3, "stop": ["a"], "logit_bias": {"5": -100}, "logprobs": true, "top_logprobs": 2,
            "max_tokens": 7, "temperature": 0, "stream": true, "stop_token_ids": [9], "min_tokens": 2,
            "cache_salt": "mine"
        }));
        let ask = ask.ok().unwrap();
        let (first, third) = (ask.request(0), ask.request(2));
        assert_eq!(first.sampling.as_ref().unwrap().seed, Some(u64::MAX));
        let sampling = third.sampling.unwrap();
        assert_eq!((sampling.seed, sampling.logprobs, sampling.temperature), (Some(1), Some(2), Some(0.0)));
        assert_eq!(sampling.logit_bias.get(&5), Some(&-100.0));
        assert_eq!((third.max_tokens, third.stop.len(), third.stop_token_ids, third.min_tokens), (7, 1, vec![9], 2));
        assert_eq!((first.cache_salt.as_str(), third.cache_salt.as_str()), ("mine", "mine"));
        assert_eq!(ask.stream.map(|s| s.usage), Some(false));
    }
}
