//! The evaluator's operation: `Out_i = sum_j P_ij · In_j` in R_q, for a matrix cut into tiles P_ij.
//!
//! Inputs and outputs are in NTT form; the product is a pointwise multiply-accumulate.

use crate::{Error, Int8Matrix, Ring, Tiling, modulus};
use std::ops::Range;

/// A matrix in NTT form, 8 bytes per weight (and tile padding), in the backend's own layout.
pub struct PinnedTiles {
    tiling: Tiling,
    data: Vec<u64>,
}

/// Input polynomials in NTT form, `vectors` by `blocks`, in the backend's own layout.
pub struct Inputs {
    vectors: usize,
    blocks: usize,
    data: Vec<u64>,
}

impl PinnedTiles {
    /// Encodes every tile of `w`.
    ///
    /// # Errors
    /// [`Error::Shape`] if matrix and tiling disagree.
    pub fn encode(ring: &Ring, tiling: Tiling, w: &Int8Matrix) -> Result<Self, Error> {
        check(&tiling, w)?;
        let n = ring.n();
        let mut data = vec![0; tiling.tiles() * tiling.blocks() * n];
        let mut small = vec![0i8; n];
        for (k, out) in data.chunks_exact_mut(n).enumerate() {
            encode_tile(ring, &tiling, w, k / tiling.blocks(), k % tiling.blocks(), &mut small, out);
        }
        Ok(Self { tiling, data })
    }

    /// The tiling.
    pub fn tiling(&self) -> &Tiling {
        &self.tiling
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.data.len() * 8
    }

    /// Memory that [`PinnedTiles::encode`] will need for a tiling.
    pub fn bytes_for(ring: &Ring, tiling: &Tiling) -> usize {
        tiling.tiles() * tiling.blocks() * ring.n() * 8
    }

    /// Computes output tiles `tiles` for every vector: `out` is [vectors][tiles.len()][N], NTT form,
    /// every value in [0, q).
    ///
    /// # Errors
    /// [`Error::Shape`] if a size does not fit.
    pub fn product(&self, ring: &Ring, inputs: &Inputs, tiles: Range<usize>, out: &mut [u64]) -> Result<(), Error> {
        check_call(ring, &self.tiling, inputs, &tiles, out)?;
        let (n, blocks, count) = (ring.n(), self.tiling.blocks(), tiles.len());
        out.fill(0);
        for v in 0..inputs.vectors {
            for (o, i) in tiles.clone().enumerate() {
                let acc = &mut out[(v * count + o) * n..(v * count + o + 1) * n];
                for j in 0..blocks {
                    let w = &self.data[(i * blocks + j) * n..(i * blocks + j + 1) * n];
                    ring.mul_add(acc, w, inputs.poly(n, v, j));
                }
            }
        }
        Ok(())
    }
}

impl Inputs {
    /// Room for `vectors` by `blocks` polynomials.
    pub fn new(ring: &Ring, vectors: usize, blocks: usize) -> Self {
        Self { vectors, blocks, data: vec![0; vectors * blocks * ring.n()] }
    }

    /// Number of vectors.
    pub fn vectors(&self) -> usize {
        self.vectors
    }

    /// Number of blocks a vector.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Sets one polynomial from N residues in NTT form, each in [0, q).
    pub fn set(&mut self, vector: usize, block: usize, residues: &[u64]) {
        let n = residues.len();
        let at = (vector * self.blocks + block) * n;
        self.data[at..at + n].copy_from_slice(residues);
    }

    fn poly(&self, n: usize, v: usize, j: usize) -> &[u64] {
        &self.data[(v * self.blocks + j) * n..(v * self.blocks + j + 1) * n]
    }
}

/// The same product without residency: each tile is encoded when it is used (`fallback`).
///
/// # Errors
/// [`Error::Shape`] if a size does not fit.
pub fn product_on_the_fly(
    ring: &Ring,
    tiling: &Tiling,
    w: &Int8Matrix,
    inputs: &Inputs,
    tiles: Range<usize>,
    out: &mut [u64],
) -> Result<(), Error> {
    check(tiling, w)?;
    check_call(ring, tiling, inputs, &tiles, out)?;
    let (n, count) = (ring.n(), tiles.len());
    let (mut small, mut tile) = (vec![0i8; n], vec![0u64; n]);
    out.fill(0);
    for (o, i) in tiles.enumerate() {
        for j in 0..tiling.blocks() {
            encode_tile(ring, tiling, w, i, j, &mut small, &mut tile);
            for v in 0..inputs.vectors {
                ring.mul_add(&mut out[(v * count + o) * n..(v * count + o + 1) * n], &tile, inputs.poly(n, v, j));
            }
        }
    }
    Ok(())
}

/// Encodes one tile: `out = NTT(P_ij)`, values in [0, q). `small` and `out` have N entries.
pub fn encode_tile(
    ring: &Ring,
    tiling: &Tiling,
    w: &Int8Matrix,
    i: usize,
    j: usize,
    small: &mut [i8],
    out: &mut [u64],
) {
    tiling.tile_coefficients(w, i, j, small);
    for (o, &x) in out.iter_mut().zip(small.iter()) {
        *o = modulus::from_signed(i64::from(x), ring.q());
    }
    ring.forward_residues(out);
}

fn check(tiling: &Tiling, w: &Int8Matrix) -> Result<(), Error> {
    if (tiling.rows(), tiling.cols()) != (w.rows(), w.cols()) {
        return Err(Error::Shape(format!(
            "tiling of {}x{} for a matrix of {}x{}",
            tiling.rows(),
            tiling.cols(),
            w.rows(),
            w.cols()
        )));
    }
    Ok(())
}

fn check_call(ring: &Ring, tiling: &Tiling, inputs: &Inputs, tiles: &Range<usize>, out: &[u64]) -> Result<(), Error> {
    if inputs.blocks != tiling.blocks() || inputs.data.len() != inputs.vectors * inputs.blocks * ring.n() {
        return Err(Error::Shape(format!("{} input blocks, the tiling has {}", inputs.blocks, tiling.blocks())));
    }
    if tiles.end > tiling.tiles() || out.len() != inputs.vectors * tiles.len() * ring.n() {
        return Err(Error::Shape(format!("tiles {tiles:?} of {} into {} words", tiling.tiles(), out.len())));
    }
    Ok(())
}
