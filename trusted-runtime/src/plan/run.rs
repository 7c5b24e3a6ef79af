//! Some tokens by the plan, each linear group measured apart.

use crate::{
    Error,
    engine::Protocol,
    linear::{
        Call, Linear, LinearId, delegate::Delegate, direct::DirectLinear, link::EvaluatorConfig, local::LocalLinear,
        masked::MaskedLinear,
    },
    metrics::Metrics,
    model::{Model, Tokenizer},
    planner::{
        Plan,
        choice::StepPlan,
        costs::{Place, Prediction},
    },
    pool::{MaskPool, Settings},
};
use kernels::Ring;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::runtime::Handle;

/// Tokens that are decoded.
pub(super) const TOKENS: usize = 16;
/// Without progress of the mask pool for so long, something hangs.
const STALL: Duration = Duration::from_secs(600);
const TEXT: &str = "The capital of France is Paris. ";

/// What is decoded, and how.
pub(super) struct Decode<'a> {
    pub(super) model: &'a Model,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) ring: &'a Ring,
    pub(super) plan: &'a Arc<Plan>,
    pub(super) step: &'a StepPlan,
    pub(super) threads: usize,
    pub(super) positions: usize,
}

/// Medians over the decode steps, in a prediction's terms.
pub(super) struct Measured {
    /// Every linear group.
    pub(super) linears: HashMap<LinearId, Prediction>,
    /// All windows of a step.
    pub(super) windows: Prediction,
    /// A whole step.
    pub(super) step: Prediction,
}

impl Decode<'_> {
    /// Decodes [`TOKENS`] tokens after a prompt that is processed in the enclave.
    pub(super) fn run(
        &self,
        evaluator: Option<&EvaluatorConfig>,
        protocol: Protocol,
        pool: &Settings,
        handle: &Handle,
    ) -> Result<Measured, Error> {
        let local = LocalLinear::new(self.ring.clone(), self.plan.clone(), self.threads)?;
        let delegates = self.step.choices.iter().any(|c| c.place != Place::Enclave);
        let mut lanes = None;
        let delegated: Option<Box<dyn Linear>> = match evaluator.filter(|_| delegates) {
            None => None,
            Some(evaluator) => {
                let masked = protocol.uses_masks();
                let with = (self.ring, self.plan.clone());
                let delegate = Delegate::open(evaluator, with, handle.clone(), self.threads, masked, &Metrics::new()?)?;
                tracing::info!("weights go to the evaluator");
                delegate.connect()?;
                if masked {
                    let settings = Settings { lanes: TOKENS + 1, ..*pool };
                    let pool = MaskPool::start(delegate.clone(), &settings, settings.threads)?;
                    lanes = Some(Closing(pool.clone()));
                    fill(&pool)?;
                    Some(Box::new(MaskedLinear::new(delegate, pool, None)))
                } else {
                    let direct = DirectLinear::new(delegate)?;
                    direct.prepare()?;
                    Some(Box::new(direct))
                }
            }
        };
        let inside = self.step.choices.iter().filter(|c| c.place == Place::Enclave).map(|c| c.id).collect();
        let metered = Metered { local: &local, delegated: delegated.as_deref(), inside, spent: Mutex::default() };
        let measured = self.decode(&local, &metered);
        drop(lanes);
        measured
    }

    fn decode(&self, local: &LocalLinear, metered: &Metered<'_>) -> Result<Measured, Error> {
        let call = Call::default();
        let mut prompt = self.tokenizer.encode(&TEXT.repeat(self.positions.div_ceil(4) + 1));
        prompt.truncate(self.positions.max(1));
        let (mut cache, mut logits) = (self.model.new_cache(), Vec::new());
        self.model.forward(local, &call, &prompt, &mut cache, &mut logits)?;
        let (mut windows, mut steps) = (Vec::new(), Vec::new());
        let mut before = Prediction::default();
        for _ in 0..TOKENS {
            let likeliest = (0u32..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(token, _)| token);
            let start = Instant::now();
            self.model.forward(metered, &call, &[likeliest], &mut cache, &mut logits)?;
            let wall = start.elapsed().as_secs_f64();
            let all: Prediction = metered.lock().values().flatten().copied().sum();
            let step = difference(&all, &before);
            before = all;
            windows.push(Prediction { enclave_s: (wall - step.total_s()).max(0.0), ..Prediction::default() });
            steps.push(Prediction { enclave_s: wall - step.evaluator_s - step.wire_s, ..step });
        }
        let linears = metered.lock().iter().map(|(id, all)| (*id, median(all))).collect();
        Ok(Measured { linears, windows: median(&windows), step: median(&steps) })
    }
}

/// A pool whose threads end with this.
struct Closing(Arc<MaskPool>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn fill(pool: &MaskPool) -> Result<(), Error> {
    let (mut ready, mut grown) = (0, Instant::now());
    while ready <= TOKENS {
        let stats = pool.stats();
        if stats.ready > ready {
            (ready, grown) = (stats.ready, Instant::now());
        }
        if grown.elapsed() >= STALL {
            let why = stats.trouble.unwrap_or_else(|| "none was added for too long".into());
            return Err(Error::Evaluator(format!(
                "makes no masks: {ready} lanes are ready, {TOKENS} are needed: {why}"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Goes where the plan says, and keeps what every call cost.
struct Metered<'a> {
    local: &'a LocalLinear,
    delegated: Option<&'a dyn Linear>,
    inside: Vec<LinearId>,
    spent: Mutex<HashMap<LinearId, Vec<Prediction>>>,
}

impl Metered<'_> {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<LinearId, Vec<Prediction>>> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Linear for Metered<'_> {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of one call")]
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        let linear = self.delegated.filter(|_| !self.inside.contains(&id)).unwrap_or(self.local);
        let (before, start) = (call.meter.snapshot(), Instant::now());
        linear.apply(call, id, xs, vectors, ys)?;
        let (wall, after) = (start.elapsed().as_secs_f64(), call.meter.snapshot());
        let evaluator_s = (after.evaluator_ns - before.evaluator_ns) as f64 / 1e9;
        let wire_s = (after.wire_ns - before.wire_ns) as f64 / 1e9;
        let spent = Prediction {
            enclave_s: (wall - evaluator_s - wire_s).max(0.0),
            evaluator_s,
            wire_s,
            bytes_up: after.bytes_up - before.bytes_up,
            bytes_down: after.bytes_down - before.bytes_down,
        };
        self.lock().entry(id).or_default().push(spent);
        Ok(())
    }
}

fn difference(now: &Prediction, before: &Prediction) -> Prediction {
    Prediction {
        enclave_s: now.enclave_s - before.enclave_s,
        evaluator_s: now.evaluator_s - before.evaluator_s,
        wire_s: now.wire_s - before.wire_s,
        bytes_up: now.bytes_up - before.bytes_up,
        bytes_down: now.bytes_down - before.bytes_down,
    }
}

fn median(all: &[Prediction]) -> Prediction {
    let seconds = |f: fn(&Prediction) -> f64| {
        let mut values: Vec<f64> = all.iter().map(f).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let bytes = |f: fn(&Prediction) -> u64| {
        let mut values: Vec<u64> = all.iter().map(f).collect();
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    Prediction {
        enclave_s: seconds(|p| p.enclave_s),
        evaluator_s: seconds(|p| p.evaluator_s),
        wire_s: seconds(|p| p.wire_s),
        bytes_up: bytes(|p| p.bytes_up),
        bytes_down: bytes(|p| p.bytes_down),
    }
}
