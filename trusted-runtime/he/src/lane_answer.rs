//! The evaluator's answer to a bulk product while it comes in, shard by shard.

use crate::{Error, SHARD_ROWS};
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
        self.read(&parse(ring, message, count * self.lanes)?, 0, part)
    }

    /// Rows `part`, counted from the first of this answer, from row `skip` of the message on.
    fn read(&mut self, message: &wire::Message<'_>, skip: usize, part: Range<usize>) -> Result<(), Error> {
        if let Some(twice) = part.clone().find(|&r| self.seen[r]) {
            return Err(Error::Answer(format!("answers row {} twice", self.rows.start + twice)));
        }
        let words = &mut self.words[part.start * self.lanes..part.end * self.lanes];
        message.read(skip * self.lanes, words).map_err(badly)?;
        self.missing -= part.len();
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

/// The answer to a whole matrix; what is held at a time are the shards that are not complete.
pub struct LaneAnswers {
    rows: usize,
    lanes: usize,
    shards: Vec<Shard>,
}

enum Shard {
    Waiting,
    Open(LaneAnswer),
    Done,
}

impl LaneAnswers {
    /// Nothing of `rows` rows has come yet.
    pub fn new(rows: usize, lanes: usize) -> Self {
        let shards = (0..rows.div_ceil(SHARD_ROWS)).map(|_| Shard::Waiting).collect();
        Self { rows, lanes, shards }
    }

    /// Takes a part, which may be of several shards, and gives back those that are complete now.
    ///
    /// # Errors
    /// [`Error::Answer`] naming what was found and what was expected.
    pub fn take(&mut self, ring: &Ring, first_row: u32, rows: u32, message: &[u8]) -> Result<Vec<LaneAnswer>, Error> {
        let (first, count) = (first_row as usize, rows as usize);
        let Some(end) = first.checked_add(count).filter(|&end| count > 0 && end <= self.rows) else {
            return Err(Error::Answer(format!("answers {count} rows from {first}, asked were 0..{}", self.rows)));
        };
        let message = parse(ring, message, count * self.lanes)?;
        let mut complete = Vec::new();
        for shard in first / SHARD_ROWS..=(end - 1) / SHARD_ROWS {
            let start = shard * SHARD_ROWS;
            let slot = &mut self.shards[shard];
            if let Shard::Waiting = slot {
                *slot = Shard::Open(LaneAnswer::new(start..(start + SHARD_ROWS).min(self.rows), self.lanes));
            }
            let Shard::Open(answer) = slot else {
                return Err(Error::Answer(format!("answers row {} twice", first.max(start))));
            };
            let part = first.max(start) - start..end.min(start + SHARD_ROWS) - start;
            answer.read(&message, start + part.start - first, part)?;
            if answer.complete()
                && let Shard::Open(answer) = std::mem::replace(slot, Shard::Done)
            {
                complete.push(answer);
            }
        }
        Ok(complete)
    }

    /// Whether every row has come.
    pub fn complete(&self) -> bool {
        self.shards.iter().all(|s| matches!(s, Shard::Done))
    }
}

fn parse<'a>(ring: &Ring, message: &'a [u8], count: usize) -> Result<wire::Message<'a>, Error> {
    wire::Message::parse(ring.params(), wire::Kind::Lanes, message, count).map_err(badly)
}

fn badly(e: kernels::Error) -> Error {
    Error::Answer(format!("answers badly: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::params::DEFAULT;

    #[test]
    fn parts_in_any_order_across_shards_and_each_row_once() {
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        let rows = SHARD_ROWS + 8;
        let word = |row: usize, lane: usize| (row * 8 + lane) as u64;
        let take = |answers: &mut LaneAnswers, rows: Range<usize>| {
            let words: Vec<u64> = rows.clone().flat_map(|r| (0..8).map(move |l| word(r, l))).collect();
            let mut message = Vec::new();
            wire::encode(ring.params(), wire::Kind::Lanes, &words, &mut message);
            let [first, count] = [rows.start, rows.len()].map(|x| u32::try_from(x).unwrap());
            answers.take(&ring, first, count, &message)
        };
        let mut answers = LaneAnswers::new(rows, 8);
        let (near, far) = (SHARD_ROWS - 5, SHARD_ROWS + 3);
        assert!(take(&mut answers, near..far).unwrap().is_empty());
        let second = take(&mut answers, far..rows).unwrap();
        let first = take(&mut answers, 0..near).unwrap();
        assert!(answers.complete() && first.len() == 1 && second.len() == 1);
        for (answer, range) in [(&first[0], 0..SHARD_ROWS), (&second[0], SHARD_ROWS..rows)] {
            assert_eq!(answer.rows(), range);
            let want: Vec<u64> = range.flat_map(|r| (0..8).map(move |l| word(r, l))).collect();
            assert_eq!(answer.words(), want);
        }
        let why = |r: Result<Vec<LaneAnswer>, Error>| r.err().unwrap().to_string();
        assert_eq!(why(take(&mut answers, near..near + 1)), format!("answers row {near} twice"));
        assert!(why(take(&mut LaneAnswers::new(9, 8), 5..10)).contains("5 rows from 5, asked were 0..9"));
        let mut answers = LaneAnswers::new(9, 8);
        take(&mut answers, 2..4).unwrap();
        assert_eq!(why(take(&mut answers, 3..5)), "answers row 3 twice");
    }
}
