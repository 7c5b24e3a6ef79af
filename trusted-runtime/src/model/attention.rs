//! Causal grouped-query attention over the cache. Every head of every position is computed alone and in
//! a fixed order, so the result does not depend on the number of threads.

use super::{block::Scope, cache::KvCache, config::ModelConfig, ops};
use rayon::prelude::*;
use zeroize::Zeroizing;

/// Multiplications below which one thread does it all.
const PARALLEL_FROM: usize = 1 << 18;

/// Where the queries are: `qkv` is [positions][q, k, v] of the positions `start ..`, already in the cache.
pub(super) struct Queries<'a> {
    pub(super) layer: usize,
    pub(super) start: usize,
    pub(super) qkv: &'a [f32],
    pub(super) scope: Scope,
}

/// The usual factor of scores: 1 / sqrt(width).
#[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
pub(super) fn scale(width: usize) -> f32 {
    1.0 / (width as f32).sqrt()
}

/// `out = softmax(scale·q·K^T)·V`, [positions][heads·head_dim]; position p sees the last `window` of 0 ..= p.
pub(super) fn attend(config: &ModelConfig, cache: &KvCache, queries: &Queries<'_>, out: &mut [f32]) {
    let (heads, dim) = (config.heads, config.head_dim);
    let stride = config.q_width() + 2 * config.kv_width();
    let group = heads / config.kv_heads;
    let Scope { scale, window } = queries.scope;
    let one = |scores: &mut Zeroizing<Vec<f32>>, (item, out): (usize, &mut [f32])| {
        let (position, head) = (item / heads, item % heads);
        let query = &queries.qkv[position * stride + head * dim..][..dim];
        let seen = queries.start + position + 1;
        let (keys, values) = cache.head(queries.layer, head / group, seen);
        let from = seen.saturating_sub(window) * dim;
        attend_one(query, &keys[from..], &values[from..], scale, scores, out);
    };
    let positions = out.len() / (heads * dim);
    let work = out.len() * (queries.start + positions);
    let longest = queries.start + positions;
    let scratch = || Zeroizing::new(Vec::with_capacity(longest));
    if work < PARALLEL_FROM {
        let mut scores = scratch();
        out.chunks_exact_mut(dim).enumerate().for_each(|item| one(&mut scores, item));
    } else {
        out.par_chunks_exact_mut(dim).enumerate().for_each_init(scratch, one);
    }
}

fn attend_one(query: &[f32], keys: &[f32], values: &[f32], scale: f32, scores: &mut Vec<f32>, out: &mut [f32]) {
    let dim = query.len();
    scores.clear();
    scores.extend(keys.chunks_exact(dim).map(|key| ops::dot(query, key) * scale));
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = ops::exp(*score - largest);
    }
    let inverse = 1.0 / ops::sum(scores);
    out.fill(0.0);
    for (weight, value) in scores.iter().zip(values.chunks_exact(dim)) {
        for (o, v) in out.iter_mut().zip(value) {
            *o += weight * v;
        }
    }
    for o in out.iter_mut() {
        *o *= inverse;
    }
}
