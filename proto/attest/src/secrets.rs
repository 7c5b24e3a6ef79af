//! A tenant's root secret and what derives from it.

use crate::{Error, Opening};
use aws_lc_rs::{
    digest::{SHA256, digest},
    hkdf::{HKDF_SHA256, KeyType, Salt},
    hmac,
};
use zeroize::Zeroizing;

/// What a release hands over. Not `Clone`, not `Debug`; overwritten on drop.
pub struct Secrets {
    root: Zeroizing<[u8; 32]>,
    model_key: Option<Zeroizing<Vec<u8>>>,
}

impl Secrets {
    /// A tenant's root secret, 32 random bytes, and the key of an encrypted model, if there is one.
    #[must_use]
    pub fn new(root: Zeroizing<[u8; 32]>, model_key: Option<Zeroizing<Vec<u8>>>) -> Self {
        Self { root, model_key }
    }

    /// Draws a root secret.
    ///
    /// # Errors
    /// [`Error::Platform`] without entropy.
    pub fn draw() -> Result<Zeroizing<[u8; 32]>, Error> {
        let mut root = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *root).map_err(|e| Error::Platform(format!("no entropy: {e}")))?;
        Ok(root)
    }

    /// The key of an encrypted model.
    #[must_use]
    pub fn model_key(&self) -> Option<&[u8]> {
        self.model_key.as_ref().map(|key| key.as_slice())
    }

    /// 32 bytes for `purpose` by HKDF-SHA-256 (RFC 5869) from the root secret; two purposes know nothing of each other.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> Zeroizing<[u8; 32]> {
        derive(&self.root, purpose)
    }

    /// The key with which holders of the root secret say who they are.
    #[must_use]
    pub fn admission(&self) -> AdmissionKey {
        AdmissionKey(self.derive(ADMISSION))
    }

    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let model_key = self.model_key().unwrap_or_default();
        let mut out = Zeroizing::new(Vec::with_capacity(32 + model_key.len()));
        out.extend_from_slice(self.root.as_slice());
        out.extend_from_slice(model_key);
        out
    }

    pub(crate) fn decode(bytes: &[u8], with_model_key: bool) -> Result<Self, Error> {
        let Some((root, model_key)) = bytes.split_first_chunk::<32>() else {
            return Err(Error::Key(format!("released secrets of {} bytes, expected 32 and more", bytes.len())));
        };
        if model_key.is_empty() == with_model_key {
            return Err(Error::Key("released secrets and their header disagree about the key of a model".into()));
        }
        let model_key = with_model_key.then(|| Zeroizing::new(model_key.to_vec()));
        Ok(Self { root: Zeroizing::new(*root), model_key })
    }
}

/// Proves that its holder knows a tenant's root secret, without telling it.
pub struct AdmissionKey(Zeroizing<[u8; 32]>);

impl AdmissionKey {
    /// Of a root secret that is held as bytes.
    #[must_use]
    pub fn of(root: &[u8; 32]) -> Self {
        Self(derive(root, ADMISSION))
    }

    /// HMAC-SHA-256 over the opening of one connection, so that it is worth nothing on another.
    #[must_use]
    pub fn prove(&self, opening: &Opening) -> Vec<u8> {
        hmac::sign(&self.hmac(), opening.bytes()).as_ref().to_vec()
    }

    /// Whether `proof` is [`AdmissionKey::prove`] of this key; in constant time.
    #[must_use]
    pub fn verify(&self, opening: &Opening, proof: &[u8]) -> bool {
        hmac::verify(&self.hmac(), opening.bytes(), proof).is_ok()
    }

    /// SHA-256 of the key, which names it in receipts.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, self.0.as_slice()).as_ref());
        out
    }

    fn hmac(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_slice())
    }
}

fn derive(root: &[u8; 32], purpose: &str) -> Zeroizing<[u8; 32]> {
    struct Bytes32;
    impl KeyType for Bytes32 {
        fn len(&self) -> usize {
            32
        }
    }
    let mut out = Zeroizing::new([0; 32]);
    let purpose = [purpose.as_bytes()];
    let prk = Salt::new(HKDF_SHA256, SALT).extract(root);
    // HKDF-SHA-256 expands to up to 8160 bytes.
    if let Ok(okm) = prk.expand(&purpose, Bytes32)
        && okm.fill(out.as_mut_slice()).is_ok()
    {
        return out;
    }
    unreachable!("32 bytes are within what HKDF gives")
}

const SALT: &[u8] = b"bifrost/root/v1";
const ADMISSION: &str = "admission";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_are_apart_and_reproducible() {
        let secrets = Secrets::new(Zeroizing::new([3; 32]), None);
        assert_ne!(*secrets.derive("a"), *secrets.derive("b"));
        assert_eq!(*secrets.derive("a"), *Secrets::new(Zeroizing::new([3; 32]), None).derive("a"));
        assert_eq!(secrets.admission().digest(), AdmissionKey::of(&[3; 32]).digest());
        assert_ne!(secrets.admission().digest(), AdmissionKey::of(&[4; 32]).digest());
    }

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else() {
        let with = Secrets::new(Zeroizing::new([3; 32]), Some(Zeroizing::new(b"AGE".to_vec())));
        let back = Secrets::decode(&with.encode(), true).ok().unwrap();
        assert_eq!((back.model_key(), *back.root), (Some(&b"AGE"[..]), [3; 32]));
        assert!(Secrets::decode(&with.encode(), false).is_err());
        assert!(Secrets::decode(&[0; 32], true).is_err());
        assert!(Secrets::decode(&[0; 31], false).is_err());
    }
}
