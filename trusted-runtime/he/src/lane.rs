//! One-time pads: a lane masks one vector through one matrix, and is gone.

use crate::{
    Error, LaneChallenge,
    stream::{StreamCipher, stream},
};
use zeroize::Zeroizing;

/// A mask R of its own random key, and W·R mod t. Not `Clone`, not `Debug`; zeroized on drop.
///
/// [`Lane::mask`] takes it by value: whatever becomes of the message afterwards, no second vector can meet this mask.
pub struct Lane {
    log2_t: u32,
    cols: usize,
    /// On the heap, so that moving the lane copies no key.
    key: Zeroizing<Vec<u8>>,
    /// W·R mod t, one a row.
    product: Zeroizing<Vec<u32>>,
}

/// What is left of a lane once its mask was used: enough to take the mask off one answer.
pub struct Masked {
    log2_t: u32,
    product: Zeroizing<Vec<u32>>,
}

impl Lane {
    pub(crate) fn new(log2_t: u32, cols: usize, key: Zeroizing<Vec<u8>>, product: Zeroizing<Vec<u32>>) -> Self {
        Self { log2_t, cols, key, product }
    }

    /// Memory of a lane of a `rows` by `cols` matrix.
    pub fn bytes_for(rows: usize) -> usize {
        // The key's allocation is counted with its overhead.
        4 * rows + 48 + size_of::<Self>()
    }

    /// `out = x + R mod t`, in [0, t). The mask is gone then.
    ///
    /// # Errors
    /// [`Error::Misuse`] if `x` or `out` is not one integer a column; the lane is gone all the same.
    pub fn mask(self, x: &[i32], out: &mut [u32]) -> Result<Masked, Error> {
        if x.len() != self.cols || out.len() != self.cols {
            return Err(Error::Misuse(format!("{} integers into {} for {} columns", x.len(), out.len(), self.cols)));
        }
        let key = self.key.first_chunk().ok_or_else(|| Error::Misuse(format!("a key of {} bytes", self.key.len())))?;
        expand_mask(key, self.log2_t, out);
        let t = modulus_mask(self.log2_t);
        for (out, &x) in out.iter_mut().zip(x) {
            *out = out.wrapping_add(x.cast_unsigned()) & t;
        }
        Ok(Masked { log2_t: self.log2_t, product: self.product })
    }
}

/// An answer without its mask: integers of which nobody knows yet whether they are W·x. Zeroized on drop.
pub struct Unproven(Zeroizing<Vec<i32>>);

impl Masked {
    /// Takes the mask off `answer`, W·(x + R) modulo 2^32, one word a row.
    ///
    /// # Errors
    /// [`Error::Misuse`] on a wrong size.
    pub fn unmask(self, answer: &[u32]) -> Result<Unproven, Error> {
        if answer.len() != self.product.len() {
            return Err(Error::Misuse(format!("{} words for {} rows", answer.len(), self.product.len())));
        }
        let unused = u32::BITS - self.log2_t;
        let centred = |(&a, &u): (&u32, &u32)| (a.wrapping_sub(u) << unused).cast_signed() >> unused;
        Ok(Unproven(Zeroizing::new(answer.iter().zip(self.product.iter()).map(centred).collect())))
    }
}

impl Unproven {
    /// Checks that these are W·x and only then hands them out: `y` in [-t/2, t/2), one a row.
    ///
    /// # Errors
    /// [`Error::Forged`] if they are not; [`Error::Misuse`] on a wrong size.
    pub fn verify(self, challenge: &LaneChallenge, x: &[i32], y: &mut [i32]) -> Result<(), Error> {
        if y.len() != self.0.len() {
            return Err(Error::Misuse(format!("{} integers for {} rows", y.len(), self.0.len())));
        }
        if !challenge.agrees(x, &self.0) {
            return Err(Error::Forged("the product of masked activations"));
        }
        y.copy_from_slice(&self.0);
        Ok(())
    }
}

/// `out` from the stream of `key`, uniform in [0, t).
pub(crate) fn expand_mask(key: &[u8; 32], log2_t: u32, out: &mut [u32]) {
    // In place, so that no other copy is left to wipe.
    stream(key).write_keystream(bytemuck::cast_slice_mut(out));
    let t = modulus_mask(log2_t);
    for word in out {
        *word = u32::from_le(*word) & t;
    }
}

/// t - 1.
fn modulus_mask(log2_t: u32) -> u32 {
    u32::MAX >> (u32::BITS - log2_t)
}
