//! Builds the whole runtime from its configuration, serves until it is told to stop, and drains.

use crate::{
    Error,
    config::{self, Config, WeightsName},
    engine::{Engine, Limits, Protocol, runner::ModelRunner},
    linear::{
        Linear, delegate::Delegate, direct::DirectLinear, link::EvaluatorConfig, local::LocalLinear,
        masked::MaskedLinear,
    },
    metrics::{self, Metrics},
    model::{self, LoadOptions, LoadedModel, Weights},
    planner::{self, Plan},
    pool::MaskPool,
    progress::Progress,
    service::{
        RequestLimits, Served, Service,
        describe::{ATTESTATION, Description, Parts},
    },
    tls,
};
use kernels::Ring;
use proto::v1::inference_server::InferenceServer;
use std::{
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::TcpListener,
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Server, server::TcpIncoming};
use tonic_health::{ServingStatus, server::HealthReporter};

/// Serves until SIGTERM or SIGINT or, `exit_with_parent`, the end of standard input.
///
/// # Errors
/// [`Error::Config`], [`Error::Model`] or [`Error::Platform`] if the runtime cannot start.
pub async fn serve(config: &Config, exit_with_parent: bool) -> Result<(), Error> {
    let wanted = config::address("listen", &config.listen)?;
    let tls = tls::server(&config.tls, wanted)?;
    let evaluator = config.evaluator()?;
    let encrypted = tls.is_some();
    let mut server = server();
    if let Some(tls) = tls {
        server = server.tls_config(tls).map_err(|e| Error::Config(format!("tls: {}", chain(&e))))?;
    }
    let (listener, address) = listen("listen", wanted).await?;
    let metrics = Metrics::new()?;
    serve_metrics(config, &metrics).await?;
    tokio::spawn(metrics::upkeep(metrics.clone()));

    let (draining, abort) = (CancellationToken::new(), CancellationToken::new());
    let stop = stop_signal(exit_with_parent)?;
    let built = build(config, evaluator, &metrics, &draining, &abort);
    let served = tokio::select! {
        served = built => Arc::new(served?),
        () = draining.cancelled() => return Ok(()),
        name = stop.clone().wait() => {
            tracing::info!("{name} while loading: stopping");
            return Ok(());
        }
    };
    tracing::warn!(
        "attestation: {ATTESTATION}; no hardware quote backs this process, so whoever runs this machine can read what it serves"
    );
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<InferenceServer<Service>>().await;
    let inference = InferenceServer::new(Service(served.clone()))
        .max_decoding_message_size(config.limits.max_request_bytes.get() as usize);
    let router = server.add_service(health_service).add_service(inference);
    announce(config, address, encrypted)?;
    tokio::spawn(watch_evaluator(served.clone(), health.clone()));

    let drain = {
        let (draining, abort) = (draining.clone(), abort.clone());
        let seconds = config.drain_seconds;
        async move {
            let name = stop.wait().await;
            tracing::info!("{name}: draining for up to {seconds} s");
            draining.cancel();
            health.set_service_status("", ServingStatus::NotServing).await;
            health.set_not_serving::<InferenceServer<Service>>().await;
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds.into())).await;
                abort.cancel();
            });
        }
    };
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let serving = router.serve_with_incoming_shutdown(incoming, drain);
    // An idle connection does not hold up the end: it is over when nothing is being answered.
    let mut answering = served.answering.subscribe();
    let quiet = async {
        draining.cancelled().await;
        let _ = answering.wait_for(|n| *n == 0).await;
        tokio::time::sleep(GRACE).await;
    };
    let given_up = async {
        abort.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        end = serving => end.map_err(|e| Error::Platform(format!("server: {}", chain(&e))))?,
        () = quiet => {}
        () = given_up => tracing::warn!("requests that still ran were given up"),
    }
    abort.cancel();
    tracing::info!("stopped");
    Ok(())
}

