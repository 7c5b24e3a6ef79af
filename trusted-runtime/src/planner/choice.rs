//! Who computes each linear group, and in which form: the plan of a step under policy, protocol and memory.
//!
//! A table will do: groups are independent but for the memory, which pinned tiles of any matrix use equally well, so the
//! largest that fit are pinned ([`Plan::residency`]). A group stays inside only where the caller allows it.

use super::{
    Plan, PlannedMatrix,
    costs::{Costs, Place, Prediction, Shape},
    graph::{Graph, LinearNode, Node},
    residency::Wish,
};
use crate::{
    Error,
    engine::{Policy, Protocol, runner::Site},
    linear::LinearId,
    model::{ModelConfig, Weights},
};
use kernels::{Params, Ring};
use proto::v1::Residency;
use serde::Serialize;
use trusted_he::noise::{ERROR_VARIANCE, MAX_LOG2_FAILURE};

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// How linear groups are delegated; `auto` is planned as `masked`, with lanes ready.
    pub protocol: Protocol,
    /// Which phases are delegated.
    pub policy: Policy,
    /// How the evaluator holds the weights of `direct`.
    pub residency: Wish,
    /// Bytes of the evaluator's memory.
    pub budget: u64,
    /// Whether a group whose delegation is predicted slower than the enclave may stay inside.
    pub allow_enclave: bool,
}

/// What a step is priced with.
#[derive(Clone, Copy)]
pub struct Pricing<'a> {
    /// The ring of the plan.
    pub ring: &'a Ring,
    /// Tilings and plaintext moduli.
    pub plan: &'a Plan,
    /// Sizes of the model.
    pub config: &'a ModelConfig,
    /// Its quantization.
    pub weights: Weights,
    /// Rates.
    pub costs: &'a Costs,
}

/// A ciphertext of a linear group: what is left of it when its product is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CiphertextState {
    /// Products it can still take when it is fresh.
    pub level: u32,
    /// log2 of the scale, q/t.
    pub log2_scale: f64,
    /// log2 of t.
    pub log2_t: u32,
    /// log2 of the noise that a coefficient of the product exceeds with probability 2^-60.
    pub log2_noise: f64,
    /// log2 of the noise from which it decrypts wrongly, q/(2t).
    pub log2_threshold: f64,
}

impl CiphertextState {
    /// Of the products with a planned matrix.
    #[expect(clippy::cast_precision_loss, reason = "a bound with slack")]
    pub fn of(params: &Params, m: &PlannedMatrix) -> Self {
        let l2 = m.norms.tile_l2_squared as f64;
        // noise.rs of trusted-he: P(|noise| > T) <= 2·exp(-T^2/(2·10.5·l2)), and the rounding of the encoding.
        let noise = (2.0 * ERROR_VARIANCE * l2 * (1.0 - MAX_LOG2_FAILURE) * std::f64::consts::LN_2).sqrt()
            + m.norms.row_l1 as f64 / 2.0
            + 1.0;
        let log2_scale = params.log2_q() - f64::from(m.log2_t);
        Self { level: DEPTH, log2_scale, log2_t: m.log2_t, log2_noise: noise.log2(), log2_threshold: log2_scale - 1.0 }
    }

    /// Bits between noise and threshold.
    pub fn headroom(&self) -> f64 {
        self.log2_threshold - self.log2_noise
    }
}

/// Products in a row that a ciphertext takes: there is neither relinearization nor a modulus to switch to.
const DEPTH: u32 = 1;

/// One linear group of a step.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Which one.
    pub id: LinearId,
    /// How it is cut.
    pub shape: Shape,
    /// Who computes it.
    pub place: Place,
    /// What that will cost.
    pub prediction: Prediction,
    /// What it would cost in the enclave.
    pub local: Prediction,
    /// Its ciphertexts; none in the enclave.
    pub state: Option<CiphertextState>,
}

/// The plan of a step.
#[derive(Clone, Debug)]
pub struct StepPlan {
    /// Linear groups in the order of execution.
    pub choices: Vec<Choice>,
    /// Enclave windows, together.
    pub windows: Prediction,
    /// How many.
    pub window_count: usize,
    /// Decryptions followed by an encryption: at windows, and inserted where a ciphertext has no product left.
    pub refreshes: Refreshes,
    /// Bytes that the weights take on the evaluator.
    pub resident_bytes: u64,
}

