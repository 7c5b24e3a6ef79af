//! Token ids to text, one at a time: only whole UTF-8 characters come out.

use super::scored;
use std::{collections::BTreeMap, sync::Arc};
use zeroize::Zeroizing;

/// The bytes of every token.
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Token i is `bytes[ends[i - 1]..ends[i]]`, the first from 0.
    ends: Vec<usize>,
    hidden: Vec<bool>,
}

/// One token as a vocabulary lists it.
pub(super) struct Piece<'a> {
    pub(super) text: &'a str,
    pub(super) spelling: Spelling,
    /// Whether the token is left out of decoded text.
    pub(super) hidden: bool,
}

/// What a token's text means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// Itself.
    Literal,
    /// A letter for every byte; itself if it has any other letter.
    Letters,
    /// Itself with spaces written as SentencePiece does.
    Words,
    /// One byte, in hexadecimal.
    Byte,
}

impl Spelling {
    /// Appends the bytes that `text` means.
    fn spell(self, text: &str, letters: &BTreeMap<char, u8>, bytes: &mut Vec<u8>) {
        let decoded = match self {
            Self::Letters => text.chars().map(|c| letters.get(&c).copied()).collect(),
            Self::Byte => scored::byte(text).map(|byte| vec![byte]),
            Self::Words => Some(text.replace(scored::SPACE, " ").into_bytes()),
            Self::Literal => None,
        };
        match decoded {
            Some(decoded) => bytes.extend(decoded),
            None => bytes.extend_from_slice(text.as_bytes()),
        }
    }
}

impl Pieces {
    pub(super) fn new<'a>(pieces: impl Iterator<Item = Piece<'a>>) -> Self {
        let letters = byte_of_letter();
        let (mut bytes, mut ends, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces {
            piece.spelling.spell(piece.text, &letters, &mut bytes);
            ends.push(bytes.len());
            hidden.push(piece.hidden);
        }
        Self { bytes, ends, hidden }
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    fn visible(&self, id: u32) -> &[u8] {
        if self.hidden.get(id as usize).copied().unwrap_or(true) { &[] } else { self.bytes(id) }
    }
}

/// GPT-2's letters for bytes (`bytes_to_unicode` in its encoder.py): printable Latin-1 stands for itself, every
/// other byte for the next code point from 256 on.
fn byte_of_letter() -> BTreeMap<char, u8> {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256u32;
    (0..=255u8)
        .filter_map(|b| {
            let code = if printable(b) {
                u32::from(b)
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).map(|c| (c, b))
        })
        .collect()
}

/// The letter of each byte.
pub(crate) fn letters() -> Vec<char> {
    let mut letters = vec!['\0'; 256];
    for (letter, byte) in byte_of_letter() {
        letters[usize::from(byte)] = letter;
    }
    letters
}

/// Decodes the tokens of one generation. Special tokens are left out. Wiped on drop.
pub struct Decoder {
    pieces: Arc<Pieces>,
    pending: Zeroizing<Vec<u8>>,
}

impl Decoder {
    pub(super) fn new(pieces: Arc<Pieces>) -> Self {
        Self { pieces, pending: Zeroizing::new(Vec::with_capacity(64)) }
    }

    /// The text that `id` completes; empty while a character is still incomplete. Bytes that can no longer
    /// become UTF-8 come out as U+FFFD.
    pub fn push(&mut self, id: u32) -> String {
        self.pending.extend_from_slice(self.pieces.visible(id));
        let mut text = String::new();
        loop {
            match std::str::from_utf8(&self.pending) {
                Ok(all) => {
                    text.push_str(all);
                    self.pending.clear();
                    return text;
                }
                Err(e) => {
                    let valid = e.valid_up_to();
                    text.push_str(std::str::from_utf8(&self.pending[..valid]).unwrap_or_default());
                    let skip = e.error_len().unwrap_or(0);
                    self.pending.drain(..valid + skip);
                    if skip == 0 {
                        return text;
                    }
                    text.push('\u{fffd}');
                }
            }
        }
    }

    /// What is left at the end: U+FFFD if a character was cut short.
    pub fn finish(&mut self) -> String {
        let cut = !self.pending.is_empty();
        self.pending.clear();
        if cut { "\u{fffd}".to_owned() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder() -> Decoder {
        let letters = letters();
        let texts: Vec<String> =
            letters.iter().map(char::to_string).chain(["<|x|>".to_owned(), "<tool>".to_owned()]).collect();
        let spelling = |i| if i < 256 { Spelling::Letters } else { Spelling::Literal };
        let pieces = texts.iter().enumerate().map(|(i, text)| Piece { text, spelling: spelling(i), hidden: i == 256 });
        Decoder::new(Arc::new(Pieces::new(pieces)))
    }

    #[test]
    fn characters_come_out_whole() {
        let mut d = decoder();
        let text = "a é 漢 🦀\n";
        let pushed: Vec<String> = text.bytes().map(|b| d.push(u32::from(b))).collect();
        assert_eq!(pushed.concat(), text);
        assert!(pushed.iter().all(|p| p.chars().count() <= 1));
        assert_eq!(d.push(256), "");
        assert_eq!(d.push(257), "<tool>");
        assert_eq!(d.push(9999), "");
        assert_eq!(d.finish(), "");
    }

    #[test]
    fn words_and_bytes() {
        let spelled = |text: &str, spelling| {
            let pieces = Pieces::new([Piece { text, spelling, hidden: false }].into_iter());
            pieces.bytes(0).to_vec()
        };
        assert_eq!(spelled("\u{2581}a\u{2581}", Spelling::Words), b" a ");
        assert_eq!(spelled("\u{2581}a", Spelling::Literal), "\u{2581}a".as_bytes());
        assert_eq!(spelled("<0x0A>", Spelling::Byte), b"\n");
        assert_eq!(spelled("<0x0A>", Spelling::Words), b"<0x0A>");
        assert_eq!(spelled("\u{120}a", Spelling::Letters), b" a");
    }

    #[test]
    fn invalid_bytes_are_replaced() {
        let mut d = decoder();
        assert_eq!(d.push(0xff), "\u{fffd}");
        assert_eq!(d.push(0xe6), "");
        assert_eq!(d.push(u32::from(b'a')), "\u{fffd}a");
        assert_eq!(d.push(0xf0), "");
        assert_eq!(d.finish(), "\u{fffd}");
        assert_eq!(d.push(u32::from(b'b')), "b");
    }
}
