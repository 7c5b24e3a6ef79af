//! Instructions that AVX2 lacks, against their definition written in another way.

use super::{super::*, ROUNDS, float, same, word};
use crate::conformance::Numbers;
use std::array::from_fn;

/// A product of 52-bit numbers by halves of 26 bits: its low and its high 52 bits.
fn by_halves(b: u64, c: u64) -> (u64, u64) {
    const LOW: u64 = (1 << 26) - 1;
    let (b0, b1, c0, c1) = (b & LOW, (b >> 26) & LOW, c & LOW, (c >> 26) & LOW);
    let middle = b1 * c0 + b0 * c1 + ((b0 * c0) >> 26);
    (((middle & LOW) << 26) | ((b0 * c0) & LOW), b1 * c1 + (middle >> 26))
}

#[test]
fn multiply_adds_of_52_bits() {
    let mut numbers = Numbers(1);
    for _ in 0..ROUNDS {
        let [a, b, c]: [[u64; 8]; 3] = from_fn(|_| from_fn(|_| word(&mut numbers)));
        let low = _mm512_madd52lo_epu64(__m512i(a), __m512i(b), __m512i(c)).0;
        let high = _mm512_madd52hi_epu64(__m512i(a), __m512i(b), __m512i(c)).0;
        for i in 0..8 {
            let product = by_halves(b[i], c[i]);
            assert_eq!(low[i], a[i].wrapping_add(product.0), "{:x} {:x} {:x}", a[i], b[i], c[i]);
            assert_eq!(high[i], a[i].wrapping_add(product.1), "{:x} {:x} {:x}", a[i], b[i], c[i]);
        }
    }
    // By hand: (2^52 - 1)^2 = 2^104 - 2^53 + 1.
    let ones = __m512i([u64::MAX; 8]);
    assert_eq!(_mm512_madd52lo_epu64(__m512i([5; 8]), ones, ones).0, [6; 8]);
    assert_eq!(_mm512_madd52hi_epu64(__m512i([5; 8]), ones, ones).0, [(1 << 52) + 3; 8]);
}

#[test]
#[expect(clippy::cast_possible_truncation, reason = "16 and 32 bits of a word")]
fn dot_products_of_pairs_of_16_bits() {
    let mut numbers = Numbers(2);
    for _ in 0..ROUNDS {
        let [src, a, b]: [[u64; 8]; 3] = from_fn(|_| from_fn(|_| word(&mut numbers)));
        let got = _mm512_dpwssd_epi32(__m512i(src), __m512i(a), __m512i(b)).0;
        for i in 0..16 {
            let part = |x: &[u64; 8], bits: usize, at: usize| x[at / (64 / bits)] >> (bits * (at % (64 / bits)));
            let half = |x: &[u64; 8], at: usize| i64::from(part(x, 16, at) as i16);
            let sum = i64::from(part(&src, 32, i) as i32)
                + half(&a, 2 * i) * half(&b, 2 * i)
                + half(&a, 2 * i + 1) * half(&b, 2 * i + 1);
            assert_eq!(part(&got, 32, i) as u32, sum as u32, "{src:x?} {a:x?} {b:x?}");
        }
        let lower = |x: [u64; 8]| __m256i(from_fn(|i| x[i]));
        assert_eq!(_mm256_dpwssd_epi32(lower(src), lower(a), lower(b)).0[..], got[..4]);
    }
    // By hand: -1 + 2·2^30 wraps, as vpdpwssd does and vpdpwssds does not.
    let least = __m512i([0x8000_8000_8000_8000; 8]);
    assert_eq!(_mm512_dpwssd_epi32(__m512i([0; 8]), least, least).0, [0x8000_0000_8000_0000; 8]);
}

