//! Centred binomial numbers from bytes: how many of 42 bits are set, less 21.
//!
//! A group of 256 numbers takes 1344 bytes: number i takes bytes i, 256 + i, .. 1024 + i, and two bits of byte
//! 1280 + i mod 64, those at 2·(i / 64). Where the bytes are from is the caller's affair.

use crate::{
    Ring,
    cpu::{self, Kernel, Lanes},
};

/// Numbers of a group.
pub const GROUP: usize = 256;
/// Bytes of a group.
pub const GROUP_BYTES: usize = 42 * GROUP / 8;

/// `out[i] = ones_i - 21 mod q`, in [0, q), without a branch or an index that depends on the bytes.
///
/// # Panics
/// Unless there are as many whole groups of bytes as `out` needs; the last one may be used in part.
pub fn centred_ones(ring: &Ring, bytes: &[u8], out: &mut [u64]) {
    assert_eq!(bytes.len(), out.len().div_ceil(GROUP) * GROUP_BYTES, "whole groups of bytes");
    cpu::dispatch(ring.isa(), Ones { q: ring.q(), bytes, out });
}

struct Ones<'a> {
    q: u64,
    bytes: &'a [u8],
    out: &'a mut [u64],
}

impl Kernel for Ones<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, _: L) {
        for (bytes, out) in self.bytes.as_chunks::<GROUP_BYTES>().0.iter().zip(self.out.chunks_mut(GROUP)) {
            let mut ones = [0u8; GROUP];
            for part in bytes[..5 * GROUP].as_chunks::<GROUP>().0 {
                for (o, b) in ones.iter_mut().zip(part) {
                    *o += count(*b);
                }
            }
            for (quarter, ones) in ones.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                for (o, b) in ones.iter_mut().zip(&bytes[5 * GROUP..]) {
                    *o += count((b >> (2 * quarter)) & 3);
                }
            }
            for (out, o) in out.iter_mut().zip(ones) {
                let x = (u64::from(o)).wrapping_sub(21);
                // The sign bit chooses q.
                *out = x.wrapping_add(self.q & (x.cast_signed() >> 63).cast_unsigned());
            }
        }
    }
}

/// Bits set in a byte, pairwise.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn count(b: u8) -> u8 {
    let b = b - ((b >> 1) & 0x55);
    let b = (b & 0x33) + ((b >> 2) & 0x33);
    (b + (b >> 4)) & 0x0f
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{modulus, params::DEFAULT};

    #[test]
    fn every_bit_counts_once_for_one_number() {
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        let value = |bytes: &[u8]| -> Vec<i64> {
            let mut out = vec![0; GROUP];
            centred_ones(&ring, bytes, &mut out);
            out.into_iter().map(|x| modulus::centred(x, ring.q()) + 21).collect()
        };
        let mut owners = [0; GROUP];
        for bit in 0..GROUP_BYTES * 8 {
            let mut bytes = [0u8; GROUP_BYTES];
            bytes[bit / 8] = 1 << (bit % 8);
            let ones = value(&bytes);
            assert_eq!(ones.iter().sum::<i64>(), 1, "bit {bit}");
            owners[ones.iter().position(|&x| x == 1).unwrap()] += 1;
        }
        assert_eq!(owners, [42; GROUP]);
        assert_eq!(value(&[255; GROUP_BYTES]), [42; GROUP]);
        let mut part = vec![0; 40];
        centred_ones(&ring, &[255; GROUP_BYTES], &mut part);
        assert_eq!(part, [21; 40]);
    }

    #[test]
    fn every_instruction_set_counts_alike() {
        let mut numbers = crate::conformance::Numbers(77);
        let bytes: Vec<u8> = (0..3 * GROUP_BYTES).map(|_| numbers.word().to_le_bytes()[3]).collect();
        let of = |isa| {
            let mut out = vec![0; 3 * GROUP - 100];
            centred_ones(&Ring::with_isa(DEFAULT.check().unwrap(), isa), &bytes, &mut out);
            out
        };
        let want = of(crate::Isa::SCALAR);
        assert!(crate::Isa::available().into_iter().all(|isa| of(isa) == want));
    }
}
