//! How many pages there may be, and which full ones can be used again.

use super::{
    KvCache, Shape,
    page::{Backend, FullPage, OpenPage},
    prefix::{Chain, Digest, Prefixes, Salt},
};
use crate::Error;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// All pages of a model's sequences, up to a bound.
pub struct KvPool {
    shape: Shape,
    pages: Arc<Pages>,
    backend: Box<dyn Backend>,
    prefixes: Mutex<Prefixes>,
}

/// Counts pages.
struct Pages {
    most: usize,
    used: AtomicUsize,
}

/// The right to one page; given back on drop.
pub struct Permit(Arc<Pages>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The pool has no page left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// Pages of the pool.
    pub pages: usize,
}

impl From<Shortage> for Error {
    fn from(Shortage { pages }: Shortage) -> Self {
        Self::Busy(format!("all {pages} pages for keys and values are taken (engine.kv_memory)"))
    }
}

impl KvPool {
    /// Room for `most` pages of these sizes, at least one, whose full ones are kept by `backend`.
    pub fn new(shape: Shape, most: usize, backend: Box<dyn Backend>) -> Arc<Self> {
        let pages = Arc::new(Pages { most: most.max(1), used: AtomicUsize::new(0) });
        Arc::new(Self { shape, pages, backend, prefixes: Mutex::default() })
    }

    /// An empty cache of one sequence, which shares pages with others of the same salt.
    pub fn cache(self: &Arc<Self>, salt: Salt) -> KvCache {
        KvCache::new(self.clone(), salt)
    }

    /// Sizes of a page.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Where full pages are kept.
    pub fn backend(&self) -> &'static str {
        self.backend.name()
    }

    /// Pages at most.
    pub fn capacity(&self) -> usize {
        self.pages.most
    }

    /// Pages in use, those included that are only kept to be used again.
    pub fn used(&self) -> usize {
        self.pages.used.load(Ordering::Acquire)
    }

    /// Pages that can be had: free ones, and those that no sequence uses.
    pub fn available(&self) -> usize {
        self.capacity().saturating_sub(self.used()) + self.prefixes().idle()
    }

    /// Positions looked for and found by [`KvCache::reuse`] so far.
    pub fn reused(&self) -> (u64, u64) {
        let prefixes = self.prefixes();
        (prefixes.asked, prefixes.found)
    }

    /// A page to write; the longest unused of the kept ones makes room for it.
    pub(super) fn page(&self) -> Result<OpenPage, Shortage> {
        loop {
            if let Some(permit) = self.permit() {
                return Ok(OpenPage::new(self.shape, permit));
            }
            if !self.prefixes().evict() {
                return Err(Shortage { pages: self.capacity() });
            }
        }
    }

    fn permit(&self) -> Option<Permit> {
        let more = |used: usize| (used < self.pages.most).then_some(used + 1);
        self.pages.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Permit(self.pages.clone()))
    }

    /// Hands a full page to the backend; on an error it stays where it is.
    pub(super) fn put_away(&self, page: &mut OpenPage) -> Result<Arc<dyn FullPage>, Error> {
        // The permit goes with the page, whatever happens: a second one keeps its place meanwhile.
        let Some(permit) = page.permit.take() else { return Err(Error::Bug("a page without a permit".into())) };
        let spare = Permit(self.pages.clone());
        self.pages.used.fetch_add(1, Ordering::AcqRel);
        match self.backend.put(self.shape, &mut page.data, permit) {
            Ok(full) => Ok(full),
            Err(e) => {
                page.permit = Some(spare);
                Err(e)
            }
        }
    }

    pub(super) fn publish(&self, digest: Digest, owner: [u8; 32], page: &Arc<dyn FullPage>) {
        self.prefixes().insert(digest, owner, page.clone());
    }

    /// Forgets the pages that were kept of an owner's sequences; says how many.
    pub fn forget(&self, owner: &[u8; 32]) -> usize {
        self.prefixes().forget(owner)
    }

    /// The pages of the longest known beginning of `tokens`, which are whole pages.
    pub(super) fn find(&self, chain: &mut Chain, tokens: &[u32]) -> Vec<Arc<dyn FullPage>> {
        self.prefixes().find(chain, tokens)
    }

    pub(super) fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        // Every step leaves the table consistent.
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
