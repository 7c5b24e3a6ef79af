//! Which full pages belong to which beginning of a sequence.
//!
//! A page is named by a keyed hash over its salt and all tokens up to its end, so that one tenant can neither find
//! another's pages nor learn from timing that they exist. Only the enclave sees these names.

use super::{PAGE, page::FullPage};
use std::{collections::HashMap, sync::Arc};

/// What separates sequences that must not share pages: derived from the tenant, and from what a request adds.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Salt {
    key: [u8; 32],
    owner: [u8; 32],
}

impl Salt {
    /// That of a tenant's requests which ask for `extra`.
    pub fn of(tenant: &[u8; 32], extra: &str) -> Self {
        Self { key: *blake3::keyed_hash(tenant, extra.as_bytes()).as_bytes(), owner: *tenant }
    }

    /// The same pages, but those of `owner`, with whom they are forgotten.
    #[must_use]
    pub fn owned_by(self, owner: [u8; 32]) -> Self {
        Self { owner, ..self }
    }
}

/// The name of a page.
pub(super) type Digest = [u8; 32];

/// The names of one sequence's pages, as its tokens come.
pub(super) struct Chain {
    salt: Salt,
    hasher: blake3::Hasher,
    tokens: usize,
    digests: Vec<Digest>,
}

impl Chain {
    pub(super) fn new(salt: Salt) -> Self {
        Self { salt, hasher: blake3::Hasher::new_keyed(&salt.key), tokens: 0, digests: Vec::new() }
    }

    pub(super) fn restart(&mut self) {
        *self = Self::new(self.salt);
    }

    pub(super) fn extend(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.hasher.update(&token.to_le_bytes());
            self.tokens += 1;
            if self.tokens.is_multiple_of(PAGE) {
                self.digests.push(*self.hasher.finalize().as_bytes());
            }
        }
    }

    /// Whose pages they are.
    pub(super) fn owner(&self) -> [u8; 32] {
        self.salt.owner
    }

    /// The name of the `index`th page, if its tokens have come.
    pub(super) fn page(&self, index: usize) -> Option<Digest> {
        self.digests.get(index).copied()
    }
}

/// A page that is kept to be used again.
struct Kept {
    /// Moment of its last use.
    used: u64,
    owner: [u8; 32],
    page: Arc<dyn FullPage>,
}

/// Full pages by name.
#[derive(Default)]
pub(super) struct Prefixes {
    pages: HashMap<Digest, Kept>,
    clock: u64,
    pub(super) asked: u64,
    pub(super) found: u64,
}

impl Prefixes {
    pub(super) fn insert(&mut self, digest: Digest, owner: [u8; 32], page: Arc<dyn FullPage>) {
        self.clock += 1;
        let used = self.clock;
        self.pages.entry(digest).or_insert(Kept { used, owner, page }).used = used;
    }

    /// Drops every page of `owner`; sequences that use one keep it until they end.
    pub(super) fn forget(&mut self, owner: &[u8; 32]) -> usize {
        let before = self.pages.len();
        self.pages.retain(|_, kept| kept.owner != *owner);
        before - self.pages.len()
    }

    pub(super) fn find(&mut self, chain: &mut Chain, tokens: &[u32]) -> Vec<Arc<dyn FullPage>> {
        let (mut ahead, mut found) = (Chain::new(chain.salt), Vec::new());
        for (index, tokens) in tokens.chunks_exact(PAGE).enumerate() {
            ahead.extend(tokens);
            self.clock += 1;
            let Some(kept) = ahead.page(index).and_then(|d| self.pages.get_mut(&d)) else { break };
            kept.used = self.clock;
            chain.extend(tokens);
            found.push(kept.page.clone());
        }
        self.asked += tokens.len() as u64;
        self.found += (found.len() * PAGE) as u64;
        found
    }

    /// Pages that nobody uses but this table.
    pub(super) fn idle(&self) -> usize {
        self.pages.values().filter(|kept| Arc::strong_count(&kept.page) == 1).count()
    }

    /// Forgets the longest unused page that nobody uses; false if there is none.
    pub(super) fn evict(&mut self) -> bool {
        let idle = self.pages.iter().filter(|(_, kept)| Arc::strong_count(&kept.page) == 1);
        let oldest = idle.min_by_key(|(_, kept)| kept.used).map(|(digest, _)| *digest);
        oldest.is_some_and(|digest| self.pages.remove(&digest).is_some())
    }
}
