//! How much noise a matrix adds to a decrypted coefficient, and which plaintext modulus it leaves room for.
//!
//! A useful coefficient of the product is `q·y/t + noise` with
//! `noise = sum_j (P_ij·e_j) + sum_c w_c·rho_c`. The first sum runs over every weight of the tile's rows, each
//! multiplied by one error coefficient; the second is the rounding of the encoding, `|rho| <= 1/2`, and
//! reaches a useful coefficient only through its own row. Decryption rounds to the right integer if
//! `|noise| < q/(2t)·(1 - 2^-18)`: exact rounding needs no margin, rounding in f64 (`kernels::rescale`) needs that one. Both terms depend on the weights alone, never on the vector.

use kernels::Params;
use std::f64::consts::LN_2;

/// Variance proxy of one error coefficient: the centred binomial with eta = 21 is a sum of 42 independent
/// variables of value +-1/2, each sub-Gaussian with proxy 1/4 (Hoeffding's lemma); it is also the variance.
pub const ERROR_VARIANCE: f64 = 10.5;

/// log2 of the failure probability that a plan accepts for one coefficient.
pub const MAX_LOG2_FAILURE: f64 = -60.0;

/// Share of half a step that rounding in f64 may take.
const MARGIN: f64 = 1.0 / 262_144.0;

/// Largest plaintext modulus t = 2^k: integers of the local path are 32 bits wide.
pub const MAX_LOG2_T: u32 = 32;

/// What the noise of a matrix under a tiling depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightNorms {
    /// Largest `sum of w^2` over all rows of one output tile and all columns.
    pub tile_l2_squared: u64,
    /// Largest `sum of |w|` of one row.
    pub row_l1: u64,
}

impl WeightNorms {
    /// log2 of a bound on the probability that one coefficient decrypts to a wrong integer with t = 2^`log2_t`:
    /// `2·exp(-T^2 / (2·10.5·||w||_2^2))`, `T = q/(2t)·(1 - 2^-18) - ||row||_1/2 - 1` (1 covers all roundings of T).
    /// Positive infinity if the rounding alone is too much.
    #[expect(clippy::cast_precision_loss, reason = "a bound; 2^-53 relative error is far below its slack")]
    pub fn log2_failure(&self, params: &Params, log2_t: u32) -> f64 {
        let half_step = params.q() as f64 / (2.0 * (1u64 << log2_t) as f64);
        let room = half_step * (1.0 - MARGIN) - self.row_l1 as f64 / 2.0 - 1.0;
        if room <= 0.0 {
            return f64::INFINITY;
        }
        if self.tile_l2_squared == 0 {
            return f64::NEG_INFINITY;
        }
        1.0 - room * room / (2.0 * ERROR_VARIANCE * self.tile_l2_squared as f64 * LN_2)
    }

    /// The largest k <= 32 for which t = 2^k fails with probability at most 2^-60 a coefficient.
    pub fn largest_log2_t(&self, params: &Params) -> Option<u32> {
        (1..=MAX_LOG2_T).rev().find(|&k| self.log2_failure(params, k) <= MAX_LOG2_FAILURE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::params::DEFAULT;

    #[test]
    fn the_largest_modulus_meets_the_bound_and_the_next_one_does_not() {
        let params = DEFAULT.check().unwrap();
        for (l2, l1) in [(1, 1), (1 << 20, 4096), (23_592_960, 18_432), (1 << 34, 1 << 20), (1 << 40, 1 << 23)] {
            let norms = WeightNorms { tile_l2_squared: l2, row_l1: l1 };
            let k = norms.largest_log2_t(&params).unwrap();
            assert!(norms.log2_failure(&params, k) <= -60.0);
            assert!(k == MAX_LOG2_T || norms.log2_failure(&params, k + 1) > -60.0, "{norms:?}: {k}");
        }
    }

    #[test]
    fn a_known_case_by_hand() {
        // T = 29.784·||w||_2 is where 2·exp(-T^2/(21·||w||^2)) = 2^-60.
        let params = DEFAULT.check().unwrap();
        let t = params.q() as f64 / (1u64 << 33) as f64 - 1.0;
        #[expect(clippy::cast_possible_truncation, reason = "about 7.7e7")]
        let edge = (t / 29.785).powi(2) as u64;
        let fits = |l2| WeightNorms { tile_l2_squared: l2, row_l1: 0 }.log2_failure(&params, 32) <= -60.0;
        assert!(fits(edge - edge / 1000) && !fits(edge + edge / 1000));
        assert_eq!(WeightNorms { tile_l2_squared: 0, row_l1: u64::MAX }.largest_log2_t(&params), None);
    }
}
