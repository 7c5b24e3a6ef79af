//! How a matrix is cut: the tile shape of least cost, by a formula of its shape alone.
//!
//! The choice must not depend on the machine (tiles decide the noise, the noise decides t, and t the
//! integers), so the costs below are constants. Only their ratios matter.

use crate::Error;
use kernels::Tiling;

/// One more input block: error sampling, a forward transform, 13 KB of wire and their unpacking, ns.
const BLOCK: u64 = 40_000;
/// One more output tile: two inverse transforms, a pointwise product and the useful coefficients, ns.
const TILE: u64 = 12_000;
/// One more tile polynomial: 16 KB of weights read at memory speed, ns.
const POLYNOMIAL: u64 = 1_200;

/// The tiling of least cost for a `rows` by `cols` matrix in a ring of degree `n`; among equals the one with
/// the fewest columns a tile.
///
/// # Errors
/// [`Error::Bug`] if the matrix is empty.
pub fn choose(rows: usize, cols: usize, n: usize) -> Result<Tiling, Error> {
    if rows == 0 || cols == 0 {
        return Err(Error::Bug(format!("a matrix of {rows}x{cols} has no tiling")));
    }
    let cost = |tile_cols: usize| {
        let tile_rows = (n / tile_cols).min(rows);
        let (blocks, tiles) = (cols.div_ceil(tile_cols) as u64, rows.div_ceil(tile_rows) as u64);
        blocks * BLOCK + tiles * TILE + blocks * tiles * POLYNOMIAL
    };
    let tile_cols = (1..=cols.min(n)).min_by_key(|&c| cost(c)).unwrap_or(1);
    Tiling::new(rows, cols, (n / tile_cols).min(rows), tile_cols, n).map_err(|e| Error::Bug(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_fill_the_ring_and_lean_towards_fewer_blocks() {
        for (rows, cols) in [(576, 576), (960, 576), (3072, 576), (576, 1536), (49152, 576), (768, 3072)] {
            let t = choose(rows, cols, 2048).unwrap();
            assert!(t.tile_rows() * t.tile_cols() > 1900, "{t:?}");
            // Against sqrt(N·n/m), the shape of least traffic.
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let square = (2048.0 * cols as f64 / rows as f64).sqrt();
            assert!((t.tile_cols() as f64) > square && (t.tile_cols() as f64) < 4.0 * square, "{t:?} {square}");
        }
    }

    #[test]
    fn small_and_odd_shapes_get_a_tiling() {
        for (rows, cols) in [(1, 1), (1, 5000), (5000, 1), (7, 13), (2049, 3)] {
            let t = choose(rows, cols, 2048).unwrap();
            assert_eq!((t.rows(), t.cols()), (rows, cols));
        }
        assert!(choose(0, 4, 2048).is_err());
    }
}
