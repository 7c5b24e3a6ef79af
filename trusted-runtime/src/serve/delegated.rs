//! The evaluators, the ways of delegating to them, and their masks.

use crate::{
    Error,
    config::Config,
    engine::Protocol,
    linear::{
        Linear, delegate::Delegate, direct::DirectLinear, link::EvaluatorConfig, masked::MaskedLinear,
        sharded::ShardedLinear,
    },
    metrics::Metrics,
    planner::Plan,
    pool::{MaskPool, Settings, Stats},
};
use kernels::Ring;
use proto::v1::EvaluatorInfo;
use std::{sync::Arc, time::Duration};
use tokio::runtime::Handle;

/// One share of the rows of every matrix, and the evaluator that holds it.
struct Share {
    delegate: Arc<Delegate>,
    direct: Arc<DirectLinear>,
    pool: Option<Arc<MaskPool>>,
}

/// A protocol, and what computes its linear layers.
type Served = (Protocol, Arc<dyn Linear>);

/// All shares; none without an evaluator.
pub(super) struct Delegated {
    shares: Vec<Share>,
}

impl Delegated {
    /// Begins to look for the evaluators, without waiting for them, and prepares what the default protocol needs.
    ///
    /// # Errors
    /// [`Error::Config`] for settings that do not fit the model, [`Error::Platform`] without entropy or threads.
    pub(super) async fn open(
        config: &Config,
        evaluators: Vec<EvaluatorConfig>,
        ring: &Ring,
        plan: &Arc<Plan>,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let (protocol, mut settings, count) = (config.engine.protocol, config.pool()?, evaluators.len());
        settings.memory /= count.max(1) as u64;
        let (masked, threads) = (protocol.uses_masks(), config.compute_threads());
        let mut shares = Vec::new();
        for (i, evaluator) in evaluators.into_iter().enumerate() {
            let own = if count == 1 { plan.clone() } else { Arc::new(plan.shard(ring, i, count)?) };
            let endpoint = &evaluator.endpoint;
            tracing::info!(endpoint, share = i + 1, count, "waiting for the evaluator; local is served meanwhile");
            let delegate = Delegate::open(&evaluator, (ring, own), Handle::current(), threads, masked, metrics)?;
            let work = move || Share::prepare(delegate, protocol, masked.then_some(settings));
            let share = tokio::task::spawn_blocking(work).await;
            shares.push(share.map_err(|_| Error::Bug("preparing masks panicked".into()))??);
        }
        let refresh = Duration::from_secs(config.evaluator.refresh_seconds.get().into());
        for share in &shares {
            tokio::spawn(refresh_challenges(share.direct.clone(), share.pool.clone(), refresh));
        }
        Ok(Self { shares })
    }

    /// The protocols that can be served, with what computes their linear layers over `plan`.
    ///
    /// # Errors
    /// [`Error::Platform`] without threads.
    pub(super) fn protocols(&self, plan: &Arc<Plan>) -> Result<Vec<Served>, Error> {
        let mut protocols = Vec::new();
        for protocol in [Protocol::Direct, Protocol::Masked, Protocol::Auto] {
            let linears: Option<Vec<_>> = self.shares.iter().map(|share| share.linear(protocol)).collect();
            if let Some(linears) = linears.filter(|l| !l.is_empty()) {
                protocols.push((protocol, ShardedLinear::over(plan.clone(), linears)?));
            }
        }
        Ok(protocols)
    }

    /// All evaluators as one, while every share has its own.
    pub(super) fn describe(&self) -> Option<EvaluatorInfo> {
        let infos: Vec<EvaluatorInfo> = self.shares.iter().map(|s| s.delegate.describe()).collect::<Option<_>>()?;
        let mut all = infos.first()?.clone();
        for info in &infos[1..] {
            all.endpoint = format!("{}, {}", all.endpoint, info.endpoint);
            all.pinned_layers += info.pinned_layers;
            all.fallback_layers += info.fallback_layers;
            // Shares are alike.
            all.bytes_per_weight = all.bytes_per_weight.max(info.bytes_per_weight);
        }
        Some(all)
    }

    /// The mask pools as one: a lane is a lane of every share.
    pub(super) fn stats(&self) -> Option<Stats> {
        let stats: Vec<Stats> =
            self.shares.iter().map(|s| s.pool.as_ref().map(|p| p.stats())).collect::<Option<_>>()?;
        stats.into_iter().reduce(|mut all, one| {
            all.ready = all.ready.min(one.ready);
            all.capacity = all.capacity.min(one.capacity);
            all.used = all.used.max(one.used);
            all.memory += one.memory;
            all.trouble = all.trouble.or(one.trouble);
            all.made = all.made.min(one.made);
            all.wall += one.wall;
            all.crypto += one.crypto;
            all.evaluator += one.evaluator;
            all.up += one.up;
            all.down += one.down;
            all.threads += one.threads;
            all
        })
    }
}

impl Share {
    fn prepare(delegate: Arc<Delegate>, protocol: Protocol, masks: Option<Settings>) -> Result<Self, Error> {
        let direct = Arc::new(DirectLinear::new(delegate.clone())?);
        if protocol == Protocol::Direct {
            direct.prepare()?;
        }
        let pool = masks.map(|m| MaskPool::start(delegate.clone(), &m, m.threads)).transpose()?;
        Ok(Self { delegate, direct, pool })
    }

    /// What computes this share by a protocol, if there is what that needs.
    fn linear(&self, protocol: Protocol) -> Option<Arc<dyn Linear>> {
        let masked = |fallback| {
            let pool = self.pool.clone()?;
            let masked = MaskedLinear::new(self.delegate.clone(), pool, fallback);
            Some(Arc::new(masked) as Arc<dyn Linear>)
        };
        match protocol {
            Protocol::Local => None,
            Protocol::Direct => Some(self.direct.clone()),
            Protocol::Masked => masked(None),
            Protocol::Auto => masked(Some(self.direct.clone())),
        }
    }
}

/// Draws new challenges on a schedule.
async fn refresh_challenges(direct: Arc<DirectLinear>, pool: Option<Arc<MaskPool>>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let (direct, pool) = (direct.clone(), pool.clone());
        let work = move || direct.refresh().and_then(|()| pool.map_or(Ok(()), |p| p.refresh()));
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(())) => tracing::info!("challenges drawn anew"),
            Ok(Err(error)) => tracing::error!(%error, "challenges were not drawn anew"),
            Err(_) => tracing::error!("bug: drawing challenges panicked"),
        }
    }
}
