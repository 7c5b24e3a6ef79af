//! The peak of the processor's dot products of bytes, in registers alone.

use std::hint::black_box;

/// Dot products of one call of [`peak`].
pub(super) const STEPS: usize = 1 << 19;

/// Multiply-adds of bytes in one step of [`peak`].
pub(super) fn width() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if vnni() {
            return 64;
        }
        if is_x86_feature_detected!("avx2") {
            return 32;
        }
    }
    1
}

#[cfg(target_arch = "x86_64")]
fn vnni() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
}

/// Dot products of bytes in registers alone, [`STEPS`] of them: what no product of matrices can exceed.
pub(super) fn peak() {
    #[cfg(target_arch = "x86_64")]
    {
        if vnni() {
            // SAFETY: just detected.
            return unsafe { x86::vnni(STEPS) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: just detected.
            return unsafe { x86::avx2(STEPS) };
        }
    }
    let (mut sum, w) = (0i32, black_box(3i8));
    for i in 0..i32::try_from(STEPS).expect("small") {
        sum = sum.wrapping_add(i32::from(w) * i);
    }
    black_box(sum);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{arch::x86_64::*, hint::black_box};

    /// vpmaddubsw, vpmaddwd and vpaddd on twelve independent sums.
    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(steps: usize) {
        let (a, b, ones) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(-5)), _mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); 12];
        for i in 0..steps / 12 {
            let a = _mm256_xor_si256(a, _mm256_set1_epi32(i32::from(i % 2 == 1)));
            for sum in &mut sums {
                // Something of the sum goes in, so that nothing is computed once for all.
                let pairs = _mm256_maddubs_epi16(a, _mm256_or_si256(b, *sum));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        black_box(sums);
    }

    /// vpdpbusd on sixteen independent sums.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) fn vnni(steps: usize) {
        let (a, b) = (black_box(_mm512_set1_epi8(3)), black_box(_mm512_set1_epi8(-5)));
        let mut sums = [_mm512_setzero_si512(); 16];
        for _ in 0..steps / 16 {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }
}
