//! How a matrix is cut: the tile shape of least cost, by a formula of its shape alone.
//!
//! The choice must not depend on the machine (tiles decide the noise, the noise decides t, and t the
//! integers), so the costs below are constants. Only their ratios matter.

use crate::Error;
use kernels::Tiling;

/// One more input block: error sampling, transforms on both sides, 13 KB of wire and their unpacking, ns.
const BLOCK: u64 = 40_000;
/// One more output tile: two short transforms, the enclave's pointwise product and the useful coefficients, ns.
const TILE: u64 = 8_000;
/// Weights in NTT form that memory delivers in a nanosecond (8 bytes each).
const WEIGHTS_PER_NS: u64 = 2;

/// The tiling of least cost for a `rows` by `cols` matrix in a ring of degree `n`; among equals the one with
/// the fewest columns a tile.
///
/// n_w is a power of two, at most N/4: then `kernels` stops its transforms where a useful coefficient is a dot product
/// over the columns, and columns beyond the matrix cost nothing.
///
/// # Errors
/// [`Error::Bug`] if the matrix is empty or the ring smaller than four coefficients.
pub fn choose(rows: usize, cols: usize, n: usize) -> Result<Tiling, Error> {
    if rows == 0 || cols == 0 || n < 4 {
        return Err(Error::Bug(format!("a matrix of {rows}x{cols} has no tiling in a ring of degree {n}")));
    }
    let cost = |tile_cols: usize| {
        let tile_rows = (n / tile_cols).min(rows);
        let (blocks, tiles) = (cols.div_ceil(tile_cols) as u64, rows.div_ceil(tile_rows) as u64);
        blocks * BLOCK + tiles * TILE + tiles * (n / tile_cols) as u64 * cols as u64 / WEIGHTS_PER_NS
    };
    let widths = std::iter::successors(Some(1), |w| Some(2 * w)).take_while(|&w| w <= cols && w <= n / 4);
    let tile_cols = widths.min_by_key(|&w| cost(w)).unwrap_or(1);
    Tiling::new(rows, cols, (n / tile_cols).min(rows), tile_cols, n).map_err(|e| Error::Bug(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_the_ring_and_lean_towards_fewer_blocks() {
        for (rows, cols) in [(576, 576), (960, 576), (3072, 576), (576, 1536), (49152, 576), (768, 3072)] {
            let t = choose(rows, cols, 2048).unwrap();
            assert_eq!(t.tile_rows() * t.tile_cols(), 2048, "{t:?}");
            assert!(t.tile_cols().is_power_of_two());
            // Against sqrt(N·n/m), the shape of least traffic.
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let square = (2048.0 * cols as f64 / rows as f64).sqrt();
            assert!((t.tile_cols() as f64) > square && (t.tile_cols() as f64) < 6.0 * square, "{t:?} {square}");
        }
    }

    #[test]
    fn small_and_odd_shapes_get_a_tiling() {
        for (rows, cols) in [(1, 1), (1, 5000), (5000, 1), (7, 13), (2049, 3)] {
            let t = choose(rows, cols, 2048).unwrap();
            assert_eq!((t.rows(), t.cols()), (rows, cols));
            assert!(t.tile_cols().is_power_of_two() && t.tile_cols() <= 512, "{t:?}");
        }
        assert!(choose(0, 4, 2048).is_err());
    }
}
