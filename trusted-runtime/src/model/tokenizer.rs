//! BPE tokenizers, byte-level or SentencePiece's, from GGUF metadata or from `tokenizer.json`.

mod decode;
mod pre;
mod scored;

pub use decode::Decoder;
pub(crate) use decode::letters;

use super::load::gguf::Gguf;
use crate::Error;
use decode::{Pieces, Spelling};
use scored::Scored;
use std::{collections::BTreeSet, sync::Arc};
use tokenizers::{
    AddedToken,
    decoders::byte_level::ByteLevel,
    models::bpe::{BPE, Vocab},
};

/// Texts of control tokens that end a generation whatever model they come from.
const END_TEXTS: [&str; 9] = [
    "<|endoftext|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
    "<reponame>",
];

/// Types of tokens in GGUF (`llama_token_type`).
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Text to token ids and back. Holds no prompt.
pub struct Tokenizer {
    inner: Inner,
    pieces: Arc<Pieces>,
    end: BTreeSet<u32>,
    bos: Option<(u32, String)>,
    add_bos: bool,
    kind: String,
}

/// What turns text into ids.
enum Inner {
    /// Merges in a list, by their order.
    Listed(Box<tokenizers::Tokenizer>),
    /// Merges by the scores of tokens.
    Scored(Box<Scored>),
}

/// What a byte-level BPE tokenizer is made of.
pub(crate) struct Parts<'a> {
    /// Name of the source, for messages.
    pub(crate) file: &'a str,
    /// Name of the pre-tokenizer, as in `tokenizer.ggml.pre`.
    pub(crate) pre: &'a str,
    /// Token texts in byte-level letters, by id.
    pub(crate) tokens: &'a [String],
    /// Token types, by id.
    pub(crate) types: &'a [i64],
    /// Merges, best first, each `left right`.
    pub(crate) merges: &'a [String],
    /// First token of every prompt, if there is one.
    pub(crate) bos: Option<u32>,
    /// Whether to put it there; none: as the pre-tokenizer's models do.
    pub(crate) add_bos: Option<bool>,
    /// Ids that end a generation, beside the well-known texts.
    pub(crate) end: BTreeSet<u32>,
}

impl Tokenizer {
    /// From the `tokenizer.ggml` keys.
    ///
    /// # Errors
    /// [`Error::Model`] naming the key.
    pub(crate) fn from_gguf(g: &Gguf, vocab: usize) -> Result<Self, Error> {
        let file = g.file();
        let tokens = g.texts("tokenizer.ggml.tokens")?;
        if tokens.len() != vocab {
            return Err(Error::Model(format!(
                "{file}: tokenizer.ggml.tokens holds {} tokens, expected {vocab}",
                tokens.len()
            )));
        }
        let ends = ["eos_token_id", "eot_token_id", "eom_token_id"]
            .map(|k| g.optional_token(&format!("tokenizer.ggml.{k}"), vocab));
        let mut end = BTreeSet::new();
        for id in ends {
            end.extend(id?);
        }
        let (bos, add_bos) = ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.add_bos_token");
        let (bos, add_bos) = (g.optional_token(bos, vocab)?, g.optional_bool(add_bos)?);
        let types = g.ints("tokenizer.ggml.token_type")?;
        match g.text("tokenizer.ggml.model")? {
            "gpt2" => Self::from_parts(Parts {
                file,
                pre: g.optional_text("tokenizer.ggml.pre")?.unwrap_or("gpt-2"),
                tokens,
                types,
                merges: g.texts("tokenizer.ggml.merges")?,
                bos,
                add_bos,
                end,
            }),
            "llama" => {
                // Absent means true.
                if g.optional_bool("tokenizer.ggml.add_space_prefix")? != Some(false) {
                    return Err(Error::Model(format!(
                        "{file}: metadata key tokenizer.ggml.add_space_prefix is not false: a space in front of every prompt is not supported"
                    )));
                }
                let scored = Scored::new(tokens, types, g.floats("tokenizer.ggml.scores")?)
                    .map_err(|m| Error::Model(format!("{file}: tokenizer: {m}")))?;
                let spelling = |kind: i64| match kind {
                    CONTROL => Spelling::Literal,
                    scored::BYTE => Spelling::Byte,
                    _ => Spelling::Words,
                };
                Ok(Self {
                    inner: Inner::Scored(Box::new(scored)),
                    pieces: pieces(tokens, types, spelling),
                    end: end_tokens(end, tokens, types),
                    bos: bos.map(|id| (id, tokens[id as usize].clone())),
                    add_bos: add_bos.unwrap_or(true),
                    kind: "SentencePiece BPE".to_owned(),
                })
            }
            model => Err(Error::Model(format!(
                "{file}: tokenizer model {model:?} is not supported, expected \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece BPE)"
            ))),
        }
    }

