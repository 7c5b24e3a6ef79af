//! The process: builds every part from the configuration, serves, and leaves in good order.

use crate::{
    Error,
    backend::Backend,
    bulk,
    cache::Cache,
    config::Config,
    drain::{self, Signals},
    executor::Executor,
    metrics,
    pool::Pool,
    precedence::Precedence,
    reception::Reception,
    residency::Store,
    rings::Rings,
    service::{Parts, Service},
    team::Team,
    tls::{self, Reload, Rotation},
};
use proto::v1::evaluator_server::EvaluatorServer;
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::{Semaphore, oneshot},
};
use tonic::transport::Server;

/// HTTP/2 flow control: what may be on its way unread, per stream and per connection.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Largest HTTP/2 frame accepted.
const MAX_FRAME: u32 = 1 << 20;
/// A peer that does not answer a ping within this time is gone, and its jobs with it.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Runs until SIGTERM or SIGINT (or, `exit_with_parent`, the end of standard input) and then drains. `port_file`
/// receives the port that was bound. Certificates and pins are read again from the file and by the function in `source`.
///
/// # Errors
/// [`Error::Config`] for settings that cannot be used, [`Error::Platform`] for ports, files and threads.
pub async fn run(
    config: Config,
    source: (Option<PathBuf>, Reload),
    port_file: Option<&Path>,
    exit_with_parent: bool,
) -> Result<(), Error> {
    let mut signals = Signals::watch(exit_with_parent)?;
    let rings = Rings::new()?;
    let backend = Backend::choose(config.backend)?;
    let cache = config.cache_dir.as_deref().map(Cache::open).transpose()?;
    let door = tls::door(&config.transport)?;
    let mut server = server();
    let (drain, draining) = drain::flag();
    let (mut health, health_service) = tonic_health::server::health_reporter();

    let at = |e: std::io::Error| Error::Platform(format!("listen {}: {e}", config.listen));
    let listener = TcpListener::bind(config.listen).await.map_err(at)?;
    let address = listener.local_addr().map_err(at)?;
    if let Some(listen) = config.metrics_listen {
        tracing::info!("metrics on http://{}/metrics", metrics::serve(listen).await?);
    }
    let service = Service::new(Parts {
        store: Store::new(config.memory_budget, cache),
        executor: Executor::start("multiply", config.threads, config.max_queued_jobs, || {})?,
        bulk: Executor::start("bulk", config.threads, config.max_queued_jobs, bulk::lower_priority)?,
        team: Team::start(rings.isa(), config.threads)?,
        precedence: Arc::new(Precedence::default()),
        pool: Arc::new(Pool::default()),
        draining: draining.clone(),
        uploads: Arc::new(Semaphore::new(config.max_uploads)),
        streams: Arc::new(Semaphore::new(config.max_streams)),
        config: config.clone(),
        backend,
        rings: rings.clone(),
    });
    let evaluator = EvaluatorServer::new(service).max_decoding_message_size(config.max_message);
    health.set_serving::<EvaluatorServer<Service>>().await;
    let router = server.add_service(health_service).add_service(evaluator);
    let mut reception = Reception::start(&router, door.as_ref(), &draining)?;
    if let Some(path) = port_file {
        write_port(path, address)?;
    }
    proto::readiness::ready();
    tracing::info!(
        version = proto::VERSION,
        backend = backend.name(),
        isa = rings.isa().name(),
        threads = config.threads,
        memory_budget = config.memory_budget,
        "listening on {address}"
    );
    match door {
        None => tracing::warn!("danger_plaintext: peers are neither authenticated nor encrypted"),
        Some(door) => {
            tracing::info!("mutual TLS as {}", door.summary());
            Rotation::new(door, source.1, source.0).start(draining.clone())?;
        }
    }

    let patience = config.drain;
    let (leave, left) = oneshot::channel::<Signals>();
    let asked = async move {
        let name = signals.next().await;
        tracing::info!("{name}: draining, up to {} s", patience.as_secs());
        proto::readiness::stopping();
        // Watchers are told first, then their streams end, or they would keep their connections open.
        health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        health.set_not_serving::<EvaluatorServer<Service>>().await;
        drain.begin();
        health.clear_service_status("").await;
        health.clear_service_status(SERVICE_NAME).await;
        // The other end waits for it until the server has ended.
        let _ = leave.send(signals);
        std::future::pending().await
    };
    let overdue = async {
        let Ok(mut signals) = left.await else { return std::future::pending().await };
        tokio::select! {
            () = tokio::time::sleep(patience) => tracing::warn!("jobs were still in flight after {} s", patience.as_secs()),
            name = signals.next() => tracing::warn!("{name}: leaving at once"),
        }
    };
    tokio::select! {
        result = reception.serve(listener, address, &draining) => result?,
        () = asked => {}
        () = overdue => {}
    }
    tracing::info!("left");
    Ok(())
}

const SERVICE_NAME: &str = proto::v1::evaluator_server::SERVICE_NAME;

fn server() -> Server {
    Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
}

/// Writes the port by rename, so that whoever waits for the file never reads half of it.
fn write_port(path: &Path, address: SocketAddr) -> Result<(), Error> {
    let temporary = path.with_extension("partial");
    std::fs::write(&temporary, format!("{}\n", address.port()))
        .and_then(|()| std::fs::rename(&temporary, path))
        .map_err(|e| Error::Platform(format!("port file {}: {e}", path.display())))
}
