//! The emulated instructions against those of this processor, where AVX2 has them in 256 bits, and against arithmetic
//! that is written another way.

mod elsewise;
mod faults;
#[cfg(target_arch = "x86_64")]
mod processor;

use crate::conformance::Numbers;

/// Vectors of each kind.
const ROUNDS: usize = 20_000;

/// Numbers of every size, with the extreme ones among them.
fn float(numbers: &mut Numbers) -> f64 {
    const EXTREME: [f64; 16] = [
        0.0,
        -0.0,
        0.5,
        -1.5,
        6_755_399_441_055_744.0,
        2_251_799_813_685_248.0,
        -4_503_599_627_370_496.5,
        9_007_199_254_740_993.0,
        9_223_372_036_854_775_808.0,
        18_446_744_073_709_549_568.0,
        18_446_744_073_709_551_616.0,
        f64::MIN_POSITIVE,
        f64::MAX,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let bits = numbers.word();
    match bits % 4 {
        0 => EXTREME[numbers.below(EXTREME.len())],
        1 => f64::from_bits(numbers.word()),
        // Residues and halves, signed.
        2 => crate::cpu::f64_of(numbers.word() >> 13) - crate::cpu::f64_of(numbers.word() >> 13),
        _ => f64::from(u32::try_from(bits >> 32).expect("32 bits").cast_signed()) / 2.0,
    }
}

/// Words, with the extreme ones among them.
fn word(numbers: &mut Numbers) -> u64 {
    let word = numbers.word();
    match word % 8 {
        0 => u64::MAX,
        1 => (1 << 52) - 1,
        2 => 0x8000_8000_8000_8000,
        3 => 0x7fff_7fff_7fff_7fff,
        4 => word >> 13,
        5 => word & 15,
        _ => numbers.word(),
    }
}

/// Equal bits, or both not a number (whose bits are not promised).
fn same(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}