    /// From the parts of a byte-level BPE.
    pub(crate) fn from_parts(p: Parts<'_>) -> Result<Self, Error> {
        let file = p.file;
        let fail = |m: String| Error::Model(format!("{file}: {m}"));
        if p.types.len() != p.tokens.len() {
            return Err(fail(format!("{} token types for {} tokens", p.types.len(), p.tokens.len())));
        }
        let style = pre::style(file, p.pre)?;
        let mut vocab = Vocab::with_capacity(p.tokens.len());
        for (token, id) in p.tokens.iter().zip(0u32..) {
            if let Some(other) = vocab.insert(token.clone(), id) {
                return Err(fail(format!("tokens {other} and {id} have the same text {token:?}")));
            }
        }
        let mut merges = Vec::with_capacity(p.merges.len());
        for (i, merge) in p.merges.iter().enumerate() {
            let Some((left, right)) = merge.split_once(' ') else {
                return Err(fail(format!("merge {i} is {merge:?}, expected two parts")));
            };
            // A merge whose parts or product are no tokens can never be part of a result.
            if [left, right, &format!("{left}{right}")].iter().all(|t| vocab.contains_key(*t)) {
                merges.push((left.to_owned(), right.to_owned()));
            }
        }
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(style.whole_words)
            .build()
            .map_err(|e| fail(format!("byte pair encoding: {e}")))?;
        let mut inner = tokenizers::Tokenizer::new(bpe);
        inner.with_normalizer(style.normalizer).map_err(|e| fail(format!("normalizer: {e}")))?;
        inner.with_pre_tokenizer(Some(style.pre_tokenizer));
        inner.with_decoder(Some(ByteLevel::new(false, false, true)));
        let added = |kind: i64| {
            let of_kind = p.tokens.iter().zip(p.types).filter(move |(_, t)| **t == kind);
            of_kind.map(move |(text, _)| AddedToken::from(text.clone(), kind == CONTROL).normalized(false))
        };
        inner
            .add_special_tokens(added(CONTROL))
            .and_then(|_| inner.add_tokens(added(USER_DEFINED)))
            .map_err(|e| fail(format!("special tokens: {e}")))?;

        let spelling = |kind: i64| match kind {
            CONTROL | USER_DEFINED => Spelling::Literal,
            _ => Spelling::Letters,
        };
        Ok(Self {
            inner: Inner::Listed(Box::new(inner)),
            pieces: pieces(p.tokens, p.types, spelling),
            end: end_tokens(p.end, p.tokens, p.types),
            bos: p.bos.map(|id| (id, p.tokens[id as usize].clone())),
            add_bos: p.add_bos.unwrap_or(style.add_bos),
            kind: format!("byte-level BPE ({})", p.pre),
        })
    }

