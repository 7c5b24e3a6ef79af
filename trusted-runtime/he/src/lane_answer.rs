//! The evaluator's answer to one shard of a bulk product while it comes in.

use crate::Error;
use kernels::{Ring, wire};
use std::ops::Range;

/// Rows of words, lane by lane: well-formed, and not yet known to be the product.
pub struct LaneAnswer {
    rows: Range<usize>,
    lanes: usize,
    /// [rows][lanes], in [0, q).
    words: Vec<u64>,
    seen: Vec<bool>,
    missing: usize,
}

impl LaneAnswer {
    /// Nothing of `rows` has come yet.
    pub fn new(rows: Range<usize>, lanes: usize) -> Self {
        let count = rows.len();
        Self { rows, lanes, words: vec![0; count * lanes], seen: vec![false; count], missing: count }
    }

    /// Takes a part: range, size, format and every residue are checked. `message` is of kind lanes.
    ///
    /// # Errors
    /// [`Error::Answer`] naming what was found and what was expected.
    pub fn take(&mut self, ring: &Ring, first_row: u32, rows: u32, message: &[u8]) -> Result<(), Error> {
        let (first, count) = (first_row as usize, rows as usize);
        let end = first.checked_add(count).filter(|&end| count > 0 && first >= self.rows.start && end <= self.rows.end);
        let Some(end) = end else {
            return Err(Error::Answer(format!("answers {count} rows from {first}, asked were {:?}", self.rows)));
        };
        let part = first - self.rows.start..end - self.rows.start;
        if let Some(twice) = part.clone().find(|&r| self.seen[r]) {
            return Err(Error::Answer(format!("answers row {} twice", self.rows.start + twice)));
        }
        let words = &mut self.words[part.start * self.lanes..part.end * self.lanes];
        wire::decode(ring.params(), wire::Kind::Lanes, message, words)
            .map_err(|e| Error::Answer(format!("answers badly: {e}")))?;
        self.missing -= count;
        self.seen[part].fill(true);
        Ok(())
    }

    /// Whether every row has come.
    pub fn complete(&self) -> bool {
        self.missing == 0
    }

    /// The rows asked for.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Lanes of a row.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn row(&self, row: usize) -> &[u64] {
        let at = (row - self.rows.start) * self.lanes;
        &self.words[at..at + self.lanes]
    }

    pub(crate) fn into_words(self) -> Vec<u64> {
        self.words
    }
}
