//! SentencePiece's byte pair encoding by scores: of all adjacent pairs that together are a token, the one with the
//! best score is merged, the leftmost of equal ones, until no pair is left. What is no token then is spelled in
//! byte tokens.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};
use zeroize::Zeroizing;

/// What tokens write for a space.
pub(super) const SPACE: char = '\u{2581}';

/// Types of tokens in GGUF (`llama_token_type`) that text can merge into.
const NORMAL: i64 = 1;
const USER_DEFINED: i64 = 4;
/// The type of byte tokens.
pub(super) const BYTE: i64 = 6;

/// A vocabulary with scores.
pub(super) struct Scored {
    /// Tokens that pairs can merge into.
    ids: HashMap<String, u32>,
    /// By id.
    scores: Vec<f32>,
    /// The token of every byte.
    bytes: Vec<u32>,
    /// Length of the longest of `ids`, bytes.
    longest: usize,
    literals: Literals,
}

impl Scored {
    /// From token texts, types and scores, by id.
    ///
    /// # Errors
    /// What was found and what was expected.
    pub(super) fn new(tokens: &[String], types: &[i64], scores: &[f64]) -> Result<Self, String> {
        if types.len() != tokens.len() || scores.len() != tokens.len() {
            return Err(format!("{} types and {} scores for {} tokens", types.len(), scores.len(), tokens.len()));
        }
        if let Some(at) = scores.iter().position(|s| !s.is_finite()) {
            return Err(format!("token {at} has score {}, expected a finite one", scores[at]));
        }
        let mut ids = HashMap::new();
        let mut bytes = vec![None; 256];
        for ((text, kind), id) in tokens.iter().zip(types).zip(0u32..) {
            match *kind {
                NORMAL | USER_DEFINED => {
                    if let Some(other) = ids.insert(text.clone(), id) {
                        return Err(format!("tokens {other} and {id} have the same text {text:?}"));
                    }
                }
                BYTE => match byte(text) {
                    Some(byte) => bytes[usize::from(byte)] = Some(id),
                    None => return Err(format!("byte token {id} is {text:?}, expected <0x00> to <0xFF>")),
                },
                _ => {}
            }
        }
        if let Some(absent) = bytes.iter().position(Option::is_none) {
            return Err(format!("no token for byte {absent:#04x}, expected one for every byte"));
        }
        let literal = |kind: i64| kind == super::CONTROL || kind == USER_DEFINED;
        let literals = tokens.iter().zip(types).zip(0u32..).filter(|((_, kind), _)| literal(**kind));
        #[expect(clippy::cast_possible_truncation, reason = "scores are f32 in the file")]
        let scores = scores.iter().map(|s| *s as f32).collect();
        Ok(Self {
            longest: ids.keys().map(String::len).max().unwrap_or(0),
            ids,
            scores,
            bytes: bytes.into_iter().flatten().collect(),
            literals: Literals::new(literals.map(|((text, _), id)| (text.as_str(), id))),
        })
    }

    /// Appends the tokens of `text`; texts of special tokens become those tokens.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let (mut at, mut plain) = (0, 0);
        while at < text.len() {
            match self.literals.at(&text[at..]) {
                Some((id, len)) => {
                    self.encode_plain(&text[plain..at], ids);
                    ids.push(id);
                    at += len;
                    plain = at;
                }
                None => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        self.encode_plain(&text[plain..], ids);
    }

    /// Appends the tokens of a text without special tokens.
    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) {
        let mut spaced = Zeroizing::new(String::with_capacity(text.len() * SPACE.len_utf8()));
        spaced.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let mut merge = Merge::new(self, &spaced);
        merge.run();
        for symbol in merge.symbols.iter().filter(|s| s.len > 0) {
            let piece = &spaced[symbol.start..symbol.start + symbol.len];
            match self.ids.get(piece) {
                Some(id) => ids.push(*id),
                None => ids.extend(piece.bytes().map(|b| self.bytes[usize::from(b)])),
            }
        }
    }
}

/// The byte that a byte token's text names.
pub(super) fn byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// A piece of the text; merged away when `len` is 0. Neighbours are indices, `NONE` at the ends.
struct Symbol {
    start: usize,
    len: usize,
    before: usize,
    after: usize,
}

const NONE: usize = usize::MAX;

/// Two neighbours that together are a token. Ordered by score, then from the left; `len` tells a pair that a later
/// merge has changed.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: Score,
    left: Reverse<usize>,
    right: usize,
    len: usize,
}

#[derive(PartialEq)]
struct Score(f32);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// One text on its way from characters to tokens.
struct Merge<'a> {
    vocabulary: &'a Scored,
    text: &'a str,
    symbols: Vec<Symbol>,
    pairs: BinaryHeap<Pair>,
}

