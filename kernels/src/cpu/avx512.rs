//! Lanes of AVX-512: eight residues a vector; 52-bit multiply-adds for pinned products, VNNI for bytes.
//!
//! Executed by every test run with emulated instructions (package `kernels-emulated`), and compared with portable code
//! at each start on a processor that has them (`selftest`).

#![cfg_attr(emulated_avx512, expect(unused_unsafe, reason = "emulated instructions are safe functions"))]

use super::{DigitPlane, Field, Kernel, Lanes};

#[cfg(emulated_avx512)]
mod emulated;
#[cfg(emulated_avx512)]
use emulated::*;
#[cfg(not(emulated_avx512))]
use std::arch::x86_64::*;

/// Proof that this machine has AVX-512 F, DQ, BW, VL, IFMA and VNNI: made by [`Avx512::detect`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Avx512(());

/// 1.5·2^52, as in `avx2`.
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// How far ahead a row of weights is asked for, in bytes.
const PREFETCH_I8: usize = 1024;

impl Avx512 {
    /// The proof, if the processor gives it.
    #[cfg(not(emulated_avx512))]
    pub(crate) fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("fma");
        has.then_some(Self(()))
    }

    /// Emulated instructions are there on every machine.
    #[cfg(emulated_avx512)]
    #[expect(clippy::unnecessary_wraps, reason = "the signature of a real detection")]
    pub(crate) fn detect() -> Option<Self> {
        Some(Self(()))
    }

    /// Runs a kernel compiled for these instructions.
    pub(crate) fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[cfg_attr(
            not(emulated_avx512),
            target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512ifma,avx512vnni,fma")
        )]
        fn inner<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
            kernel.run(token)
        }
        // SAFETY: `self` exists, so `detect` found all features.
        unsafe { inner(self, kernel) }
    }
}

/// Lane numbers for a two-source permutation: those below 8 come from the first vector.
#[cfg_attr(not(emulated_avx512), target_feature(enable = "avx512f"))]
fn lanes(x: [i64; 8]) -> __m512i {
    _mm512_set_epi64(x[7], x[6], x[5], x[4], x[3], x[2], x[1], x[0])
}

#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
impl Lanes for Avx512 {
    type V = __m512d;
    type Acc = __m512i;
    /// Sums of the low and of the high 52 bits of products.
    type Sum = [__m512i; 2];
    type Fixed = __m512i;
    type Block = [f64; 8];
    const WIDTH: usize = 8;
    const DRIFT: i64 = MAGIC.to_bits().cast_signed();

