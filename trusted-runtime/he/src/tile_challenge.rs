//! The check of `direct`: one secret functional over every useful coefficient of an answer.
//!
//! The useful coefficients y_r of a matrix are linear in the polynomials b_j that were sent, exactly, over Z_q. With
//! uniform rho_r, `sum_r rho_r·y_r = sum_j <V_j, b_j>` slot by slot in NTT form, `V_j = sum_i T_i·P_ij`, where T_i is
//! what takes a polynomial's slots to `sum_r rho_r·(coefficient of row r)`: coefficient c of f is
//! `1/N·sum_k f(x_k)·x_k^-c`, so T_i is the transform of `sum_r rho_r/N·X^-c_r`. An answer that differs from the
//! product passes with probability 1/q (Freivalds, "Probabilistic machines can use less running time", 1977).

use crate::{Random, expand};
use kernels::{Functional, Int8Matrix, Ring, Tiling, modulus};

/// rho and V of one matrix. Secret: who knows rho can forge.
pub struct TileChallenge {
    /// rho, padded with zeros to a multiple of 8.
    rows: Functional,
    /// V_j, N factors a block.
    inputs: Functional,
}

impl TileChallenge {
    /// Draws rho and computes V: a transform a tile, on `threads` threads.
    pub fn draw(ring: &Ring, tiling: &Tiling, w: &Int8Matrix, random: &mut Random, threads: usize) -> Self {
        let (n, q) = (ring.n(), ring.q());
        let mut rho = expand::uniform(ring, random, tiling.rows());
        let inverse = modulus::pow(n as u64, q - 2, q);
        let mut selectors = vec![0; tiling.tiles() * n];
        for (i, selector) in selectors.chunks_exact_mut(n).enumerate() {
            for (r, row) in tiling.tile_row_range(i).enumerate() {
                let factor = modulus::mul(rho[row], inverse, q);
                // X^-c = -X^(N-c).
                match tiling.output_coefficient(r) {
                    0 => selector[0] = factor,
                    c => selector[n - c] = modulus::sub(0, factor, q),
                }
            }
            ring.forward_residues(selector);
        }
        let mut inputs = vec![0; tiling.blocks() * n];
        let share = tiling.blocks().div_ceil(threads.max(1));
        std::thread::scope(|scope| {
            for (k, part) in inputs.chunks_mut(share * n).enumerate() {
                let selectors = &selectors;
                let mut work = move || {
                    let (mut small, mut tile) = (vec![0i8; n], vec![0; n]);
                    for (j, out) in part.chunks_exact_mut(n).enumerate() {
                        for (i, selector) in selectors.chunks_exact(n).enumerate() {
                            tiling.tile_coefficients(w, i, k * share + j, &mut small);
                            for (t, &s) in tile.iter_mut().zip(&small) {
                                *t = modulus::from_signed(s.into(), q);
                            }
                            ring.forward_residues(&mut tile);
                            ring.mul_add(out, selector, &tile);
                        }
                    }
                };
                if threads <= 1 { work() } else { drop(scope.spawn(work)) }
            }
        });
        rho.resize(rho.len().next_multiple_of(8), 0);
        Self { rows: Functional::new(ring, &rho), inputs: Functional::new(ring, &inputs) }
    }

    /// `<V_j, b>` for block `j`, N words in NTT form.
    pub(crate) fn sent(&self, ring: &Ring, j: usize, words: &[u64]) -> u64 {
        self.inputs.apply(ring, j * ring.n(), words)
    }

    /// `sum_r rho_r·y_r`; `words` is padded with anything to a multiple of 8.
    pub(crate) fn received(&self, ring: &Ring, words: &[u64]) -> u64 {
        self.rows.apply(ring, 0, words)
    }
}
