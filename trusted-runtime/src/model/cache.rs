//! The keys and values of one sequence, f32, one buffer per layer and key/value head.

use super::config::ModelConfig;
use zeroize::{Zeroize, Zeroizing};

/// Keys and values of the positions that one sequence has processed. Secret: no `Debug`, no `Clone`,
/// wiped on drop and whenever a buffer grows.
///
/// Positions become visible only with [`KvCache::commit`], so a forward pass that fails leaves the cache
/// as it was.
pub struct KvCache {
    len: usize,
    capacity: usize,
    heads: usize,
    head_dim: usize,
    /// One pair per layer and head: [capacity][head_dim].
    pairs: Vec<Pair>,
}

#[derive(Default)]
struct Pair {
    keys: Zeroizing<Vec<f32>>,
    values: Zeroizing<Vec<f32>>,
}

impl KvCache {
    /// An empty cache for a model of these sizes.
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            len: 0,
            capacity: 0,
            heads: config.kv_heads,
            head_dim: config.head_dim,
            pairs: (0..config.layers * config.kv_heads).map(|_| Pair::default()).collect(),
        }
    }

    /// Number of positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets the positions from `len` on; no effect if there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.pairs.len() * 2 * self.capacity * self.head_dim * size_of::<f32>()
    }

    /// Makes room for `positions` in all.
    pub(super) fn reserve(&mut self, positions: usize) {
        if positions <= self.capacity {
            return;
        }
        let capacity = positions.next_power_of_two().max(64);
        let (used, size) = (self.len * self.head_dim, capacity * self.head_dim);
        for pair in &mut self.pairs {
            for buffer in [&mut pair.keys, &mut pair.values] {
                let mut grown = vec![0f32; size];
                grown[..used].copy_from_slice(&buffer[..used]);
                buffer.zeroize();
                **buffer = grown;
            }
        }
        self.capacity = capacity;
    }

    /// Stores keys and values ([heads][head_dim] each) of `position`, which [`KvCache::reserve`] covers.
    pub(super) fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let (dim, at) = (self.head_dim, position * self.head_dim);
        for head in 0..self.heads {
            let pair = &mut self.pairs[layer * self.heads + head];
            pair.keys[at..at + dim].copy_from_slice(&keys[head * dim..(head + 1) * dim]);
            pair.values[at..at + dim].copy_from_slice(&values[head * dim..(head + 1) * dim]);
        }
    }

    /// The first `positions` keys and values of one head, [positions][head_dim] each.
    pub(super) fn head(&self, layer: usize, head: usize, positions: usize) -> (&[f32], &[f32]) {
        let pair = &self.pairs[layer * self.heads + head];
        (&pair.keys[..positions * self.head_dim], &pair.values[..positions * self.head_dim])
    }

    /// Declares `positions` more positions written in every layer.
    pub(super) fn commit(&mut self, positions: usize) {
        self.len += positions;
    }
}
