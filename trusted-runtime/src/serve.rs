//! Serves until it is told to stop, and drains.

mod build;
mod delegated;
mod door;

use crate::{
    Error,
    attestation::{Unlock, World, harden},
    config::{self, Config},
    keys::{KeysService, Vault, hex, now},
    linear::link::EvaluatorConfig,
    metrics::{self, Metrics},
    service::{Front, Served, Service},
};
use build::build;
use door::Door;
use proto::v1::{inference_server::InferenceServer, keys_server::KeysServer};
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::watch,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic_health::{ServingStatus, server::HealthReporter};

/// How the process was started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// Ends with its standard input.
    pub exit_with_parent: bool,
    /// Trusts whoever started it, and attests nothing.
    pub local: bool,
}

/// Serves until SIGTERM or SIGINT or, if so started, the end of standard input.
///
/// # Errors
/// [`Error::Config`], [`Error::Model`] or [`Error::Platform`] if the runtime cannot start.
pub async fn serve<W: World>(config: &Config, start: Start) -> Result<(), Error> {
    let wanted = config::address("listen", &config.listen)?;
    let evaluators = config.evaluators()?;
    config.authorities_apart(wanted)?;
    harden(!start.local);
    let door = if start.local { Door::local(config, wanted)? } else { Door::attested::<W>(config, wanted).await? };
    let (listener, address) = listen("listen", wanted).await?;
    let metrics = Metrics::new()?;
    serve_metrics(config, &metrics).await?;
    tokio::spawn(metrics::upkeep(metrics.clone()));

    let life = Life { mode: if start.local { "local" } else { W::MODE }, ..Life::default() };
    let stop = stop_signal(start.exit_with_parent || start.local)?;
    let front = Arc::new(Front::new(door.vault(), life.draining.clone()));
    let (health, health_service) = tonic_health::server::health_reporter();
    // "" is serving as soon as there is a model.
    health.set_service_status("", ServingStatus::NotServing).await;
    let inference = InferenceServer::new(Service(front.clone()))
        .max_decoding_message_size(config.limits.max_request_bytes.get() as usize);
    let router = door.server()?.add_service(health_service).add_service(inference);
    let unlock = door.vault().map(|(_, unlock)| unlock);
    let loading = load(config, evaluators, unlock, (&metrics, &life), (&front, &health));
    match door {
        Door::Local { encrypted, .. } => {
            let served = tokio::select! {
                served = loading => served?,
                name = stop.clone().wait() => {
                    tracing::info!("{name} while loading: stopping");
                    return Ok(());
                }
            };
            tracing::warn!("attestation: LOCAL; whoever runs this machine can read what is served here");
            announce(config, address, if encrypted { "mutual TLS" } else { PLAINTEXT })?;
            tokio::spawn(watch_evaluator(served, health.clone()));
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
            let drain = life.drain(stop, config.drain_seconds, health.clone());
            life.until(router.serve_with_incoming_shutdown(incoming, drain)).await
        }
        Door::Attested { accept, vault, unlock } => {
            let keys = KeysService { vault: vault.clone(), unlock, metrics: metrics.clone() };
            let router = router.add_service(KeysServer::new(keys).max_decoding_message_size(MAX_KEY_MESSAGE));
            announce(config, address, "attestation; locked until a key is released")?;
            let incoming = ReceiverStream::new(accept(listener, metrics.clone()));
            tokio::spawn(expire(vault.clone(), front.clone(), metrics.clone()));
            let drain = life.drain(stop, config.drain_seconds, health.clone());
            let serving = life.until(router.serve_with_incoming_shutdown(incoming, drain));
            let health = &health;
            let loading = async {
                vault.unlocked().await;
                let served = loading.await?;
                tokio::spawn(watch_evaluator(served, health.clone()));
                std::future::pending::<Result<(), Error>>().await
            };
            tokio::select! {
                end = serving => end,
                failed = loading => failed,
            }
        }
    }
}