/// Where ciphertexts are decrypted and encrypted anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Refreshes {
    /// At a window between two delegated groups, where it costs nothing more.
    pub at_windows: usize,
    /// Between two products without a window.
    pub inserted: usize,
}

impl StepPlan {
    /// The whole step.
    pub fn total(&self) -> Prediction {
        let mut total: Prediction = self.choices.iter().map(|c| c.prediction).sum();
        total += self.windows;
        total
    }
}

/// Plans one decode step with `held` positions in the cache.
///
/// # Errors
/// [`Error::Evaluator`] with the figures if the weights do not fit the budget; [`Error::Bug`] for groups that were never
/// planned or costs that were never measured.
pub fn decode(pricing: &Pricing<'_>, wanted: &Wanted, held: usize) -> Result<StepPlan, Error> {
    let graph = Graph::decode(pricing.config, pricing.weights, held);
    let places = places(pricing, wanted)?;
    price(pricing, wanted, &graph, &places)
}

/// Plans a prompt of `positions`, whose linear groups are computed at `site`.
///
/// # Errors
/// As [`decode`].
pub fn prompt(pricing: &Pricing<'_>, wanted: &Wanted, site: Site, positions: usize) -> Result<StepPlan, Error> {
    let graph = Graph::prompt(pricing.config, pricing.weights, positions);
    let places = match site {
        Site::Enclave => vec![Place::Enclave; pricing.plan.matrices.len()],
        Site::Evaluator => places(pricing, wanted)?,
    };
    price(pricing, wanted, &graph, &places)
}

/// Where a prompt of `positions` is predicted to be done sooner. Lanes, where it takes any, count as made before.
///
/// # Errors
/// As [`decode`].
pub fn prefill_site(pricing: &Pricing<'_>, wanted: &Wanted, positions: usize) -> Result<Site, Error> {
    if wanted.policy == Policy::CpuTee || wanted.protocol == Protocol::Local || pricing.costs.delegated.is_none() {
        return Ok(Site::Enclave);
    }
    let at = |site| prompt(pricing, wanted, site, positions).map(|p| p.total().total_s());
    Ok(if at(Site::Evaluator)? < at(Site::Enclave)? { Site::Evaluator } else { Site::Enclave })
}

/// One place a matrix, in the plan's order, before any group is kept inside.
fn places(pricing: &Pricing<'_>, wanted: &Wanted) -> Result<Vec<Place>, Error> {
    let plan = pricing.plan;
    let (wish, form): (_, fn(&Residency) -> Place) = match wanted.policy.protocol(wanted.protocol) {
        Protocol::Local => return Ok(vec![Place::Enclave; plan.matrices.len()]),
        Protocol::Masked | Protocol::Auto => (Wish::Fallback, |_| Place::Masked),
        Protocol::Direct => {
            (
                wanted.residency,
                |residency| if *residency == Residency::Pinned { Place::Pinned } else { Place::Fallback },
            )
        }
    };
    let ids = ids(plan);
    let residency =
        plan.fit(pricing.ring, &ids, wish, wanted.budget).map_err(|why| Error::Evaluator(format!("refused: {why}")))?;
    Ok(residency.iter().map(form).collect())
}

fn ids(plan: &Plan) -> Vec<[u8; 32]> {
    plan.matrices.iter().map(|m| m.matrix.int8.id().0).collect()
}

fn price(pricing: &Pricing<'_>, wanted: &Wanted, graph: &Graph, places: &[Place]) -> Result<StepPlan, Error> {
    let params = pricing.ring.params();
    let choose = |node: &LinearNode| -> Result<Choice, Error> {
        let index = pricing.plan.position(node.id)?;
        let (m, place) = (&pricing.plan.matrices[index], places[index]);
        let shape = Shape::of(pricing.ring, m);
        let local = pricing.costs.linear(params, &shape, Place::Enclave, node.vectors)?;
        let prediction = pricing.costs.linear(params, &shape, place, node.vectors)?;
        let inside = place == Place::Enclave || wanted.allow_enclave && local.total_s() < prediction.total_s();
        let (place, prediction) = if inside { (Place::Enclave, local) } else { (place, prediction) };
        let state = (!inside).then(|| CiphertextState::of(params, m));
        Ok(Choice { id: node.id, shape, place, prediction, local, state })
    };
    let choices = graph.linears().map(choose).collect::<Result<Vec<_>, _>>()?;
    let resident = |(m, place): (&PlannedMatrix, &Place)| match place {
        Place::Enclave => 0,
        Place::Pinned => Shape::of(pricing.ring, m).pinned_bytes as u64,
        Place::Masked | Place::Fallback => m.matrix.int8.data().len() as u64,
    };
    Ok(StepPlan {
        refreshes: refreshes(graph, |id| choices.iter().any(|c| c.id == id && c.state.is_some())),
        windows: graph.windows().map(|w| pricing.costs.window(w)).sum(),
        window_count: graph.windows().count(),
        resident_bytes: pricing.plan.matrices.iter().zip(places).map(resident).sum(),
        choices,
    })
}

