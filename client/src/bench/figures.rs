//! Many measurements in few numbers.

use serde::Serialize;

/// The distribution of a quantity; nothing but the count where nothing was measured.
#[derive(Serialize, Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Distribution {
    pub(super) count: usize,
    pub(super) mean: Option<f64>,
    pub(super) p50: Option<f64>,
    pub(super) p90: Option<f64>,
    pub(super) p95: Option<f64>,
    pub(super) p99: Option<f64>,
    pub(super) max: Option<f64>,
}

impl Distribution {
    /// Of `values`, in any order.
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let mean = (!sorted.is_empty()).then(|| sorted.iter().sum::<f64>() / sorted.len() as f64);
        let at = |q| quantile(&sorted, q);
        let (p50, p90, p95, p99) = (at(0.5), at(0.9), at(0.95), at(0.99));
        Self { count: sorted.len(), mean, p50, p90, p95, p99, max: sorted.last().copied() }
    }
}

/// The `q`-quantile of sorted values, linear between neighbours (Hyndman and Fan, 1996, definition 7; numpy's).
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position within the values")]
pub(super) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let (low, high) = (sorted.get(below)?, sorted.get((below + 1).min(last))?);
    Some(low + (high - low) * at.fract())
}

/// The median of values in any order.
pub(super) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    Distribution::of(values).p50
}

/// The slope of the line through `(x, y)` with the least squared error; none without two different x.
#[expect(clippy::cast_precision_loss, reason = "counts are small")]
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(sx, sy), (x, y)| (sx + x / n, sy + y / n));
    let (xy, xx) = points
        .iter()
        .fold((0.0, 0.0), |(xy, xx), point| (xy + (point.0 - x) * (point.1 - y), xx + (point.0 - x).powi(2)));
    (xx > 0.0).then(|| xy / xx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_numpy() {
        let hundred = Distribution::of((1..=100).rev().map(f64::from));
        assert_eq!((hundred.count, hundred.mean, hundred.p50, hundred.max), (100, Some(50.5), Some(50.5), Some(100.0)));
        for (found, expected) in [(hundred.p90, 90.1), (hundred.p95, 95.05), (hundred.p99, 99.01)] {
            assert!(found.is_some_and(|x| (x - expected).abs() < 1e-9), "{found:?} {expected}");
        }
        let one = Distribution::of([3.0]);
        assert_eq!((one.p50, one.p99, one.max), (Some(3.0), Some(3.0), Some(3.0)));
        assert_eq!(Distribution::of([]), Distribution::default());
        assert_eq!(median([5.0, 1.0, 2.0, 9.0]), Some(3.5));
    }

    #[test]
    fn slopes_are_those_of_least_squares() {
        let line: Vec<_> = (0..60).map(|s| (f64::from(s) / 60.0, 100.0 + f64::from(s) * 0.5)).collect();
        assert!(slope(&line).is_some_and(|s| (s - 30.0).abs() < 1e-9));
        // numpy.polyfit([0, 1, 2, 3], [1, 3, 2, 5], 1)
        assert!(slope(&[(0.0, 1.0), (1.0, 3.0), (2.0, 2.0), (3.0, 5.0)]).is_some_and(|s| (s - 1.1).abs() < 1e-9));
        assert_eq!((slope(&[]), slope(&[(1.0, 2.0)])), (None, None));
        assert_eq!(slope(&[(1.0, 2.0), (1.0, 3.0)]), None, "no time has passed");
    }
}
