//! From a message to a checked request, or a refusal that names field, found and allowed.

use super::{Served, stop::StopRules};
use crate::{
    Error,
    engine::{
        Policy, Protocol, Request,
        sampler::{Banned, SamplingLiteral},
        scheduler::Tenant,
    },
    keys::Held,
    model::kv::Salt,
};
use proto::v1::{self, generate_request::Input, tokenize_request};
use zeroize::Zeroizing;

/// The protocol that a request names.
///
/// # Errors
/// [`Error::Client`] for a value that this version does not know.
pub(super) fn protocol(value: i32, default: Protocol) -> Result<Protocol, Error> {
    match v1::Protocol::try_from(value) {
        Ok(v1::Protocol::Unspecified) => Ok(default),
        Ok(v1::Protocol::Local) => Ok(Protocol::Local),
        Ok(v1::Protocol::Direct) => Ok(Protocol::Direct),
        Ok(v1::Protocol::Masked) => Ok(Protocol::Masked),
        Ok(v1::Protocol::Auto) => Ok(Protocol::Auto),
        Err(_) => {
            Err(Error::Client(format!("protocol is {value}, known are 1 (local), 2 (direct), 3 (masked) and 4 (auto)")))
        }
    }
}

/// The policy that a request names.
///
/// # Errors
/// [`Error::Client`] for one that this version does not have.
pub(super) fn policy(value: i32, default: Policy) -> Result<Policy, Error> {
    match v1::Policy::try_from(value) {
        Ok(v1::Policy::Unspecified) => Ok(default),
        Ok(v1::Policy::CpuTee) => Ok(Policy::CpuTee),
        Ok(v1::Policy::HybridUnified) => Ok(Policy::HybridUnified),
        Ok(v1::Policy::HybridPdSplit) => Ok(Policy::HybridPdSplit),
        Ok(v1::Policy::PureFhe) => Err(Error::Client("policy is pure_fhe, which is not built yet".into())),
        Err(_) => Err(Error::Client(format!(
            "policy is {value}, known are 1 (cpu_tee), 2 (hybrid_unified) and 3 (hybrid_pd_split)"
        ))),
    }
}

/// Whose a request is.
#[derive(Clone, Copy)]
pub(super) struct Whose {
    /// The key, or in local mode the certificate, under which it came: with its end everything of it is forgotten.
    pub(super) owner: [u8; 32],
    /// The owner, and the label with which it tells its own tenants apart.
    pub(super) tenant: Tenant,
}

/// By the connection's key or the client's certificate, and the label that it may add.
pub(super) fn tenant<T>(request: &tonic::Request<T>, held: Option<&Held>) -> Whose {
    let mut digest = blake3::Hasher::new_derive_key("bifrost tenant");
    if let Some(held) = held {
        digest.update(&held.digest);
    } else if let Some(certificate) = request.peer_certs().as_ref().and_then(|c| c.first()) {
        digest.update(certificate.as_ref());
    }
    let owner = held.map_or(*digest.finalize().as_bytes(), |held| held.digest);
    if let Some(label) = request.metadata().get(TENANT) {
        digest.update(b"\0").update(label.as_encoded_bytes());
    }
    Whose { owner, tenant: *digest.finalize().as_bytes() }
}

/// Metadata with which a client tells its own tenants apart.
const TENANT: &str = "bifrost-tenant";

/// Tokenizes and checks everything else.
///
/// # Errors
/// [`Error::Client`].
pub(super) fn check(
    message: v1::GenerateRequest,
    served: &Served,
    policy: Policy,
    Whose { owner, tenant }: Whose,
) -> Result<(Request, StopRules), Error> {
    let limits = &served.limits;
    let s = message.sampling.unwrap_or_default();
    let stop = StopRules {
        texts: message.stop.into_iter().map(Zeroizing::new).collect(),
        token_ids: message.stop_token_ids,
        include: message.include_stop,
        min_tokens: message.min_tokens as usize,
    };
    check_stop(&stop, limits.vocab)?;
    if let Some(id) = s.logit_bias.keys().find(|id| **id as usize >= limits.vocab) {
        let vocab = limits.vocab;
        return Err(Error::Client(format!("sampling.logit_bias[{id}] is not below the vocabulary size {vocab}")));
    }
    let mut banned = Banned { until: stop.min_tokens, ids: Vec::new() };
    if banned.until > 0 {
        banned.ids.clone_from(&stop.token_ids);
        if !message.ignore_eos {
            banned.ids.extend(served.tokenizer.eog());
        }
    }
    let literal = SamplingLiteral {
        temperature: s.temperature,
        top_k: s.top_k,
        top_p: s.top_p,
        min_p: s.min_p,
        repetition_penalty: s.repetition_penalty,
        seed: s.seed,
        frequency_penalty: s.frequency_penalty,
        presence_penalty: s.presence_penalty,
        logit_bias: s.logit_bias.into_iter().collect(),
        logprobs: s.logprobs,
        banned,
    };
    let sampling = literal.check()?;
    let prompt = prompt(message.input, served)?;
    let context = limits.context;
    let room = context.saturating_sub(prompt.len());
    if room == 0 {
        let found = prompt.len();
        return Err(Error::Client(format!(
            "the prompt is {found} tokens long, the context holds {context} and the answer needs at least one"
        )));
    }
    let max_tokens = match message.max_tokens {
        0 if message.fill_context => room,
        0 => limits.default_max_tokens.min(room),
        n if n as usize <= room => n as usize,
        n => {
            let found = prompt.len();
            return Err(Error::Client(format!(
                "max_tokens is {n}, allowed is 1 to {room}: the context holds {context}, the prompt takes {found}"
            )));
        }
    };
    if stop.min_tokens > max_tokens {
        let found = stop.min_tokens;
        return Err(Error::Client(format!("min_tokens is {found}, allowed is 0 to max_tokens, {max_tokens}")));
    }
    let salt = Salt::of(&tenant, &message.cache_salt).owned_by(owner);
    let (ignore_eos, prefill) = (message.ignore_eos, policy.prefill());
    Ok((Request { prompt, max_tokens, sampling, ignore_eos, prefill, tenant, salt }, stop))
}

