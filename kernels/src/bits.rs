//! Eight words of the same number of bits are so many bytes: the packing that both wire formats share.

/// Packs groups of eight words below 2^`bits`, `bits` bytes a group, from the least significant bit up. `bits` is 1 to 51.
///
/// The widths in use have code of their own, in which every shift is a constant.
pub(crate) fn pack_groups(bits: u32, groups: impl Iterator<Item = [u64; 8]>, out: &mut [u8]) {
    macro_rules! constant {
        ($($width:literal)*) => {
            match bits {
                $($width => groups.zip(out.chunks_exact_mut($width)).for_each(|(words, out)| pack($width, &words, out)),)*
                _ => groups.zip(out.chunks_exact_mut(bits as usize)).for_each(|(words, out)| pack(bits, &words, out)),
            }
        };
    }
    constant!(20 21 22 23 24 25 26 27 28 29 30 31 45 47 51);
}

/// Packs up to eight words.
#[inline(always)]
#[expect(clippy::inline_always, reason = "shifts become constants where the width is one")]
pub(crate) fn pack(bits: u32, words: &[u64], bytes: &mut [u8]) {
    let (mut acc, mut held, mut at) = (0u64, 0, 0);
    for &w in words {
        acc |= w << held;
        held += bits;
        if held >= 64 {
            bytes[at..at + 8].copy_from_slice(&acc.to_le_bytes());
            at += 8;
            held -= 64;
            acc = if held == 0 { 0 } else { w >> (bits - held) };
        }
    }
    let rest = held.div_ceil(8) as usize;
    bytes[at..at + rest].copy_from_slice(&acc.to_le_bytes()[..rest]);
}
