//! Instructions that AVX2, AVX and FMA have in 256 bits: the halves of this processor's results.

use super::{super::*, ROUNDS, float, same, word};
use crate::conformance::Numbers;
use std::{arch::x86_64 as real, array::from_fn};

type Doubles = [f64; 8];
type Words = [u64; 8];

#[test]
fn equals_this_processor() {
    if !(is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")) {
        eprintln!("this machine has no AVX2: nothing to compare with");
        return;
    }
    let mut numbers = Numbers(4);
    for _ in 0..ROUNDS {
        let floats: [Doubles; 3] = from_fn(|_| from_fn(|_| float(&mut numbers)));
        let words: [Words; 3] = from_fn(|_| from_fn(|_| word(&mut numbers)));
        // SAFETY: both features were just detected.
        unsafe {
            arithmetic(floats);
            movement(floats, words[0]);
            integers(words);
        }
    }
}

#[track_caller]
fn equal(name: &str, emulated: __m512d, processor: Doubles) {
    let all = emulated.0.iter().zip(processor).all(|(&e, p)| same(e, p));
    assert!(all, "{name}: emulated {emulated:?}, processor {processor:?}");
}

/// The halves of an array in registers.
#[target_feature(enable = "avx2")]
fn pd(x: &Doubles) -> [real::__m256d; 2] {
    // SAFETY: four numbers are readable at each half.
    unsafe { [real::_mm256_loadu_pd(x.as_ptr()), real::_mm256_loadu_pd(x.as_ptr().add(4))] }
}

#[target_feature(enable = "avx2")]
fn from_pd(x: [real::__m256d; 2]) -> Doubles {
    let mut out = [0.0; 8];
    // SAFETY: four numbers are writable at each half.
    unsafe {
        real::_mm256_storeu_pd(out.as_mut_ptr(), x[0]);
        real::_mm256_storeu_pd(out.as_mut_ptr().add(4), x[1]);
    }
    out
}

#[target_feature(enable = "avx2")]
fn si(x: &Words) -> [real::__m256i; 2] {
    pd(&x.map(f64::from_bits)).map(|x| real::_mm256_castpd_si256(x))
}

#[target_feature(enable = "avx2")]
fn from_si(x: [real::__m256i; 2]) -> Words {
    from_pd(x.map(|x| real::_mm256_castsi256_pd(x))).map(f64::to_bits)
}

#[target_feature(enable = "avx2,fma")]
fn arithmetic([a, b, c]: [Doubles; 3]) {
    let (x, y, z) = (pd(&a), pd(&b), pd(&c));
    let (a, b, c) = (__m512d(a), __m512d(b), __m512d(c));
    equal("add", _mm512_add_pd(a, b), from_pd(from_fn(|h| real::_mm256_add_pd(x[h], y[h]))));
    equal("sub", _mm512_sub_pd(a, b), from_pd(from_fn(|h| real::_mm256_sub_pd(x[h], y[h]))));
    equal("mul", _mm512_mul_pd(a, b), from_pd(from_fn(|h| real::_mm256_mul_pd(x[h], y[h]))));
    equal("fmadd", _mm512_fmadd_pd(a, b, c), from_pd(from_fn(|h| real::_mm256_fmadd_pd(x[h], y[h], z[h]))));
    equal("fmsub", _mm512_fmsub_pd(a, b, c), from_pd(from_fn(|h| real::_mm256_fmsub_pd(x[h], y[h], z[h]))));
    equal("fnmadd", _mm512_fnmadd_pd(a, b, c), from_pd(from_fn(|h| real::_mm256_fnmadd_pd(x[h], y[h], z[h]))));

    let less: [_; 2] = from_fn(|h| real::_mm256_cmp_pd::<{ real::_CMP_LT_OQ }>(x[h], y[h]));
    let bits = real::_mm256_movemask_pd(less[0]) | real::_mm256_movemask_pd(less[1]) << 4;
    let mask = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(a, b);
    assert_eq!(i32::from(mask), bits, "cmp {a:?} {b:?}");
    let blend = from_fn(|h| real::_mm256_blendv_pd(z[h], real::_mm256_add_pd(x[h], y[h]), less[h]));
    equal("mask_add", _mm512_mask_add_pd(c, mask, a, b), from_pd(blend));
}

