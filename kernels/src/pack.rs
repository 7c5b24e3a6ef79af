//! Coefficient packing (Cheetah, USENIX Security 2022, section 3.2): a matrix cut into tiles whose
//! polynomial product with a packed vector holds the dot products at known coefficients.

use crate::Error;

/// Digest of a matrix: shape and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MatrixId(pub [u8; 32]);

/// An int8 matrix, row-major. Weights are public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Int8Matrix {
    rows: usize,
    cols: usize,
    data: Vec<i8>,
}

impl Int8Matrix {
    /// # Errors
    /// [`Error::Shape`] if `data` is not `rows·cols` long or the matrix is empty.
    pub fn new(rows: usize, cols: usize, data: Vec<i8>) -> Result<Self, Error> {
        if rows == 0 || cols == 0 || rows.checked_mul(cols) != Some(data.len()) {
            return Err(Error::Shape(format!("{rows} by {cols} matrix from {} bytes", data.len())));
        }
        Ok(Self { rows, cols, data })
    }

    /// Number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Row `r`.
    pub fn row(&self, r: usize) -> &[i8] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }

    /// All weights, row-major.
    pub fn data(&self) -> &[i8] {
        &self.data
    }

    /// Digest of shape and content.
    pub fn id(&self) -> MatrixId {
        let mut h = blake3::Hasher::new_derive_key("bifrost 2026 int8 matrix v1");
        h.update(&(self.rows as u64).to_le_bytes());
        h.update(&(self.cols as u64).to_le_bytes());
        h.update(bytemuck::cast_slice(&self.data));
        MatrixId(*h.finalize().as_bytes())
    }
}

/// How a `rows` by `cols` matrix is cut into tiles of `tile_rows` (m_w) by `tile_cols` (n_w), for ring
/// degree N: m_w·n_w <= N. Tiles at the lower and right edge may be ragged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    rows: usize,
    cols: usize,
    tile_rows: usize,
    tile_cols: usize,
}

impl Tiling {
    /// # Errors
    /// [`Error::Shape`] if a size is zero or a tile does not fit the ring of degree `n`.
    pub fn new(rows: usize, cols: usize, tile_rows: usize, tile_cols: usize, n: usize) -> Result<Self, Error> {
        if rows == 0 || cols == 0 || tile_rows == 0 || tile_cols == 0 {
            return Err(Error::Shape(format!("{rows}x{cols} in tiles of {tile_rows}x{tile_cols}: empty")));
        }
        if tile_rows.checked_mul(tile_cols).is_none_or(|s| s > n) {
            return Err(Error::Shape(format!("tile of {tile_rows}x{tile_cols} does not fit ring degree {n}")));
        }
        if tile_rows > rows || tile_cols > cols {
            return Err(Error::Shape(format!("tile of {tile_rows}x{tile_cols} is larger than {rows}x{cols}")));
        }
        Ok(Self { rows, cols, tile_rows, tile_cols })
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// m_w.
    pub fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// n_w.
    pub fn tile_cols(&self) -> usize {
        self.tile_cols
    }

    /// Input blocks: ceil(cols / n_w).
    pub fn blocks(&self) -> usize {
        self.cols.div_ceil(self.tile_cols)
    }

    /// Output tiles: ceil(rows / m_w).
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(self.tile_rows)
    }

    /// Matrix columns of input block `j`.
    pub fn block_cols(&self, j: usize) -> std::ops::Range<usize> {
        j * self.tile_cols..((j + 1) * self.tile_cols).min(self.cols)
    }

    /// Matrix rows of output tile `i`.
    pub fn tile_row_range(&self, i: usize) -> std::ops::Range<usize> {
        i * self.tile_rows..((i + 1) * self.tile_rows).min(self.rows)
    }

    /// The coefficient of the tile's product that holds row `r` (counted inside the tile).
    pub fn output_coefficient(&self, r: usize) -> usize {
        r * self.tile_cols + self.tile_cols - 1
    }

    /// The coefficient of the tile polynomial that holds weight (r, c), counted inside the tile.
    pub fn weight_coefficient(&self, r: usize, c: usize) -> usize {
        r * self.tile_cols + self.tile_cols - 1 - c
    }

    /// Whether products run in the sliced domain of a ring of degree `n`: n_w is a power of two, and a tile column
    /// has N/n_w >= 4 places. Every such tiling is several times faster than one that is not.
    pub fn is_sliced(&self, n: usize) -> bool {
        self.tile_cols.is_power_of_two() && n / self.tile_cols >= 4
    }

    /// Writes the tile polynomial P_ij as small signed coefficients; `out` has N entries.
    ///
    /// P_ij = sum_{r,c} W[i·m_w + r][j·n_w + c] · X^(r·n_w + n_w - 1 - c)
    pub fn tile_coefficients(&self, w: &Int8Matrix, i: usize, j: usize, out: &mut [i8]) {
        out.fill(0);
        let cols = self.block_cols(j);
        for (r, row) in self.tile_row_range(i).enumerate() {
            for (c, &x) in w.row(row)[cols.clone()].iter().enumerate() {
                out[self.weight_coefficient(r, c)] = x;
            }
        }
    }
}
