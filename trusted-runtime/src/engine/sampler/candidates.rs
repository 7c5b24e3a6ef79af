//! The tokens still in the running for a draw.

use zeroize::Zeroize;

#[derive(Clone, Copy, Default, Zeroize)]
struct Candidate {
    id: u32,
    logit: f32,
    /// exp((logit - max) / temperature): the best token has 1.
    weight: f64,
}

/// The tokens still in the running. Allocated once, so that no stale copy is left behind.
pub(super) struct Candidates(Vec<Candidate>);

impl Candidates {
    /// None yet, with room for `n`.
    pub(super) fn with_room(n: usize) -> Self {
        Self(Vec::with_capacity(n))
    }

    /// All tokens.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.0.clear();
        self.0.extend((0u32..).zip(logits).map(|(id, &logit)| Candidate { id, logit, weight: 0.0 }));
    }

    /// Likeliest first, then lowest id.
    fn order(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
        b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
    }

    /// Sorts the `k` likeliest to the front.
    fn sort_head(&mut self, k: usize) {
        if k < self.0.len() {
            self.0.select_nth_unstable_by(k, Self::order);
        }
        let k = k.min(self.0.len());
        self.0[..k].sort_unstable_by(Self::order);
    }

    /// Keeps the `k` likeliest.
    pub(super) fn keep_top_k(&mut self, k: usize) {
        if k < self.0.len() {
            self.sort_head(k);
            self.0.truncate(k);
        }
    }

    /// Fills the weights and returns their sum.
    pub(super) fn weigh(&mut self, max: f32, temperature: f32) -> f64 {
        let mut total = 0.0;
        for c in &mut self.0 {
            c.weight = libm::exp(f64::from(c.logit - max) / f64::from(temperature));
            total += c.weight;
        }
        total
    }

    /// Keeps those with at least this share of the best one's weight.
    pub(super) fn keep_share(&mut self, share: f64) {
        self.0.retain(|c| c.weight >= share);
    }

    /// Keeps the shortest run of likeliest tokens whose weights reach `mass`. Sorts a growing head
    /// instead of the whole vocabulary.
    pub(super) fn keep_mass(&mut self, mass: f64) {
        let mut k = HEAD;
        loop {
            self.sort_head(k);
            let mut sum = 0.0;
            for (i, c) in self.0.iter().take(k).enumerate() {
                sum += c.weight;
                if sum >= mass {
                    self.0.truncate(i + 1);
                    return;
                }
            }
            if k >= self.0.len() {
                return;
            }
            k *= 8;
        }
    }

    /// The token at `unit` in [0, 1) of the cumulative weight.
    pub(super) fn pick(&self, unit: f64) -> Option<u32> {
        let mut left = unit * self.0.iter().map(|c| c.weight).sum::<f64>();
        let mut last = None;
        for c in self.0.iter().filter(|c| c.weight > 0.0) {
            last = Some(c.id);
            left -= c.weight;
            if left < 0.0 {
                break;
            }
        }
        last
    }
}

impl Candidates {
    /// Overwrites them; the room stays.
    pub(super) fn wipe(&mut self) {
        self.0.zeroize();
    }
}

impl Drop for Candidates {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// How many candidates are sorted first when looking for a probability mass.
const HEAD: usize = 64;