    #[inline(always)]
    fn splat(self, x: f64) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_set1_pd(x) }
    }

    #[inline(always)]
    fn load(self, at: &[f64; 8]) -> __m512d {
        // SAFETY: the token proves AVX-512F; `at` is 64 readable bytes.
        unsafe { _mm512_loadu_pd(at.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m512d, at: &mut [f64; 8]) {
        // SAFETY: the token proves AVX-512F; `at` is 64 writable bytes.
        unsafe { _mm512_storeu_pd(at.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_words(self, at: &[f64; 8]) -> __m512d {
        // SAFETY: the token proves AVX-512F and DQ; `at` is 64 readable bytes.
        unsafe { _mm512_cvtepu64_pd(_mm512_castpd_si512(_mm512_loadu_pd(at.as_ptr()))) }
    }

    #[inline(always)]
    fn store_words(self, f: &Field<__m512d>, v: __m512d, at: &mut [f64; 8]) {
        // SAFETY: the token proves AVX-512F and DQ; `at` is 64 writable bytes.
        unsafe {
            let negative = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(v, _mm512_setzero_pd());
            let v = _mm512_mask_add_pd(v, negative, v, f.q);
            _mm512_storeu_pd(at.as_mut_ptr(), _mm512_castsi512_pd(_mm512_cvtpd_epu64(v)));
        }
    }

    #[inline(always)]
    fn load_i8(self, at: &[i8]) -> __m512d {
        let at = [at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]].map(i8::cast_unsigned);
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_cvtepi32_pd(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(at)))) }
    }

    #[inline(always)]
    fn add(self, a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_add_pd(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_sub_pd(a, b) }
    }

    #[inline(always)]
    fn mul_small(self, a: __m512d, b: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_mul_pd(a, b) }
    }

    #[inline(always)]
    fn mul_add_small(self, a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    fn fused(self, a: __m512d, b: __m512d, c: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    fn store_low(self, v: __m512d, at: &mut [u32]) {
        let at: &mut [u32; 8] = at.first_chunk_mut().expect("eight words");
        // SAFETY: the token proves AVX-512F; `at` is 32 writable bytes.
        unsafe {
            let bits = _mm512_castpd_si512(_mm512_add_pd(v, _mm512_set1_pd(MAGIC)));
            _mm256_storeu_si256(at.as_mut_ptr().cast(), _mm512_cvtepi64_epi32(bits));
        }
    }

    #[inline(always)]
    fn mul(self, f: &Field<__m512d>, x: __m512d, w: __m512d, wq: __m512d) -> __m512d {
        // As in `avx2`. SAFETY: the token proves AVX-512F.
        unsafe {
            let magic = _mm512_set1_pd(MAGIC);
            let h = _mm512_mul_pd(x, w);
            let c = _mm512_sub_pd(_mm512_fmadd_pd(x, wq, magic), magic);
            let l = _mm512_fmsub_pd(x, w, h);
            _mm512_add_pd(_mm512_fnmadd_pd(c, f.q, h), l)
        }
    }

    #[inline(always)]
    fn quotient(self, f: &Field<__m512d>, w: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_mul_pd(w, f.q_inv) }
    }

    #[inline(always)]
    fn reduce(self, f: &Field<__m512d>, x: __m512d) -> __m512d {
        // SAFETY: the token proves AVX-512F.
        unsafe {
            let magic = _mm512_set1_pd(MAGIC);
            let c = _mm512_sub_pd(_mm512_fmadd_pd(x, f.q_inv, magic), magic);
            _mm512_fnmadd_pd(c, f.q, x)
        }
    }

    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_setzero_si512() }
    }

    #[inline(always)]
    fn mac(self, f: &Field<__m512d>, acc: __m512i, x: __m512d, w: __m512d, wq: __m512d) -> __m512i {
        // As in `avx2`. SAFETY: the token proves AVX-512F.
        unsafe {
            let r = self.mul(f, x, w, wq);
            _mm512_add_epi64(acc, _mm512_castpd_si512(_mm512_add_pd(r, _mm512_set1_pd(MAGIC))))
        }
    }

    #[inline(always)]
    fn total(self, acc: __m512i) -> i64 {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_reduce_add_epi64(acc) }
    }

    #[inline(always)]
    fn pack(self, f: &Field<__m512d>, v: __m512d) -> __m512d {
        // The residue itself, in [0, q): vpmadd52 reads the low 52 bits of a lane.
        let mut words = [0.0; 8];
        self.store_words(f, v, &mut words);
        self.load(&words)
    }

    #[inline(always)]
    fn fix(self, input: &[f64; 8]) -> __m512i {
        // SAFETY: the token proves AVX-512F.
        unsafe { _mm512_castpd_si512(self.load(input)) }
    }

    #[inline(always)]
    fn sum_zero(self) -> [__m512i; 2] {
        [self.zero(); 2]
    }

    #[inline(always)]
    fn sum_add(self, sum: [__m512i; 2], weight: &[f64; 8], input: __m512i) -> [__m512i; 2] {
        // Each step adds less than 2^52 to a lane, and 1016 of them stay below 2^62.
        // SAFETY: the token proves AVX-512 IFMA.
        unsafe {
            let weight = _mm512_castpd_si512(self.load(weight));
            [_mm512_madd52lo_epu64(sum[0], weight, input), _mm512_madd52hi_epu64(sum[1], weight, input)]
        }
    }

    #[inline(always)]
    fn sum_total(self, sum: [__m512i; 2]) -> [u64; 3] {
        [self.total(sum[0]).cast_unsigned(), 0, self.total(sum[1]).cast_unsigned()]
    }

    #[inline(always)]
    fn deal(self, pair: &[[f64; 8]]) -> (__m512d, __m512d) {
        let (a, b) = (self.load(&pair[0]), self.load(&pair[1]));
        // SAFETY: the token proves AVX-512F.
        unsafe { (_mm512_shuffle_f64x2::<0b01_00_01_00>(a, b), _mm512_shuffle_f64x2::<0b11_10_11_10>(a, b)) }
    }

    #[inline(always)]
    fn undeal(self, u: __m512d, v: __m512d, pair: &mut [[f64; 8]]) {
        // SAFETY: the token proves AVX-512F.
        let (a, b) =
            unsafe { (_mm512_shuffle_f64x2::<0b01_00_01_00>(u, v), _mm512_shuffle_f64x2::<0b11_10_11_10>(u, v)) };
        self.store(a, &mut pair[0]);
        self.store(b, &mut pair[1]);
    }

    #[inline(always)]
    fn turn(self, t: usize, u: __m512d, v: __m512d) -> (__m512d, __m512d) {
        // Of 16 elements in order, `u` holds those whose number has the bit t clear and `v` the others. The
        // elements with bit t/2 clear, in order, are lanes with that bit clear, taken in runs of t/2 from u and v.
        // SAFETY: the token proves AVX-512F.
        unsafe {
            if t == 4 {
                let clear = lanes([0, 1, 8, 9, 4, 5, 12, 13]);
                let set = lanes([2, 3, 10, 11, 6, 7, 14, 15]);
                (_mm512_permutex2var_pd(u, clear, v), _mm512_permutex2var_pd(u, set, v))
            } else {
                (_mm512_unpacklo_pd(u, v), _mm512_unpackhi_pd(u, v))
            }
        }
    }

    #[inline(always)]
    fn unturn(self, t: usize, u: __m512d, v: __m512d) -> (__m512d, __m512d) {
        // Both permutations are their own inverses.
        self.turn(t, u, v)
    }

    #[inline(always)]
    fn prefetch(self, at: &[[f64; 8]], index: usize) {
        // SAFETY: a prefetch has no effect on memory and does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().wrapping_add(index).cast()) }
    }

    #[inline(always)]
    fn load_i32(self, at: &[i32]) -> __m512d {
        let eight: &[i32; 8] = at.first_chunk().expect("eight words");
        // SAFETY: the token proves AVX-512F; `eight` is 32 readable bytes.
        unsafe { _mm512_cvtepi32_pd(_mm256_loadu_si256(eight.as_ptr().cast())) }
    }

    #[inline(always)]
    fn digit_rows<const P: usize>(
        self,
        weights: [&[[i16; 2]]; 4],
        digits: &[[DigitPlane; P]],
        acc: &mut [[[i32; 8]; P]; 4],
    ) {
        let len = digits.len();
        assert!(weights.iter().all(|r| r.len() == len), "as many pairs of weights as of columns");
        // SAFETY: the token proves AVX-512F, VL and VNNI; `k < len`, checked equal above; a plane is half a vector, a
        // pair of weights 4 bytes, a row of `acc` P halves.
        unsafe {
            // Planes two by two, and the last one alone if their number is odd.
            let (mut twos, mut ones) = ([[_mm512_setzero_si512(); 2]; 4], [_mm256_setzero_si256(); 4]);
            for k in 0..len {
                let d: *const DigitPlane = digits.as_ptr().add(k).cast();
                for (r, row) in weights.iter().enumerate() {
                    let w = row.as_ptr().add(k).cast::<i32>().read_unaligned();
                    let wide = _mm512_set1_epi32(w);
                    for (h, sum) in twos[r].iter_mut().enumerate().take(P / 2) {
                        *sum = _mm512_dpwssd_epi32(*sum, wide, _mm512_loadu_si512(d.add(2 * h).cast()));
                    }
                    if P % 2 == 1 {
                        let last = _mm256_loadu_si256(d.add(P - 1).cast());
                        ones[r] = _mm256_dpwssd_epi32(ones[r], _mm512_castsi512_si256(wide), last);
                    }
                }
            }
            for (r, row) in acc.iter_mut().enumerate() {
                let row = row.as_mut_ptr();
                for (h, sum) in twos[r].iter().enumerate().take(P / 2) {
                    _mm512_storeu_si512(row.add(2 * h).cast(), *sum);
                }
                if P % 2 == 1 {
                    _mm256_storeu_si256(row.add(P - 1).cast(), ones[r]);
                }
            }
        }
    }

    #[inline(always)]
    fn dot4(self, rows: [&[i8]; 4], high: &[i16], low: &[i16]) -> [(i32, i32); 4] {
        let len = high.len();
        assert!(low.len() == len && rows.iter().all(|r| r.len() == len), "rows and planes have one length");
        let mut sums = [(0, 0); 4];
        // As in `avx2`: pairs are exact in i32, their sums wrap.
        // SAFETY: the token proves AVX-512 BW and VNNI; every load at `i` has i + 32 <= len, checked equal above.
        unsafe {
            let mut acc = [_mm512_setzero_si512(); 8];
            let mut i = 0;
            while i + 32 <= len {
                let h = _mm512_loadu_si512(high.as_ptr().add(i).cast());
                let l = _mm512_loadu_si512(low.as_ptr().add(i).cast());
                for r in 0..4 {
                    let at = rows[r].as_ptr().add(i);
                    if i % 64 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH_I8));
                    }
                    let w = _mm512_cvtepi8_epi16(_mm256_loadu_si256(at.cast()));
                    acc[2 * r] = _mm512_dpwssd_epi32(acc[2 * r], w, h);
                    acc[2 * r + 1] = _mm512_dpwssd_epi32(acc[2 * r + 1], w, l);
                }
                i += 32;
            }
            for r in 0..4 {
                sums[r] = (_mm512_reduce_add_epi32(acc[2 * r]), _mm512_reduce_add_epi32(acc[2 * r + 1]));
                for (k, &w) in rows[r].iter().enumerate().skip(i) {
                    sums[r].0 = sums[r].0.wrapping_add(i32::from(w) * i32::from(high[k]));
                    sums[r].1 = sums[r].1.wrapping_add(i32::from(w) * i32::from(low[k]));
                }
            }
        }
        sums
    }
}
