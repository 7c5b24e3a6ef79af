//! Arithmetic on f64 lanes, and moving them between lanes.

use super::{__m256i, __m512d, __m512i, __mmask8, intrinsics};
use std::array::from_fn;

/// Less than, false for what is not a number, and no exception for it.
pub(crate) const _CMP_LT_OQ: i32 = 17;

intrinsics! {
    /// VXORPD
    fn _mm512_setzero_pd() -> __m512d {
        __m512d([0.0; 8])
    }

    /// VBROADCASTSD
    fn _mm512_set1_pd(a: f64) -> __m512d {
        __m512d([a; 8])
    }

    /// VADDPD
    fn _mm512_add_pd(a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| a.0[i] + b.0[i]))
    }

    /// VADDPD with a mask: lanes whose bit is clear are those of `src`.
    fn _mm512_mask_add_pd(src: __m512d, k: __mmask8, a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| if k >> i & 1 == 1 { a.0[i] + b.0[i] } else { src.0[i] }))
    }

    /// VSUBPD
    fn _mm512_sub_pd(a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| a.0[i] - b.0[i]))
    }

    /// VMULPD
    fn _mm512_mul_pd(a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| a.0[i] * b.0[i]))
    }

    /// VFMADD: `a·b + c`, rounded once.
    fn _mm512_fmadd_pd(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        __m512d(from_fn(|i| a.0[i].mul_add(b.0[i], c.0[i])))
    }

    /// VFMSUB: `a·b - c`, rounded once.
    fn _mm512_fmsub_pd(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        __m512d(from_fn(|i| a.0[i].mul_add(b.0[i], -c.0[i])))
    }

    /// VFNMADD: `-(a·b) + c`, rounded once.
    fn _mm512_fnmadd_pd(a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        __m512d(from_fn(|i| (-a.0[i]).mul_add(b.0[i], c.0[i])))
    }

    /// VCMPPD, for the one predicate that is used.
    fn _mm512_cmp_pd_mask<IMM8>(a: __m512d, b: __m512d) -> __mmask8 {
        const { assert!(IMM8 == _CMP_LT_OQ, "no other predicate is emulated") }
        (0..8).fold(0, |k, i| k | __mmask8::from(a.0[i] < b.0[i]) << i)
    }

    /// VCVTUQQ2PD
    #[expect(clippy::cast_precision_loss, reason = "rounded to nearest even, as the instruction does")]
    fn _mm512_cvtepu64_pd(a: __m512i) -> __m512d {
        __m512d(a.0.map(|x| x as f64))
    }

    /// VCVTPD2UQQ: to nearest even; all ones for what is not in range.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an integer, checked to be in range")]
    fn _mm512_cvtpd_epu64(a: __m512d) -> __m512i {
        __m512i(a.0.map(|x| {
            let r = x.round_ties_even();
            if (0.0..18_446_744_073_709_551_616.0).contains(&r) { r as u64 } else { u64::MAX }
        }))
    }

    /// VCVTDQ2PD
    fn _mm512_cvtepi32_pd(a: __m256i) -> __m512d {
        __m512d(bytemuck::cast::<_, [i32; 8]>(a.0).map(f64::from))
    }

    /// VSHUFF64X2: pairs of lanes, two from `a`, then two from `b`, each chosen by two bits.
    fn _mm512_shuffle_f64x2<MASK>(a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| {
            let pair = MASK as usize >> (2 * (i / 2)) & 3;
            if i < 4 { a.0[2 * pair + i % 2] } else { b.0[2 * pair + i % 2] }
        }))
    }

    /// VPERMI2PD: bits 0 to 2 of an index choose the lane, bit 3 chooses `b`.
    fn _mm512_permutex2var_pd(a: __m512d, idx: __m512i, b: __m512d) -> __m512d {
        let lane = |k: u64| usize::from(k.to_le_bytes()[0] & 7);
        __m512d(idx.0.map(|k| if k & 8 == 0 { a.0[lane(k)] } else { b.0[lane(k)] }))
    }

    /// VUNPCKLPD: the even lanes of both, interleaved.
    fn _mm512_unpacklo_pd(a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| if i % 2 == 0 { a.0[i] } else { b.0[i - 1] }))
    }

    /// VUNPCKHPD: the odd lanes of both, interleaved.
    fn _mm512_unpackhi_pd(a: __m512d, b: __m512d) -> __m512d {
        __m512d(from_fn(|i| if i % 2 == 0 { a.0[i + 1] } else { b.0[i] }))
    }
}
