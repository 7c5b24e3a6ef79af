//! Full pages outside the enclave's memory, encrypted and authenticated.
//!
//! Every layer of every page is one AES-256-GCM message under a key of this process. Its nonce is a number that is never
//! used twice and is remembered inside, with the page: what comes back from outside must be what was put there last,
//! for this page and this layer, or it is refused. Storage that is changed, mixed up or rolled back can deny service
//! and nothing else; it sees how many pages there are and when they are read.

use super::{
    Shape,
    page::{Backend, FullPage, PageData},
    pool::Permit,
    store::{Slot, Store},
};
use crate::Error;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use trusted_he::Random;
use zeroize::Zeroizing;

/// Bytes that a message is longer than its numbers.
const TAG: usize = 16;

/// AES-256-GCM pages in untrusted storage.
#[derive(Clone)]
pub struct Sealed {
    shared: Arc<Shared>,
}

struct Shared {
    key: LessSafeKey,
    /// The next nonce.
    next: AtomicU64,
    store: Store,
}

impl Sealed {
    /// Draws a key; pages go to `store`.
    ///
    /// # Errors
    /// [`Error::Platform`] without entropy.
    pub fn new(store: Store) -> Result<Self, Error> {
        let mut key = Zeroizing::new([0u8; 32]);
        let mut random = Random::from_os().map_err(|e| Error::Platform(format!("a page key: {e}")))?;
        random.fill(key.as_mut_slice());
        let key = UnboundKey::new(&AES_256_GCM, &*key).map_err(|_| Error::Bug("an AES key of 32 bytes".into()))?;
        Ok(Self { shared: Arc::new(Shared { key: LessSafeKey::new(key), next: AtomicU64::new(0), store }) })
    }
}

/// A page outside.
struct SealedPage {
    shared: Arc<Shared>,
    slot: Slot,
    /// Nonces of its layers.
    nonces: Range<u64>,
    /// Bytes of a layer.
    size: usize,
    _permit: Permit,
}

impl Backend for Sealed {
    fn name(&self) -> &'static str {
        "sealed"
    }

    fn put(&self, shape: Shape, data: &mut PageData, permit: Permit) -> Result<Arc<dyn FullPage>, Error> {
        let (shared, size, layers) = (&self.shared, shape.layer() * size_of::<f32>(), shape.layers as u64);
        let first = shared.next.fetch_add(layers, Ordering::Relaxed);
        let nonces = first..first + layers;
        let mut message = Vec::with_capacity(shape.layers * (size + TAG));
        for (nonce, layer) in nonces.clone().zip(data.chunks_exact(shape.layer())) {
            let at = message.len();
            message.extend_from_slice(bytemuck::cast_slice(layer));
            let tag = shared.key.seal_in_place_separate_tag(of(nonce), aad(nonce), &mut message[at..]);
            message.extend_from_slice(tag.map_err(|_| Error::Bug("a page cannot be sealed".into()))?.as_ref());
        }
        let slot = shared.store.put(&message)?;
        *data = Zeroizing::default();
        Ok(Arc::new(SealedPage { shared: shared.clone(), slot, nonces, size, _permit: permit }))
    }
}

impl FullPage for SealedPage {
    fn plain(&self, _: usize) -> Option<&[f32]> {
        None
    }

    fn open(&self, layer: usize, out: &mut [f32]) -> Result<(), Error> {
        let nonce = self.nonces.start + layer as u64;
        let out: &mut [u8] = bytemuck::cast_slice_mut(out);
        let mut message = vec![0; self.size + TAG];
        if nonce >= self.nonces.end || out.len() != self.size {
            return Err(Error::Bug(format!(
                "layer {layer} of a page of {} layers",
                self.nonces.end - self.nonces.start
            )));
        }
        self.shared.store.get(&self.slot, layer * message.len(), &mut message)?;
        let (numbers, tag) = message.split_at(self.size);
        self.shared.key.open_separate_gather(of(nonce), aad(nonce), numbers, tag, out).map_err(|_| {
            tracing::error!(layer, "ALARM: a sealed page of keys and values is not the one that was put away");
            Error::Platform("a sealed page of keys and values was changed, or is an old one (engine.kv_file)".into())
        })
    }
}

fn of(nonce: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&nonce.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn aad(nonce: u64) -> Aad<[u8; 8]> {
    Aad::from(nonce.to_le_bytes())
}
