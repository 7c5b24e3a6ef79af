//! Builds what is served from the configuration: model, plan, ways of delegating, engine.

use super::{Life, delegated::Delegated};
use crate::{
    Error,
    config::{Config, KvBackend, WeightsName},
    engine::{Engine, Limits, Protocol, runner::ModelRunner},
    linear::{Linear, link::EvaluatorConfig, local::LocalLinear, padded::Padded},
    metrics::Metrics,
    model::{
        self, LoadOptions, LoadedModel, ModelConfig, Weights,
        kv::{Backend, KvPool, PAGE, Plaintext, Sealed, Shape, Store},
    },
    planner::{self, Plan},
    progress::Progress,
    service::{
        RequestLimits, Served,
        describe::{Description, Parts},
    },
};
use kernels::Ring;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Loads the model, plans it, and starts the engine.
pub(super) async fn build(
    config: &Config,
    evaluators: Vec<EvaluatorConfig>,
    metrics: &Metrics,
    life: &Life,
) -> Result<Served, Error> {
    let threads = config.compute_threads();
    let Loaded { model, tokenizer, chat, ring, plan } = load(config).await?;
    tracing::info!(isa = ring.isa().name(), threads, n = ring.n(), log2_q = ring.params().log2_q(), "ring arithmetic");
    let (model, tokenizer) = (Arc::new(model), Arc::new(tokenizer));
    let (policy, pages) = (config.policy()?, pages(config, model.config())?);
    let local: Arc<dyn Linear> = Arc::new(LocalLinear::new(ring.clone(), plan.clone(), threads)?);
    let (sealed, shapes) = (sealed(config)?, config.batch_shapes()?);
    let mut pools = Vec::new();
    let mut runner = |evaluator: Option<Arc<dyn Linear>>| {
        let backend: Box<dyn Backend> = match &sealed {
            Some(sealed) => Box::new(sealed.clone()),
            None => Box::new(Plaintext),
        };
        let pool = KvPool::new(Shape::of(model.config()), pages, backend);
        pools.push(pool.clone());
        let evaluator = evaluator.map(|linear| Padded::around(linear, &shapes));
        ModelRunner::new((model.clone(), tokenizer.clone()), local.clone(), evaluator, pool)
    };
    let mut runners = vec![(Protocol::Local, runner(None))];
    let delegated = Arc::new(Delegated::open(config, evaluators, &ring, &plan, metrics).await?);
    runners.extend(delegated.protocols(&plan)?.into_iter().map(|(protocol, linear)| (protocol, runner(Some(linear)))));
    let masks = delegated.clone();
    let limits = Limits {
        max_queue: config.engine.max_queue as usize,
        max_queue_per_tenant: match config.engine.max_queue_per_tenant {
            0 => usize::MAX,
            n => n as usize,
        },
        max_running: config.engine.max_running.get() as usize,
        prefill_chunk: config.engine.prefill_chunk.get() as usize,
        answer_multiple: config.hardening.answer_multiple.get() as usize,
    };
    let description = Description::new(Parts {
        model: model.config(),
        weights: weights(config),
        default_protocol: config.default_protocol(),
        default_policy: policy,
        ring: &ring,
        threads,
        has_chat_template: chat.is_some(),
        attestation: life.mode,
        evaluator: Box::new(move || delegated.describe()),
        lanes: Box::new(move || masks.stats()),
    });
    let limits_of_requests = RequestLimits {
        context: model.config().context.min(pages.saturating_mul(PAGE)),
        vocab: model.config().vocab,
        default_max_tokens: config.engine.default_max_tokens.get() as usize,
        default_protocol: config.default_protocol(),
        default_policy: policy,
        token_interval: Duration::from_millis(config.hardening.token_interval_ms.into()),
        max_time: Duration::from_secs(config.engine.max_request_seconds.get().into()),
    };
    Ok(Served {
        engine: Engine::start(limits, metrics, runners)?,
        tokenizer,
        chat,
        description,
        limits: limits_of_requests,
        metrics: metrics.clone(),
        abort: life.abort.clone(),
        answering: life.answering.clone(),
        pools,
    })
}

/// Where full pages go, if not to enclave memory.
///
/// # Errors
/// [`Error::Config`] naming the file, [`Error::Platform`] without entropy.
fn sealed(config: &Config) -> Result<Option<Sealed>, Error> {
    let file = &config.engine.kv_file;
    let store = match config.engine.kv_backend {
        KvBackend::Plaintext => return Ok(None),
        KvBackend::Sealed if file.is_empty() => Store::memory(),
        KvBackend::Sealed => Store::file(Path::new(file))?,
    };
    tracing::info!(file, "full pages of keys and values are sealed");
    Sealed::new(store).map(Some)
}

/// Pages of keys and values that the memory for them holds.
///
/// # Errors
/// [`Error::Config`] with the figures if it does not hold one.
fn pages(config: &Config, model: &ModelConfig) -> Result<usize, Error> {
    let (memory, page) = (config.kv_memory()?, Shape::of(model).page_bytes() as u64);
    let pages = memory / page.max(1);
    if pages == 0 {
        return Err(Error::Config(format!(
            "engine.kv_memory is {memory} bytes, one page of {PAGE} positions is {page}"
        )));
    }
    let positions = pages.saturating_mul(PAGE as u64);
    tracing::info!(pages, page_bytes = page, positions, "memory for keys and values");
    Ok(usize::try_from(pages).unwrap_or(usize::MAX))
}

struct Loaded {
    model: model::Model,
    tokenizer: model::Tokenizer,
    chat: Option<model::ChatTemplate>,
    ring: Ring,
    plan: Arc<Plan>,
}

/// Reads, quantizes and plans the model on a thread of its own.
async fn load(config: &Config) -> Result<Loaded, Error> {
    let (source, sha256) = (config.model.source.clone(), config.model.sha256.clone());
    let weights = weights(config);
    let work = move || {
        let began = Instant::now();
        let progress = Progress::default();
        let options = LoadOptions {
            source: &source,
            expected_sha256: Some(sha256.as_str()).filter(|s| !s.is_empty()),
            progress: &progress.callback(),
        };
        let LoadedModel { model, tokenizer, chat, linears, .. } = model::load_with(&options, weights)?;
        let ring = planner::choose_ring(&linears)?;
        let plan = Arc::new(planner::plan(&ring, linears)?);
        let c = model.config();
        tracing::info!(
            name = c.name,
            architecture = %c.architecture,
            parameters = c.parameters,
            context = c.context,
            weights = weights.name(),
            "model loaded in {:.1} s",
            began.elapsed().as_secs_f64()
        );
        Ok(Loaded { model, tokenizer, chat, ring, plan })
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Bug("loading the model panicked".into()))?
}

fn weights(config: &Config) -> Weights {
    match config.model.weights {
        WeightsName::W8 => Weights::W8,
        WeightsName::W16 => Weights::W16,
    }
}
