//! How long the element-wise operations of one token take at a model's sizes, on one thread. For `bench-ops`.

use super::{
    attention::{self, Place, Queries},
    block::Scope,
    config::ModelConfig,
    kv, ops,
    rotary::{Pairs, Rotary},
};
use crate::Error;
use serde::Serialize;
use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// One operation.
#[derive(Clone, Debug, Serialize)]
pub struct Timed {
    /// Its name.
    pub operation: &'static str,
    /// How much of it: a width, or positions that are seen.
    pub size: usize,
    /// One call; the median of several series.
    pub microseconds: f64,
}

/// Each series of calls takes about this long.
const SERIES: Duration = Duration::from_millis(8);
const REPEAT: usize = 7;
/// Positions that a token sees.
const SEEN: [usize; 4] = [16, 64, 256, 1024];

/// Times the operations of a decoder: norms, the activations of a feed-forward layer, the turns of all heads, the
/// softmax of one head, the attention of all heads over so many positions, and one addition to the residual stream.
///
/// # Errors
/// What keeps keys and values from being held.
pub fn time(config: &ModelConfig) -> Result<Vec<Timed>, Error> {
    let (d, ff, epsilon) = (config.d_model, config.d_ff, config.norm_epsilon);
    let mut all = Vec::new();
    let mut add = |operation, size, call: &mut dyn FnMut()| {
        all.push(Timed { operation, size, microseconds: microseconds(call) });
    };
    let (x, weight, bias, mut out) = (numbers(d, 1), numbers(d, 2), numbers(d, 3), vec![0.0; d]);
    add("layer_norm", d, &mut || ops::layer_norm(black_box(&x), &weight, &bias, epsilon, black_box(&mut out)));
    add("rms_norm", d, &mut || ops::rms_norm(black_box(&x), &weight, epsilon, black_box(&mut out)));
    add("residual_add", d, &mut || ops::add(black_box(&mut out), black_box(&x)));
    let (x, mut out) = (numbers(ff, 4), vec![0.0; ff]);
    // As in a forward pass, the function is known where its loop is compiled.
    add("gelu", ff, &mut || map(black_box(&x), black_box(&mut out), ops::gelu));
    add("silu", ff, &mut || map(black_box(&x), black_box(&mut out), ops::silu));
    if config.rope_base > 0.0 {
        let rotary = Rotary::new(config.rope_base, config.head_dim);
        let mut heads = numbers(config.q_width() + config.kv_width(), 5);
        add("rotary", heads.len(), &mut || {
            let turns = rotary.turns(&[Place { sequence: 0, position: black_box(77) }]);
            black_box(&mut heads).chunks_exact_mut(config.head_dim).for_each(|h| Pairs::Halves.turn(h, turns.at(0)));
        });
    }
    for seen in SEEN.into_iter().filter(|seen| *seen <= config.context) {
        let (scores, mut scratch) = (numbers(seen, 6), vec![0.0; seen]);
        add("softmax", seen, &mut || {
            scratch.copy_from_slice(black_box(&scores));
            black_box(ops::softmax(&mut scratch));
        });
        let mut cache = kv::unbounded(config);
        cache.reserve(seen)?;
        for position in 0..seen {
            cache.write(0, position, &numbers(config.kv_width(), position), &numbers(config.kv_width(), position + 1));
        }
        let mut scratch = Zeroizing::default();
        let views = [cache.view(0, 0, &mut scratch)?];
        let qkv = numbers(config.q_width() + 2 * config.kv_width(), 7);
        let places = [Place { sequence: 0, position: seen - 1 }];
        let mut out = vec![0.0; config.q_width()];
        let queries = Queries { qkv: &qkv, places: &places, views: &views, scope: Scope::all(config) };
        add("attention", seen, &mut || attention::attend(config, black_box(&queries), black_box(&mut out)));
    }
    Ok(all)
}

fn map(x: &[f32], out: &mut [f32], activation: impl Fn(f32) -> f32) {
    for (o, x) in out.iter_mut().zip(x) {
        *o = activation(*x);
    }
}

/// The median over series of the time of one call.
fn microseconds(call: &mut dyn FnMut()) -> f64 {
    let mut calls = 1u32;
    let mut series = |calls: u32| {
        let began = Instant::now();
        (0..calls).for_each(|_| call());
        began.elapsed()
    };
    while series(calls) < SERIES && calls < 1 << 24 {
        calls *= 2;
    }
    let mut times: Vec<f64> = (0..REPEAT).map(|_| series(calls).as_secs_f64() * 1e6 / f64::from(calls)).collect();
    times.sort_by(f64::total_cmp);
    times[REPEAT / 2]
}

/// Numbers in [-2, 2) that look like activations; the operations take the same time for all of them.
#[expect(clippy::cast_precision_loss, reason = "16 bits fit")]
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    // Knuth, "The Art of Computer Programming", volume 2, 3.3.4, table 1, line 26.
    let mut state = seed as u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 48) as f32 / 16384.0 - 2.0
    };
    (0..count).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_of_a_small_shape_is_timed() {
        let config = crate::model::inspect("synthetic:llama-tiny", &|_, _, _| {}).expect("a shape").config;
        let timed = time(&config).expect("times");
        for name in ["layer_norm", "rms_norm", "gelu", "silu", "residual_add", "rotary", "softmax", "attention"] {
            assert!(timed.iter().any(|t| t.operation == name && t.microseconds > 0.0), "{name} in {timed:?}");
        }
        let norm = timed.iter().find(|t| t.operation == "rms_norm").expect("a norm");
        assert_eq!(norm.size, config.d_model);
    }
}
