//! Measures [`Costs`]: the real linear layers over matrices of no meaning, for a few seconds.
//!
//! The enclave's own rates come from the products that it would run itself and from a small model whose linear layers
//! do nothing. Everything delegated is measured over a real session: matrices of a few shapes are uploaded under the
//! usual contract, and vectors go through them under the usual protocols, so that what is split among enclave,
//! evaluator and wire is split by the meters that will measure the model.

mod cache;
mod fit;

pub use cache::{HostPair, machine};

use super::{
    Plan,
    costs::{Costs, DelegatedCosts, DirectCosts, EnclaveCosts, MaskedCosts, PathCosts, Shape},
    graph::Graph,
    plan,
    residency::Wish,
};
use crate::{
    Error,
    linear::{
        Call, Cost, Group, Linear, LinearId,
        delegate::Delegate,
        direct::DirectLinear,
        integer,
        link::{EvaluatorConfig, NoAnswer},
        local::LocalLinear,
        masked::MaskedLinear,
    },
    metrics::Metrics,
    model::{self, QuantizedMatrix, Weights},
    pool::{MaskPool, Settings},
};
use bytes::Bytes;
use fit::rates;
use kernels::{Int8Matrix, Ring, words::packed_len};
use proto::v1::OnlineJob;
use std::{
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Rows and columns: one that is nearly only overhead, one with long inputs, one with long outputs.
const THIN: [(usize, usize); 3] = [(64, 64), (64, 2048), (2048, 64)];
const LARGE: (usize, usize) = (2048, 1024);
/// Large matrices that are multiplied in turn, so that weights come from memory as they do in a model.
const COLD: usize = 24;
const COLD_PINNED: usize = 4;
/// Timings of one shape.
const SAMPLES: usize = 9;
const LANES: usize = 96;
/// For a pool of [`LANES`] lanes of thin matrices, which takes a second.
const FILLING: Duration = Duration::from_secs(60);
/// Vectors of the jobs with several.
const SEVERAL: usize = 8;
const MANY: usize = 64;

/// How to reach the evaluator, and with what.
pub struct Setup<'a> {
    /// The model's ring.
    pub ring: &'a Ring,
    /// Compute threads.
    pub threads: usize,
    /// The evaluator; its residency and budget are not looked at.
    pub evaluator: Option<&'a EvaluatorConfig>,
    /// Threads for the network.
    pub handle: Handle,
    /// Whether `masked` is to be measured too.
    pub masked: bool,
}

/// Measures everything; says how long it took in the log.
///
/// # Errors
/// [`Error::Evaluator`] if the evaluator is not there or has no room for the matrices; what starting threads can say.
pub fn calibrate(setup: &Setup<'_>) -> Result<Costs, Error> {
    let began = Instant::now();
    let enclave = enclave(setup.ring, setup.threads)?;
    let measured = began.elapsed();
    let delegated = setup.evaluator.map(|e| delegated(setup, e)).transpose()?;
    tracing::info!(enclave_seconds = measured.as_secs_f64(), seconds = began.elapsed().as_secs_f64(), "costs measured");
    Ok(Costs { enclave, delegated })
}

/// An evaluator that holds next to nothing, to ask it what it is.
///
/// # Errors
/// [`Error::Evaluator`] if it is not there.
pub fn probe(setup: &Setup<'_>, evaluator: &EvaluatorConfig) -> Result<Arc<Delegate>, Error> {
    open(setup, evaluator, plan_of(setup.ring, &THIN[..1], 3)?, (Wish::Fallback, false))
}

fn id(layer: usize) -> LinearId {
    LinearId { layer: u32::try_from(layer).unwrap_or(u32::MAX), group: Group::Down }
}

