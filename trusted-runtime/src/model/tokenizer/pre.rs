//! How text is cut before BPE, by the name in `tokenizer.ggml.pre`.

use crate::Error;
use tokenizers::{
    NormalizerWrapper, SplitDelimiterBehavior,
    normalizers::unicode::NFC,
    pre_tokenizers::{
        PreTokenizerWrapper,
        byte_level::ByteLevel,
        digits::Digits,
        sequence::Sequence,
        split::{Split, SplitPattern},
    },
};

/// The names that [`style`] knows, for messages.
const KNOWN: &str = "gpt-2, smollm, starcoder, refact, codeshell, command-r, qwen2, llama-bpe, llama3, smaug-bpe";

/// Splits as Llama 3's tokenizer.json does.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Splits as Qwen2's tokenizer.json does: as Llama 3, but one digit at a time.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a family of tokenizers does beside BPE.
pub(super) struct Style {
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Sequence,
    /// Whether a word that is a token is that token, whatever the merges say.
    pub(super) whole_words: bool,
    /// Whether prompts start with the first token unless the file says.
    pub(super) add_bos: bool,
}

/// The style called `name`.
///
/// # Errors
/// [`Error::Model`] naming `file`, the unknown name and the known ones.
pub(super) fn style(file: &str, name: &str) -> Result<Style, Error> {
    let plain =
        |steps| Style { normalizer: None, pre_tokenizer: Sequence::new(steps), whole_words: false, add_bos: false };
    let gpt2 = || PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, true));
    let split = |pattern: &str| -> Result<Vec<PreTokenizerWrapper>, Error> {
        let split = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map_err(|e| Error::Bug(format!("pattern of pre-tokenizer {name}: {e}")))?;
        Ok(vec![split.into(), PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false))])
    };
    Ok(match name {
        "gpt-2" => plain(vec![gpt2()]),
        "smollm" | "starcoder" | "refact" | "codeshell" | "command-r" => {
            plain(vec![PreTokenizerWrapper::Digits(Digits::new(true)), gpt2()])
        }
        "llama-bpe" | "llama3" | "smaug-bpe" => Style { whole_words: true, add_bos: true, ..plain(split(LLAMA3)?) },
        "qwen2" => Style { normalizer: Some(NFC.into()), ..plain(split(QWEN2)?) },
        other => {
            return Err(Error::Model(format!(
                "{file}: unknown pre-tokenizer {other:?} in tokenizer.ggml.pre, expected one of: {KNOWN}"
            )));
        }
    })
}
