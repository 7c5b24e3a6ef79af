//! The parameters of `/v1/completions`.

use proto::v1;
use proto::v1::generate_request::Input;
use serde_json::{Value, json};

use super::ask::{Ask, bounded, model, shared, token_ids};
use super::fields::{Fields, wrong};
use super::refusal::Refusal;
use super::shape::Shape;

/// OpenAI's.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Checks the body of a completions request; `served` are the names of the model.
///
/// # Errors
/// 400 naming the parameter, 404 for another model.
pub(super) fn parse(body: &[u8], served: &[&str]) -> Result<Ask, Refusal> {
    let mut fields = Fields::parse(body)?;
    model(&mut fields, served)?;
    let mut ask = shared(&mut fields, Shape::Text)?;
    ask.generation.max_tokens = fields.integer("max_tokens", 1..=u32::MAX)?.unwrap_or(DEFAULT_MAX_TOKENS);
    let logprobs = fields.integer("logprobs", 0..=5)?;
    if let Some(sampling) = &mut ask.generation.sampling {
        sampling.logprobs = logprobs;
    }
    fields.only("suffix", &[json!("")])?;
    fields.only("best_of", &[json!(ask.n)])?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    let prompt = fields.take("prompt").ok_or_else(|| Refusal::param("prompt", "prompt is missing"))?;
    ask.inputs = inputs(prompt)?;
    if echo {
        if logprobs.is_some() {
            return Err(Refusal::param("echo", "echo is not supported together with logprobs"));
        }
        let text = |input: &Input| match input {
            Input::Prompt(text) => Ok(text.clone()),
            _ => Err(Refusal::param("echo", "echo is not supported for prompts of token ids")),
        };
        ask.echo = ask.inputs.iter().map(text).collect::<Result<_, _>>()?;
    }
    fields.finish("")?;
    bounded(ask)
}

/// A text, texts, token ids, or several of those.
fn inputs(prompt: Value) -> Result<Vec<Input>, Refusal> {
    const EXPECTED: &str = "a string, an array of strings, token ids, or an array of those";
    if let Some(ids) = token_ids(&prompt).filter(|ids| !ids.is_empty()) {
        return Ok(vec![Input::TokenIds(v1::TokenIds { ids })]);
    }
    match prompt {
        Value::String(text) => Ok(vec![Input::Prompt(text)]),
        Value::Array(prompts) if !prompts.is_empty() => {
            let input = |prompt| match prompt {
                Value::String(text) => Ok(Input::Prompt(text)),
                Value::Array(_) => match token_ids(&prompt) {
                    Some(ids) => Ok(Input::TokenIds(v1::TokenIds { ids })),
                    None => Err(wrong("prompt", &prompt, EXPECTED)),
                },
                other => Err(wrong("prompt", &other, EXPECTED)),
            };
            prompts.into_iter().map(input).collect()
        }
        Value::Array(_) => Err(Refusal::param("prompt", "prompt is empty")),
        other => Err(wrong("prompt", &other, EXPECTED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(extra: Value) -> Result<Ask, Refusal> {
        let mut body = json!({"model": "m", "prompt": "Hi"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        parse(body.to_string().as_bytes(), &["m"])
    }

    #[test]
    fn prompts_come_in_four_forms() {
        for (prompt, choices) in [
            (json!("a"), 2),
            (json!(["a", "b"]), 4),
            (json!([1, 2, 3]), 2),
            (json!([[1, 2], [3], [4]]), 6),
            (json!(["a", [1]]), 4),
        ] {
            let ask = parsed(json!({"prompt": prompt, "n": 2, "seed": 5})).ok().unwrap();
            assert_eq!(ask.choices(), choices, "{prompt}");
            let seeds: Vec<_> = (0..choices).map(|i| ask.request(i).sampling.unwrap().seed.unwrap()).collect();
            assert!(seeds.chunks(2).all(|s| s == [5, 6]));
        }
        let ask = parsed(json!({"prompt": ["a", "b"], "n": 2})).ok().unwrap();
        assert!(matches!(ask.request(1).input, Some(Input::Prompt(text)) if text == "a"));
        assert!(matches!(ask.request(2).input, Some(Input::Prompt(text)) if text == "b"));
    }

    #[test]
    fn every_parameter_of_its_own_is_checked() {
        for (extra, param) in [
            (json!({"prompt": null}), "prompt"),
            (json!({"prompt": 5}), "prompt"),
            (json!({"prompt": []}), "prompt"),
            (json!({"prompt": [1, "a"]}), "prompt"),
            (json!({"prompt": vec!["a"; 9], "n": 16}), "prompt"),
            (json!({"max_tokens": 0}), "max_tokens"),
            (json!({"logprobs": 6}), "logprobs"),
            (json!({"logprobs": true}), "logprobs"),
            (json!({"suffix": "x"}), "suffix"),
            (json!({"best_of": 2}), "best_of"),
            (json!({"echo": 1}), "echo"),
            (json!({"echo": true, "logprobs": 1}), "echo"),
            (json!({"echo": true, "prompt": [1]}), "echo"),
            (json!({"messages": []}), "messages"),
        ] {
            let refusal = parsed(extra.clone()).err().unwrap_or_else(|| panic!("{extra} was taken"));
            assert_eq!((refusal.status.as_u16(), refusal.param.as_deref()), (400, Some(param)), "{extra}");
        }
        let ask = parsed(json!({"best_of": 2, "n": 2, "suffix": "", "echo": true, "user": "u"})).ok().unwrap();
        assert_eq!((ask.generation.max_tokens, ask.echo), (16, vec!["Hi".to_owned()]));
    }
}
