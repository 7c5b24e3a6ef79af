//! Causal grouped-query attention over the caches of the sequences in a pass. Every head of every position is computed
//! alone and in a fixed order, so the result depends neither on the number of threads nor on the company.

use super::{block::Scope, config::ModelConfig, kv::View, ops};
use rayon::prelude::*;
use std::ops::Range;
use zeroize::Zeroizing;

/// Multiplications below which one thread does it all.
const PARALLEL_FROM: usize = 1 << 18;

/// Where a row of a pass belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Which sequence of the pass.
    pub(super) sequence: usize,
    /// Its position there.
    pub(super) position: usize,
}

/// Where the queries are: `qkv` is [places][q, k, v], whose keys and values are already in `views`, one a sequence.
pub(super) struct Queries<'a> {
    pub(super) qkv: &'a [f32],
    pub(super) places: &'a [Place],
    pub(super) views: &'a [View<'a>],
    pub(super) scope: Scope,
}

/// The usual factor of scores: 1 / sqrt(width).
#[expect(clippy::cast_precision_loss, reason = "widths are below 2^24")]
pub(super) fn scale(width: usize) -> f32 {
    1.0 / (width as f32).sqrt()
}

/// `out = softmax(scale·q·K^T)·V`, [places][heads·head_dim]; position p sees the last `window` of 0 ..= p.
pub(super) fn attend(config: &ModelConfig, queries: &Queries<'_>, out: &mut [f32]) {
    let (heads, dim) = (config.heads, config.head_dim);
    let stride = config.q_width() + 2 * config.kv_width();
    let group = heads / config.kv_heads;
    let Scope { scale, window } = queries.scope;
    let one = |scores: &mut Zeroizing<Vec<f32>>, (item, out): (usize, &mut [f32])| {
        let (row, head) = (item / heads, item % heads);
        let Place { sequence, position } = queries.places[row];
        let query = &queries.qkv[row * stride + head * dim..][..dim];
        let seen = (position + 1).saturating_sub(window)..position + 1;
        attend_one(query, &queries.views[sequence], head / group, seen, scale, scores, out);
    };
    let longest = queries.places.iter().map(|p| p.position + 1).max().unwrap_or(0);
    let work: usize = queries.places.iter().map(|p| (p.position + 1) * heads * dim).sum();
    let scratch = || Zeroizing::new(Vec::with_capacity(longest));
    if work < PARALLEL_FROM {
        let mut scores = scratch();
        out.chunks_exact_mut(dim).enumerate().for_each(|item| one(&mut scores, item));
    } else {
        out.par_chunks_exact_mut(dim).enumerate().for_each_init(scratch, one);
    }
}

/// One query over the positions `seen` of key/value head `head`.
fn attend_one(
    query: &[f32],
    view: &View<'_>,
    head: usize,
    seen: Range<usize>,
    scale: f32,
    scores: &mut Vec<f32>,
    out: &mut [f32],
) {
    let dim = query.len();
    scores.clear();
    for (keys, _) in view.runs(head, seen.clone()) {
        scores.extend(keys.chunks_exact(dim).map(|key| ops::dot(query, key) * scale));
    }
    let inverse = ops::softmax(scores);
    out.fill(0.0);
    let values = view.runs(head, seen).flat_map(|(_, values)| values.chunks_exact(dim));
    for (weight, value) in scores.iter().zip(values) {
        for (o, v) in out.iter_mut().zip(value) {
            *o += weight * v;
        }
    }
    for o in out.iter_mut() {
        *o *= inverse;
    }
}
