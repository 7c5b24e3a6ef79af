//! Words modulo t = 2^k as they travel: k bits each, packed from the least significant bit up, every vector a whole
//! number of bytes whose unused bits are zero.

use crate::{Error, bits};

/// Bytes of `count` words of `bits` bits (1 to 32).
pub fn packed_len(bits: u32, count: usize) -> usize {
    (count * bits as usize).div_ceil(8)
}

/// Appends the low `bits` bits (1 to 32) of every word to `out`.
///
/// # Panics
/// If `bits` is not 1 to 32.
pub fn pack(bits: u32, words: &[u32], out: &mut Vec<u8>) {
    assert!((1..=32).contains(&bits), "{bits} bits a word");
    let start = out.len();
    out.resize(start + packed_len(bits, words.len()), 0);
    if bits == 32 {
        for (bytes, word) in out[start..].as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        return;
    }
    let mask = (1u64 << bits) - 1;
    let low = |word: &u32| u64::from(*word) & mask;
    let (groups, rest) = words.as_chunks::<8>();
    let (body, last) = out[start..].split_at_mut(groups.len() * bits as usize);
    bits::pack_groups(bits, groups.iter().map(|words| words.each_ref().map(low)), body);
    bits::pack(bits, &rest.iter().map(low).collect::<Vec<_>>(), last);
}

/// Checks that `bytes` are exactly `count` words of `bits` bits.
///
/// # Errors
/// [`Error::Wire`] naming what was found: other bits than 1 to 32, another size, or unused bits that are set.
pub fn check(bits: u32, bytes: &[u8], count: usize) -> Result<(), Error> {
    if !(1..=32).contains(&bits) {
        return Err(Error::Wire(format!("{bits} bits a word, allowed are 1 to 32")));
    }
    let (len, used) = (packed_len(bits, count), count * bits as usize % 8);
    if bytes.len() != len {
        return Err(Error::Wire(format!("{} bytes, {count} words of {bits} bits are {len}", bytes.len())));
    }
    if used != 0 && bytes[len - 1] >> used != 0 {
        return Err(Error::Wire("unused bits of the last byte are not zero".into()));
    }
    Ok(())
}

/// Reads as many words of `bits` bits (1 to 32) as `out` has; they come out in [0, 2^bits).
///
/// # Errors
/// As [`check`].
pub fn unpack(bits: u32, bytes: &[u8], out: &mut [u32]) -> Result<(), Error> {
    check(bits, bytes, out.len())?;
    let (len, step, mask) = (bytes.len(), bits as usize, u64::from(u32::MAX >> (32 - bits)));
    // A word of up to 32 bits lies inside eight bytes, the last of which may belong to the words after it.
    let places: [(usize, usize); 8] = std::array::from_fn(|i| (i * step / 8, i * step % 8));
    let mut done = 0;
    for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let Some(bytes) = bytes.get(k * step..k * step + step + 8) else { break };
        for (word, (at, shift)) in out.iter_mut().zip(places) {
            let eight: [u8; 8] = *bytes[at..].first_chunk().unwrap_or(&[0; 8]);
            *word = low((u64::from_le_bytes(eight) >> shift) & mask);
        }
        done += 8;
    }
    for (i, word) in out.iter_mut().enumerate().skip(done) {
        let (at, shift) = (i * step / 8, i * step % 8);
        let mut eight = [0; 8];
        let rest = &bytes[at..len.min(at + 8)];
        eight[..rest.len()].copy_from_slice(rest);
        *word = low((u64::from_le_bytes(eight) >> shift) & mask);
    }
    Ok(())
}

/// A number below 2^32.
#[expect(clippy::cast_possible_truncation, reason = "masked")]
fn low(x: u64) -> u32 {
    x as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Numbers;

    #[test]
    fn words_come_back_and_bits_lie_where_they_are_said_to() {
        let mut numbers = Numbers(3);
        for bits in 1..=32u32 {
            for count in [0, 1, 7, 8, 9, 64, 65, 577] {
                let words: Vec<u32> = (0..count).map(|_| low(numbers.word() >> 32)).collect();
                let mut bytes = vec![0xaa];
                pack(bits, &words, &mut bytes);
                assert_eq!((bytes[0], bytes.len()), (0xaa, 1 + packed_len(bits, count)));
                let kept: Vec<u32> = words.iter().map(|w| w & (u32::MAX >> (32 - bits))).collect();
                for (i, word) in kept.iter().enumerate() {
                    for bit in 0..bits as usize {
                        let at = i * bits as usize + bit;
                        assert_eq!(
                            u32::from(bytes[1 + at / 8] >> (at % 8) & 1),
                            word >> bit & 1,
                            "{bits} bits, word {i}"
                        );
                    }
                }
                let mut back = vec![7; count];
                unpack(bits, &bytes[1..], &mut back).expect("well-formed");
                assert_eq!(back, kept, "{bits} bits");
            }
        }
    }

    #[test]
    fn other_sizes_and_stray_bits_are_refused() {
        let mut out = [0; 3];
        for (bits, bytes, why) in [
            (0, vec![], "0 bits a word"),
            (33, vec![0; 13], "33 bits a word"),
            (26, vec![0; 11], "11 bytes, 3 words of 26 bits are 10"),
            (26, vec![0xff; 10], "unused bits"),
        ] {
            let err = unpack(bits, &bytes, &mut out).expect_err(why).to_string();
            assert!(err.contains(why), "{err}");
        }
    }
}