/// Loads the model, and begins to serve it.
async fn load(
    config: &Config,
    evaluators: Vec<EvaluatorConfig>,
    unlock: Option<Arc<Unlock>>,
    (metrics, life): (&Metrics, &Life),
    (front, health): (&Front, &HealthReporter),
) -> Result<Arc<Served>, Error> {
    let mut config = config.clone();
    // Held until the model is loaded: the plaintext of an encrypted one.
    let mut plain = None;
    if let Some(unlock) = unlock {
        let attested = unlock.model_digest();
        (config.model.source, plain) = tokio::task::spawn_blocking(move || unlock.source())
            .await
            .map_err(|_| Error::Bug("decrypting the model panicked".into()))??;
        // What is loaded is what was attested, even if somebody changed the file in between; of an encrypted model that is
        // the ciphertext, which was compared before it was opened.
        let as_it_lies = plain.is_none() && !config.model.source.starts_with("synthetic:");
        config.model.sha256 = if as_it_lies { hex(&attested) } else { String::new() };
    }
    let built = build(&config, evaluators, metrics, life).await;
    // It is overwritten now, whatever came of it, and not by a thread that answers.
    let overwritten = tokio::task::spawn_blocking(move || drop(plain)).await;
    overwritten.map_err(|_| Error::Bug("overwriting the decrypted model panicked".into()))?;
    let served = Arc::new(built?);
    front.open(served.clone());
    health.set_serving::<InferenceServer<Service>>().await;
    health.set_service_status("", ServingStatus::Serving).await;
    Ok(served)
}

/// Ends keys whose time is over, and forgets what was computed under keys that have ended.
async fn expire(vault: Arc<Vault>, front: Arc<Front>, metrics: Metrics) {
    let mut every = tokio::time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        for held in vault.expire(now()) {
            tracing::warn!(tenant = held.tenant, key_id = held.key_id, "a key has expired");
        }
        front.forget_ended();
        metrics.keys(vault.count());
    }
}

/// How the process ends.
#[derive(Clone, Default)]
struct Life {
    draining: CancellationToken,
    abort: CancellationToken,
    answering: watch::Sender<usize>,
    /// Which kind of attestation there is.
    mode: &'static str,
}

impl Life {
    /// Ends when the process shall; requests that run get `seconds` from then on.
    fn drain(&self, stop: Stop, seconds: u32, health: HealthReporter) -> impl Future<Output = ()> + Send + 'static {
        let Self { draining, abort, .. } = self.clone();
        async move {
            let name = stop.wait().await;
            tracing::info!("{name}: draining for up to {seconds} s");
            proto::readiness::stopping();
            draining.cancel();
            health.set_service_status("", ServingStatus::NotServing).await;
            health.set_not_serving::<InferenceServer<Service>>().await;
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds.into())).await;
                abort.cancel();
            });
        }
    }

    /// Until the server has ended, or nothing is being answered any more, or requests were given up. An idle connection
    /// does not hold up the end.
    async fn until(&self, serving: impl Future<Output = Result<(), tonic::transport::Error>>) -> Result<(), Error> {
        let mut answering = self.answering.subscribe();
        let quiet = async {
            self.draining.cancelled().await;
            let _ = answering.wait_for(|n| *n == 0).await;
            tokio::time::sleep(GRACE).await;
        };
        let given_up = async {
            self.abort.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            end = serving => end.map_err(|e| Error::Platform(format!("server: {}", chain(&e))))?,
            () = quiet => {}
            () = given_up => tracing::warn!("requests that still ran were given up"),
        }
        self.abort.cancel();
        tracing::info!("stopped");
        Ok(())
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
fn announce(config: &Config, address: SocketAddr, with: &str) -> Result<(), Error> {
    if with == PLAINTEXT {
        tracing::warn!("serving on {address} {PLAINTEXT}");
    } else {
        tracing::info!("serving on {address} with {with}");
    }
    proto::readiness::ready();
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

const PLAINTEXT: &str = "WITHOUT TLS (danger_plaintext)";
/// A released key, and the key of a model beside it.
const MAX_KEY_MESSAGE: usize = 64 << 10;
/// For the last answers to reach their clients.
const GRACE: Duration = Duration::from_secs(1);