/// Loads the model, plans it, and starts the engine.
async fn build(
    config: &Config,
    evaluator: Option<EvaluatorConfig>,
    metrics: &Metrics,
    draining: &CancellationToken,
    abort: &CancellationToken,
) -> Result<Served, Error> {
    let threads = config.compute_threads();
    let Loaded { model, tokenizer, chat, ring, plan } = load(config).await?;
    tracing::info!(isa = ring.isa().name(), threads, n = ring.n(), log2_q = ring.params().log2_q(), "ring arithmetic");
    let (model, tokenizer) = (Arc::new(model), Arc::new(tokenizer));
    let runner = |linear: Arc<dyn Linear>| ModelRunner::new(model.clone(), tokenizer.clone(), linear);

    let local = LocalLinear::new(ring.clone(), plan.clone(), threads)?;
    let mut runners = vec![(Protocol::Local, runner(Arc::new(local)))];
    let delegated = delegated(config, evaluator, &ring, plan, metrics).await?;
    if let Some(Delegated { direct, pool, delegate }) = &delegated {
        runners.push((Protocol::Direct, runner(direct.clone())));
        for (protocol, fallback) in [(Protocol::Masked, None), (Protocol::Auto, Some(direct.clone()))] {
            if let Some(pool) = pool {
                let masked = MaskedLinear::new(delegate.clone(), pool.clone(), fallback);
                runners.push((protocol, runner(Arc::new(masked))));
            }
        }
    }
    let pool = delegated.as_ref().and_then(|d| d.pool.clone());
    let limits = Limits {
        max_queue: config.engine.max_queue as usize,
        max_running: config.engine.max_running.get() as usize,
        prefill_chunk: config.engine.prefill_chunk.get() as usize,
    };
    let description = Description::new(Parts {
        model: model.config(),
        weights: weights(config),
        default_protocol: config.default_protocol(),
        ring: &ring,
        threads,
        has_chat_template: chat.is_some(),
        evaluator: Box::new(move || delegated.as_ref().and_then(|d| d.delegate.describe())),
        lanes: Box::new(move || pool.as_ref().map(|p| p.stats())),
    });
    let limits_of_requests = RequestLimits {
        context: model.config().context,
        vocab: model.config().vocab,
        default_max_tokens: config.engine.default_max_tokens.get() as usize,
        default_protocol: config.default_protocol(),
        max_time: Duration::from_secs(config.engine.max_request_seconds.get().into()),
    };
    Ok(Served {
        engine: Engine::start(limits, metrics, runners)?,
        tokenizer,
        chat,
        description,
        limits: limits_of_requests,
        metrics: metrics.clone(),
        draining: draining.clone(),
        abort: abort.clone(),
        answering: watch::Sender::new(0),
    })
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

/// What delegates to the evaluator.
struct Delegated {
    delegate: Arc<Delegate>,
    direct: Arc<DirectLinear>,
    pool: Option<Arc<MaskPool>>,
}

/// Begins to look for the evaluator, without waiting for it, and prepares what the default protocol needs.
async fn delegated(
    config: &Config,
    evaluator: Option<EvaluatorConfig>,
    ring: &Ring,
    plan: Arc<Plan>,
    metrics: &Metrics,
) -> Result<Option<Delegated>, Error> {
    let Some(evaluator) = evaluator else { return Ok(None) };
    let (protocol, settings) = (config.engine.protocol, config.pool()?);
    let masked = protocol.uses_masks();
    let threads = config.compute_threads();
    tracing::info!(endpoint = evaluator.endpoint, "waiting for the evaluator; local is served meanwhile");
    let delegate = Delegate::open(&evaluator, (ring, plan), Handle::current(), threads, masked, metrics)?;
    let refresh = Duration::from_secs(config.evaluator.refresh_seconds.get().into());
    let work = move || {
        let direct = Arc::new(DirectLinear::new(delegate.clone())?);
        if protocol == Protocol::Direct {
            direct.prepare()?;
        }
        let pool = masked.then(|| MaskPool::start(delegate.clone(), &settings, settings.threads)).transpose()?;
        Ok(Delegated { delegate, direct, pool })
    };
    let delegated: Result<Delegated, Error> =
        tokio::task::spawn_blocking(work).await.map_err(|_| Error::Bug("preparing masks panicked".into()))?;
    let delegated = delegated?;
    tokio::spawn(refresh_challenges(delegated.direct.clone(), delegated.pool.clone(), refresh));
    Ok(Some(delegated))
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

/// Shows in metrics and health (service `evaluator`) whether an evaluator is connected and holds the model.
async fn watch_evaluator(served: Arc<Served>, health: HealthReporter) {
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        let connected = served.description.response().evaluator.is_some();
        served.metrics.connected(connected);
        let status = if connected { ServingStatus::Serving } else { ServingStatus::NotServing };
        health.set_service_status("evaluator", status).await;
    }
}

/// The gRPC server without its services. Large windows, because clients may be far; keep-alive, so that a
/// client that vanished is noticed and its sequence cancelled.
fn server() -> Server {
    Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(20)))
        .max_concurrent_streams(MAX_STREAMS)
}

