//! A checked request of either kind, and the parameters that both kinds share.

use std::collections::HashMap;

use proto::v1;
use proto::v1::generate_request::Input;
use serde_json::{Value, json};

use super::fields::{Fields, Range, wrong};
use super::refusal::Refusal;
use super::shape::Shape;

/// Answers to one prompt at most.
const MAX_N: u32 = 16;
/// Answers to one request at most.
const MAX_CHOICES: usize = 128;
const MAX_STOP_TEXTS: usize = 4;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKENS: usize = 64;

/// Fields that change nothing about an answer.
const HARMLESS: [&str; 5] = ["user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

const TEMPERATURE: Range = Range { name: "temperature", allowed: "0 to 2", ok: |x| (0.0..=2.0).contains(&x) };
const TOP_P: Range = Range { name: "top_p", allowed: "above 0, up to 1", ok: |x| x > 0.0 && x <= 1.0 };
const MIN_P: Range = Range { name: "min_p", allowed: "0 to below 1", ok: |x| (0.0..1.0).contains(&x) };
const REPETITION: Range =
    Range { name: "repetition_penalty", allowed: "above 0, up to 10", ok: |x| x > 0.0 && x <= 10.0 };
const FREQUENCY: Range = Range { name: "frequency_penalty", allowed: "-2 to 2", ok: |x| (-2.0..=2.0).contains(&x) };
const PRESENCE: Range = Range { name: "presence_penalty", allowed: "-2 to 2", ok: |x| (-2.0..=2.0).contains(&x) };

/// What a client asks for. Holds prompts, so it has no `Debug`.
pub(super) struct Ask {
    /// Whether a chat or a completion was asked for.
    pub(super) shape: Shape,
    /// The prompts.
    pub(super) inputs: Vec<Input>,
    /// Answers to each prompt.
    pub(super) n: u32,
    /// The request to the runtime, without prompt and with the first answer's seed.
    pub(super) generation: v1::GenerateRequest,
    /// Texts put in front of the answers, one a prompt; none unless the client wants the prompt back.
    pub(super) echo: Vec<String>,
    /// Absent for an answer in one piece.
    pub(super) stream: Option<Streamed>,
    /// The client's name for the bound on tokens.
    pub(super) max_tokens_name: &'static str,
}

/// How an answer is streamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Streamed {
    /// Whether an event with the usage comes last.
    pub(super) usage: bool,
    /// Whether events are padded; the proxy's setting where it is absent.
    pub(super) obfuscation: Option<bool>,
}

impl Ask {
    /// How many answers there will be; answer `i` is to prompt `i / n`.
    pub(super) fn choices(&self) -> usize {
        self.inputs.len() * self.n as usize
    }

    /// The request for answer `choice`. Seeds count up from the client's within the answers to one prompt.
    pub(super) fn request(&self, choice: usize) -> v1::GenerateRequest {
        let n = self.n as usize;
        let mut request = self.generation.clone();
        request.input = self.inputs.get(choice / n).cloned();
        if let Some(sampling) = &mut request.sampling {
            sampling.seed = sampling.seed.map(|seed| seed.wrapping_add((choice % n) as u64));
        }
        request
    }
}

/// Checks the model's name.
///
/// # Errors
/// 400 when it is missing, 404 when it is another.
pub(super) fn model(fields: &mut Fields, served: &[&str]) -> Result<(), Refusal> {
    let Some(name) = fields.text("model")? else {
        return Err(Refusal::param("model", "model is missing"));
    };
    if served.contains(&name.as_str()) {
        return Ok(());
    }
    let name: String = name.chars().take(128).collect();
    Err(Refusal::no_such_model(&name, served.first().copied().unwrap_or_default()))
}

/// Takes what chats and completions share; `logprobs` and the prompts are for their own files.
///
/// # Errors
/// 400 naming the parameter.
pub(super) fn shared(fields: &mut Fields, shape: Shape) -> Result<Ask, Refusal> {
    fields.ignore(&HARMLESS);
    fields.only("store", &[json!(false)])?;
    fields.only("service_tier", &[json!("auto"), json!("default")])?;
    fields.only("response_format", &[json!({"type": "text"})])?;
    fields.only("skip_special_tokens", &[json!(true)])?;
    fields.only("spaces_between_special_tokens", &[json!(true)])?;
    let generation = v1::GenerateRequest {
        sampling: Some(sampling(fields)?),
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        stop: stop(fields)?,
        stop_token_ids: stop_token_ids(fields)?,
        include_stop: fields.flag("include_stop_str_in_output")?.unwrap_or(false),
        min_tokens: fields.integer("min_tokens", 0..=u32::MAX)?.unwrap_or(0),
        cache_salt: fields.text("cache_salt")?.unwrap_or_default(),
        ..Default::default()
    };
    let n = fields.integer("n", 1..=MAX_N)?.unwrap_or(1);
    let stream = streamed(fields)?;
    let (inputs, echo) = (Vec::new(), Vec::new());
    Ok(Ask { shape, inputs, n, generation, echo, stream, max_tokens_name: "max_tokens" })
}

/// Refuses more answers than one request may have.
///
/// # Errors
/// 400 naming `prompt`.
pub(super) fn bounded(ask: Ask) -> Result<Ask, Refusal> {
    let found = ask.choices();
    if found <= MAX_CHOICES {
        return Ok(ask);
    }
    Err(Refusal::param("prompt", format!("prompts times n is {found}, allowed are {MAX_CHOICES} answers a request")))
}

