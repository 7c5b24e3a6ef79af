//! Rotary positions (RoFormer, section 3.2.2): pair i of a head is turned by position·base^(-2i/head_dim).

use super::attention::Place;

/// How the heads of some rows are turned.
pub(super) struct Turns {
    pairs: usize,
    /// (cos, sin), [rows][pairs].
    table: Vec<(f32, f32)>,
}

impl Turns {
    /// (cos, sin) of every pair in row `r`.
    pub(super) fn at(&self, r: usize) -> &[(f32, f32)] {
        &self.table[r * self.pairs..(r + 1) * self.pairs]
    }
}

/// The frequencies of one set of layers.
pub(super) struct Rotary {
    /// Radians per position of pair i.
    frequencies: Vec<f64>,
}

/// Which elements of a head are a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairs {
    /// 2i and 2i + 1.
    Neighbours,
    /// i and i + head_dim / 2.
    Halves,
}

impl Rotary {
    /// base^(-2i/head_dim) for every pair i.
    pub(super) fn new(base: f64, head_dim: usize) -> Self {
        Self { frequencies: frequencies(base, head_dim) }
    }

    /// Every frequency divided by its factor.
    pub(super) fn divided(mut self, factors: &[f32]) -> Self {
        for (f, factor) in self.frequencies.iter_mut().zip(factors) {
            *f /= f64::from(*factor);
        }
        self
    }

    /// Every frequency divided by `factor` (position interpolation).
    pub(super) fn slowed(mut self, factor: f64) -> Self {
        self.frequencies.iter_mut().for_each(|f| *f /= factor);
        self
    }

    /// The turns of each row's position, in double precision first.
    #[expect(clippy::cast_precision_loss, reason = "positions are below 2^24")]
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
    pub(super) fn turns(&self, places: &[Place]) -> Turns {
        let table = places
            .iter()
            .flat_map(|Place { position: p, .. }| {
                self.frequencies.iter().map(move |f| {
                    let angle = *p as f64 * f;
                    (libm::cos(angle) as f32, libm::sin(angle) as f32)
                })
            })
            .collect();
        Turns { pairs: self.frequencies.len(), table }
    }
}

impl Pairs {
    /// Turns one head by the turns of its position.
    pub(super) fn turn(self, head: &mut [f32], turns: &[(f32, f32)]) {
        match self {
            Self::Neighbours => {
                for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(turns) {
                    let (a, b) = (pair[0], pair[1]);
                    pair[0] = a * cos - b * sin;
                    pair[1] = a * sin + b * cos;
                }
            }
            Self::Halves => {
                let (first, second) = head.split_at_mut(head.len() / 2);
                for ((first, second), (cos, sin)) in first.iter_mut().zip(second).zip(turns) {
                    let (a, b) = (*first, *second);
                    *first = a * cos - b * sin;
                    *second = a * sin + b * cos;
                }
            }
        }
    }
}

/// Llama 3's rule for contexts longer than the one trained first (`rope_type: llama3`): wavelengths beyond
/// `original / low` are stretched by `factor`, those below `original / high` kept, those between interpolated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(super) factor: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    /// Positions of the context trained first.
    pub(super) original: f64,
}

impl Stretch {
    /// The divisors of the frequencies, one per pair; f32, as GGUF stores them.
    #[expect(clippy::cast_possible_truncation, reason = "GGUF stores these factors as f32")]
    pub(super) fn factors(&self, base: f64, head_dim: usize) -> Vec<f32> {
        let divisor = |frequency: f64| {
            let turns = self.original * frequency / std::f64::consts::TAU;
            let smooth = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        };
        frequencies(base, head_dim).into_iter().map(|f| divisor(f) as f32).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "head_dim is below 2^24")]
fn frequencies(base: f64, head_dim: usize) -> Vec<f64> {
    (0..head_dim / 2).map(|i| libm::pow(base, -2.0 * i as f64 / head_dim as f64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_pairings_turn_the_same_pairs() {
        let turns = Rotary::new(10_000.0, 8).turns(&[4, 5].map(|position| Place { sequence: 0, position }));
        let turns = turns.at(1);
        let mut neighbours: Vec<f32> = (0u8..8).map(f32::from).collect();
        let order = [0, 4, 1, 5, 2, 6, 3, 7];
        let mut halves = vec![0f32; 8];
        for (i, at) in order.into_iter().enumerate() {
            halves[at] = neighbours[i];
        }
        Pairs::Neighbours.turn(&mut neighbours, turns);
        Pairs::Halves.turn(&mut halves, turns);
        for (i, at) in order.into_iter().enumerate() {
            assert_eq!(halves[at].to_bits(), neighbours[i].to_bits());
        }
        let (cos, sin) = (libm::cosf(5.0), libm::sinf(5.0));
        assert!((neighbours[0] + sin).abs() < 1e-6 && (neighbours[1] - cos).abs() < 1e-6);
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let stretch = Stretch { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let factors = stretch.factors(500_000.0, 128);
        assert_eq!((factors.len(), factors[0], factors[63]), (64, 1.0, 8.0));
        assert!(factors.windows(2).all(|w| w[0] <= w[1]));
        // Llama 3.1's own figures, computed from its rule in wavelengths.
        let by_wavelength = |i: i32| {
            let wave = std::f64::consts::TAU * libm::pow(500_000.0, f64::from(i) / 64.0);
            match wave {
                w if w < 2048.0 => 1.0,
                w if w > 8192.0 => 8.0,
                w => {
                    let smooth = (8192.0 / w - 1.0) / 3.0;
                    1.0 / ((1.0 - smooth) / 8.0 + smooth)
                }
            }
        };
        let mut between = 0;
        for (i, found) in (0..64).zip(&factors) {
            assert!((by_wavelength(i) - f64::from(*found)).abs() < 1e-6, "pair {i}: {found}");
            between += usize::from(*found > 1.0 && *found < 8.0);
        }
        assert_eq!(between, 6);
    }
}
