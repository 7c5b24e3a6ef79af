//! An evaluator, and everything of the runtime that talks to it.

use super::{Fake, Mode, id, plan_of, ring, vector};
use crate::{
    Error,
    linear::{
        Call, Linear, delegate::Delegate, direct::DirectLinear, link::EvaluatorConfig, local::LocalLinear,
        masked::MaskedLinear,
    },
    metrics::Metrics,
    model::quantize::Weights,
    planner::{Plan, residency::Wish},
    pool::{MaskPool, Settings},
};
use std::{
    net::SocketAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::runtime::{Builder, Runtime};

/// Three small matrices; none is square, one is larger than a tile in both directions.
pub(crate) const SHAPES: [(usize, usize); 3] = [(70, 130), (5, 3), (129, 64)];

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Without TLS; everything else is as patient as a test can be.
pub(crate) fn config(endpoint: String, retry_for: Duration) -> EvaluatorConfig {
    EvaluatorConfig {
        others: Vec::new(),
        endpoint,
        caller: None,
        danger_plaintext: true,
        retry_for,
        deadline: Duration::from_secs(30),
        residency: Wish::Auto,
        budget: None,
        quarantine: Duration::from_millis(100),
    }
}

/// Waits until `happens`.
pub(crate) fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !happens() {
        assert!(Instant::now() < end, "never: {what}");
        thread::yield_now();
    }
}

/// What a pair is made of.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) mode: Mode,
    pub(crate) weights: Weights,
    pub(crate) shapes: &'a [(usize, usize)],
    pub(crate) threads: usize,
    pub(crate) retry_for: Duration,
    pub(crate) deadline: Duration,
    pub(crate) residency: Wish,
    pub(crate) quarantine: Duration,
    /// Of the mask pool; 0 for none.
    pub(crate) lanes: usize,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            mode: Mode::Honest,
            weights: Weights::W8,
            shapes: &SHAPES,
            threads: 1,
            retry_for: Duration::from_secs(20),
            deadline: Duration::from_secs(30),
            residency: Wish::Auto,
            quarantine: Duration::from_millis(100),
            lanes: 0,
        }
    }
}

impl Setup<'_> {
    pub(crate) fn start(self) -> Pair {
        self.start_with(|_| {})
    }

    /// `prepare` sees the evaluator before the runtime does.
    pub(crate) fn start_with(self, prepare: impl FnOnce(&Fake)) -> Pair {
        let (ours, theirs) = (runtime(), runtime());
        let fake = Fake::new(ring(), self.mode);
        prepare(&fake);
        let address = fake.serve(&theirs);
        let plan = plan_of(self.weights, self.shapes);
        let config = EvaluatorConfig {
            residency: self.residency,
            deadline: self.deadline,
            quarantine: self.quarantine,
            ..config(format!("http://{address}"), self.retry_for)
        };
        let metrics = Metrics::new().unwrap();
        let on = ours.handle().clone();
        let delegate =
            Delegate::open(&config, (&ring(), plan.clone()), on, self.threads, self.lanes > 0, &metrics).unwrap();
        let direct = Arc::new(DirectLinear::new(delegate.clone()).unwrap());
        let settings = Settings { lanes: self.lanes, memory: 1 << 30, threads: self.threads };
        let pool = (self.lanes > 0).then(|| MaskPool::start(delegate.clone(), &settings, self.threads).unwrap());
        let local = LocalLinear::new(ring(), plan.clone(), 1).unwrap();
        Pair { fake, plan, delegate, direct, pool, metrics, local, address, theirs: Some(theirs), _ours: ours }
    }
}

pub(crate) struct Pair {
    pub(crate) fake: Fake,
    pub(crate) plan: Arc<Plan>,
    pub(crate) delegate: Arc<Delegate>,
    pub(crate) direct: Arc<DirectLinear>,
    pub(crate) pool: Option<Arc<MaskPool>>,
    pub(crate) metrics: Metrics,
    local: LocalLinear,
    pub(crate) address: SocketAddr,
    theirs: Option<Runtime>,
    _ours: Runtime,
}

impl Pair {
    pub(crate) fn pool(&self) -> &Arc<MaskPool> {
        self.pool.as_ref().unwrap()
    }

    pub(crate) fn masked(&self) -> MaskedLinear {
        MaskedLinear::new(self.delegate.clone(), self.pool().clone(), None)
    }

    pub(crate) fn auto(&self) -> MaskedLinear {
        MaskedLinear::new(self.delegate.clone(), self.pool().clone(), Some(self.direct.clone()))
    }

    /// `vectors` vectors, the same ones every time, through matrix `layer`: numbers, if there are any, are local's.
    pub(crate) fn apply(&self, linear: &dyn Linear, call: &Call, layer: u32, vectors: usize) -> Result<(), Error> {
        let m = &self.plan.matrices[layer as usize].matrix;
        let xs: Vec<f32> = (0..vectors).flat_map(|v| vector(m.int8.cols(), v as u64)).collect();
        let mut ys = vec![f32::NAN; vectors * m.rows];
        linear.apply(call, id(layer), &xs, vectors, &mut ys)?;
        let mut local = vec![f32::NAN; vectors * m.rows];
        self.local.apply(&Call::default(), id(layer), &xs, vectors, &mut local)?;
        assert!(ys.iter().zip(&local).all(|(a, b)| a.to_bits() == b.to_bits()), "it differs from local");
        Ok(())
    }

    pub(crate) fn uploads(&self) -> usize {
        *self.fake.0.uploads.lock().unwrap()
    }

    /// How often the alarm of a check was raised.
    pub(crate) fn alarms(&self, check: &str) -> u64 {
        self.counted(&format!("bifrost_runtime_forged_answers_total{{check=\"{check}\"}} "))
    }

    /// The value that follows `name` in the metrics.
    pub(crate) fn counted(&self, name: &str) -> u64 {
        let text = self.metrics.render();
        text.lines().find_map(|line| line.strip_prefix(name)).map_or(0, |n| n.trim().parse().unwrap())
    }

    /// Ends the evaluator and starts it again on the same port, with the matrices it had.
    pub(crate) fn restart(&mut self) {
        self.theirs.take().unwrap().shutdown_background();
        let again = runtime();
        self.fake.serve_at(&again, self.address);
        self.theirs = Some(again);
    }

    /// Ends the evaluator for good.
    pub(crate) fn kill(&mut self) {
        self.theirs.take().unwrap().shutdown_background();
    }

    /// Waits until the evaluator is connected.
    pub(crate) fn connected(&self) {
        until("a connection", || self.delegate.describe().is_some());
    }

    /// Waits until every matrix has so many lanes.
    pub(crate) fn filled(&self, lanes: usize) {
        until("lanes", || self.pool().stats().ready >= lanes);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        pool.close();
        // The refilling threads use the runtime that is about to end.
        let end = Instant::now() + Duration::from_secs(5);
        while Arc::strong_count(pool) > 1 && Instant::now() < end {
            thread::yield_now();
        }
    }
}
