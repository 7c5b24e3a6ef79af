//! The byte format of residues: a 16-byte header and bit-packed words. One parser, fuzzed.
//!
//! `magic "BFW1" | kind u8 | bits u8 | zero u16 | count u64 LE | ceil(count·bits/8) bytes`, words packed
//! from the least significant bit up, unused bits of the last byte zero.

use crate::{
    Error, Params,
    bits::{pack, pack_groups},
};

/// What the words are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole polynomials in NTT form; the count is a multiple of N.
    Ntt = 1,
    /// Selected coefficients.
    Coefficients = 2,
    /// Rows of lanes: one coefficient for each of many vectors.
    Lanes = 3,
}

const MAGIC: [u8; 4] = *b"BFW1";
/// Bytes before the packed words.
pub const HEADER: usize = 16;

/// Size of a message of `count` residues.
pub fn encoded_len(params: &Params, count: usize) -> usize {
    HEADER + packed_len(params, count)
}

/// Appends a message holding `words`, each in [0, q), to `out`.
pub fn encode(params: &Params, kind: Kind, words: &[u64], out: &mut Vec<u8>) {
    let bits = params.bits();
    out.reserve(encoded_len(params, words.len()));
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[kind as u8, u8::try_from(bits).unwrap_or(0), 0, 0]);
    out.extend_from_slice(&(words.len() as u64).to_le_bytes());
    let start = out.len();
    out.resize(start + packed_len(params, words.len()), 0);
    let (groups, rest) = words.as_chunks::<8>();
    let (body, last) = out[start..].split_at_mut(groups.len() * bits as usize);
    pack_groups(bits, groups.iter().copied(), body);
    pack(bits, rest, last);
}

fn packed_len(params: &Params, count: usize) -> usize {
    (count * params.bits() as usize).div_ceil(8)
}

/// A message whose header and length have been checked; its residues are checked as they are read.
pub struct Message<'a> {
    bits: u32,
    q: u64,
    count: usize,
    body: &'a [u8],
}

/// Parses one message that must hold exactly `out.len()` residues of kind `kind`.
///
/// # Errors
/// [`Error::Wire`] naming the field, what was found and what was expected; nothing is assumed about
/// `bytes`, and no residue outside [0, q) is accepted.
pub fn decode(params: &Params, kind: Kind, bytes: &[u8], out: &mut [u64]) -> Result<(), Error> {
    Message::parse(params, kind, bytes, out.len())?.read(0, out)
}

impl<'a> Message<'a> {
    /// Checks everything but the residues: there must be exactly `count`.
    ///
    /// # Errors
    /// [`Error::Wire`] naming the field, what was found and what was expected.
    pub fn parse(params: &Params, kind: Kind, bytes: &'a [u8], count: usize) -> Result<Self, Error> {
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
        let bits = params.bits();
        if u32::from(head[5]) != bits {
            return fail(format!("{} bits a word, expected {bits}", head[5]));
        }
        if head[6..8] != [0, 0] {
            return fail(format!("reserved bytes are {:02x?}, expected zeros", &head[6..8]));
        }
        let mut found = [0; 8];
        found.copy_from_slice(&head[8..16]);
        let found = u64::from_le_bytes(found);
        if found != count as u64 {
            return fail(format!("{found} residues, expected {count}"));
        }
        let len = packed_len(params, count);
        if body.len() != len {
            return fail(format!("{} bytes of residues, expected {len}", body.len()));
        }
        let used = count * bits as usize % 8;
        if let Some(last) = body.last()
            && used != 0
            && last >> used != 0
        {
            return fail("unused bits of the last byte are not zero".into());
        }
        Ok(Self { bits, q: params.q(), count, body })
    }

    /// Reads the residues from number `first` on into `out`.
    ///
    /// # Errors
    /// [`Error::Wire`] if one is not below q, or if there are not so many.
    pub fn read(&self, first: usize, out: &mut [u64]) -> Result<(), Error> {
        if first.checked_add(out.len()).is_none_or(|end| end > self.count) {
            return Err(Error::Wire(format!("{} residues from {first} on, there are {}", out.len(), self.count)));
        }
        let (bits, mask) = (self.bits as usize, (1u64 << self.bits) - 1);
        let mut good = true;
        let mut done = 0;
        if first.is_multiple_of(8) {
            // Eight words are `bits` bytes; a word of up to 51 bits lies inside eight bytes, the last ones
            // of which may belong to the next eight words.
            let offsets: [(usize, usize); 8] = std::array::from_fn(|i| (i * bits / 8, i * bits % 8));
            let body = &self.body[first / 8 * bits..];
            for (k, out) in out.chunks_exact_mut(8).enumerate() {
                let Some(bytes) = body.get(k * bits..k * bits + bits + 8) else { break };
                for (word, (at, shift)) in out.iter_mut().zip(offsets) {
                    let mut eight = [0; 8];
                    eight.copy_from_slice(&bytes[at..at + 8]);
                    *word = (u64::from_le_bytes(eight) >> shift) & mask;
                    good &= *word < self.q;
                }
                done += 8;
            }
        }
        for (i, word) in out.iter_mut().enumerate().skip(done) {
            let at = (first + i) * bits;
            let bytes = &self.body[at / 8..self.body.len().min(at / 8 + 8)];
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = (u64::from_le_bytes(eight) >> (at % 8)) & mask;
            good &= *word < self.q;
        }
        if good {
            return Ok(());
        }
        let bad = out.iter().find(|&&w| w >= self.q).copied().unwrap_or(0);
        Err(Error::Wire(format!("residue {bad} is not below q = {}", self.q)))
    }
}
