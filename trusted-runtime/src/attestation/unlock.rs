//! From a released model key to a model that can be loaded.

use super::{
    decrypted_model::{DecryptedModel, memory},
    model_file::{decrypted, digest, encrypted, identity},
};
use crate::{Error, config::ModelSection, keys::hex};
use attest::secrets::Secrets;
use std::{
    collections::BTreeMap,
    fs::File,
    io::Seek,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The key of an encrypted model, on its way.
#[derive(Default)]
enum Key {
    #[default]
    Missing,
    /// Released, and not used yet.
    Released(age::x25519::Identity),
    /// The model is open; its key is gone.
    Used,
}

/// What is needed before the model can be loaded.
pub struct Unlock {
    source: String,
    digest: [u8; 32],
    identity: Mutex<Key>,
    running: Mutex<BTreeMap<(String, String), u32>>,
}

impl Unlock {
    /// For the configured model, whose digest as it lies on disk was attested.
    pub fn new(model: &ModelSection, digest: [u8; 32]) -> Self {
        Self { source: model.source.clone(), digest, identity: Mutex::default(), running: Mutex::default() }
    }

    /// SHA-256 of the model as it lies on disk.
    pub fn model_digest(&self) -> [u8; 32] {
        self.digest
    }

    /// Whether what is released is enough for the model, and not for another one.
    ///
    /// # Errors
    /// [`Error::Client`] or [`Error::Config`] saying what is missing or wrong.
    pub fn check(&self, secrets: &Secrets) -> Result<(), Error> {
        let known = !matches!(*self.key(), Key::Missing);
        match (encrypted(&self.source), secrets.model_key()) {
            (false, None) => Ok(()),
            (false, Some(_)) => Err(Error::Client("the model is not encrypted; release without its key".into())),
            (true, None) if known => Ok(()),
            (true, None) => Err(Error::Client("the model is encrypted; release its key too (--model-key)".into())),
            (true, Some(key)) => {
                let file = File::open(&self.source);
                let file = file.map_err(|e| Error::Platform(format!("model {}: {e}", self.source)))?;
                decrypted(&self.source, file, &identity(key)?).map(drop)
            }
        }
    }

    /// Keeps the model's key, if one was released; [`Unlock::check`] has passed.
    pub fn model_key(&self, secrets: &Secrets) {
        let mut slot = self.key();
        if let (Key::Missing, Some(key)) = (&*slot, secrets.model_key().and_then(|key| identity(key).ok())) {
            *slot = Key::Released(key);
        }
    }

    /// The model as it can be loaded: the plaintext of an encrypted one lies in anonymous memory of this process as long as
    /// the second value lives, and is overwritten with its end.
    ///
    /// # Errors
    /// [`Error::Platform`] for files and memory, [`Error::Client`] for a model that was changed.
    pub fn source(&self) -> Result<(String, Option<DecryptedModel>), Error> {
        let key = std::mem::take(&mut *self.key());
        let Key::Released(key) = key else { return Ok((self.source.clone(), None)) };
        *self.key() = Key::Used;
        let platform = |e: std::io::Error| Error::Platform(format!("model {}: {e}", self.source));
        // First a copy that nobody can change any more, then its digest, then its plaintext.
        let mut sealed = memory("sealed model").map_err(platform)?;
        std::io::copy(&mut File::open(&self.source).map_err(platform)?, &mut sealed).map_err(platform)?;
        let digest = digest(&mut sealed).map_err(platform)?;
        if digest != self.digest {
            let (found, expected) = (hex(&digest), hex(&self.digest));
            return Err(Error::Model(format!("{}: its SHA-256 is {found}, attested was {expected}", self.source)));
        }
        sealed.rewind().map_err(platform)?;
        let (reader, plain) = (decrypted(&self.source, sealed, &key)?, DecryptedModel::new().map_err(platform)?);
        let plain = plain.filled(reader).map_err(|e| Error::Model(format!("{}: decrypting: {e}", self.source)))?;
        tracing::info!("model decrypted into memory");
        Ok((plain.path(), Some(plain)))
    }

    fn key(&self) -> MutexGuard<'_, Key> {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that run under a key.
    pub fn running(&self, tenant: &str, key_id: &str) -> u32 {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.get(&(tenant.to_owned(), key_id.to_owned())).copied().unwrap_or(0)
    }

    /// Counts a request that begins (1) or ends (-1).
    pub(crate) fn count(&self, tenant: &str, key_id: &str, change: i32) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let count = running.entry((tenant.to_owned(), key_id.to_owned())).or_default();
        *count = count.saturating_add_signed(change);
    }
}