#[expect(clippy::cast_possible_truncation, reason = "the contract has f32; its ends are exact")]
fn sampling(fields: &mut Fields) -> Result<v1::Sampling, Refusal> {
    let mut number = |range| fields.number(range).map(|n| n.map(|n| n as f32));
    Ok(v1::Sampling {
        // OpenAI's default; the contract's is greedy.
        temperature: Some(number(&TEMPERATURE)?.unwrap_or(1.0)),
        top_p: number(&TOP_P)?,
        min_p: number(&MIN_P)?,
        repetition_penalty: number(&REPETITION)?,
        frequency_penalty: number(&FREQUENCY)?,
        presence_penalty: number(&PRESENCE)?,
        top_k: top_k(fields)?,
        seed: seed(fields)?,
        logit_bias: logit_bias(fields)?,
        logprobs: None,
    })
}

/// -1 and 0 keep all tokens, as vLLM has it.
fn top_k(fields: &mut Fields) -> Result<Option<u32>, Refusal> {
    let Some(value) = fields.take("top_k") else { return Ok(None) };
    match value.as_i64() {
        Some(-1 | 0) => Ok(None),
        Some(k) => match u32::try_from(k) {
            Ok(k) => Ok(Some(k)),
            Err(_) => Err(Refusal::param("top_k", format!("top_k is {k}, allowed is -1 or 0 for all, or 1 and up"))),
        },
        None => Err(wrong("top_k", &value, "an integer")),
    }
}

/// Any 64-bit integer; negative ones count from the other end.
fn seed(fields: &mut Fields) -> Result<Option<u64>, Refusal> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| wrong("seed", &value, "an integer of 64 bits"))
}

#[expect(clippy::cast_possible_truncation, reason = "the contract has f32")]
fn logit_bias(fields: &mut Fields) -> Result<HashMap<u32, f32>, Refusal> {
    let (name, mut biases) = ("logit_bias", HashMap::new());
    let Some(value) = fields.take(name) else { return Ok(biases) };
    let Value::Object(map) = value else { return Err(wrong(name, &value, "an object from token ids to numbers")) };
    for (id, bias) in map {
        let Ok(id) = id.parse::<u32>() else {
            return Err(Refusal::param(name, "logit_bias has a key that is no token id"));
        };
        match bias.as_f64() {
            Some(bias) if (-100.0..=100.0).contains(&bias) => biases.insert(id, bias as f32),
            Some(bias) => {
                return Err(Refusal::param(name, format!("logit_bias[{id}] is {bias}, allowed is -100 to 100")));
            }
            None => return Err(Refusal::param(name, format!("logit_bias[{id}] is no number"))),
        };
    }
    Ok(biases)
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, Refusal> {
    let name = "stop";
    let texts = match fields.take(name) {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(texts)) if texts.len() <= MAX_STOP_TEXTS => {
            let text = |value| match value {
                Value::String(text) => Ok(text),
                other => Err(wrong(name, &other, "a string or an array of strings")),
            };
            texts.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(Value::Array(texts)) => {
            let found = texts.len();
            return Err(Refusal::param(name, format!("stop has {found} texts, allowed are {MAX_STOP_TEXTS}")));
        }
        Some(other) => return Err(wrong(name, &other, "a string or an array of strings")),
    };
    match texts.iter().find(|text| text.is_empty() || text.len() > MAX_STOP_BYTES) {
        None => Ok(texts),
        Some(text) => {
            let found = text.len();
            Err(Refusal::param(name, format!("a stop text is {found} bytes long, allowed are 1 to {MAX_STOP_BYTES}")))
        }
    }
}

fn stop_token_ids(fields: &mut Fields) -> Result<Vec<u32>, Refusal> {
    let name = "stop_token_ids";
    let Some(value) = fields.take(name) else { return Ok(Vec::new()) };
    match token_ids(&value) {
        Some(ids) if ids.len() <= MAX_STOP_TOKENS => Ok(ids),
        Some(ids) => {
            let found = ids.len();
            Err(Refusal::param(name, format!("stop_token_ids has {found} tokens, allowed are {MAX_STOP_TOKENS}")))
        }
        None => Err(wrong(name, &value, "an array of token ids")),
    }
}

/// An array of token ids.
pub(super) fn token_ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

fn streamed(fields: &mut Fields) -> Result<Option<Streamed>, Refusal> {
    let name = "stream_options";
    let stream = fields.flag("stream")?.unwrap_or(false);
    let options = fields.take(name);
    if !stream {
        return match options {
            None => Ok(None),
            Some(_) => Err(Refusal::param(name, "stream_options needs stream to be true")),
        };
    }
    let Some(options) = options else { return Ok(Some(Streamed { usage: false, obfuscation: None })) };
    let mut options = Fields::of(options, name)?;
    let within = |refusal: Refusal| {
        let param = refusal.param.clone().unwrap_or_default();
        refusal.renamed(&param, &format!("{name}.{param}"))
    };
    let usage = options.flag("include_usage").map_err(within)?.unwrap_or(false);
    let obfuscation = options.flag("include_obfuscation").map_err(within)?;
    options.finish(name)?;
    Ok(Some(Streamed { usage, obfuscation }))
}
