//! Rates from a few timings: least squares that takes no rate below zero.

/// The rates `c >= 0` for which `sum_k work[k]·c[k]` comes nearest to the seconds of every sample, each weighted by its own
/// size, so that small samples count as much as large ones. All sets of non-zero rates are tried: there are few.
pub(super) fn rates<const K: usize>(samples: &[([f64; K], f64)]) -> [f64; K] {
    let mut best = ([0.0; K], f64::INFINITY);
    for set in 1u32..1 << K {
        let active: Vec<usize> = (0..K).filter(|k| set >> k & 1 == 1).collect();
        let Some(solution) = solve(samples, &active) else { continue };
        if solution.iter().any(|c| *c < 0.0 || !c.is_finite()) {
            continue;
        }
        let mut c = [0.0; K];
        active.iter().zip(solution).for_each(|(&k, x)| c[k] = x);
        let miss = |(work, seconds): &([f64; K], f64)| {
            let predicted: f64 = work.iter().zip(&c).map(|(w, c)| w * c).sum();
            ((predicted - seconds) / seconds.max(f64::MIN_POSITIVE)).powi(2)
        };
        let missed: f64 = samples.iter().map(miss).sum();
        // More rates must earn their place.
        if missed < best.1 * 0.999_999 {
            best = (c, missed);
        }
    }
    best.0
}

/// The normal equations over the rates `active`, by elimination; nothing if they are singular.
fn solve<const K: usize>(samples: &[([f64; K], f64)], active: &[usize]) -> Option<Vec<f64>> {
    let n = active.len();
    // Columns are scaled to a largest entry of 1: counts and bytes differ by many orders.
    let scale = |k: &usize| samples.iter().map(|(work, s)| work[*k] / s).fold(0.0, f64::max);
    let scales: Vec<f64> = active.iter().map(scale).collect();
    if scales.iter().any(|s| *s <= 0.0 || !s.is_finite()) {
        return None;
    }
    let mut a = vec![vec![0.0; n + 1]; n];
    for (work, seconds) in samples {
        let x: Vec<f64> = active.iter().zip(&scales).map(|(&k, s)| work[k] / seconds / s).collect();
        for i in 0..n {
            (0..n).for_each(|j| a[i][j] += x[i] * x[j]);
            a[i][n] += x[i];
        }
    }
    for i in 0..n {
        let pivot = (i..n).max_by(|&p, &q| a[p][i].abs().total_cmp(&a[q][i].abs()))?;
        a.swap(i, pivot);
        if a[i][i].abs() < 1e-9 {
            return None;
        }
        let row = a[i].clone();
        for other in a.iter_mut().skip(i + 1) {
            let factor = other[i] / row[i];
            other.iter_mut().zip(&row).for_each(|(o, r)| *o -= factor * r);
        }
    }
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let rest: f64 = (i + 1..n).map(|j| a[i][j] * x[j]).sum();
        x[i] = (a[i][n] - rest) / a[i][i];
    }
    Some(x.iter().zip(&scales).map(|(x, s)| x / s).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_timings_give_their_rates() {
        let truth = [2e-5, 3e-9, 4e-6];
        let sample = |work: [f64; 3]| (work, work.iter().zip(truth).map(|(w, c)| w * c).sum());
        let found = rates(&[
            sample([1.0, 4096.0, 1.0]),
            sample([1.0, 2e6, 16.0]),
            sample([1.0, 1e5, 90.0]),
            sample([1.0, 9e5, 3.0]),
        ]);
        assert!(found.iter().zip(truth).all(|(f, t)| (f / t - 1.0).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn no_rate_is_negative() {
        // The second grows while the time falls.
        let found = rates(&[([1.0, 1.0], 3.0), ([1.0, 2.0], 2.0), ([1.0, 3.0], 1.5)]);
        assert!(found[0] > 1.0 && found[1] == 0.0, "{found:?}");
        assert_eq!(rates::<2>(&[]), [0.0; 2]);
    }
}
