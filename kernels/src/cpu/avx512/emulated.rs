//! The instructions that `avx512.rs` uses, as Rust functions: same names, same results, lane by lane.
//!
//! For tests on processors that lack them; only the package `kernels-emulated` compiles this. What an intrinsic computes is
//! from the "Operation" of its entry in the Intel Intrinsics Guide, with rounding to nearest even (the state of MXCSR
//! that Rust requires). Lanes lie in memory in little-endian order.

mod fault;
mod float;
mod integer;
#[cfg(test)]
mod tests;

pub(crate) use float::*;
pub(crate) use integer::*;

const _: () = assert!(
    matches!(env!("CARGO_PKG_NAME").as_bytes(), b"kernels-emulated") && cfg!(target_endian = "little"),
    "for the tests of kernels-emulated alone"
);

/// Defines intrinsics whose result passes a planted fault, and lists their names for [`fault`].
macro_rules! intrinsics {
    ($($(#[$doc:meta])* fn $name:ident $(<$imm:ident>)? ($($arg:ident: $ty:ty),*) -> $out:ty $body:block)*) => {
        /// What is defined here.
        #[cfg(test)]
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];

        $(
            $(#[$doc])*
            #[inline]
            pub(crate) fn $name $(<const $imm: i32>)? ($($arg: $ty),*) -> $out {
                super::fault::pass(stringify!($name), $body)
            }
        )*
    };
}
use intrinsics;

/// Eight f64.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct __m512d([f64; 8]);

/// 512 bits of integers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct __m512i([u64; 8]);

/// 256 bits of integers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct __m256i([u64; 4]);

/// 128 bits of integers.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(crate) struct __m128i([u64; 2]);

/// A bit a lane.
#[expect(non_camel_case_types, reason = "the name in std::arch")]
pub(crate) type __mmask8 = u8;

/// The prefetch hint that is used here; none has an effect.
pub(crate) const _MM_HINT_T0: i32 = 3;

/// PREFETCHT0: no effect.
#[inline]
pub(crate) fn _mm_prefetch<const STRATEGY: i32>(_p: *const i8) {}

/// VMOVUPD
///
/// # Safety
/// 64 bytes are readable.
#[inline]
pub(crate) unsafe fn _mm512_loadu_pd(at: *const f64) -> __m512d {
    // SAFETY: the caller's promise.
    __m512d(unsafe { at.cast::<[f64; 8]>().read_unaligned() })
}

/// VMOVUPD
///
/// # Safety
/// 64 bytes are writable.
#[inline]
pub(crate) unsafe fn _mm512_storeu_pd(at: *mut f64, a: __m512d) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<[f64; 8]>().write_unaligned(a.0) }
}

/// VMOVDQU32
///
/// # Safety
/// 64 bytes are readable.
#[inline]
pub(crate) unsafe fn _mm512_loadu_si512(at: *const __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    __m512i(unsafe { at.cast::<[u64; 8]>().read_unaligned() })
}

/// VMOVDQU32
///
/// # Safety
/// 64 bytes are writable.
#[inline]
pub(crate) unsafe fn _mm512_storeu_si512(at: *mut __m512i, a: __m512i) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<[u64; 8]>().write_unaligned(a.0) }
}

/// VMOVDQU
///
/// # Safety
/// 32 bytes are readable.
#[inline]
pub(crate) unsafe fn _mm256_loadu_si256(at: *const __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    __m256i(unsafe { at.cast::<[u64; 4]>().read_unaligned() })
}

/// VMOVDQU
///
/// # Safety
/// 32 bytes are writable.
#[inline]
pub(crate) unsafe fn _mm256_storeu_si256(at: *mut __m256i, a: __m256i) {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<[u64; 4]>().write_unaligned(a.0) }
}

/// The same bits.
#[inline]
pub(crate) fn _mm512_castpd_si512(a: __m512d) -> __m512i {
    __m512i(a.0.map(f64::to_bits))
}

/// The lower half.
#[inline]
pub(crate) fn _mm512_castsi512_si256(a: __m512i) -> __m256i {
    __m256i(std::array::from_fn(|i| a.0[i]))
}

/// The same bits.
#[inline]
pub(crate) fn _mm512_castsi512_pd(a: __m512i) -> __m512d {
    __m512d(a.0.map(f64::from_bits))
}
