//! An answer of the evaluator on its way to decryption: nothing is decrypted that has not been checked.

use crate::{Decryptor, Error, MatrixCipher, Verified};
use kernels::{Tiling, wire};

/// A part of an answer as it came.
pub struct Unverified<'a> {
    /// Index of the first output tile.
    pub first_tile: u32,
    /// Number of tiles.
    pub tiles: u32,
    /// A `kernels::wire` message of kind coefficients.
    pub coefficients: &'a [u8],
}

/// The answer of one job while its parts come in: well-formed, and not yet known to be the product.
pub struct Answers {
    tiling: Tiling,
    vectors: usize,
    /// [vectors][rows, padded to a multiple of 8], in [0, q).
    coefficients: Vec<u64>,
    seen: Vec<bool>,
    missing: usize,
}

impl Answers {
    /// Nothing has come yet for `vectors` vectors times the matrix of `cipher`.
    pub fn new(cipher: &MatrixCipher, vectors: usize) -> Self {
        let tiling = *cipher.tiling();
        let coefficients = vec![0; vectors * padded(&tiling)];
        Self { tiling, vectors, coefficients, seen: vec![false; tiling.tiles()], missing: tiling.tiles() }
    }

    /// Takes a part: range, size, format and every residue are checked.
    ///
    /// # Errors
    /// [`Error::Answer`] naming what was found and what was expected.
    pub fn take(&mut self, cipher: &MatrixCipher, part: &Unverified<'_>) -> Result<(), Error> {
        let (tiling, params) = (&self.tiling, cipher.ring().params());
        let (first, tiles) = (part.first_tile as usize, part.tiles as usize);
        if tiles == 0 || first.checked_add(tiles).is_none_or(|end| end > tiling.tiles()) {
            return Err(Error::Answer(format!("answers {tiles} tiles from {first}, there are {}", tiling.tiles())));
        }
        let rows = tiling.tile_row_range(first).start..tiling.tile_row_range(first + tiles - 1).end;
        let expected = wire::encoded_len(params, self.vectors * rows.len());
        if part.coefficients.len() != expected {
            return Err(Error::Answer(format!(
                "answers {} bytes for {} rows of {} vectors, expected {expected}",
                part.coefficients.len(),
                rows.len(),
                self.vectors
            )));
        }
        let badly = |e: kernels::Error| Error::Answer(format!("answers badly: {e}"));
        let count = self.vectors * rows.len();
        let message =
            wire::Message::parse(params, wire::Kind::Coefficients, part.coefficients, count).map_err(badly)?;
        if let Some(twice) = (first..first + tiles).find(|&tile| self.seen[tile]) {
            return Err(Error::Answer(format!("answers tile {twice} twice")));
        }
        for (v, all) in self.coefficients.chunks_exact_mut(padded(tiling)).enumerate() {
            message.read(v * rows.len(), &mut all[rows.clone()]).map_err(badly)?;
        }
        self.seen[first..first + tiles].fill(true);
        self.missing -= tiles;
        Ok(())
    }

    /// Whether every tile has come.
    pub fn complete(&self) -> bool {
        self.missing == 0
    }

    /// Checks that the answer is the product with what the encryptors of these decryptors sent; one decryptor a vector.
    ///
    /// # Errors
    /// [`Error::Forged`] if it is not; [`Error::Misuse`] if something was not sent, has not come, or is of another job.
    pub fn verify(self, decryptors: &[Decryptor<'_>]) -> Result<Verified<Self>, Error> {
        if !self.complete() || decryptors.len() != self.vectors {
            return Err(Error::Misuse(format!(
                "{} tiles are missing, {} decryptors for {} vectors",
                self.missing,
                decryptors.len(),
                self.vectors
            )));
        }
        let mut same = true;
        for (decryptor, words) in decryptors.iter().zip(self.coefficients.chunks_exact(padded(&self.tiling))) {
            same &= decryptor.agrees(words)?;
        }
        if same { Ok(Verified::vouch(self)) } else { Err(Error::Forged("the product of encrypted activations")) }
    }

    /// The useful coefficients of one tile of one vector.
    pub(crate) fn tile(&self, vector: usize, tile: usize) -> Result<&[u64], Error> {
        if vector >= self.vectors || tile >= self.tiling.tiles() {
            return Err(Error::Misuse(format!("tile {tile} of vector {vector} is not in this answer")));
        }
        let rows = self.tiling.tile_row_range(tile);
        let start = vector * padded(&self.tiling);
        Ok(&self.coefficients[start + rows.start..start + rows.end])
    }
}

fn padded(tiling: &Tiling) -> usize {
    tiling.rows().next_multiple_of(8)
}
