//! `Debug` for the messages that carry prompts and tokens: what kind and how much, never what.
//!
//! Whatever logs a message or puts one into an error shows no more than this. Messages that hold these derive
//! `Debug` as usual.

use crate::v1::{
    Chat, ChatMessage, Finished, GenerateRequest, Token, TokenIds, TokenLogprob, TokenizeRequest,
    generate_request::Input, tokenize_request,
};
use std::fmt;

/// The messages, by their names in package `bifrost.v1`, whose `Debug`, and that of their oneofs, is not generated but written here.
pub const SECRET: [&str; 8] =
    ["GenerateRequest", "Chat", "ChatMessage", "TokenIds", "Token", "TokenLogprob", "Finished", "TokenizeRequest"];

impl fmt::Debug for GenerateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_tokens, sampling, protocol, ignore_eos, input, policy, .. } = self;
        f.debug_struct("GenerateRequest")
            .field("input", input)
            .field("max_tokens", max_tokens)
            .field("sampling", sampling)
            .field("protocol", protocol)
            .field("ignore_eos", ignore_eos)
            .field("policy", policy)
            .field("stop", &self.stop.len())
            .field("stop_token_ids", &self.stop_token_ids.len())
            .field("include_stop", &self.include_stop)
            .field("min_tokens", &self.min_tokens)
            .field("fill_context", &self.fill_context)
            .finish()
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(text) => write!(f, "Prompt({} bytes)", text.len()),
            Self::Chat(chat) => chat.fmt(f),
            Self::TokenIds(ids) => ids.fmt(f),
        }
    }
}

impl fmt::Debug for Chat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chat({} messages)", self.messages.len())
    }
}

impl fmt::Debug for ChatMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatMessage").finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenIds({})", self.ids.len())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenLogprob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenLogprob").finish_non_exhaustive()
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Finished")
            .field("reason", &self.reason())
            .field("prompt_tokens", &self.prompt_tokens)
            .field("completion_tokens", &self.completion_tokens)
            .field("timing", &self.timing)
            .field("masked_steps", &self.masked_steps)
            .field("direct_steps", &self.direct_steps)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenizeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenizeRequest").field("input", &self.input).finish()
    }
}

impl fmt::Debug for tokenize_request::Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prompt(text) => write!(f, "Prompt({} bytes)", text.len()),
            Self::Chat(chat) => chat.fmt(f),
        }
    }
}
