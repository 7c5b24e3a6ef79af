//! The element-wise f32 operations of a decoder. Only IEEE additions, multiplications, divisions and
//! square roots in a fixed order, and no fused multiply-add: the same bytes on every CPU.

use rayon::prelude::*;

/// Values from which an activation function is worth several threads: some tens of microseconds of work.
pub(crate) const PARALLEL_FROM: usize = 1 << 13;

/// Lanes of a reduction: each lane sums every sixteenth product, then the lanes are added as a tree.
const LANES: usize = 16;

/// `sum_i a[i]·b[i]` over the shorter length.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let (a_rest, b_rest) = (a_chunks.remainder(), b_chunks.remainder());
    for (x, y) in a_chunks.zip(b_chunks) {
        for i in 0..LANES {
            acc[i] += x[i] * y[i];
        }
    }
    for (i, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        acc[i] += x * y;
    }
    tree(acc)
}

/// `a[i] = f(a[i])`.
pub(crate) fn each(a: &mut [f32], f: impl Fn(f32) -> f32 + Sync) {
    let some = |a: &mut [f32]| a.iter_mut().for_each(|x| *x = f(*x));
    if a.len() < PARALLEL_FROM { some(a) } else { a.par_chunks_mut(PARALLEL_FROM / 4).for_each(some) }
}

/// `sum_i a[i]`.
pub(crate) fn sum(a: &[f32]) -> f32 {
    let mut acc = [0f32; LANES];
    let chunks = a.chunks_exact(LANES);
    let rest = chunks.remainder();
    for x in chunks {
        for i in 0..LANES {
            acc[i] += x[i];
        }
    }
    for (i, x) in rest.iter().enumerate() {
        acc[i] += x;
    }
    tree(acc)
}

fn tree(mut acc: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            acc[i] += acc[i + half];
        }
        half /= 2;
    }
    acc[0]
}

/// `e^x` within 2 units in the last place for x in [-87, 88]; outside, the value at the nearer end.
/// Range reduction by ln 2 in two parts and a degree-7 Taylor polynomial; branch-free, so that loops over it
/// become vector code.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    // 1.5·2^23: adding it rounds to an integer that sits in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4; // ln 2 - 355/512
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    let e = (p * r) * r + r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    e * power
}

/// `x = e^(x - max(x))`; returns 1 / sum(x), the factor that makes it a softmax.
pub(crate) fn softmax(x: &mut [f32]) -> f32 {
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for v in x.iter_mut() {
        *v = exp(*v - largest);
    }
    1.0 / sum(x)
}

/// `x·sigmoid(x)`.
#[inline]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// GELU by its tanh formula, written as `x·sigmoid(2u)` with `u = sqrt(2/pi)·(x + 0.044715·x^3)`.
#[inline]
pub(crate) fn gelu(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let u = SQRT_2_OVER_PI * (x + 0.044_715 * (x * x * x));
    x / (1.0 + exp(-2.0 * u))
}

/// `out = x / sqrt(mean(x^2) + epsilon) · weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = 1.0 / (dot(x, x) / width(x) + epsilon).sqrt();
    for ((o, v), w) in out.iter_mut().zip(x).zip(weight) {
        *o = v * scale * w;
    }
}

/// `x = x / sqrt(mean(x^2) + epsilon) · weight`.
pub(crate) fn rms_norm_in_place(x: &mut [f32], weight: &[f32], epsilon: f32) {
    let scale = 1.0 / (dot(x, x) / width(x) + epsilon).sqrt();
    for (v, w) in x.iter_mut().zip(weight) {
        *v = *v * scale * w;
    }
}

/// `out = (x - mean(x)) / sqrt(var(x) + epsilon) · weight + bias`.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) {
    let mean = sum(x) / width(x);
    for (o, v) in out.iter_mut().zip(x) {
        *o = v - mean;
    }
    let scale = 1.0 / (dot(out, out) / width(x) + epsilon).sqrt();
    for ((o, w), b) in out.iter_mut().zip(weight).zip(bias) {
        *o = *o * scale * w + b;
    }
}

/// `x += y`.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    for (a, b) in x.iter_mut().zip(y) {
        *a += b;
    }
}

/// The length as f32; exact below 2^24, which [`ModelConfig::check`](super::config::ModelConfig::check) ensures.
#[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
fn width(x: &[f32]) -> f32 {
    x.len() as f32
}

#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "test inputs are rounded on purpose")]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_libm() {
        let mut worst = 0f64;
        for i in -87_000..=88_000i32 {
            let x = f64::from(i) as f32 / 1000.0;
            let exact = libm::exp(f64::from(x));
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.0 * f64::from(f32::EPSILON), "relative error {worst}");
        assert!(exp(-1e9) > 0.0 && exp(-1e9) < 1e-37 && exp(1e9).is_finite());
    }

    #[test]
    fn activations_match_double_precision() {
        for i in -2000..=2000i32 {
            let x = f64::from(i) / 100.0;
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let gelu_exact = 0.5 * x * (1.0 + libm::tanh(u));
            assert!((f64::from(gelu(x as f32)) - gelu_exact).abs() < 4e-6, "gelu({x})");
            assert!((f64::from(silu(x as f32)) - x / (1.0 + libm::exp(-x))).abs() < 4e-6, "silu({x})");
        }
    }

    #[test]
    fn reductions_cover_ragged_lengths() {
        for n in [0usize, 1, 15, 16, 17, 47, 64] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let squares: usize = (0..n).map(|i| i * i).sum();
            assert_eq!(dot(&a, &a), squares as f32);
            assert_eq!(sum(&a), (0..n).sum::<usize>() as f32);
        }
    }

    #[test]
    fn norms_normalize() {
        let x: Vec<f32> = (0..100).map(|i| i as f32 - 3.0).collect();
        let (ones, zeros) = (vec![1.0; 100], vec![0.5; 100]);
        let mut out = vec![0.0; 100];
        rms_norm(&x, &ones, 0.0, &mut out);
        assert!((dot(&out, &out) / 100.0 - 1.0).abs() < 1e-5);
        layer_norm(&x, &ones, &zeros, 0.0, &mut out);
        assert!((sum(&out) / 100.0 - 0.5).abs() < 1e-5);
    }
}
