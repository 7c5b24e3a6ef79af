//! The parameters of a request, taken one by one out of its JSON object; what is left over is refused.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use super::refusal::Refusal;

/// An object whose fields are taken. Holds prompts, so it has no `Debug`.
pub(super) struct Fields(Map<String, Value>);

/// A number's name, what is allowed in words, and the same as a test.
pub(super) struct Range {
    pub(super) name: &'static str,
    pub(super) allowed: &'static str,
    pub(super) ok: fn(f64) -> bool,
}

impl Fields {
    /// The object in a body.
    ///
    /// # Errors
    /// 400 for what is not JSON or not an object. Says where, never what.
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Refusal::malformed("the body is JSON, but not an object")),
            Err(error) => Err(Refusal::malformed(format!(
                "the body is not JSON: line {}, column {}",
                error.line(),
                error.column()
            ))),
        }
    }

    /// The object that is a field's value.
    pub(super) fn of(value: Value, name: &str) -> Result<Self, Refusal> {
        match value {
            Value::Object(fields) => Ok(Self(fields)),
            other => Err(wrong(name, &other, "an object")),
        }
    }

    /// A field's value. Null is absent.
    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    pub(super) fn number(&mut self, range: &Range) -> Result<Option<f64>, Refusal> {
        let Some(value) = self.take(range.name) else { return Ok(None) };
        let allowed = range.allowed;
        let number = value.as_f64().ok_or_else(|| wrong(range.name, &value, &format!("a number, {allowed}")))?;
        if (range.ok)(number) {
            return Ok(Some(number));
        }
        Err(Refusal::param(range.name, format!("{} is {number}, allowed is {allowed}", range.name)))
    }

    pub(super) fn integer(&mut self, name: &str, range: RangeInclusive<u32>) -> Result<Option<u32>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let (least, most) = (range.start(), range.end());
        let number = value.as_i64().ok_or_else(|| wrong(name, &value, &format!("an integer, {least} to {most}")))?;
        match u32::try_from(number).ok().filter(|n| range.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(Refusal::param(name, format!("{name} is {number}, allowed is {least} to {most}"))),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<Option<bool>, Refusal> {
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, &value, "true or false"))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, &other, "a string")),
        }
    }

    /// Drops fields that change nothing about an answer.
    pub(super) fn ignore(&mut self, names: &[&str]) {
        names.iter().for_each(|name| drop(self.0.remove(*name)));
    }

    /// Refuses a field whose value is not one of those that ask for nothing.
    pub(super) fn only(&mut self, name: &str, harmless: &[Value]) -> Result<(), Refusal> {
        match self.take(name) {
            Some(value) if !harmless.contains(&value) => {
                Err(Refusal::param(name, format!("{name} is not supported here{}", but(harmless))))
            }
            _ => Ok(()),
        }
    }

    /// Nothing may be left over.
    pub(super) fn finish(self, within: &str) -> Result<(), Refusal> {
        match self.0.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                // A name is the client's own text and comes back bounded.
                let name: String = name.chars().take(64).collect();
                let param = if within.is_empty() { name } else { format!("{within}.{name}") };
                Err(Refusal::param(param.clone(), format!("{param} is not supported here")))
            }
        }
    }
}

fn but(harmless: &[Value]) -> String {
    let shown: Vec<_> = harmless.iter().map(ToString::to_string).collect();
    if shown.is_empty() { String::new() } else { format!(", except as {}", shown.join(" or ")) }
}

/// A value of the wrong kind, which is named and not shown.
pub(super) fn wrong(name: &str, found: &Value, expected: &str) -> Refusal {
    let kind = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    Refusal::param(name, format!("{name} is {kind}, expected is {expected}"))
}