    /// From the bytes of `tokenizer.json`; `vocab` is the model's.
    ///
    /// # Errors
    /// [`Error::Model`] naming the file and what it has that is not supported.
    pub(crate) fn from_json(file: &str, bytes: &[u8], vocab: usize, end: BTreeSet<u32>) -> Result<Self, Error> {
        let fail = |m: String| Error::Model(format!("{file}: {m}"));
        let mut json: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| fail(format!("not JSON: {e}")))?;
        let words = match json["decoder"]["type"].as_str() {
            Some("ByteLevel") => false,
            _ if json["decoder"] == sentence_piece() => true,
            other => {
                return Err(fail(format!(
                    "decoder {:?} is not supported, expected \"ByteLevel\" or SentencePiece's without a first space",
                    other.unwrap_or("none")
                )));
            }
        };
        let inner = if drop_siblings_tokens(&mut json, vocab) {
            serde_json::from_value(json).map_err(|e| fail(format!("not a tokenizer: {e}")))?
        } else {
            drop(json);
            tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| fail(format!("not a tokenizer: {e}")))?
        };
        let entries = inner.get_vocab(true);
        let mut texts = vec![String::new(); vocab];
        for (text, id) in entries {
            let Some(slot) = texts.get_mut(id as usize) else {
                return Err(fail(format!("token id {id} is outside the model's vocabulary of {vocab}")));
            };
            *slot = text;
        }
        let added = inner.get_added_tokens_decoder();
        let mut end = end;
        for (id, token) in &added {
            if END_TEXTS.contains(&token.content.as_str()) {
                end.insert(*id);
            }
        }
        if let Some(id) = end.iter().find(|&&id| id as usize >= vocab) {
            return Err(fail(format!("end token {id} is outside the model's vocabulary of {vocab}")));
        }
        let pieces = Pieces::new(texts.iter().zip(0u32..).map(|(text, id)| {
            let added = added.get(&id);
            // Added tokens that are not special may be runs of spaces, which only words write in another way.
            let spelling = match added {
                Some(token) if token.special || !words => Spelling::Literal,
                _ if !words => Spelling::Letters,
                _ if scored::byte(text).is_some() => Spelling::Byte,
                _ => Spelling::Words,
            };
            decode::Piece { text, spelling, hidden: added.is_some_and(|t| t.special) }
        }));
        // The post-processor puts a first token in front of nothing, if it puts one anywhere.
        let empty = inner.encode("", true).map_err(|e| fail(format!("not usable: {e}")))?;
        let bos = empty.get_ids().first().map(|&id| (id, texts[id as usize].clone()));
        let kind = if words { "SentencePiece BPE" } else { "byte-level BPE" };
        Ok(Self {
            inner: Inner::Listed(Box::new(inner)),
            pieces: Arc::new(pieces),
            end,
            add_bos: bos.is_some(),
            bos,
            kind: format!("{kind} (tokenizer.json)"),
        })
    }

    /// The ids of `text`. Texts of special tokens become those tokens. The first token that the model wants
    /// is put in front unless `text` starts with it.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        if let Some((id, first)) = self.bos.as_ref().filter(|_| self.add_bos)
            && !text.starts_with(first.as_str())
        {
            ids.push(*id);
        }
        match &self.inner {
            // Byte-level BPE has a token for every byte; a tokenizer without one drops what it cannot say.
            Inner::Listed(inner) => {
                if let Ok(encoding) = inner.encode_fast(text, false) {
                    ids.extend_from_slice(encoding.get_ids());
                }
            }
            Inner::Scored(scored) => scored.encode(text, &mut ids),
        }
        ids
    }

    /// Whether `id` ends a generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.end.contains(&id)
    }

    /// All ids that end a generation.
    pub fn eog(&self) -> impl Iterator<Item = u32> {
        self.end.iter().copied()
    }

    /// A decoder for one generation.
    pub fn decoder(&self) -> Decoder {
        Decoder::new(Arc::clone(&self.pieces))
    }

    /// The text of `ids` at once; special tokens are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = self.decoder();
        let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
        text.push_str(&decoder.finish());
        text
    }

    /// The bytes that `id` stands for, special tokens included; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.bytes(id)
    }

    /// What it is, for people.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The text of the first token, if there is one.
    pub(crate) fn bos_text(&self) -> &str {
        self.bos.as_ref().map_or("", |(_, text)| text)
    }
}

/// The bytes of every token; control tokens are left out of decoded text.
fn pieces(tokens: &[String], types: &[i64], spelling: impl Fn(i64) -> Spelling) -> Arc<Pieces> {
    Arc::new(Pieces::new(tokens.iter().zip(types).map(|(text, &kind)| decode::Piece {
        text,
        spelling: spelling(kind),
        hidden: kind == CONTROL,
    })))
}

/// `end` and the control tokens with well-known texts.
fn end_tokens(mut end: BTreeSet<u32>, tokens: &[String], types: &[i64]) -> BTreeSet<u32> {
    for ((text, kind), id) in tokens.iter().zip(types).zip(0u32..) {
        if *kind == CONTROL && END_TEXTS.contains(&text.as_str()) {
            end.insert(id);
        }
    }
    end
}

/// Drops the added tokens that follow a vocabulary of `vocab` without a gap, whose texts are ordinary text then: a
/// family may share one tokenizer.json, and its smaller models have no row for, say, an image. Any other token outside
/// of the vocabulary is of another model. Returns whether there was one to drop.
fn drop_siblings_tokens(json: &mut serde_json::Value, vocab: usize) -> bool {
    let Some(added) = json["added_tokens"].as_array_mut() else { return false };
    let outside = |token: &serde_json::Value| token["id"].as_u64().filter(|id| *id >= vocab as u64);
    let ids: BTreeSet<u64> = added.iter().filter_map(outside).collect();
    let dropped = !ids.is_empty() && ids.iter().copied().eq(vocab as u64..vocab as u64 + ids.len() as u64);
    if dropped {
        added.retain(|token| outside(token).is_none());
    }
    dropped
}

/// How tokenizer.json says that tokens are words with SentencePiece's spaces, and bytes where there is no word.
fn sentence_piece() -> serde_json::Value {
    serde_json::json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": scored::SPACE.to_string()}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]})
}
