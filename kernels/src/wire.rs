//! The byte format of residues: a 16-byte header and bit-packed words. One parser, fuzzed.
//!
//! `magic "BFW1" | kind u8 | bits u8 | zero u16 | count u64 LE | ceil(count·bits/8) bytes`, words packed
//! from the least significant bit up, unused bits of the last byte zero.

use crate::{Error, Params};

/// What the words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole polynomials in NTT form; the count is a multiple of N.
    Ntt = 1,
    /// Selected coefficients.
    Coefficients = 2,
}

const MAGIC: [u8; 4] = *b"BFW1";
/// Bytes before the packed words.
pub const HEADER: usize = 16;

/// Size of a message of `count` residues.
pub fn encoded_len(params: &Params, count: usize) -> usize {
    HEADER + (count * params.bits() as usize).div_ceil(8)
}

/// Appends a message holding `words`, each in [0, q), to `out`.
pub fn encode(params: &Params, kind: Kind, words: &[u64], out: &mut Vec<u8>) {
    let bits = params.bits();
    out.reserve(encoded_len(params, words.len()));
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[kind as u8, u8::try_from(bits).unwrap_or(0), 0, 0]);
    out.extend_from_slice(&(words.len() as u64).to_le_bytes());
    let (mut acc, mut held) = (0u128, 0);
    for &w in words {
        acc |= u128::from(w) << held;
        held += bits;
        while held >= 8 {
            out.push(u8::try_from(acc & 0xff).unwrap_or(0));
            acc >>= 8;
            held -= 8;
        }
    }
    if held > 0 {
        out.push(u8::try_from(acc & 0xff).unwrap_or(0));
    }
}

/// Parses one message that must hold exactly `out.len()` residues of kind `kind`.
///
/// # Errors
/// [`Error::Wire`] naming the field, what was found and what was expected; nothing is assumed about
/// `bytes`, and no residue outside [0, q) is accepted.
pub fn decode(params: &Params, kind: Kind, bytes: &[u8], out: &mut [u64]) -> Result<(), Error> {
    let fail = |what: String| Err(Error::Wire(what));
    let Some((head, body)) = bytes.split_at_checked(HEADER) else {
        return fail(format!("{} bytes, a header has {HEADER}", bytes.len()));
    };
    if head[..4] != MAGIC {
        return fail(format!("magic is {:02x?}, expected {MAGIC:02x?}", &head[..4]));
    }
    if head[4] != kind as u8 {
        return fail(format!("kind is {}, expected {}", head[4], kind as u8));
    }
    if u32::from(head[5]) != params.bits() || head[6..8] != [0, 0] {
        return fail(format!("{} bits a word, expected {}", head[5], params.bits()));
    }
    let mut count = [0; 8];
    count.copy_from_slice(&head[8..16]);
    if u64::from_le_bytes(count) != out.len() as u64 {
        return fail(format!("{} residues, expected {}", u64::from_le_bytes(count), out.len()));
    }
    let bits = params.bits();
    if body.len() != (out.len() * bits as usize).div_ceil(8) {
        return fail(format!("{} bytes of residues, expected {}", body.len(), (out.len() * bits as usize).div_ceil(8)));
    }
    let (mut acc, mut held, mut bytes) = (0u128, 0, body.iter());
    for o in out.iter_mut() {
        while held < bits {
            acc |= u128::from(*bytes.next().unwrap_or(&0)) << held;
            held += 8;
        }
        #[expect(clippy::cast_possible_truncation, reason = "masked to fewer than 64 bits")]
        {
            *o = (acc & ((1 << bits) - 1)) as u64;
        }
        acc >>= bits;
        held -= bits;
        if *o >= params.q() {
            return fail(format!("residue {o} is not below q = {}", params.q()));
        }
    }
    if acc != 0 {
        return fail("unused bits of the last byte are not zero".into());
    }
    Ok(())
}