/// Layer k is a matrix of shape `shapes[k]`; weights like a model's, most of them small.
fn plan_of(ring: &Ring, shapes: &[(usize, usize)], seed: u64) -> Result<Arc<Plan>, Error> {
    let matrix = |(layer, &(rows, cols)): (usize, &(usize, usize))| {
        let mut state = (seed << 32 | layer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut data = Vec::with_capacity(rows * cols + 7);
        while data.len() < rows * cols {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Sums of two: -64 to 62.
            data.extend(state.to_le_bytes().map(|b| (b.cast_signed() >> 2) + ((b << 4).cast_signed() >> 3)));
        }
        data.truncate(rows * cols);
        let int8 = Int8Matrix::new(rows, cols, data).map_err(|e| Error::Bug(e.to_string()))?;
        Ok(QuantizedMatrix { id: id(layer), weights: Weights::W8, rows, int8, scales: vec![0.01; rows] })
    };
    let matrices = shapes.iter().enumerate().map(matrix).collect::<Result<Vec<_>, Error>>()?;
    Ok(Arc::new(plan(ring, matrices)?))
}

/// Activations of no meaning.
fn vectors(cols: usize, vectors: usize) -> Vec<f32> {
    (0u16..).map(|i| f32::from(i.wrapping_mul(40_503)) / 32_768.0 - 1.0).take(cols * vectors).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Median seconds of `f`, which is called once before.
fn time(samples: usize, mut f: impl FnMut(usize) -> Result<(), Error>) -> Result<f64, Error> {
    f(0)?;
    let one = |i: usize| {
        let start = Instant::now();
        f(i)?;
        Ok(start.elapsed().as_secs_f64())
    };
    (1..=samples).map(one).collect::<Result<Vec<f64>, Error>>().map(median)
}

#[expect(clippy::cast_precision_loss, reason = "counts below 2^53")]
fn count(x: usize) -> f64 {
    x as f64
}

fn enclave(ring: &Ring, threads: usize) -> Result<EnclaveCosts, Error> {
    let mut shapes = vec![LARGE; COLD];
    shapes.push(THIN[0]);
    let plan = plan_of(ring, &shapes, 1)?;
    let local = LocalLinear::new(ring.clone(), plan.clone(), threads)?;
    let call = Call::default();
    let product = |layer: usize, many: usize, samples: usize| {
        let (rows, cols) = shapes[layer];
        let (xs, mut ys) = (vectors(cols, many), vec![0.0; rows * many]);
        let turn = |i: usize| if layer < COLD { i % COLD } else { layer };
        time(samples, |i| local.apply(&call, id(turn(i)), &xs, many, black_box(&mut ys)))
    };
    let (rows, cols) = LARGE;
    let m = &plan.matrices[0];
    let xs = vectors(cols, 1);
    let mut ys = vec![0.0f32; rows];
    let rounding = time(SAMPLES, |_| {
        let ints = integer::quantize(m, &xs, 1)?;
        for (row, y) in ys.iter_mut().enumerate() {
            *y = integer::dequantize(m, row, ints.steps[0], 12_345, 0);
        }
        black_box(&ys);
        Ok(())
    })?;
    let rounding_word_s = rounding / count(rows + cols);
    // Two passes over all of them, so that each is read from memory.
    let (small, large) = (product(COLD, 1, 5 * SAMPLES)?, product(0, 1, 2 * COLD)?);
    let many = product(0, MANY, 3)?;
    let weights = count(rows * cols);
    let local_call_s = (small - rounding_word_s * count(2 * THIN[0].0)).max(0.0);
    let rest = local_call_s + rounding;
    let [window_s, window_element_s, attention_multiply_s] = windows()?;
    Ok(EnclaveCosts {
        local_call_s,
        local_byte_s: (large - rest).max(0.0) / weights,
        local_multiply_s: (many - local_call_s - count(MANY) * rounding).max(0.0) / weights / count(MANY),
        rounding_word_s,
        window_s,
        window_element_s,
        attention_multiply_s,
    })
}

/// Linear layers that give zeros, so that what is left of a pass is its windows.
struct Nothing;

impl Linear for Nothing {
    fn apply(&self, _: &Call, _: LinearId, _: &[f32], _: usize, ys: &mut [f32]) -> Result<(), Error> {
        ys.fill(0.0);
        Ok(())
    }
}

/// Seconds of a window, of an element and of a multiply-add of attention.
fn windows() -> Result<[f64; 3], Error> {
    let mut samples = Vec::new();
    for (source, held) in [("llama-tiny", 1), ("smollm2-135m@2", 1), ("smollm2-135m@2", 384)] {
        let loaded = model::load(&format!("synthetic:{source}"), Weights::W8, &|_, _, _| {})?;
        let (model, call) = (&loaded.model, Call::default());
        let (mut cache, mut logits) = (model.new_cache(), Vec::new());
        model.forward(&Nothing, &call, &vec![1; held], &mut cache, &mut logits)?;
        let seconds = time(4 * SAMPLES, |_| model.forward(&Nothing, &call, &[1], &mut cache, &mut logits))?;
        let graph = Graph::decode(model.config(), Weights::W8, held + 2 * SAMPLES);
        let sum = |f: fn(&super::graph::Window) -> usize| count(graph.windows().map(f).sum());
        samples.push(([sum(|_| 1), sum(|w| w.elements), sum(|w| w.attention)], seconds));
    }
    Ok(rates(&samples))
}

fn open(
    setup: &Setup<'_>,
    evaluator: &EvaluatorConfig,
    plan: Arc<Plan>,
    (residency, masked): (Wish, bool),
) -> Result<Arc<Delegate>, Error> {
    let config = EvaluatorConfig { residency, budget: None, ..evaluator.clone() };
    let metrics = Metrics::new()?;
    let delegate = Delegate::open(&config, (setup.ring, plan), setup.handle.clone(), setup.threads, masked, &metrics)?;
    delegate.connect()?;
    Ok(delegate)
}

/// What one call has cost.
#[derive(Clone, Copy, Default)]
struct Spent {
    crypto: f64,
    verify: f64,
    evaluator: f64,
    wire: f64,
    bytes: f64,
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds and bytes of one call")]
impl Spent {
    fn between(before: Cost, after: Cost) -> Self {
        let s = |f: fn(&Cost) -> u64| (f(&after) - f(&before)) as f64 / 1e9;
        let bytes = after.bytes_up + after.bytes_down - before.bytes_up - before.bytes_down;
        Self {
            crypto: s(|c| c.crypto_ns),
            verify: s(|c| c.verify_ns),
            evaluator: s(|c| c.evaluator_ns),
            wire: s(|c| c.wire_ns),
            bytes: bytes as f64,
        }
    }

    fn median(all: &[Self]) -> Self {
        let of = |f: fn(&Self) -> f64| median(all.iter().map(f).collect());
        Self {
            crypto: of(|s| s.crypto),
            verify: of(|s| s.verify),
            evaluator: of(|s| s.evaluator),
            wire: of(|s| s.wire),
            bytes: of(|s| s.bytes),
        }
    }
}

/// Sends vectors through layers of `delegate`, in turn, and takes the medians of what that costs.
fn spend(
    linear: &dyn Linear,
    plan: &Plan,
    layers: std::ops::Range<usize>,
    many: usize,
    samples: usize,
) -> Result<Spent, Error> {
    let call = Call::default();
    let m = &plan.matrices[layers.start].matrix;
    let (xs, mut ys) = (vectors(m.int8.cols(), many), vec![0.0; m.rows * many]);
    let mut once = |layer| {
        let before = call.meter.snapshot();
        linear.apply(&call, id(layer), &xs, many, &mut ys)?;
        Ok(Spent::between(before, call.meter.snapshot()))
    };
    // What is made at the first use is not counted.
    layers.clone().try_for_each(|layer| once(layer).map(drop))?;
    let turns = layers.clone().cycle().take(samples.max(layers.len()));
    turns.map(once).collect::<Result<Vec<_>, Error>>().map(|all| Spent::median(&all))
}

fn delegated(setup: &Setup<'_>, evaluator: &EvaluatorConfig) -> Result<DelegatedCosts, Error> {
    let mut shapes = THIN.to_vec();
    shapes.extend([LARGE; COLD]);
    let fallback = plan_of(setup.ring, &shapes, 1)?;
    let int8 = open(setup, evaluator, fallback.clone(), (Wish::Fallback, setup.masked))?;
    let pinned = plan_of(setup.ring, &shapes[..THIN.len() + COLD_PINNED], 2)?;
    let ntt = open(setup, evaluator, pinned.clone(), (Wish::Pinned, false))?;
    let direct = direct(setup, (&fallback, int8.clone()), (&pinned, ntt))?;
    let masked = if setup.masked { masked(setup, evaluator, &int8)? } else { MaskedCosts::default() };
    Ok(DelegatedCosts { direct, masked })
}

fn direct(
    setup: &Setup<'_>,
    (fallback, int8): (&Plan, Arc<Delegate>),
    (pinned, ntt): (&Plan, Arc<Delegate>),
) -> Result<DirectCosts, Error> {
    let large = THIN.len();
    let (int8, ntt) = (DirectLinear::new(int8)?, DirectLinear::new(ntt)?);
    let (mut enclave, mut products, mut wire) = (Vec::new(), Vec::new(), Vec::new());
    let mut one = (Spent::default(), 0.0);
    for (linear, plan, is_pinned) in [(&int8, fallback, false), (&ntt, pinned, true)] {
        for first in 0..=large {
            // All large pinned ones in turn: together they are more than a cache holds.
            let turn = if is_pinned && first == large { COLD_PINNED } else { 1 };
            let spent = spend(linear, plan, first..first + turn, 1, SAMPLES)?;
            let shape = Shape::of(setup.ring, &plan.matrices[first]);
            let (blocks, tiles) = (count(shape.tiling.blocks()), count(shape.tiling.tiles()));
            let (ntt_bytes, weights) =
                if is_pinned { (count(shape.pinned_bytes), 0.0) } else { (0.0, count(shape.weights())) };
            enclave.push(([1.0, blocks, tiles], spent.crypto));
            products.push(([1.0, blocks, ntt_bytes, weights], spent.evaluator));
            wire.push(([1.0, spent.bytes], spent.wire));
            if !is_pinned && first == large {
                one = (spent, weights);
            }
        }
    }
    let several = spend(&int8, fallback, large..large + 1, SEVERAL, 3)?;
    let [call_s, block_s, tile_s] = rates(&enclave);
    let [job_s, evaluator_block_s, pinned_byte_s, fallback_weight_s] = rates(&products);
    let (one, weights) = one;
    let blocks = count(fallback.matrices[large].tiling.blocks());
    let more = count(SEVERAL - 1);
    let multiply_s = ((several.evaluator - one.evaluator) / more - blocks * evaluator_block_s).max(0.0) / weights;
    let path = path(&wire);
    Ok(DirectCosts {
        call_s,
        block_s,
        tile_s,
        job_s,
        evaluator_block_s,
        pinned_byte_s,
        fallback_weight_s,
        multiply_s,
        path,
    })
}

fn path(wire: &[([f64; 2], f64)]) -> PathCosts {
    let [round_trip_s, wire_byte_s] = rates(wire);
    PathCosts { round_trip_s, wire_byte_s }
}

fn masked(setup: &Setup<'_>, evaluator: &EvaluatorConfig, cold: &Arc<Delegate>) -> Result<MaskedCosts, Error> {
    let large = THIN.len();
    let (mut products, mut wire) = (Vec::new(), Vec::new());
    let of = |layer: usize| Shape::of(setup.ring, &cold.plan.matrices[layer]);
    // Words of no meaning need no lane; every large matrix comes once before it comes again.
    for (layers, samples) in [(0..1, 3 * SAMPLES), (1..2, SAMPLES), (2..3, SAMPLES), (large..large + COLD, 2 * COLD)] {
        let spent = online(cold, layers.clone(), 1, samples)?;
        products.push(([1.0, count(of(layers.start).weights())], spent.evaluator));
        wire.push(([1.0, spent.bytes], spent.wire));
    }
    let several = online(cold, large..large + COLD, SEVERAL, COLD)?;
    let [job_s, online_weight_s] = rates(&products);
    let weights = count(of(large).weights());
    let multiply_s = ((several.evaluator - job_s) / weights - online_weight_s).max(0.0) / count(SEVERAL - 1);

    let plan = plan_of(setup.ring, &THIN, 3)?;
    let delegate = open(setup, evaluator, plan.clone(), (Wish::Fallback, true))?;
    let settings = Settings { lanes: LANES, memory: u64::MAX, threads: setup.threads };
    let pool = MaskPool::start(delegate.clone(), &settings, setup.threads)?;
    let began = Instant::now();
    while pool.stats().ready < LANES {
        if began.elapsed() >= FILLING {
            let trouble = pool.stats().trouble.unwrap_or_else(|| "it is slow".into());
            return Err(Error::Evaluator(format!("makes no masks to measure with: {trouble}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let linear = MaskedLinear::new(delegate, pool.clone(), None);
    let (mut enclave, mut checks) = (Vec::new(), Vec::new());
    for (layer, (rows, cols)) in THIN.into_iter().enumerate() {
        let spent = spend(&linear, &plan, layer..layer + 1, 1, 5 * SAMPLES)?;
        enclave.push(([1.0, count(cols), count(rows)], spent.crypto - spent.verify));
        checks.push(([count(rows + cols)], spent.verify));
    }
    pool.close();
    let ([call_s, masked_word_s, unmasked_word_s], [checked_word_s]) = (rates(&enclave), rates(&checks));
    let path = path(&wire);
    Ok(MaskedCosts { call_s, masked_word_s, unmasked_word_s, checked_word_s, job_s, online_weight_s, multiply_s, path })
}

/// Online jobs of words of no meaning through the layers in turn.
fn online(delegate: &Delegate, layers: std::ops::Range<usize>, many: usize, samples: usize) -> Result<Spent, Error> {
    let session = delegate.session()?;
    let streams = session.masked.as_ref().ok_or_else(|| Error::Bug("a session without online jobs".into()))?;
    let once = |layer: usize| {
        let m = &delegate.plan.matrices[layer];
        let (up, down) = (packed_len(m.log2_t, m.tiling.cols()), packed_len(m.log2_t, m.tiling.rows()));
        let job = OnlineJob {
            job_id: streams.online.job_id(),
            matrix_id: Bytes::copy_from_slice(&delegate.ids[layer]),
            vectors: u32::try_from(many).unwrap_or(u32::MAX),
            // No size here leaves bits of the last byte unused.
            words: vec![0x55; many * up].into(),
            word_bits: m.log2_t,
        };
        let ends = Instant::now() + delegate.deadline;
        let start = Instant::now();
        let answer = streams.online.call(job, many * down, || Instant::now() < ends).map_err(|e| match e {
            NoAnswer::Unwanted => Error::Evaluator("gives no answer in time".into()),
            NoAnswer::Lost(reason) => Error::Evaluator(format!("is gone: {reason}")),
        })?;
        let waited = start.elapsed().as_secs_f64();
        let timing = answer.timing.unwrap_or_default();
        let reported = Duration::from_nanos(timing.compute_ns.saturating_add(timing.queued_ns)).as_secs_f64();
        let evaluator = reported.min(waited);
        Ok(Spent { evaluator, wire: waited - evaluator, bytes: count(many * (up + down)), ..Spent::default() })
    };
    layers.clone().try_for_each(|layer| once(layer).map(drop))?;
    let turns = layers.cycle().take(samples);
    turns.map(once).collect::<Result<Vec<_>, Error>>().map(|all| Spent::median(&all))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::testing::{Fake, Mode, config, ring, runtime};

    #[test]
    fn matrices_are_planned_in_every_ring_and_look_like_weights() {
        for literal in kernels::params::RINGS {
            let ring = Ring::new(literal.check().unwrap()).unwrap();
            let plan = plan_of(&ring, &[THIN[0], THIN[1], LARGE], 1).unwrap();
            for m in &plan.matrices {
                let data = m.matrix.int8.data();
                let mean = data.iter().map(|w| f64::from(*w)).sum::<f64>() / data.len() as f64;
                assert!(mean.abs() < 4.0 && data.iter().any(|w| w.abs() > 30), "{mean}");
            }
        }
        let differs = |seed| plan_of(&ring(), &THIN, seed).unwrap().matrices[0].matrix.int8.id();
        assert_ne!(differs(1), differs(2));
    }

    #[test]
    fn costs_are_positive_and_survive_their_file() {
        let costs = enclave(&ring(), 1).unwrap();
        for (name, rate) in [
            ("byte", costs.local_byte_s),
            ("multiply", costs.local_multiply_s),
            ("rounding", costs.rounding_word_s),
            ("windows", costs.window_s + costs.window_element_s + costs.attention_multiply_s),
        ] {
            assert!(rate > 0.0 && rate < 1e-3, "{name}: {rate}");
        }
        let costs = Costs { enclave: costs, delegated: None };
        let back: Costs = serde_json::from_str(&serde_json::to_string(&costs).unwrap()).unwrap();
        // The last bit of a decimal may be lost on the way.
        let same = |a: f64, b: f64| (a - b).abs() <= 1e-12 * a.abs();
        assert!(same(costs.enclave.local_byte_s, back.enclave.local_byte_s) && back.delegated.is_none());
        assert!(same(costs.enclave.window_element_s, back.enclave.window_element_s));
    }

    #[test]
    fn an_evaluator_that_is_not_there_is_said_to_be() {
        let (theirs, ours) = (runtime(), runtime());
        let fake = Fake::new(ring(), Mode::NoBudget);
        let config = config(format!("http://{}", fake.serve(&theirs)), Duration::from_secs(5));
        let ring = ring();
        let setup =
            Setup { ring: &ring, threads: 1, evaluator: Some(&config), handle: ours.handle().clone(), masked: true };
        let refused = probe(&setup, &config).err().unwrap().to_string();
        assert!(refused.contains("budget 5 bytes"), "{refused}");
    }
}
