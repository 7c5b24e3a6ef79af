//! Key pairs that follow from a seed.

use crate::SimulatorError;
use p256::SecretKey;
use p256::ecdsa::signature::Signer;
use p256::ecdsa::{Signature, SigningKey};
use p256::pkcs8::EncodePrivateKey;
use rcgen::{PublicKeyData, SignatureAlgorithm};
use sha2::{Digest, Sha256};

/// A P-256 key pair. Signatures are deterministic (RFC 6979), so that what is signed twice is the same twice.
#[derive(Clone)]
pub(crate) struct Key {
    name: String,
    signing: SigningKey,
    /// The uncompressed point, SEC 1 section 2.3.3: 4, then x and y of 32 bytes each.
    point: Vec<u8>,
}

impl Key {
    /// The key pair called `name`: its scalar is `SHA-256(tag || seed || name)`.
    ///
    /// # Errors
    /// [`SimulatorError::Key`] if that is no scalar, of which the chance is about `2^-32`.
    pub(crate) fn derive(seed: &[u8; 32], name: &str) -> Result<Self, SimulatorError> {
        let scalar = Sha256::new().chain_update(TAG).chain_update(seed).chain_update(name).finalize();
        let signing = SigningKey::from_slice(&scalar)
            .map_err(|reason| SimulatorError::Key { name: name.to_owned(), reason: reason.to_string() })?;
        let point = signing.verifying_key().to_sec1_point(false).as_bytes().to_vec();
        Ok(Self { name: name.to_owned(), signing, point })
    }

    /// ECDSA with SHA-256: r and s, 32 big-endian bytes each, as quotes and collateral carry it.
    pub(crate) fn sign_raw(&self, message: &[u8]) -> Vec<u8> {
        self.signature(message).to_bytes().to_vec()
    }

    /// x and y, 32 big-endian bytes each.
    pub(crate) fn coordinates(&self) -> &[u8] {
        self.point.get(1..).unwrap_or_default()
    }

    /// The private key, PKCS #8.
    ///
    /// # Errors
    /// [`SimulatorError::Key`] if it cannot be encoded.
    pub(crate) fn pkcs8(&self) -> Result<Vec<u8>, SimulatorError> {
        SecretKey::from(&self.signing)
            .to_pkcs8_der()
            .map(|document| document.as_bytes().to_vec())
            .map_err(|reason| SimulatorError::Key { name: self.name.clone(), reason: reason.to_string() })
    }

    fn signature(&self, message: &[u8]) -> Signature {
        self.signing.sign(message)
    }
}

impl PublicKeyData for Key {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.signature(message).to_der().as_bytes().to_vec())
    }
}

const TAG: &[u8] = b"bifrost-simulated/key/v1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_from_seed_and_name() {
        let root = Key::derive(&[1; 32], "root").unwrap();
        assert_eq!(root.point, Key::derive(&[1; 32], "root").unwrap().point);
        assert_ne!(root.point, Key::derive(&[2; 32], "root").unwrap().point);
        assert_ne!(root.point, Key::derive(&[1; 32], "pck").unwrap().point);
        assert_eq!(root.sign_raw(b"twice"), root.sign_raw(b"twice"));
        assert_eq!((root.point.len(), root.coordinates().len()), (65, 64));
    }
}
