//! `Debug` for the messages that carry prompts and tokens: what kind and how much, never what.
//!
//! Whatever logs a message or puts one into an error shows no more than this. Messages that hold these derive
//! `Debug` as usual.

use crate::v1::{Chat, ChatMessage, GenerateRequest, Token, TokenIds, generate_request::Input};
use std::fmt;

/// The messages, by their names in package `bifrost.v1`, whose `Debug`, and that of their oneofs, is not generated but written here.
pub const SECRET: [&str; 5] = ["GenerateRequest", "Chat", "ChatMessage", "TokenIds", "Token"];

impl fmt::Debug for GenerateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_tokens, sampling, protocol, ignore_eos, input, policy, cache_salt: _ } = self;
        f.debug_struct("GenerateRequest")
            .field("input", input)
            .field("max_tokens", max_tokens)
            .field("sampling", sampling)
            .field("protocol", protocol)
            .field("ignore_eos", ignore_eos)
            .field("policy", policy)
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