#[test]
fn words_and_floats() {
    let mut numbers = Numbers(3);
    for _ in 0..ROUNDS {
        let words: [u64; 8] = from_fn(|_| word(&mut numbers));
        for (got, x) in _mm512_cvtepu64_pd(__m512i(words)).0.into_iter().zip(words) {
            // The halves are exact, and their sum is rounded once.
            let [high, low] = [x >> 32, x & 0xffff_ffff].map(crate::cpu::f64_of);
            assert!(same(got, high * 4_294_967_296.0 + low), "{x}");
        }
        let floats: [f64; 8] = from_fn(|_| float(&mut numbers));
        for (got, x) in _mm512_cvtpd_epu64(__m512d(floats)).0.into_iter().zip(floats) {
            assert_eq!(got, to_word(x), "{x:e}");
        }
    }
    // By hand: ties to even, and all ones outside.
    let cases = [0.5, 1.5, 2.5, -0.5, -0.75, -1.0, 18_446_744_073_709_551_616.0, f64::NAN];
    assert_eq!(_mm512_cvtpd_epu64(__m512d(cases)).0, [0, 2, 2, 0, u64::MAX, u64::MAX, u64::MAX, u64::MAX]);
}

/// The nearest word from the bits of a number, ties to even; all ones for what has none.
fn to_word(x: f64) -> u64 {
    let (exponent, fraction) = ((x.to_bits() >> 52) & 0x7ff, (x.to_bits() & ((1 << 52) - 1)) | 1 << 52);
    let nearest = match exponent {
        // Below 1/2; with a fraction; without one; from 2^64 on.
        0..1022 => 0,
        1022..1075 => {
            let drop = 1075 - exponent;
            let (whole, rest, half) = (fraction >> drop, fraction & ((1 << drop) - 1), 1 << (drop - 1));
            whole + u64::from(rest > half || (rest == half && whole % 2 == 1))
        }
        1075..1087 => fraction << (exponent - 1075),
        _ => return u64::MAX,
    };
    if x.is_sign_negative() && nearest > 0 { u64::MAX } else { nearest }
}

#[test]
fn lanes_by_hand() {
    let x = __m512d([0., 1., 2., 3., 4., 5., 6., 7.]);
    let y = __m512d([10., 11., 12., 13., 14., 15., 16., 17.]);
    assert_eq!(_mm512_shuffle_f64x2::<0b11_10_01_00>(x, y).0, [0., 1., 2., 3., 14., 15., 16., 17.]);
    assert_eq!(_mm512_shuffle_f64x2::<0b00_01_10_11>(x, y).0, [6., 7., 4., 5., 12., 13., 10., 11.]);
    assert_eq!(_mm512_unpacklo_pd(x, y).0, [0., 10., 2., 12., 4., 14., 6., 16.]);
    assert_eq!(_mm512_unpackhi_pd(x, y).0, [1., 11., 3., 13., 5., 15., 7., 17.]);
    let index = _mm512_set_epi64(-1, 14, 5, 12, 3, 10, 1, 8);
    assert_eq!(index.0, [8, 1, 10, 3, 12, 5, 14, u64::MAX]);
    assert_eq!(_mm512_permutex2var_pd(x, index, y).0, [10., 1., 12., 3., 14., 5., 16., 17.]);
    let signs = __m512d([-1., 1., -0., 0., f64::NAN, 0., -2., 9.]);
    assert_eq!(_mm512_cmp_pd_mask::<_CMP_LT_OQ>(signs, _mm512_setzero_pd()), 0b0100_0001);
    assert_eq!(_mm512_mask_add_pd(x, 0b1000_0010, x, y).0, [0., 12., 2., 3., 4., 5., 6., 24.]);
    assert_eq!(_mm512_set1_epi32(-2).0, [0xffff_fffe_ffff_fffe; 8]);
    assert_eq!(_mm512_reduce_add_epi64(__m512i([u64::MAX, 1, 2, 3, 4, 5, 6, 7])), 27);
    let sixteen = __m512i([0xffff_ffff_8000_0000, 0x8000_0000, 5, 6, 7, 8, 9, 10 << 32]);
    assert_eq!(_mm512_reduce_add_epi32(sixteen), 44);
}
