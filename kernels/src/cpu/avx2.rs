//! Lanes of AVX2 and FMA: four residues a vector.

use super::{DigitPlane, Field, Kernel, Lanes};
use std::arch::x86_64::*;

/// Proof that this machine has AVX2 and FMA: made by [`Avx2::detect`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Avx2(());

/// 1.5·2^52: adding it to |x| < 2^51 rounds x to an integer and leaves it in the low bits of the sum.
const MAGIC: f64 = 6_755_399_441_055_744.0;
/// 2^52
const TWO52: f64 = 4_503_599_627_370_496.0;

impl Avx2 {
    /// The proof, if the processor gives it.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Self(()))
    }

    /// Runs a kernel compiled for these instructions.
    pub(crate) fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma")]
        fn inner<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
            kernel.run(token)
        }
        // SAFETY: `self` exists, so `detect` found both features.
        unsafe { inner(self, kernel) }
    }
}

/// The wrapping sums of the lanes of eight vectors, four and four.
#[target_feature(enable = "avx2")]
fn sums_i32(v: &[__m256i; 8]) -> [[i32; 4]; 2] {
    let four = |v: &[__m256i]| {
        let pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
        let sums = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
        [
            _mm_cvtsi128_si32(sums),
            _mm_extract_epi32::<1>(sums),
            _mm_extract_epi32::<2>(sums),
            _mm_extract_epi32::<3>(sums),
        ]
    };
    [four(&v[..4]), four(&v[4..])]
}

#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
impl Lanes for Avx2 {
    type V = __m256d;
    type Acc = __m256i;
    /// Sums of low·low, (low + high)·(low + high) and high·high.
    type Sum = [__m256i; 3];
    /// low, low + high and high.
    type Fixed = [__m256i; 3];
    type Block = [f64; 4];
    const WIDTH: usize = 4;
    const DRIFT: i64 = MAGIC.to_bits().cast_signed();

