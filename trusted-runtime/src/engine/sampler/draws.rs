//! Where the randomness of a draw comes from.

use crate::Error;
use chacha20::{
    ChaCha20,
    cipher::{KeyIvInit, StreamCipher},
};
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// A stream of uniform numbers: ChaCha20 under a key derived from the seed.
pub(super) struct Draws(ChaCha20);

impl ZeroizeOnDrop for Draws {}

impl Draws {
    /// # Errors
    /// [`Error::Platform`] if the operating system gives no entropy for an absent seed.
    pub(super) fn new(seed: Option<u64>) -> Result<Self, Error> {
        let mut key = Zeroizing::new([0u8; 32]);
        match seed {
            Some(seed) => *key = blake3::derive_key("bifrost 2026 sampler v1", &seed.to_le_bytes()),
            None => getrandom::fill(key.as_mut()).map_err(|e| Error::Platform(format!("no entropy: {e}")))?,
        }
        Ok(Self(ChaCha20::new(&(*key).into(), &[0u8; 12].into())))
    }

    /// Uniform in [0, 1) with 53 bits.
    #[expect(clippy::cast_precision_loss, reason = "53 bits are exact in f64")]
    pub(super) fn unit(&mut self) -> f64 {
        let mut word = [0; 8];
        self.0.apply_keystream(&mut word);
        (u64::from_le_bytes(word) >> 11) as f64 / (1u64 << 53) as f64
    }
}
