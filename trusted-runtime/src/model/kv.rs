//! Keys and values of sequences, in pages that sequences with a common beginning share.
//!
//! A page holds [`PAGE`] positions of all layers. The pages that a sequence still writes are plain memory of the
//! enclave; a page that is full goes to the pool's [`Backend`], which never changes it again. Full pages are found
//! again by what led to them ([`prefix`]), within one salt only.

mod page;
mod pool;
mod prefix;
mod sealed;
mod store;

pub use page::{Backend, FullPage, PageData, Plaintext};
pub use pool::{KvPool, Shortage};
pub use prefix::Salt;
pub use sealed::Sealed;
pub use store::Store;

use super::config::ModelConfig;
use crate::Error;
use page::OpenPage;
use prefix::Chain;
use std::{ops::Range, sync::Arc};
use zeroize::Zeroizing;

/// Positions of a page.
pub const PAGE: usize = 16;

/// Sizes that all pages of a model share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks of the model.
    pub layers: usize,
    /// Key/value heads of a block.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Shape {
    /// That of a model.
    pub fn of(config: &ModelConfig) -> Self {
        Self { layers: config.layers, heads: config.kv_heads, head_dim: config.head_dim }
    }

    /// Numbers of one layer of a page: [heads][keys, values][PAGE][head_dim].
    pub fn layer(self) -> usize {
        self.heads * 2 * PAGE * self.head_dim
    }

    /// Bytes of a page.
    pub fn page_bytes(self) -> usize {
        self.layers * self.layer() * size_of::<f32>()
    }
}

/// Keys and values of the positions that one sequence has processed. Secret: no `Debug`, no `Clone`, wiped on drop.
///
/// Positions become visible only with [`KvCache::commit`], so a forward pass that fails leaves the cache as it was.
pub struct KvCache {
    pool: Arc<KvPool>,
    len: usize,
    full: Vec<Arc<dyn FullPage>>,
    /// Pages behind `full`.
    open: Vec<OpenPage>,
    chain: Chain,
}

impl KvCache {
    pub(super) fn new(pool: Arc<KvPool>, salt: Salt) -> Self {
        Self { pool, len: 0, full: Vec::new(), open: Vec::new(), chain: Chain::new(salt) }
    }

