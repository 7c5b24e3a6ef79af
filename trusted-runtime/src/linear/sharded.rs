//! Linear layers by several evaluators at once, each holding some rows of every matrix.
//!
//! Every shard is a way of delegating of its own, with its own checks, lanes and evaluator. They get the same vectors and
//! round them to the same integers; their rows side by side are the product. One that loses its evaluator moves to
//! another by itself (`link.rs`).

use super::{Call, Linear, LinearId, helpers};
use crate::{
    Error,
    planner::{Plan, shard},
};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Puts the shards' rows together.
pub struct ShardedLinear {
    plan: Arc<Plan>,
    shards: Vec<Arc<dyn Linear>>,
    /// A thread for each shard but the first, which is the caller's.
    pool: Option<rayon::ThreadPool>,
}

impl ShardedLinear {
    /// `shards` in the order of [`shard::rows`] over `plan`; a single one is returned as it is.
    ///
    /// # Errors
    /// [`Error::Platform`] without threads.
    pub fn over(plan: Arc<Plan>, mut shards: Vec<Arc<dyn Linear>>) -> Result<Arc<dyn Linear>, Error> {
        if shards.len() == 1 {
            return shards.pop().ok_or_else(|| Error::Bug("no shard".into()));
        }
        let pool = helpers(shards.len(), "shard")?;
        Ok(Arc::new(Self { plan, shards, pool }))
    }
}

/// What one shard computes.
struct Part<'a> {
    linear: &'a dyn Linear,
    ys: Zeroizing<Vec<f32>>,
    result: Result<(), Error>,
}

impl Linear for ShardedLinear {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        let m = self.plan.matrix(id)?;
        super::check_sizes(m, xs, vectors, ys)?;
        let (rows, count) = (m.matrix.rows, self.shards.len());
        let part = |(i, linear): (usize, &'_ Arc<dyn Linear>)| {
            let own = shard::rows(rows, i, count).len();
            (linear.clone(), own)
        };
        let own: Vec<_> = self.shards.iter().enumerate().map(part).collect();
        let mut parts: Vec<Part<'_>> = own
            .iter()
            .map(|(linear, own)| Part {
                linear: &**linear,
                ys: Zeroizing::new(vec![0.0; vectors * own]),
                result: Ok(()),
            })
            .collect();
        let work = |p: &mut Part<'_>| p.result = p.linear.apply(call, id, xs, vectors, &mut p.ys);
        match (&self.pool, parts.split_first_mut()) {
            (Some(pool), Some((first, others))) => pool.in_place_scope(|scope| {
                for p in others {
                    scope.spawn(|_| work(p));
                }
                work(first);
            }),
            _ => parts.iter_mut().for_each(work),
        }
        for (i, p) in parts.into_iter().enumerate() {
            p.result?;
            let own = shard::rows(rows, i, count);
            for (y, part) in ys.chunks_exact_mut(rows).zip(p.ys.chunks_exact(own.len())) {
                y[own.clone()].copy_from_slice(part);
            }
        }
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

    struct Lost;

    impl Linear for Lost {
        fn apply(&self, _: &Call, _: LinearId, _: &[f32], _: usize, _: &mut [f32]) -> Result<(), Error> {
            Err(Error::Evaluator("at nowhere is gone".into()))
        }
    }

    #[test]
    fn shards_together_are_the_whole() {
        for weights in [Weights::W8, Weights::W16] {
            let plan = plan_of(weights, &[(257, 40)]);
            let local = |plan: Plan| LocalLinear::new(ring(), Arc::new(plan), 1).expect("threads");
            let whole = LocalLinear::new(ring(), plan.clone(), 1).expect("threads");
            for count in [1, 2, 3] {
                let shard = |i| Arc::new(local(plan.shard(&ring(), i, count).expect("rows"))) as Arc<dyn Linear>;
                let sharded = ShardedLinear::over(plan.clone(), (0..count).map(shard).collect()).expect("threads");
                for vectors in [1, 3, 9] {
                    let xs: Vec<f32> = (0..vectors).flat_map(|v| vector(40, v as u64)).collect();
                    let (mut ys, mut want) = (vec![0.0; vectors * 257], vec![0.0; vectors * 257]);
                    sharded.apply(&Call::default(), id(0), &xs, vectors, &mut ys).expect("all there");
                    whole.apply(&Call::default(), id(0), &xs, vectors, &mut want).expect("sizes fit");
                    assert_eq!(ys, want, "{weights:?}, {count} shards, {vectors} vectors");
                }
            }
        }
    }

    #[test]
    fn one_lost_shard_is_no_product() {
        let plan = plan_of(Weights::W8, &[(8, 4)]);
        let whole: Arc<dyn Linear> =
            Arc::new(LocalLinear::new(ring(), Arc::new(plan.shard(&ring(), 0, 2).expect("rows")), 1).expect("threads"));
        let sharded = ShardedLinear::over(plan, vec![whole, Arc::new(Lost)]).expect("threads");
        let out = sharded.apply(&Call::default(), id(0), &[1.0; 4], 1, &mut [0.0; 8]);
        assert!(matches!(out, Err(Error::Evaluator(_))));
    }
}
