//! Transposition of words, in squares that stay in registers.

use crate::{
    Isa,
    cpu::{self, Kernel, Lanes},
};

/// Words of a square's side.
const SIDE: usize = 8;

/// `to[c·to_stride + r] = from[r·from_stride + c]` for `rows` by `cols` words. Which words are moved depends on the shape alone.
///
/// # Panics
/// If a row or a column does not lie inside its slice.
pub fn transpose(
    isa: Isa,
    (rows, cols): (usize, usize),
    (from, from_stride): (&[u32], usize),
    (to, to_stride): (&mut [u32], usize),
) {
    if rows == 0 || cols == 0 {
        return;
    }
    assert!(
        cols <= from_stride
            && rows <= to_stride
            && from.len() >= (rows - 1) * from_stride + cols
            && to.len() >= (cols - 1) * to_stride + rows,
        "{rows}x{cols} words fit"
    );
    cpu::dispatch(isa, Transpose { rows, cols, from, from_stride, to, to_stride });
}

struct Transpose<'a> {
    rows: usize,
    cols: usize,
    from: &'a [u32],
    from_stride: usize,
    to: &'a mut [u32],
    to_stride: usize,
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, _: L) {
        let Self { rows, cols, from, from_stride, to, to_stride } = self;
        let (whole_rows, whole_cols) = (rows / SIDE * SIDE, cols / SIDE * SIDE);
        for r in (0..whole_rows).step_by(SIDE) {
            for c in (0..whole_cols).step_by(SIDE) {
                let mut square = [[0; SIDE]; SIDE];
                for (i, line) in square.iter_mut().enumerate() {
                    *line = *from[(r + i) * from_stride + c..].first_chunk().expect("inside, as checked");
                }
                let square = turned(square);
                for (i, line) in square.into_iter().enumerate() {
                    *to[(c + i) * to_stride + r..].first_chunk_mut().expect("inside, as checked") = line;
                }
            }
        }
        for r in 0..rows {
            let edge = if r < whole_rows { whole_cols } else { 0 };
            for c in edge..cols {
                to[c * to_stride + r] = from[r * from_stride + c];
            }
        }
    }
}

/// The transpose of a square: three times, rows i and i + 4 are interleaved to rows 2i and 2i + 1.
#[inline(always)]
#[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
fn turned(mut square: [[u32; SIDE]; SIDE]) -> [[u32; SIDE]; SIDE] {
    for _ in 0..3 {
        let mut next = [[0; SIDE]; SIDE];
        for i in 0..SIDE / 2 {
            let (a, b) = (square[i], square[i + SIDE / 2]);
            for k in 0..SIDE / 2 {
                next[2 * i][2 * k] = a[k];
                next[2 * i][2 * k + 1] = b[k];
                next[2 * i + 1][2 * k] = a[k + SIDE / 2];
                next[2 * i + 1][2 * k + 1] = b[k + SIDE / 2];
            }
        }
        square = next;
    }
    square
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_finds_its_place_and_nothing_else_changes() {
        for isa in Isa::available() {
            for (rows, cols, wider, longer) in
                [(1, 1, 0, 0), (8, 8, 0, 0), (16, 577, 3, 0), (100, 16, 16, 4), (7, 20, 1, 1), (33, 9, 0, 7)]
            {
                let (from_stride, to_stride) = (cols + wider, rows + longer);
                let from: Vec<u32> = (0..rows * from_stride).map(|i| u32::try_from(i).expect("small") + 1).collect();
                let mut to = vec![0; cols * to_stride];
                transpose(isa, (rows, cols), (&from, from_stride), (&mut to, to_stride));
                for (at, &word) in to.iter().enumerate() {
                    let (c, r) = (at / to_stride, at % to_stride);
                    let want = if r < rows { from[r * from_stride + c] } else { 0 };
                    assert_eq!(word, want, "{}: {rows}x{cols}, row {r}, column {c}", isa.name());
                }
            }
        }
    }
}
