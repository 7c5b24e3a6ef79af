//! Which full pages belong to which beginning of a sequence.
//!
//! A page is named by a keyed hash over its salt and all tokens up to its end, so that one tenant can neither find
//! another's pages nor learn from timing that they exist. Only the enclave sees these names.

use super::{PAGE, page::FullPage};
use std::{collections::HashMap, sync::Arc};

/// What separates sequences that must not share pages: derived from the tenant, and from what a request adds.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Salt([u8; 32]);

impl Salt {
    /// That of a tenant's requests which ask for `extra`.
    pub fn of(tenant: &[u8; 32], extra: &str) -> Self {
        Self(*blake3::keyed_hash(tenant, extra.as_bytes()).as_bytes())
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
        Self { salt, hasher: blake3::Hasher::new_keyed(&salt.0), tokens: 0, digests: Vec::new() }
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

    /// The name of the `index`th page, if its tokens have come.
    pub(super) fn page(&self, index: usize) -> Option<Digest> {
        self.digests.get(index).copied()
    }
}

/// Full pages by name, with the moment of their last use.
#[derive(Default)]
pub(super) struct Prefixes {
    pages: HashMap<Digest, (u64, Arc<dyn FullPage>)>,
    clock: u64,
    pub(super) asked: u64,
    pub(super) found: u64,
}

impl Prefixes {
    pub(super) fn insert(&mut self, digest: Digest, page: Arc<dyn FullPage>) {
        self.clock += 1;
        self.pages.entry(digest).or_insert((self.clock, page)).0 = self.clock;
    }

    pub(super) fn find(&mut self, chain: &mut Chain, tokens: &[u32]) -> Vec<Arc<dyn FullPage>> {
        let (mut ahead, mut found) = (Chain::new(chain.salt), Vec::new());
        for (index, tokens) in tokens.chunks_exact(PAGE).enumerate() {
            ahead.extend(tokens);
            self.clock += 1;
            let Some((used, page)) = ahead.page(index).and_then(|d| self.pages.get_mut(&d)) else { break };
            *used = self.clock;
            chain.extend(tokens);
            found.push(page.clone());
        }
        self.asked += tokens.len() as u64;
        self.found += (found.len() * PAGE) as u64;
        found
    }

    /// Pages that nobody uses but this table.
    pub(super) fn idle(&self) -> usize {
        self.pages.values().filter(|(_, page)| Arc::strong_count(page) == 1).count()
    }

    /// Forgets the longest unused page that nobody uses; false if there is none.
    pub(super) fn evict(&mut self) -> bool {
        let idle = self.pages.iter().filter(|(_, (_, page))| Arc::strong_count(page) == 1);
        let oldest = idle.min_by_key(|(_, (used, _))| *used).map(|(digest, _)| *digest);
        oldest.is_some_and(|digest| self.pages.remove(&digest).is_some())
    }
}
