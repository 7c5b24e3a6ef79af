//! The random generator for secrets and errors: AES-256 in counter mode with fast key erasure.

use crate::{
    Error,
    stream::{StreamCipher, stream},
};
use std::sync::{Mutex, PoisonError};
use zeroize::{Zeroize, Zeroizing};

/// What tenants' root secrets have been mixed into, if any was.
static CONTRIBUTED: Mutex<Option<Random>> = Mutex::new(None);

/// Mixes a tenant's root secret into every generator that is made from now on.
///
/// A generator's key is the operating system's 32 bytes XOR 32 bytes of a generator over all contributions, so it is as
/// unpredictable as the better of the two, and neither a tenant nor whoever controls the machine's entropy knows it alone.
pub fn contribute(root: &[u8; 32]) {
    let mut contributed = CONTRIBUTED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut key = Zeroizing::new(*root);
    if let Some(earlier) = contributed.as_mut() {
        let mut mixed = Zeroizing::new([0; 32]);
        earlier.fill(mixed.as_mut_slice());
        // The root goes through the cipher too, so that one contribution cannot cancel another.
        Random { key: *key }.fill(key.as_mut_slice());
        xor(&mut key, &mixed);
    }
    *contributed = Some(Random { key: *key });
}

fn xor(a: &mut [u8; 32], b: &[u8; 32]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a ^= b);
}

/// A generator seeded by the operating system and by what was [`contribute`]d.
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
        if let Some(contributed) = CONTRIBUTED.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let mut mixed = Zeroizing::new([0; 32]);
            contributed.fill(mixed.as_mut_slice());
            xor(&mut key, &mixed);
        }
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

    #[test]
    fn contributions_change_what_is_drawn_and_never_cancel() {
        let state = || {
            let mut out = [0; 32];
            CONTRIBUTED.lock().unwrap().as_mut().unwrap().fill(&mut out);
            out
        };
        contribute(&[1; 32]);
        let first = state();
        assert_ne!(first, state(), "what was drawn is gone");
        contribute(&[1; 32]);
        let (second, mut zero) = (state(), [0; 32]);
        Random::from_key([0; 32]).fill(&mut zero);
        assert_ne!(second, zero);
        assert_ne!(second, first);
        let (mut x, mut y) = ([0; 32], [0; 32]);
        Random::from_os().unwrap().fill(&mut x);
        Random::from_os().unwrap().fill(&mut y);
        assert_ne!(x, y);
    }
}
