//! The tensor types of GGUF files and how their blocks become f32. Layouts and formulas as in ggml's
//! `ggml-common.h` and `ggml-quants.c` (`dequantize_row_*`); the results are bit-identical to gguf-py's.

use half::{bf16, f16};

/// A tensor type that this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are ggml's")]
#[expect(non_camel_case_types, reason = "the names are ggml's")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl TensorType {
    /// Every type, for messages.
    pub const SUPPORTED: &'static str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K";

    /// By ggml's number (`enum ggml_type`).
    pub fn from_ggml(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4_K,
            13 => Self::Q5_K,
            14 => Self::Q6_K,
            30 => Self::BF16,
            _ => return None,
        })
    }

    /// Weights per block and bytes per block.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q4_K => (256, 144),
            Self::Q5_K => (256, 176),
            Self::Q6_K => (256, 210),
        }
    }
}

/// The weights in `bytes`, which holds whole blocks.
pub fn dequantize(kind: TensorType, bytes: &[u8]) -> Vec<f32> {
    let (weights, size) = kind.block();
    let mut out = vec![0f32; bytes.len() / size * weights];
    let blocks = bytes.chunks_exact(size).zip(out.chunks_exact_mut(weights));
    match kind {
        TensorType::F32 => blocks.for_each(|(b, o)| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        TensorType::F16 => blocks.for_each(|(b, o)| o[0] = half_at(b, 0)),
        TensorType::BF16 => blocks.for_each(|(b, o)| o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32()),
        TensorType::Q4_0 => blocks.for_each(|(b, o)| q4_0(b, o)),
        TensorType::Q4_1 => blocks.for_each(|(b, o)| q4_1(b, o)),
        TensorType::Q5_0 => blocks.for_each(|(b, o)| q5_0(b, o)),
        TensorType::Q5_1 => blocks.for_each(|(b, o)| q5_1(b, o)),
        TensorType::Q8_0 => blocks.for_each(|(b, o)| q8_0(b, o)),
        TensorType::Q4_K => blocks.for_each(|(b, o)| q4_k(b, o)),
        TensorType::Q5_K => blocks.for_each(|(b, o)| q5_k(b, o)),
        TensorType::Q6_K => blocks.for_each(|(b, o)| q6_k(b, o)),
    }
    out
}

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Scale, then 16 bytes of nibbles: low nibbles are weights 0..16, high ones 16..32, minus 8.
fn q4_0(b: &[u8], o: &mut [f32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        o[j] = d * (f32::from(b[2 + j] & 15) - 8.0);
        o[j + 16] = d * (f32::from(b[2 + j] >> 4) - 8.0);
    }
}

/// Scale, minimum, nibbles.
fn q4_1(b: &[u8], o: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for j in 0..16 {
        o[j] = d * f32::from(b[4 + j] & 15) + m;
        o[j + 16] = d * f32::from(b[4 + j] >> 4) + m;
    }
}

/// The fifth bits of weights `j` and `j + 16`, already shifted to bit 4.
fn fifth_bits(high: &[u8], j: usize) -> (u8, u8) {
    (((high[j / 8] >> (j % 8)) & 1) << 4, ((high[2 + j / 8] >> (j % 8)) & 1) << 4)
}

/// Scale, 32 fifth bits, nibbles; minus 16.
fn q5_0(b: &[u8], o: &mut [f32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        let (low, high) = fifth_bits(&b[2..6], j);
        o[j] = d * (f32::from((b[6 + j] & 15) | low) - 16.0);
        o[j + 16] = d * (f32::from((b[6 + j] >> 4) | high) - 16.0);
    }
}

/// Scale, minimum, 32 fifth bits, nibbles.
fn q5_1(b: &[u8], o: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for j in 0..16 {
        let (low, high) = fifth_bits(&b[4..8], j);
        o[j] = d * f32::from((b[8 + j] & 15) | low) + m;
        o[j + 16] = d * f32::from((b[8 + j] >> 4) | high) + m;
    }
}

/// Scale, 32 int8.
fn q8_0(b: &[u8], o: &mut [f32]) {
    let d = half_at(b, 0);
    for (o, q) in o.iter_mut().zip(&b[2..]) {
        *o = d * f32::from(q.cast_signed());
    }
}

/// The 6-bit scale and minimum of sub-block `j` (0..8) from the 12 packed bytes of Q4_K and Q5_K.
fn scale_and_minimum(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, minimum) = if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4))
    };
    (f32::from(scale), f32::from(minimum))
}

/// Scale and minimum scale, 12 bytes of sub-scales, 128 bytes of nibbles in four runs of 64 weights.
fn q4_k(b: &[u8], o: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (scales, quants) = (&b[4..16], &b[16..144]);
    for j in 0..8 {
        let (scale, minimum) = scale_and_minimum(scales, j);
        let (step, offset) = (d * scale, dmin * minimum);
        let (run, shift) = (&quants[j / 2 * 32..][..32], (j % 2) * 4);
        for (o, q) in o[j * 32..].iter_mut().zip(run) {
            *o = step * f32::from((q >> shift) & 15) - offset;
        }
    }
}

/// As Q4_K, with 32 bytes of fifth bits (bit j of byte l belongs to weight 32·j + l) before the nibbles.
fn q5_k(b: &[u8], o: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (scales, high, quants) = (&b[4..16], &b[16..48], &b[48..176]);
    for j in 0..8 {
        let (scale, minimum) = scale_and_minimum(scales, j);
        let (step, offset) = (d * scale, dmin * minimum);
        let (run, shift) = (&quants[j / 2 * 32..][..32], (j % 2) * 4);
        for ((o, q), h) in o[j * 32..].iter_mut().zip(run).zip(high) {
            *o = step * f32::from(((q >> shift) & 15) | (((h >> j) & 1) << 4)) - offset;
        }
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales of 16 weights each, one f16 scale.
fn q6_k(b: &[u8], o: &mut [f32]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    for (i, o) in o.iter_mut().enumerate() {
        // Each half of 128 weights is four runs of 32: nibble low/low/high/high of bytes 0..64, bit pair = run.
        let (half, run, l) = (i / 128, i / 32 % 4, i % 32);
        let nibble = (low[half * 64 + (run % 2) * 32 + l] >> (run / 2 * 4)) & 15;
        let pair = (high[half * 32 + l] >> (run * 2)) & 3;
        let step = d * f32::from(scales[i / 16].cast_signed());
        *o = step * (f32::from(nibble | (pair << 4)) - 32.0);
    }
}
