//! An answer of the evaluator on its way to decryption: nothing is decrypted that has not been checked.

use crate::{Error, MatrixCipher};
use kernels::{Tiling, wire};

/// A part of an answer as it came. Nothing can be done with it but [`Unverified::check`].
pub struct Unverified<'a> {
    /// Index of the first output tile.
    pub first_tile: u32,
    /// Number of tiles.
    pub tiles: u32,
    /// A `kernels::wire` message of kind coefficients.
    pub coefficients: &'a [u8],
}

/// A checked part of an answer: the useful coefficients of consecutive output tiles, for every vector of the job.
pub struct Answer {
    first: usize,
    tiles: usize,
    rows: usize,
    vectors: usize,
    /// [vectors][rows], in [0, q).
    coefficients: Vec<u64>,
}

impl Unverified<'_> {
    /// Checks range, size and format against the job: `vectors` vectors times the matrix of `cipher`. The only way to
    /// an [`Answer`], and therefore the place for every further check.
    ///
    /// # Errors
    /// [`Error::Answer`] naming what was found and what was expected.
    pub fn check(self, cipher: &MatrixCipher, vectors: usize) -> Result<Answer, Error> {
        let tiling = cipher.tiling();
        let (first, tiles) = (self.first_tile as usize, self.tiles as usize);
        if tiles == 0 || first.checked_add(tiles).is_none_or(|end| end > tiling.tiles()) {
            return Err(Error::Answer(format!("answers {tiles} tiles from {first}, there are {}", tiling.tiles())));
        }
        let rows = rows_of(tiling, first, tiles);
        // The size is known before anything is allocated for it.
        let expected = wire::encoded_len(cipher.ring().params(), vectors * rows);
        if self.coefficients.len() != expected {
            return Err(Error::Answer(format!(
                "answers {} bytes for {rows} rows of {vectors} vectors, expected {expected}",
                self.coefficients.len()
            )));
        }
        let mut coefficients = vec![0; vectors * rows];
        wire::decode(cipher.ring().params(), wire::Kind::Coefficients, self.coefficients, &mut coefficients)
            .map_err(|e| Error::Answer(format!("answers badly: {e}")))?;
        Ok(Answer { first, tiles, rows, vectors, coefficients })
    }
}

impl Answer {
    /// The tiles it holds.
    pub fn tiles(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.tiles
    }

    pub(crate) fn tile(&self, tiling: &Tiling, vector: usize, tile: usize) -> Result<&[u64], Error> {
        if vector >= self.vectors || !self.tiles().contains(&tile) {
            return Err(Error::Misuse(format!("tile {tile} of vector {vector} is not in this answer")));
        }
        let start = vector * self.rows + rows_of(tiling, self.first, tile - self.first);
        Ok(&self.coefficients[start..start + tiling.tile_row_range(tile).len()])
    }
}

/// Rows of `tiles` tiles from `first`; the last tile of a matrix may be ragged.
fn rows_of(tiling: &Tiling, first: usize, tiles: usize) -> usize {
    ((first + tiles) * tiling.tile_rows()).min(tiling.rows()) - (first * tiling.tile_rows()).min(tiling.rows())
}