#[target_feature(enable = "avx2,fma")]
fn movement([a, b, _]: [Doubles; 3], index: Words) {
    let (x, y) = (pd(&a), pd(&b));
    let (u, v) = (__m512d(a), __m512d(b));
    equal("unpacklo", _mm512_unpacklo_pd(u, v), from_pd(from_fn(|h| real::_mm256_unpacklo_pd(x[h], y[h]))));
    equal("unpackhi", _mm512_unpackhi_pd(u, v), from_pd(from_fn(|h| real::_mm256_unpackhi_pd(x[h], y[h]))));
    // The halves of a shuffle take pairs from one source each; vperm2f128 chooses by bits 0, 1 and 4, 5.
    let low = [real::_mm256_permute2f128_pd::<0x10>(x[0], x[1]), real::_mm256_permute2f128_pd::<0x10>(y[0], y[1])];
    equal("shuffle 0, 1", _mm512_shuffle_f64x2::<0b01_00_01_00>(u, v), from_pd(low));
    let high = [real::_mm256_permute2f128_pd::<0x32>(x[0], x[1]), real::_mm256_permute2f128_pd::<0x32>(y[0], y[1])];
    equal("shuffle 2, 3", _mm512_shuffle_f64x2::<0b11_10_11_10>(u, v), from_pd(high));
    let mixed = [real::_mm256_permute2f128_pd::<0x13>(x[0], x[1]), real::_mm256_permute2f128_pd::<0x02>(y[0], y[1])];
    equal("shuffle 3, 1, 2, 0", _mm512_shuffle_f64x2::<0b00_10_01_11>(u, v), from_pd(mixed));
    // A permutation of two sources is a gather from both, one behind the other.
    let both = [a, b];
    let gathered = si(&index.map(|k| k & 15)).map(|k| {
        // SAFETY: indices are below 16, the numbers of `both`.
        unsafe { real::_mm256_i64gather_pd::<8>(both.as_ptr().cast(), k) }
    });
    equal("permutex2var", _mm512_permutex2var_pd(u, __m512i(index), v), from_pd(gathered));
}

#[target_feature(enable = "avx2,fma")]
fn integers([a, b, c]: [Words; 3]) {
    let (x, y, z) = (si(&a), si(&b), si(&c));
    let low = __m256i([a[0], a[1], a[2], a[3]]);
    let sum = from_si(from_fn(|h| real::_mm256_add_epi64(x[h], y[h])));
    assert_eq!(_mm512_add_epi64(__m512i(a), __m512i(b)).0, sum);
    // vpmaddwd wraps in one case, 2·(-2^15)^2, and modulo 2^32 that is no difference.
    let pairs = from_si(from_fn(|h| real::_mm256_add_epi32(x[h], real::_mm256_madd_epi16(y[h], z[h]))));
    assert_eq!(_mm512_dpwssd_epi32(__m512i(a), __m512i(b), __m512i(c)).0, pairs, "{a:x?} {b:x?} {c:x?}");

    let quarters = [real::_mm256_castsi256_si128(x[0]), real::_mm256_extracti128_si256::<1>(x[0])];
    let spread = from_si(quarters.map(|q| real::_mm256_cvtepi8_epi16(q)));
    assert_eq!(_mm512_cvtepi8_epi16(low).0, spread, "{a:x?}");
    equal("cvtepi32_pd", _mm512_cvtepi32_pd(low), from_pd(quarters.map(|q| real::_mm256_cvtepi32_pd(q))));
    let moved = _mm_cvtsi64_si128(a[0].cast_signed());
    let bytes = real::_mm256_cvtepi8_epi32(real::_mm_cvtsi64_si128(a[0].cast_signed()));
    assert_eq!(_mm256_cvtepi8_epi32(moved).0[..], from_si([bytes; 2])[..4], "{a:x?}");

    let even = real::_mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    let halves = x.map(|x| real::_mm256_castsi256_si128(real::_mm256_permutevar8x32_epi32(x, even)));
    let truncated = from_si([real::_mm256_set_m128i(halves[1], halves[0]); 2]);
    assert_eq!(_mm512_cvtepi64_epi32(__m512i(a)).0[..], truncated[..4]);

    let sums = from_si([real::_mm256_add_epi64(x[0], x[1]); 2]);
    let total = sums[..4].iter().fold(0u64, |sum, &x| sum.wrapping_add(x));
    assert_eq!(_mm512_reduce_add_epi64(__m512i(a)), total.cast_signed());
    let sums = real::_mm256_add_epi32(x[0], x[1]);
    let fours = real::_mm_add_epi32(real::_mm256_castsi256_si128(sums), real::_mm256_extracti128_si256::<1>(sums));
    let twos = real::_mm_hadd_epi32(fours, fours);
    assert_eq!(_mm512_reduce_add_epi32(__m512i(a)), real::_mm_cvtsi128_si32(real::_mm_hadd_epi32(twos, twos)));
}