async fn listen(field: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Error> {
    let fail = |e: std::io::Error| Error::Platform(format!("{field} {address}: {e}"));
    let listener = TcpListener::bind(address).await.map_err(fail)?;
    let bound = listener.local_addr().map_err(fail)?;
    Ok((listener, bound))
}

async fn serve_metrics(config: &Config, metrics: &Metrics) -> Result<(), Error> {
    if config.metrics_listen.is_empty() {
        return Ok(());
    }
    let wanted = config::address("metrics_listen", &config.metrics_listen)?;
    let (listener, address) = listen("metrics_listen", wanted).await?;
    tracing::info!("metrics on http://{address}/metrics");
    let metrics = metrics.clone();
    tokio::spawn(async move {
        if let Err(error) = metrics::serve(listener, metrics).await {
            tracing::error!(%error, "no more metrics");
        }
    });
    Ok(())
}

/// Tells people and the starting process where we are.
fn announce(config: &Config, address: SocketAddr, encrypted: bool) -> Result<(), Error> {
    if encrypted {
        tracing::info!("serving on {address} with mutual TLS");
    } else {
        tracing::warn!("serving on {address} WITHOUT TLS (danger_plaintext)");
    }
    if config.port_file.is_empty() {
        return Ok(());
    }
    // Renamed into place, so that a reader never sees half of it.
    let path = Path::new(&config.port_file);
    let fresh = path.with_extension("new");
    let written = std::fs::write(&fresh, format!("{}\n", address.port())).and_then(|()| std::fs::rename(&fresh, path));
    written.map_err(|e| Error::Platform(format!("port_file {}: {e}", path.display())))
}

/// What asked us to stop, once something did.
#[derive(Clone)]
struct Stop(watch::Receiver<Option<&'static str>>);

impl Stop {
    async fn wait(mut self) -> &'static str {
        let asked = self.0.wait_for(Option::is_some).await;
        asked.ok().and_then(|name| *name).unwrap_or("stop")
    }
}

fn stop_signal(exit_with_parent: bool) -> Result<Stop, Error> {
    let fail = |e| Error::Platform(format!("signal handlers: {e}"));
    let mut term = signal(SignalKind::terminate()).map_err(fail)?;
    let mut int = signal(SignalKind::interrupt()).map_err(fail)?;
    let (tell, stop) = watch::channel(None);
    if exit_with_parent {
        let tell = tell.clone();
        // A thread of its own, because nothing can end a read of standard input but the process's end.
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = tell.send(Some("the parent has gone"));
        });
    }
    tokio::spawn(async move {
        let name = tokio::select! {
            _ = term.recv() => "SIGTERM",
            _ = int.recv() => "SIGINT",
        };
        // Nobody listens once the server has ended by itself.
        let _ = tell.send(Some(name));
    });
    Ok(Stop(stop))
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Streams per connection; the engine's queue is the real bound.
const MAX_STREAMS: u32 = 256;
/// For the last answers to reach their clients.
const GRACE: Duration = Duration::from_secs(1);