/// Follows the level of the ciphertexts through a step: a product takes one, a window or an inserted DtE gives it back.
fn refreshes(graph: &Graph, delegated: impl Fn(LinearId) -> bool) -> Refreshes {
    let (mut level, mut encrypted, mut found) = (DEPTH, false, Refreshes::default());
    for node in &graph.nodes {
        match node {
            Node::Window(_) => (level, encrypted) = (DEPTH, false),
            Node::Linear(linear) if delegated(linear.id) => {
                if encrypted && level == 0 {
                    found.inserted += 1;
                    level = DEPTH;
                }
                (level, encrypted) = (level - 1, true);
                found.at_windows += 1;
            }
            Node::Linear(_) => (level, encrypted) = (DEPTH, false),
        }
    }
    // What comes back from the last one is not encrypted again.
    found.at_windows = found.at_windows.saturating_sub(found.inserted + 1);
    found
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            costs::{DelegatedCosts, DirectCosts, EnclaveCosts, MaskedCosts, PathCosts},
            graph::tests::tiny,
            plan,
        },
        *,
    };
    use crate::{linear::testing::ring, model};

    struct Fixture {
        ring: Ring,
        plan: Plan,
        config: ModelConfig,
        costs: Costs,
    }

    impl Fixture {
        fn new(costs: Costs) -> Self {
            let file = format!("{}/../tests/testdata/tiny/tiny-llama.gguf", env!("CARGO_MANIFEST_DIR"));
            let loaded = model::load(&file, Weights::W8, &|_, _, _| {}).unwrap();
            let ring = ring();
            let plan = plan(&ring, loaded.linears).unwrap();
            Self { ring, plan, config: loaded.model.config().clone(), costs }
        }

        fn pricing(&self) -> Pricing<'_> {
            let Self { ring, plan, config, costs } = self;
            Pricing { ring, plan, config, weights: Weights::W8, costs }
        }

        fn int8(&self) -> u64 {
            self.plan.matrices.iter().map(|m| m.matrix.int8.data().len() as u64).sum()
        }

        fn pinned(&self) -> u64 {
            self.plan.matrices.iter().map(|m| Shape::of(&self.ring, m).pinned_bytes as u64).sum()
        }
    }

    /// The evaluator computes faster than the enclave, but a round trip takes a while.
    fn costs(round_trip_s: f64) -> Costs {
        let path = PathCosts { round_trip_s, wire_byte_s: 1e-10 };
        let direct = DirectCosts {
            pinned_byte_s: 1e-12,
            fallback_weight_s: 1e-11,
            multiply_s: 1e-13,
            path,
            ..DirectCosts::default()
        };
        let masked = MaskedCosts { online_weight_s: 1e-12, multiply_s: 1e-13, path, ..MaskedCosts::default() };
        let enclave =
            EnclaveCosts { local_byte_s: 1e-9, local_multiply_s: 1e-9, window_s: 1e-6, ..EnclaveCosts::default() };
        Costs { enclave, delegated: Some(DelegatedCosts { direct, masked }) }
    }

    fn wanted(protocol: Protocol, budget: u64) -> Wanted {
        Wanted { protocol, policy: Policy::HybridPdSplit, residency: Wish::Auto, budget, allow_enclave: false }
    }

    fn count(step: &StepPlan, place: Place) -> usize {
        step.choices.iter().filter(|c| c.place == place).count()
    }

    #[test]
    fn a_budget_says_what_is_pinned_and_what_falls_back() {
        let f = Fixture::new(costs(1e-4));
        let all = f.plan.matrices.len();
        let at = |budget| decode(&f.pricing(), &wanted(Protocol::Direct, budget), 4);
        let whole = at(u64::MAX).unwrap();
        assert_eq!((count(&whole, Place::Pinned), whole.resident_bytes), (all, f.pinned()));
        let half = at(f.int8() + (f.pinned() - f.int8()) / 2).unwrap();
        assert!(count(&half, Place::Pinned) > 0 && count(&half, Place::Fallback) > 0);
        assert_eq!(count(&half, Place::Pinned) + count(&half, Place::Fallback), all);
        assert!(half.total().evaluator_s > whole.total().evaluator_s);
        assert_eq!(count(&at(f.int8()).unwrap(), Place::Fallback), all);
        let refused = at(1000).unwrap_err().to_string();
        let needed = format!("its memory budget is 1000 bytes, needed are {} for int8", f.int8());
        assert!(refused.contains(&needed), "{refused}");
    }

    #[test]
    fn masked_is_int8_and_the_enclave_only_where_allowed() {
        let f = Fixture::new(costs(1e-4));
        let all = f.plan.matrices.len();
        let plain = decode(&f.pricing(), &wanted(Protocol::Masked, u64::MAX), 4).unwrap();
        assert_eq!((count(&plain, Place::Masked), plain.resident_bytes), (all, f.int8()));
        assert_eq!(count(&decode(&f.pricing(), &wanted(Protocol::Auto, u64::MAX), 4).unwrap(), Place::Masked), all);
        // Every group of this model is faster inside than a round trip, and stays delegated all the same.
        assert!(plain.choices.iter().all(|c| c.local.total_s() < c.prediction.total_s()));
        let allowed = Wanted { allow_enclave: true, ..wanted(Protocol::Masked, u64::MAX) };
        assert_eq!(count(&decode(&f.pricing(), &allowed, 4).unwrap(), Place::Enclave), all);
        let fast = Fixture::new(costs(1e-9));
        assert_eq!(count(&decode(&fast.pricing(), &allowed, 4).unwrap(), Place::Masked), all);
        let tee = Wanted { policy: Policy::CpuTee, ..wanted(Protocol::Masked, 0) };
        let inside = decode(&f.pricing(), &tee, 4).unwrap();
        assert_eq!((count(&inside, Place::Enclave), inside.resident_bytes), (all, 0));
        assert_eq!(inside.refreshes, Refreshes::default());
    }

    #[test]
    fn every_ciphertext_has_room_and_every_window_refreshes() {
        let f = Fixture::new(costs(1e-4));
        let step = decode(&f.pricing(), &wanted(Protocol::Direct, u64::MAX), 4).unwrap();
        assert_eq!(step.window_count, step.choices.len() + 1);
        assert_eq!(step.refreshes, Refreshes { at_windows: step.choices.len() - 1, inserted: 0 });
        for c in &step.choices {
            let state = c.state.unwrap();
            assert!(state.level == 1 && state.headroom() > 0.0, "{}: {state:?}", c.id);
            assert!((state.log2_scale + f64::from(state.log2_t) - f.ring.params().log2_q()).abs() < 1e-9);
        }
    }

    #[test]
    fn two_products_without_a_window_need_a_refresh_between_them() {
        let mut graph = Graph::decode(&tiny("llama"), Weights::W8, 0);
        let second = graph.nodes.iter().position(|n| matches!(n, Node::Linear(_))).unwrap() + 1;
        graph.nodes.remove(second);
        let found = refreshes(&graph, |_| true);
        assert_eq!(found, Refreshes { at_windows: graph.linears().count() - 2, inserted: 1 });
    }

    #[test]
    fn a_long_prompt_goes_where_products_are_faster_and_a_short_one_stays() {
        let mut slow = costs(1e-3);
        slow.enclave.local_multiply_s = 1e-6;
        let f = Fixture::new(slow);
        let w = wanted(Protocol::Direct, u64::MAX);
        assert_eq!(prefill_site(&f.pricing(), &w, 1).unwrap(), Site::Enclave);
        assert_eq!(prefill_site(&f.pricing(), &w, 200).unwrap(), Site::Evaluator);
        let tee = Wanted { policy: Policy::CpuTee, ..w };
        assert_eq!(prefill_site(&f.pricing(), &tee, 200).unwrap(), Site::Enclave);
        let alone = Fixture::new(Costs { delegated: None, ..slow });
        assert_eq!(prefill_site(&alone.pricing(), &w, 200).unwrap(), Site::Enclave);
    }
}
