//! The random generator for secrets and errors: AES-256 in counter mode with fast key erasure.

use crate::{
    Error,
    stream::{StreamCipher, stream},
};
use zeroize::{Zeroize, Zeroizing};

/// A generator seeded by the operating system.
///
/// Each [`Random::fill`] expands the key once; the first 32 bytes become the next key, so what was drawn
/// cannot be computed from a later state. Not `Clone`, not `Debug`; the key is zeroized on drop.
pub struct Random {
    key: [u8; 32],
}

impl Random {
    /// # Errors
    /// [`Error::Entropy`] if the operating system gives no randomness.
    pub fn from_os() -> Result<Self, Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(Error::Entropy)?;
        Ok(Self { key })
    }

    /// A reproducible generator, for golden vectors and statistics.
    #[cfg(test)]
    pub(crate) fn from_key(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// Fills `out` (up to 256 GiB) with fresh random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        let mut stream = stream(&self.key);
        let mut next = Zeroizing::new([0; 32]);
        stream.write_keystream(next.as_mut_slice());
        stream.write_keystream(out);
        self.key.copy_from_slice(next.as_slice());
    }
}

impl Drop for Random {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_differ_and_keys_advance() {
        let (mut a, mut b, mut c) = ([0; 64], [0; 64], [0; 64]);
        let mut random = Random::from_key([7; 32]);
        random.fill(&mut a);
        random.fill(&mut b);
        Random::from_key([7; 32]).fill(&mut c);
        assert_ne!(a, b);
        assert_eq!(a, c);
        let (mut x, mut y) = ([0; 32], [0; 32]);
        Random::from_os().unwrap().fill(&mut x);
        Random::from_os().unwrap().fill(&mut y);
        assert_ne!(x, y);
    }
}
