//! Arithmetic on integer lanes.

use super::{__m128i, __m256i, __m512i, intrinsics};
use std::array::from_fn;

/// What VPMADD52 multiplies: the low 52 bits.
const LOW_52: u64 = (1 << 52) - 1;

intrinsics! {
    /// VPXORQ
    fn _mm512_setzero_si512() -> __m512i {
        __m512i([0; 8])
    }

    /// VPXOR
    fn _mm256_setzero_si256() -> __m256i {
        __m256i([0; 4])
    }

    /// Eight words, the highest lane first.
    #[expect(clippy::too_many_arguments, reason = "as in std::arch")]
    fn _mm512_set_epi64(e7: i64, e6: i64, e5: i64, e4: i64, e3: i64, e2: i64, e1: i64, e0: i64) -> __m512i {
        __m512i([e0, e1, e2, e3, e4, e5, e6, e7].map(i64::cast_unsigned))
    }

    /// VPBROADCASTD
    fn _mm512_set1_epi32(a: i32) -> __m512i {
        __m512i(bytemuck::cast([a; 16]))
    }

    /// VMOVQ: the upper half is zero.
    fn _mm_cvtsi64_si128(a: i64) -> __m128i {
        __m128i([a.cast_unsigned(), 0])
    }

    /// VPADDQ, modulo 2^64.
    fn _mm512_add_epi64(a: __m512i, b: __m512i) -> __m512i {
        __m512i(from_fn(|i| a.0[i].wrapping_add(b.0[i])))
    }

    /// The sum of eight lanes, modulo 2^64.
    fn _mm512_reduce_add_epi64(a: __m512i) -> i64 {
        a.0.iter().fold(0, |sum: u64, &x| sum.wrapping_add(x)).cast_signed()
    }

    /// The sum of sixteen lanes, modulo 2^32.
    fn _mm512_reduce_add_epi32(a: __m512i) -> i32 {
        bytemuck::cast::<_, [i32; 16]>(a.0).iter().fold(0, |sum: i32, &x| sum.wrapping_add(x))
    }

    /// VPMOVSXBD: the low eight bytes, sign-extended.
    fn _mm256_cvtepi8_epi32(a: __m128i) -> __m256i {
        let bytes: [i8; 16] = bytemuck::cast(a.0);
        __m256i(bytemuck::cast::<[i32; 8], _>(from_fn(|i| i32::from(bytes[i]))))
    }

    /// VPMOVSXBW: 32 bytes, sign-extended.
    fn _mm512_cvtepi8_epi16(a: __m256i) -> __m512i {
        let bytes: [i8; 32] = bytemuck::cast(a.0);
        __m512i(bytemuck::cast::<[i16; 32], _>(bytes.map(i16::from)))
    }

    /// VPMOVQD: the low halves.
    #[expect(clippy::cast_possible_truncation, reason = "the instruction truncates")]
    fn _mm512_cvtepi64_epi32(a: __m512i) -> __m256i {
        __m256i(bytemuck::cast::<[u32; 8], _>(a.0.map(|x| x as u32)))
    }

    /// VPMADD52LUQ: `a` plus the low 52 bits of the product of the low 52 bits of `b` and `c`, modulo 2^64.
    #[expect(clippy::cast_possible_truncation, reason = "52 bits")]
    fn _mm512_madd52lo_epu64(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        __m512i(from_fn(|i| a.0[i].wrapping_add(product(b.0[i], c.0[i]) as u64 & LOW_52)))
    }

    /// VPMADD52HUQ: `a` plus bits 52 to 103 of that product, modulo 2^64.
    #[expect(clippy::cast_possible_truncation, reason = "52 bits")]
    fn _mm512_madd52hi_epu64(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        __m512i(from_fn(|i| a.0[i].wrapping_add((product(b.0[i], c.0[i]) >> 52) as u64)))
    }

    /// VPDPWSSD: `src` plus the products of the two signed 16-bit numbers of a lane, modulo 2^32.
    fn _mm512_dpwssd_epi32(src: __m512i, a: __m512i, b: __m512i) -> __m512i {
        let (a, b): ([i16; 32], [i16; 32]) = (bytemuck::cast(a.0), bytemuck::cast(b.0));
        let sums: [i32; 16] = bytemuck::cast(src.0);
        let product = |k: usize| i32::from(a[k]) * i32::from(b[k]);
        let lane = |i: usize| sums[i].wrapping_add(product(2 * i)).wrapping_add(product(2 * i + 1));
        __m512i(bytemuck::cast::<[i32; 16], _>(from_fn(lane)))
    }

    /// VPDPWSSD on half a vector.
    fn _mm256_dpwssd_epi32(src: __m256i, a: __m256i, b: __m256i) -> __m256i {
        let whole = |x: __m256i| __m512i(from_fn(|i| if i < 4 { x.0[i] } else { 0 }));
        let sums = _mm512_dpwssd_epi32(whole(src), whole(a), whole(b));
        __m256i(from_fn(|i| sums.0[i]))
    }
}

/// 104 bits.
fn product(b: u64, c: u64) -> u128 {
    u128::from(b & LOW_52) * u128::from(c & LOW_52)
}