fn check_stop(stop: &StopRules, vocab: usize) -> Result<(), Error> {
    let (texts, ids) = (stop.texts.len(), stop.token_ids.len());
    if texts > MAX_STOP_TEXTS {
        return Err(Error::Client(format!("stop has {texts} texts, allowed are {MAX_STOP_TEXTS}")));
    }
    if let Some(at) = stop.texts.iter().position(|t| t.is_empty() || t.len() > MAX_STOP_BYTES) {
        let found = stop.texts[at].len();
        return Err(Error::Client(format!("stop[{at}] is {found} bytes long, allowed are 1 to {MAX_STOP_BYTES}")));
    }
    if ids > MAX_STOP_TOKENS {
        return Err(Error::Client(format!("stop_token_ids has {ids} tokens, allowed are {MAX_STOP_TOKENS}")));
    }
    if let Some(at) = stop.token_ids.iter().position(|id| *id as usize >= vocab) {
        return Err(Error::Client(format!("stop_token_ids[{at}] is not below the vocabulary size {vocab}")));
    }
    Ok(())
}

/// The tokens of a prompt that is not run.
///
/// # Errors
/// [`Error::Client`].
pub(super) fn tokens(message: v1::TokenizeRequest, served: &Served) -> Result<Zeroizing<Vec<u32>>, Error> {
    match message.input {
        None => Err(Error::Client("the request has no prompt or chat".into())),
        Some(tokenize_request::Input::Prompt(text)) => {
            let text = Zeroizing::new(text);
            Ok(Zeroizing::new(served.tokenizer.encode(&text)))
        }
        Some(tokenize_request::Input::Chat(chat)) => prompt(Some(Input::Chat(chat)), served),
    }
}

fn prompt(input: Option<Input>, served: &Served) -> Result<Zeroizing<Vec<u32>>, Error> {
    let tokens = match input {
        None => return Err(Error::Client("the request has no prompt, chat or token_ids".into())),
        Some(Input::Prompt(text)) => {
            let text = Zeroizing::new(text);
            if text.is_empty() {
                return Err(Error::Client("the prompt is empty".into()));
            }
            Zeroizing::new(served.tokenizer.encode(&text))
        }
        Some(Input::Chat(chat)) => {
            let text = rendered(chat, served)?;
            Zeroizing::new(served.tokenizer.encode(&text))
        }
        Some(Input::TokenIds(v1::TokenIds { ids })) => {
            let (ids, vocab) = (Zeroizing::new(ids), served.limits.vocab);
            if let Some(at) = ids.iter().position(|id| *id as usize >= vocab) {
                return Err(Error::Client(format!("token_ids[{at}] is not below the vocabulary size {vocab}")));
            }
            ids
        }
    };
    if tokens.is_empty() { Err(Error::Client("the prompt has no tokens".into())) } else { Ok(tokens) }
}

fn rendered(chat: v1::Chat, served: &Served) -> Result<Zeroizing<String>, Error> {
    let messages: Vec<_> = chat.messages.into_iter().map(|m| (m.role, Zeroizing::new(m.content))).collect();
    let Some(template) = &served.chat else {
        return Err(Error::Client("this model has no chat template; send a prompt instead of a chat".into()));
    };
    if messages.is_empty() {
        return Err(Error::Client("the chat has no messages".into()));
    }
    if let Some(at) = messages.iter().position(|(role, _)| !ROLES.contains(&role.as_str())) {
        return Err(Error::Client(format!("chat.messages[{at}].role is unknown, known are {}", ROLES.join(", "))));
    }
    let borrowed: Vec<_> = messages.iter().map(|(role, content)| (role.as_str(), content.as_str())).collect();
    template.render(&borrowed).map(Zeroizing::new)
}

const MAX_STOP_TEXTS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
const MAX_STOP_TOKENS: usize = 64;
const ROLES: [&str; 3] = ["system", "user", "assistant"];
