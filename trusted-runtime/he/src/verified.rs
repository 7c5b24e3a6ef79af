//! The order of things as a type: what was checked, and only that, can be decrypted.

use crate::LaneAnswer;
use std::ops::Range;

/// An answer of the evaluator that passed its check. Only the checks of this crate make one, and decryption takes
/// nothing else.
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// To be called where a check has just succeeded.
    pub(crate) fn vouch(value: T) -> Self {
        Self(value)
    }

    /// What was checked.
    pub(crate) fn get(&self) -> &T {
        &self.0
    }

    /// What was checked.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

impl Verified<LaneAnswer> {
    /// The rows that were checked.
    pub fn rows(&self) -> Range<usize> {
        self.0.rows()
    }

    /// The first of them.
    pub fn first_row(&self) -> usize {
        self.0.rows().start
    }
}
