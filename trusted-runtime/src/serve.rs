//! Serves until it is told to stop, and drains.

mod build;
mod delegated;

use crate::{
    Error,
    config::{self, Config},
    metrics::{self, Metrics},
    service::{Served, Service, describe::ATTESTATION},
    tls,
};
use build::build;
use proto::v1::inference_server::InferenceServer;
use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
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
    let evaluators = config.evaluators()?;
    config.authorities_apart(wanted)?;
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
    let built = build(config, evaluators, &metrics, &draining, &abort);
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
