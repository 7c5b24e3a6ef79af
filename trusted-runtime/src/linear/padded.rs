//! Delegated calls of few different sizes, so that their sizes say little about who is served.
//!
//! The evaluator sees how many vectors a call has: how many sequences decode, how long a prompt is. Here every call is
//! filled up to one of some agreed sizes with vectors of zeros, which are masked or encrypted like all others, and whose
//! products are thrown away. It costs what these vectors cost: bytes, the evaluator's time, and a lane each.

use super::{Call, Linear, LinearId};
use crate::Error;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Sizes of calls, ascending; beyond the largest its multiples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shapes(Vec<usize>);

impl Shapes {
    /// Checks the list.
    ///
    /// # Errors
    /// [`Error::Config`] unless it is empty (calls keep their sizes) or ascends from 1 or more.
    pub fn new(sizes: Vec<usize>) -> Result<Self, Error> {
        if sizes.first() == Some(&0) || !sizes.is_sorted_by(|a, b| a < b) {
            return Err(Error::Config(format!("hardening.batch_shapes is {sizes:?}, expected ascending sizes from 1")));
        }
        Ok(Self(sizes))
    }

    /// Whether calls keep their sizes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The size of a call with so many vectors.
    pub fn of(&self, vectors: usize) -> usize {
        let Some(largest) = self.0.last() else { return vectors };
        self.0.iter().copied().find(|size| *size >= vectors).unwrap_or_else(|| vectors.next_multiple_of(*largest))
    }
}

/// Fills calls up.
pub struct Padded {
    linear: Arc<dyn Linear>,
    shapes: Shapes,
}

impl Padded {
    /// `linear` as it is if calls keep their sizes.
    pub fn around(linear: Arc<dyn Linear>, shapes: &Shapes) -> Arc<dyn Linear> {
        if shapes.is_empty() { linear } else { Arc::new(Self { linear, shapes: shapes.clone() }) }
    }
}

impl Linear for Padded {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        let size = self.shapes.of(vectors);
        if size == vectors || vectors == 0 {
            return self.linear.apply(call, id, xs, vectors, ys);
        }
        let (cols, rows) = (xs.len() / vectors, ys.len() / vectors);
        let (mut inputs, mut outputs) =
            (Zeroizing::new(vec![0.0; size * cols]), Zeroizing::new(vec![0.0; size * rows]));
        inputs[..xs.len()].copy_from_slice(xs);
        self.linear.apply(call, id, &inputs, size, &mut outputs)?;
        ys.copy_from_slice(&outputs[..ys.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        linear::{
            local::LocalLinear,
            testing::{id, plan_of, ring, vector},
        },
        model::quantize::Weights,
    };
    use std::sync::Mutex;

    struct Seen(LocalLinear, Mutex<Vec<usize>>);

    impl Linear for Seen {
        fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
            self.1.lock().expect("sizes").push(vectors);
            self.0.apply(call, id, xs, vectors, ys)
        }
    }

    #[test]
    fn only_agreed_sizes_go_out_and_nothing_else_changes() {
        let plan = plan_of(Weights::W8, &[(9, 33)]);
        let local = || LocalLinear::new(ring(), plan.clone(), 1).expect("threads");
        let seen = Arc::new(Seen(local(), Mutex::default()));
        let padded = Padded::around(seen.clone(), &Shapes::new(vec![4, 16]).expect("ascending"));
        for vectors in [1, 3, 4, 5, 16, 17, 40] {
            let xs: Vec<f32> = (0..vectors).flat_map(|v| vector(33, v as u64)).collect();
            let (mut ys, mut want) = (vec![0.0; vectors * 9], vec![0.0; vectors * 9]);
            padded.apply(&Call::default(), id(0), &xs, vectors, &mut ys).expect("sizes fit");
            local().apply(&Call::default(), id(0), &xs, vectors, &mut want).expect("sizes fit");
            assert_eq!(ys, want);
        }
        assert_eq!(*seen.1.lock().expect("sizes"), [4, 4, 4, 16, 16, 32, 48]);
    }

    #[test]
    fn lists_that_do_not_ascend_are_refused() {
        assert!(Shapes::new(vec![]).expect("none").is_empty());
        for bad in [vec![0, 4], vec![4, 4], vec![16, 4]] {
            let error = Shapes::new(bad).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(error.contains("hardening.batch_shapes"), "{error}");
        }
    }
}