    #[inline(always)]
    fn splat(self, x: f64) -> __m256d {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_set1_pd(x) }
    }

    #[inline(always)]
    fn load(self, at: &[f64; 4]) -> __m256d {
        // SAFETY: the token proves AVX; `at` is 32 readable bytes.
        unsafe { _mm256_loadu_pd(at.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m256d, at: &mut [f64; 4]) {
        // SAFETY: the token proves AVX; `at` is 32 writable bytes.
        unsafe { _mm256_storeu_pd(at.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_words(self, at: &[f64; 4]) -> __m256d {
        // An integer x < 2^52 in the mantissa of 2^52 is the number 2^52 + x.
        // SAFETY: the token proves AVX; `at` is 32 readable bytes.
        unsafe {
            let two52 = _mm256_set1_pd(TWO52);
            _mm256_sub_pd(_mm256_or_pd(_mm256_loadu_pd(at.as_ptr()), two52), two52)
        }
    }

    #[inline(always)]
    fn store_words(self, f: &Field<__m256d>, v: __m256d, at: &mut [f64; 4]) {
        // SAFETY: the token proves AVX; `at` is 32 writable bytes.
        unsafe {
            let negative = _mm256_cmp_pd::<_CMP_LT_OQ>(v, _mm256_setzero_pd());
            let v = _mm256_add_pd(v, _mm256_and_pd(negative, f.q));
            let two52 = _mm256_set1_pd(TWO52);
            _mm256_storeu_pd(at.as_mut_ptr(), _mm256_xor_pd(_mm256_add_pd(v, two52), two52));
        }
    }

    #[inline(always)]
    fn load_i8(self, at: &[i8]) -> __m256d {
        let word = i32::from_le_bytes([at[0], at[1], at[2], at[3]].map(i8::cast_unsigned));
        // SAFETY: the token proves AVX2.
        unsafe { _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(word))) }
    }

    #[inline(always)]
    fn add(self, a: __m256d, b: __m256d) -> __m256d {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_add_pd(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256d, b: __m256d) -> __m256d {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_sub_pd(a, b) }
    }

    #[inline(always)]
    fn mul_small(self, a: __m256d, b: __m256d) -> __m256d {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_mul_pd(a, b) }
    }

    #[inline(always)]
    fn mul_add_small(self, a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        // SAFETY: the token proves FMA.
        unsafe { _mm256_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    fn fused(self, a: __m256d, b: __m256d, c: __m256d) -> __m256d {
        // SAFETY: the token proves FMA.
        unsafe { _mm256_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    fn store_low(self, v: __m256d, at: &mut [u32]) {
        let at: &mut [u32; 4] = at.first_chunk_mut().expect("four words");
        // SAFETY: the token proves AVX2; `at` is 16 writable bytes.
        unsafe {
            let bits = _mm256_castpd_si256(_mm256_add_pd(v, _mm256_set1_pd(MAGIC)));
            let even = _mm256_permutevar8x32_epi32(bits, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
            _mm_storeu_si128(at.as_mut_ptr().cast(), _mm256_castsi256_si128(even));
        }
    }

    #[inline(always)]
    fn mul(self, f: &Field<__m256d>, x: __m256d, w: __m256d, wq: __m256d) -> __m256d {
        // The module documentation of `cpu` has the proof. |x·wq| <= q < 2^51 is what MAGIC needs.
        // SAFETY: the token proves FMA.
        unsafe {
            let magic = _mm256_set1_pd(MAGIC);
            let h = _mm256_mul_pd(x, w);
            let c = _mm256_sub_pd(_mm256_fmadd_pd(x, wq, magic), magic);
            let l = _mm256_fmsub_pd(x, w, h);
            _mm256_add_pd(_mm256_fnmadd_pd(c, f.q, h), l)
        }
    }

    #[inline(always)]
    fn quotient(self, f: &Field<__m256d>, w: __m256d) -> __m256d {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_mul_pd(w, f.q_inv) }
    }

    #[inline(always)]
    fn reduce(self, f: &Field<__m256d>, x: __m256d) -> __m256d {
        // SAFETY: the token proves FMA.
        unsafe {
            let magic = _mm256_set1_pd(MAGIC);
            let c = _mm256_sub_pd(_mm256_fmadd_pd(x, f.q_inv, magic), magic);
            _mm256_fnmadd_pd(c, f.q, x)
        }
    }

    #[inline(always)]
    fn zero(self) -> __m256i {
        // SAFETY: the token proves AVX.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn mac(self, f: &Field<__m256d>, acc: __m256i, x: __m256d, w: __m256d, wq: __m256d) -> __m256i {
        // |product| < q < 2^51, so adding MAGIC leaves it as an integer in the low bits: one wrapping
        // integer addition accumulates it, and MAGIC's own bits add up to DRIFT a step.
        // SAFETY: the token proves AVX2 and FMA.
        unsafe {
            let r = self.mul(f, x, w, wq);
            _mm256_add_epi64(acc, _mm256_castpd_si256(_mm256_add_pd(r, _mm256_set1_pd(MAGIC))))
        }
    }

    #[inline(always)]
    fn total(self, acc: __m256i) -> i64 {
        let mut lanes = [0i64; 4];
        // SAFETY: the token proves AVX; `lanes` is 32 writable bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), acc) };
        lanes[0].wrapping_add(lanes[1]).wrapping_add(lanes[2]).wrapping_add(lanes[3])
    }

    #[inline(always)]
    fn pack(self, f: &Field<__m256d>, v: __m256d) -> __m256d {
        // The low 26 bits at bit 0 and the others at bit 32: vpmuludq reads the low 32 bits of a lane only.
        let mut words = [0.0; 4];
        self.store_words(f, v, &mut words);
        // SAFETY: the token proves AVX2.
        unsafe {
            let words = _mm256_castpd_si256(self.load(&words));
            let low = _mm256_and_si256(words, _mm256_set1_epi64x((1 << 26) - 1));
            let high = _mm256_slli_epi64::<32>(_mm256_srli_epi64::<26>(words));
            _mm256_castsi256_pd(_mm256_or_si256(low, high))
        }
    }

    #[inline(always)]
    fn fix(self, input: &[f64; 4]) -> [__m256i; 3] {
        // SAFETY: the token proves AVX2.
        unsafe {
            let low = _mm256_castpd_si256(self.load(input));
            let high = _mm256_srli_epi64::<32>(low);
            [low, _mm256_add_epi64(low, high), high]
        }
    }

    #[inline(always)]
    fn sum_zero(self) -> [__m256i; 3] {
        [self.zero(); 3]
    }

    #[inline(always)]
    fn sum_add(self, sum: [__m256i; 3], weight: &[f64; 4], input: [__m256i; 3]) -> [__m256i; 3] {
        // Karatsuba on halves: low < 2^26, high < 2^25, so the products are below 2^52, 2.25·2^52 and 2^50,
        // and 1016 of them stay below 2^64 even when all lanes are added.
        // SAFETY: the token proves AVX2.
        unsafe {
            let low = _mm256_castpd_si256(self.load(weight));
            let high = _mm256_srli_epi64::<32>(low);
            let both = _mm256_add_epi64(low, high);
            [
                _mm256_add_epi64(sum[0], _mm256_mul_epu32(low, input[0])),
                _mm256_add_epi64(sum[1], _mm256_mul_epu32(both, input[1])),
                _mm256_add_epi64(sum[2], _mm256_mul_epu32(high, input[2])),
            ]
        }
    }

    #[inline(always)]
    fn sum_total(self, sum: [__m256i; 3]) -> [u64; 3] {
        // x = low·low + 2^26·(both·both - low·low - high·high) + 2^52·high·high; no difference is negative.
        let low = self.total(sum[0]).cast_unsigned();
        let both = self.total(sum[1]).cast_unsigned();
        let high = self.total(sum[2]).cast_unsigned();
        [low, both.wrapping_sub(low).wrapping_sub(high), high]
    }

    #[inline(always)]
    fn deal(self, pair: &[[f64; 4]]) -> (__m256d, __m256d) {
        let [a, b] = [&pair[0], &pair[1]];
        // Halves go through memory: moving them between registers is slow on older processors.
        // SAFETY: the token proves AVX; each load reads two elements of a block of four.
        unsafe {
            let (a, b) = (a.as_ptr(), b.as_ptr());
            let u = _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(_mm_loadu_pd(a)), _mm_loadu_pd(b));
            let v = _mm_loadu_pd(a.add(2));
            (u, _mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(v), _mm_loadu_pd(b.add(2))))
        }
    }

    #[inline(always)]
    fn undeal(self, u: __m256d, v: __m256d, pair: &mut [[f64; 4]]) {
        let [a, b] = &mut pair[..2] else { unreachable!("a pair has two blocks") };
        // SAFETY: the token proves AVX; each store writes two elements of a block of four.
        unsafe {
            _mm_storeu_pd(a.as_mut_ptr(), _mm256_castpd256_pd128(u));
            _mm_storeu_pd(b.as_mut_ptr(), _mm256_extractf128_pd::<1>(u));
            _mm_storeu_pd(a.as_mut_ptr().add(2), _mm256_castpd256_pd128(v));
            _mm_storeu_pd(b.as_mut_ptr().add(2), _mm256_extractf128_pd::<1>(v));
        }
    }

    #[inline(always)]
    fn turn(self, _t: usize, u: __m256d, v: __m256d) -> (__m256d, __m256d) {
        // SAFETY: the token proves AVX.
        unsafe { (_mm256_unpacklo_pd(u, v), _mm256_unpackhi_pd(u, v)) }
    }

    #[inline(always)]
    fn unturn(self, t: usize, u: __m256d, v: __m256d) -> (__m256d, __m256d) {
        self.turn(t, u, v)
    }

    #[inline(always)]
    fn prefetch(self, at: &[[f64; 4]], index: usize) {
        // SAFETY: a prefetch has no effect on memory and does not fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.as_ptr().wrapping_add(index).cast()) }
    }

    #[inline(always)]
    fn load_i32(self, at: &[i32]) -> __m256d {
        let four: &[i32; 4] = at.first_chunk().expect("four words");
        // SAFETY: the token proves AVX; `four` is 16 readable bytes.
        unsafe { _mm256_cvtepi32_pd(_mm_loadu_si128(four.as_ptr().cast())) }
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
        // Two rows at a time: sums, digits and weights fit the sixteen registers, if the compiler does not unroll this.
        for half in 0..std::hint::black_box(2) {
            let (rows, acc) = (&weights[2 * half..2 * half + 2], &mut acc[2 * half..2 * half + 2]);
            let (w0, w1) = (rows[0].as_ptr().cast::<i32>(), rows[1].as_ptr().cast::<i32>());
            // SAFETY: the token proves AVX2; `k < len`, checked equal above; a plane is one aligned vector, a pair of
            // weights 4 bytes, a row of `acc` P vectors.
            unsafe {
                let (mut s0, mut s1) = ([_mm256_setzero_si256(); P], [_mm256_setzero_si256(); P]);
                for k in 0..len {
                    let planes: *const __m256i = digits.as_ptr().add(k).cast();
                    let (a, b) =
                        (_mm256_set1_epi32(w0.add(k).read_unaligned()), _mm256_set1_epi32(w1.add(k).read_unaligned()));
                    for p in 0..P {
                        let d = _mm256_load_si256(planes.add(p));
                        s0[p] = _mm256_add_epi32(s0[p], _mm256_madd_epi16(a, d));
                        s1[p] = _mm256_add_epi32(s1[p], _mm256_madd_epi16(b, d));
                    }
                }
                for p in 0..P {
                    _mm256_storeu_si256(acc[0][p].as_mut_ptr().cast(), s0[p]);
                    _mm256_storeu_si256(acc[1][p].as_mut_ptr().cast(), s1[p]);
                }
            }
        }
    }

    #[inline(always)]
    fn dot4(self, rows: [&[i8]; 4], high: &[i16], low: &[i16]) -> [(i32, i32); 4] {
        let len = high.len();
        assert!(low.len() == len && rows.iter().all(|r| r.len() == len), "rows and planes have one length");
        let mut sums = [(0, 0); 4];
        // Four short rows lie side by side, and so do the next four: their lines are asked for in the order of memory,
        // which the processor's own prefetcher follows as well. Long rows are followed one by one.
        let near = 4 * len <= NEAR;
        let ahead = if near { AHEAD.max(4 * len) } else { PREFETCH_I8 };
        // A product of a byte and a 13-bit number is below 2^19.1, so a pair's sum is exact in i32; the
        // sums of pairs wrap, as the result does.
        // SAFETY: the token proves AVX2; every step at `i` has i + 16 <= len, checked equal above; a prefetch has
        // no effect on memory and does not fault.
        unsafe {
            let (at, h, l) = (rows.map(<[i8]>::as_ptr), high.as_ptr(), low.as_ptr());
            let mut acc = [_mm256_setzero_si256(); 8];
            let mut i = 0;
            while i + 64 <= len {
                for (k, row) in at.into_iter().enumerate() {
                    let line = if near { at[0].wrapping_add(4 * i + 64 * k) } else { row.wrapping_add(i) };
                    _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(ahead));
                }
                dot_step(&mut acc, at, h, l, i);
                dot_step(&mut acc, at, h, l, i + 16);
                dot_step(&mut acc, at, h, l, i + 32);
                dot_step(&mut acc, at, h, l, i + 48);
                i += 64;
            }
            while i + 16 <= len {
                dot_step(&mut acc, at, h, l, i);
                i += 16;
            }
            let [s0, s1] = sums_i32(&acc);
            for r in 0..4 {
                sums[r] = if r < 2 { (s0[2 * r], s0[2 * r + 1]) } else { (s1[2 * r - 4], s1[2 * r - 3]) };
                for k in i..len {
                    let w = rows[r][k];
                    sums[r].0 = sums[r].0.wrapping_add(i32::from(w) * i32::from(high[k]));
                    sums[r].1 = sums[r].1.wrapping_add(i32::from(w) * i32::from(low[k]));
                }
            }
        }
        sums
    }
}

/// How far ahead a long row of weights is asked for, in bytes.
const PREFETCH_I8: usize = 1024;
/// How far ahead short rows are asked for, in bytes, at least.
const AHEAD: usize = 6 << 10;
/// Bytes of four rows up to which they are asked for while the four before them are read: half a first-level cache.
const NEAR: usize = 16 << 10;

/// Adds the products of columns `i .. i + 16` of four rows with the high (even `acc`) and the low plane (odd).
///
/// # Safety
/// Sixteen entries from `i` on are readable in each row and plane.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn dot_step(acc: &mut [__m256i; 8], rows: [*const i8; 4], high: *const i16, low: *const i16, i: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let h = _mm256_loadu_si256(high.add(i).cast());
        let l = _mm256_loadu_si256(low.add(i).cast());
        for r in 0..4 {
            let w = _mm256_cvtepi8_epi16(_mm_loadu_si128(rows[r].add(i).cast()));
            acc[2 * r] = _mm256_add_epi32(acc[2 * r], _mm256_madd_epi16(w, h));
            acc[2 * r + 1] = _mm256_add_epi32(acc[2 * r + 1], _mm256_madd_epi16(w, l));
        }
    }
}
