//! Bytes as people and JSON write them.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::fmt;

/// Exactly `N` bytes, written as `2 N` hexadecimal digits; both cases are read and lower case is written, and two are
/// compared as bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hex<const N: usize>(pub [u8; N]);

/// A SHA-256.
pub type Sha256 = Hex<32>;
/// A SHA-384, and so a measurement register.
pub type Sha384 = Hex<48>;

impl<const N: usize> Hex<N> {
    /// All bytes zero: a register that nothing was measured into.
    pub const ZERO: Self = Self([0; N]);

    /// Reads `2 N` hexadecimal digits of either case.
    ///
    /// # Errors
    /// [`HexError`] for another length or another character.
    pub fn parse(text: &str) -> Result<Self, HexError> {
        let bytes = decode(text)?;
        let found = bytes.len();
        bytes.try_into().map(Self).map_err(|_| HexError::Length { expected: N, found })
    }
}

/// Why a text is no such bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HexError {
    /// Not the number of bytes that belongs here.
    #[error("{found} bytes of hexadecimal, expected {expected}")]
    Length {
        /// Bytes wanted.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// Not pairs of hexadecimal digits.
    #[error("not hexadecimal: expected an even number of the digits 0 to 9 and a to f")]
    Digit,
}

/// Bytes of any length from hexadecimal digits of either case.
///
/// # Errors
/// [`HexError::Digit`] for anything else.
pub fn decode(text: &str) -> Result<Vec<u8>, HexError> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(HexError::Digit);
    }
    digits
        .chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect::<Option<Vec<u8>>>()
        .ok_or(HexError::Digit)
}

/// Lower-case hexadecimal digits.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
    bytes.iter().flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]).collect()
}

fn digit(character: u8) -> Option<u8> {
    char::from(character).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

impl<const N: usize> fmt::Display for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Bytes of any length, written as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HexBytes(pub Vec<u8>);

impl fmt::Debug for HexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(&self.0))
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        decode(&String::deserialize(deserializer)?).map(Self).map_err(D::Error::custom)
    }
}

/// The list for a report: `one of a, b`, or that nothing is accepted.
pub(crate) fn one_of<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    match items.as_slice() {
        [] => "nothing: the policy's list is empty".to_owned(),
        [only] => only.clone(),
        many => format!("one of {}", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cases_are_the_same_bytes() {
        assert_eq!(Hex::<6>::parse("B0C06F000000").unwrap(), Hex::<6>::parse("b0c06f000000").unwrap());
        assert_eq!(Hex::<3>([0xb0, 0xc0, 0x6f]).to_string(), "b0c06f");
    }

    #[test]
    fn other_lengths_and_characters_are_refused() {
        assert_eq!(Hex::<6>::parse("b0c06f"), Err(HexError::Length { expected: 6, found: 3 }));
        for bad in ["b", "zz", "+1", " 1", "0x", "é"] {
            assert_eq!(decode(bad), Err(HexError::Digit), "{bad}");
        }
    }
}