    /// Number of positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.len = 0;
        self.full.clear();
        self.open.clear();
        self.chain.restart();
    }

    /// Takes over what the pool holds of the beginning of `tokens`, at most all but the last; how many positions. Only
    /// for an empty cache.
    pub fn reuse(&mut self, tokens: &[u32]) -> usize {
        if !self.is_empty() || !self.open.is_empty() {
            return 0;
        }
        let usable = tokens.len().saturating_sub(1) / PAGE * PAGE;
        self.full = self.pool.find(&mut self.chain, &tokens[..usable]);
        self.len = self.full.len() * PAGE;
        self.len
    }

    /// Pages that `positions` more positions need beyond those at hand.
    pub fn missing(&self, positions: usize) -> usize {
        (self.len + positions).div_ceil(PAGE).saturating_sub(self.full.len() + self.open.len())
    }

    /// Makes room for `positions` more.
    ///
    /// # Errors
    /// [`Shortage`] as [`Error::Busy`] if the pool has no page left, and why full pages cannot be put away.
    pub(super) fn reserve(&mut self, positions: usize) -> Result<(), Error> {
        self.put_away()?;
        for _ in 0..self.missing(positions) {
            self.open.push(self.pool.page()?);
        }
        Ok(())
    }

    /// Stores keys and values ([heads][head_dim] each) of `position`, for which there is room.
    pub(super) fn write(&mut self, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        let Shape { heads, head_dim, .. } = self.pool.shape();
        let slab = self.open[position / PAGE - self.full.len()].layer_mut(layer);
        let at = position % PAGE * head_dim;
        for head in 0..heads {
            let (k, v) = slab[head * 2 * PAGE * head_dim..][..2 * PAGE * head_dim].split_at_mut(PAGE * head_dim);
            k[at..at + head_dim].copy_from_slice(&keys[head * head_dim..(head + 1) * head_dim]);
            v[at..at + head_dim].copy_from_slice(&values[head * head_dim..(head + 1) * head_dim]);
        }
    }

    /// What layer `layer` holds of the positions from `from` on, written ones that are not committed included.
    /// `scratch` holds what has to be opened for it.
    ///
    /// # Errors
    /// Those of the backend.
    pub(super) fn view<'a>(
        &'a self,
        layer: usize,
        from: usize,
        scratch: &'a mut Zeroizing<Vec<f32>>,
    ) -> Result<View<'a>, Error> {
        let shape = self.pool.shape();
        let (size, skip) = (shape.layer(), from / PAGE);
        let full = &self.full[skip.min(self.full.len())..];
        let closed = full.iter().filter(|p| p.plain(layer).is_none()).count();
        if scratch.len() < closed * size {
            // Nothing is to be kept of it, so nothing is copied and left behind.
            *scratch = Zeroizing::new(vec![0.0; (closed * size).next_power_of_two()]);
        }
        let mut room = scratch.chunks_exact_mut(size);
        let mut slabs: Vec<&[f32]> = Vec::with_capacity(full.len() + self.open.len());
        for page in full {
            slabs.push(match page.plain(layer) {
                Some(slab) => slab,
                None => {
                    let slab = room.next().ok_or_else(|| Error::Bug("no room to open a page".into()))?;
                    page.open(layer, slab)?;
                    slab
                }
            });
        }
        let open = skip.saturating_sub(self.full.len()).min(self.open.len());
        slabs.extend(self.open[open..].iter().map(|p| p.layer(layer)));
        Ok(View { slabs, first: skip * PAGE, head_dim: shape.head_dim })
    }

    /// Declares `tokens` written in every layer, and puts full pages away. If that fails, the next
    /// [`KvCache::reserve`] tries again and says why.
    pub(super) fn commit(&mut self, tokens: &[u32]) {
        self.len += tokens.len();
        self.chain.extend(tokens);
        if let Err(error) = self.put_away() {
            tracing::warn!(%error, "full pages stay in enclave memory");
        }
    }

    fn put_away(&mut self) -> Result<(), Error> {
        while self.len >= (self.full.len() + 1) * PAGE && !self.open.is_empty() {
            let page = self.pool.put_away(&mut self.open[0])?;
            self.open.remove(0);
            if let Some(digest) = self.chain.page(self.full.len()) {
                self.pool.publish(digest, self.chain.owner(), &page);
            }
            self.full.push(page);
        }
        Ok(())
    }
}

/// One layer of a sequence's keys and values.
pub(super) struct View<'a> {
    slabs: Vec<&'a [f32]>,
    /// Position of the first slab.
    first: usize,
    head_dim: usize,
}

impl View<'_> {
    /// Keys and values of `positions` of one head, [run][head_dim] each, run by run.
    pub(super) fn runs(&self, head: usize, positions: Range<usize>) -> impl Iterator<Item = (&[f32], &[f32])> {
        let (dim, first) = (self.head_dim, self.first);
        let (from, to) = (positions.start.max(first) - first, positions.end - first);
        (from / PAGE..to.div_ceil(PAGE)).map(move |page| {
            let (keys, values) = self.slabs[page][head * 2 * PAGE * dim..][..2 * PAGE * dim].split_at(PAGE * dim);
            let run = from.saturating_sub(page * PAGE) * dim..(to - page * PAGE).min(PAGE) * dim;
            (&keys[run.clone()], &values[run])
        })
    }
}

/// A pool without a bound, for one sequence that is run by hand.
pub(super) fn unbounded(config: &ModelConfig) -> KvCache {
    KvPool::new(Shape::of(config), usize::MAX, Box::new(Plaintext)).cache(Salt::default())
}

#[cfg(test)]
mod tests;