impl<'a> Merge<'a> {
    fn new(vocabulary: &'a Scored, text: &'a str) -> Self {
        let count = text.chars().count();
        let symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                before: i.checked_sub(1).unwrap_or(NONE),
                after: if i + 1 < count { i + 1 } else { NONE },
            })
            .collect();
        let mut merge = Self { vocabulary, text, symbols, pairs: BinaryHeap::new() };
        for right in 1..count {
            merge.consider(right - 1, right);
        }
        merge
    }

    fn run(&mut self) {
        while let Some(Pair { left: Reverse(left), right, len, .. }) = self.pairs.pop() {
            let (a, b) = (&self.symbols[left], &self.symbols[right]);
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            let (before, after) = (a.before, b.after);
            self.symbols[left].len = len;
            self.symbols[left].after = after;
            self.symbols[right].len = 0;
            if after != NONE {
                self.symbols[after].before = left;
                self.consider(left, after);
            }
            if before != NONE {
                self.consider(before, left);
            }
        }
    }

    /// Remembers the neighbours `left` and `right` if they are a token.
    fn consider(&mut self, left: usize, right: usize) {
        let (a, b) = (&self.symbols[left], &self.symbols[right]);
        let len = a.len + b.len;
        if len > self.vocabulary.longest {
            return;
        }
        if let Some(id) = self.vocabulary.ids.get(&self.text[a.start..a.start + len]) {
            let score = Score(self.vocabulary.scores[*id as usize]);
            self.pairs.push(Pair { score, left: Reverse(left), right, len });
        }
    }
}

/// Texts that are one token wherever they stand; the longest of those that start at a place.
struct Literals {
    ids: HashMap<String, u32>,
    /// Lengths that occur, longest first.
    lengths: Vec<usize>,
    /// Whether one starts with this byte.
    starts: Vec<bool>,
}

impl Literals {
    fn new<'a>(literals: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let ids: HashMap<String, u32> =
            literals.filter(|(text, _)| !text.is_empty()).map(|(text, id)| (text.to_owned(), id)).collect();
        let mut lengths: Vec<usize> = ids.keys().map(String::len).collect();
        lengths.sort_unstable_by_key(|len| Reverse(*len));
        lengths.dedup();
        let mut starts = vec![false; 256];
        for text in ids.keys() {
            starts[usize::from(text.as_bytes()[0])] = true;
        }
        Self { ids, lengths, starts }
    }

    /// Id and length of the literal that `text`, which is not empty, starts with.
    fn at(&self, text: &str) -> Option<(u32, usize)> {
        if !self.starts[usize::from(text.as_bytes()[0])] {
            return None;
        }
        self.lengths.iter().find_map(|&len| Some((*self.ids.get(text.get(..len)?)?, len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Byte tokens 0 to 255, then `more` as (text, type, score).
    fn scored(more: &[(&str, i64, f64)]) -> Result<Scored, String> {
        let mut tokens: Vec<String> = (0..=255u8).map(|b| format!("<0x{b:02X}>")).collect();
        let (mut types, mut scores) = (vec![BYTE; 256], vec![0.0; 256]);
        for (text, kind, score) in more {
            tokens.push((*text).to_owned());
            types.push(*kind);
            scores.push(*score);
        }
        Scored::new(&tokens, &types, &scores)
    }

    fn ids(s: &Scored, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        s.encode(text, &mut ids);
        ids
    }

    #[test]
    fn the_best_score_is_merged_first_and_the_leftmost_of_equal_ones() {
        let s = scored(&[("a", 1, -9.0), ("b", 1, -9.0), ("ab", 1, -1.0), ("ba", 1, -2.0), ("aba", 1, -3.0)]).unwrap();
        assert_eq!(ids(&s, "ab"), [258]);
        assert_eq!(ids(&s, "aba"), [260]);
        assert_eq!(ids(&s, "bab"), [257, 258]);
        assert_eq!(ids(&s, "aaa"), [256; 3]);
        let s = scored(&[("a", 1, -9.0), ("aa", 1, -1.0)]).unwrap();
        assert_eq!(ids(&s, "aaa"), [257, 256]);
        assert_eq!(ids(&s, "aaaaa"), [257, 257, 256]);
        assert_eq!(ids(&s, ""), [0u32; 0]);
    }

    #[test]
    fn spaces_bytes_and_literals() {
        let s = scored(&[("\u{2581}", 1, -1.0), ("x", 1, -2.0), ("<t>", 3, 0.0), ("<t>x", 4, 0.0), ("  ", 4, 0.0)]);
        let s = s.unwrap();
        assert_eq!(ids(&s, " x"), [256, 257]);
        assert_eq!(ids(&s, "é"), [0xc3, 0xa9]);
        assert_eq!(ids(&s, "x<t>x<t>"), [257, 259, 258]);
        assert_eq!(ids(&s, "   x"), [260, 256, 257]);
        assert_eq!(
            ids(&s, "<0x0A>"),
            "<0".bytes().map(u32::from).chain([257]).chain("0A>".bytes().map(u32::from)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn vocabularies_that_cannot_spell_are_refused() {
        assert_eq!(
            scored(&[("a", 1, 0.0), ("a", 1, 0.0)]).err().unwrap(),
            "tokens 256 and 257 have the same text \"a\""
        );
        assert_eq!(scored(&[("a", 6, 0.0)]).err().unwrap(), "byte token 256 is \"a\", expected <0x00> to <0xFF>");
        assert_eq!(scored(&[("a", 1, f64::NAN)]).err().unwrap(), "token 256 has score NaN, expected a finite one");
        assert_eq!(
            Scored::new(&["a".to_owned()], &[1], &[0.0]).err().unwrap(),
            "no token for byte 0x00, expected one for every byte"
        );
        assert!(Scored::new(&["a".to_owned()], &[1], &[]).is_err());
    }
}
