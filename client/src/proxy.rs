//! `bifrost proxy`: the OpenAI API over HTTP, on the user's side of the wall, in front of a runtime.
//!
//! Prompts and answers cross this process in the clear. It belongs where they may be: on the user's machine.

mod ask;
mod behind;
mod bucket;
mod chat;
mod completions;
mod config;
mod fields;
mod gate;
mod listener;
mod metrics;
mod passage;
mod refusal;
mod routes;
mod shape;
mod sse;
mod tokens;

use std::future::Future;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::cli::{LocalArgs, Protocol, ProxyArgs};
use crate::demo::announce;
use crate::deployment::{Deployment, Setup, installed};
use crate::inference::Runtime;
use crate::lanes::fill;
use crate::progress::Progress;
use crate::stop::{Stop, signalled};
use crate::trust::{Clock, Trust};
use crate::way::{MutualTls, Way};
use crate::{Error, model};
use behind::Behind;
use config::{Config, Door};
use gate::Gate;
use listener::TlsListener;
use metrics::Metrics;
use passage::{Keeper, Passage};
use routes::{Shared, now, router};

/// What clients are told of a runtime that is known by its certificate.
const LOCAL: &str = "local";
/// Lanes waited for before the first request, beside those of its prompt.
const FIRST_ANSWER: u32 = 64;
/// Lanes that a runtime started here keeps unless it is told otherwise.
const LANES: u32 = 512;
/// For the last bytes to reach their clients.
const GRACE: Duration = Duration::from_secs(1);
/// Between two times that samples are folded in.
const UPKEEP: Duration = Duration::from_secs(10);

/// Serves until SIGINT, SIGTERM or, if asked to, the end of standard input; then drains.
///
/// # Errors
/// Bad settings, a port that is taken, whatever keeps daemons from starting, and the death of one.
pub async fn run<W: Trust>(
    args: &ProxyArgs,
    progress: &Arc<Progress>,
    stop: &Stop,
    clock: &Clock,
) -> Result<ExitCode, Error> {
    let config = Config::load(args)?;
    let door = config.door(args.danger_plaintext)?;
    let files = MutualTls { ca: args.ca.as_ref(), cert: args.cert.as_ref(), key: args.key.as_ref() };
    let way = Way::<W>::of("--runtime", args.runtime.as_deref(), &files, &args.attested, clock)?;
    let end = Arc::new(End::listen(args.exit_with_parent));
    let serving = async {
        let listener = TcpListener::bind(door.address)
            .await
            .map_err(|error| Error::Platform(format!("listen on {}: {error}", door.address)))?;
        let metrics = Metrics::new()?;
        let attestation = if matches!(way, Way::Attested(_)) { W::LABEL } else { LOCAL };
        let (passage, deployment, name) = match way {
            Way::Attested(attested) => {
                let keeper = Keeper {
                    attested,
                    every: config.reattest_time(),
                    metrics: metrics.clone(),
                    progress: progress.clone(),
                };
                (Passage::attested(keeper).await, None, String::new())
            }
            Way::MutualTls(address) => (Passage::fixed(Runtime::connect_lazy(&address)?), None, String::new()),
            Way::Here => {
                let (deployment, name) = started(args, progress, stop).await?;
                (Passage::fixed(deployment.connection().clone()), Some(deployment), name)
            }
        };
        let names = vec![config.model.clone(), name];
        let shared = Arc::new(Shared {
            gate: Arc::new(Gate::new(&config)),
            behind: Behind::watch(passage, names, progress.clone()).await,
            attestation,
            metrics,
            protocol: args.protocol.map(Into::into),
            started: now(),
            config,
        });
        Ok::<_, Error>((listener, deployment, shared))
    };
    let (listener, deployment, shared) = tokio::select! {
        ready = serving => ready?,
        error = end.asked() => return Err(error),
    };
    let (tell, quit) = watch::channel(false);
    let served = serve(listener, &door, shared.clone(), quit, args.port_file.as_deref(), progress);
    let served = async { served?.await };
    let lasting = async {
        let error = end.asked().await;
        drain(&shared, &end, progress).await;
        let _ = tell.send(true);
        tokio::time::sleep(GRACE).await;
        match error {
            Error::Interrupted => Ok(ExitCode::SUCCESS),
            error => Err(error),
        }
    };
    let serving = async {
        tokio::select! {
            code = lasting => code,
            ended = served => ended.map(|()| ExitCode::SUCCESS),
        }
    };
    match deployment {
        Some(mut deployment) => deployment.watch(serving).await,
        None => serving.await,
    }
}

/// The runtime started here, and the name its model was asked for by.
async fn started(args: &ProxyArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<(Deployment, String), Error> {
    installed()?;
    let name = match (&args.synthetic, &args.model) {
        (Some(shape), _) => {
            model::synthetic(shape)?;
            format!("{}{shape}", model::SYNTHETIC)
        }
        (None, Some(model)) => model.clone(),
        (None, None) => model::DEFAULT.into(),
    };
    // Never waits for lanes, and uses them where they are.
    let protocol = args.local.policy.protocol(args.protocol.unwrap_or(Protocol::Auto));
    let source = model::resolve_async(&name, progress, stop).await?;
    let begin = Instant::now();
    let lanes = args.local.lanes.or_else(|| protocol.masks().then_some(LANES));
    let setup = Setup { model: source, protocol, daemons: LocalArgs { lanes, ..args.local.clone() } };
    let mut deployment = Deployment::start(&setup, progress).await?;
    announce(&deployment, protocol, begin, progress);
    if protocol.masks() {
        match fill(&mut deployment, FIRST_ANSWER, progress).await {
            Err(error @ Error::Runtime(_)) if protocol == Protocol::Auto => {
                progress.say(&format!("lanes        not yet: {error}"));
            }
            filled => filled?,
        }
    }
    // A path is no name.
    let name = if name.contains('/') { String::new() } else { name };
    Ok((deployment, name))
}

/// Starts to serve; the future inside ends when `quit` says so and the connections are done.
fn serve(
    listener: TcpListener,
    door: &Door,
    shared: Arc<Shared>,
    mut quit: watch::Receiver<bool>,
    port_file: Option<&Path>,
    progress: &Progress,
) -> Result<impl Future<Output = Result<(), Error>> + use<>, Error> {
    let address = listener.local_addr().map_err(|error| Error::Platform(format!("listen: {error}")))?;
    let metrics = shared.metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            metrics.upkeep();
        }
    });
    let app = router(shared);
    let quit = async move {
        let _ = quit.wait_for(|quit| *quit).await;
    };
    let tls = match &door.tls {
        Some((cert, key)) => Ok(TlsListener::new(listener, cert, key)?),
        None => Err(listener),
    };
    let scheme = if tls.is_ok() { "https" } else { "http" };
    progress.say(&format!("serving      {scheme}://{address}/v1"));
    if tls.is_err() && !address.ip().is_loopback() {
        progress.say("WITHOUT TLS  prompts, answers and keys cross the network readable (--danger-plaintext)");
    }
    if let Some(path) = port_file {
        write_port(path, address.port())?;
    }
    proto::readiness::ready();
    Ok(async move {
        let ended = match tls {
            Ok(listener) => axum::serve(listener, app).with_graceful_shutdown(quit).await,
            Err(listener) => {
                let listener = listener.tap_io(|stream| {
                    let _ = stream.set_nodelay(true);
                });
                axum::serve(listener, app).with_graceful_shutdown(quit).await
            }
        };
        ended.map_err(|error| Error::Platform(format!("server: {error}")))
    })
}

/// Answers nothing new and waits for what runs, up to the limit or a second wish to end.
async fn drain(shared: &Shared, end: &End, progress: &Progress) {
    let time = shared.config.drain_time();
    progress.say(&format!("draining     for up to {} s", time.as_secs()));
    shared.gate.drain();
    tokio::select! {
        () = shared.gate.quiet() => {}
        () = tokio::time::sleep(time) => progress.say("draining     requests that still ran were given up"),
        _ = end.again() => progress.say("draining     asked twice: requests that still ran were given up"),
    }
}

/// Renamed into place, so that a reader never sees half of it.
fn write_port(path: &Path, port: u16) -> Result<(), Error> {
    let fresh = path.with_extension("new");
    let written = std::fs::write(&fresh, format!("{port}\n")).and_then(|()| std::fs::rename(&fresh, path));
    written.map_err(|error| Error::file(path, error))
}

/// Wishes to end, counted.
struct End(watch::Receiver<u32>);

impl End {
    fn listen(exit_with_parent: bool) -> Self {
        let (tell, heard) = watch::channel(0);
        let tell = Arc::new(tell);
        if exit_with_parent {
            let tell = tell.clone();
            // A thread of its own, because nothing can end a read of standard input but the process's end.
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
                tell.send_modify(|n| *n += 1);
            });
        }
        tokio::spawn(async move {
            while matches!(signalled().await, Err(Error::Interrupted)) {
                tell.send_modify(|n| *n += 1);
            }
        });
        Self(heard)
    }

    /// Waits for the first wish.
    async fn asked(&self) -> Error {
        let _ = self.0.clone().wait_for(|n| *n > 0).await;
        Error::Interrupted
    }

    /// Waits for the second.
    async fn again(&self) -> Error {
        let _ = self.0.clone().wait_for(|n| *n > 1).await;
        Error::Interrupted
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::{Cli, Command, ProxyArgs};

    /// Arguments with a settings file of this text; the file lives as long as the second half.
    pub(super) fn args(text: &str) -> (ProxyArgs, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let path = file.path().to_str().unwrap();
        let cli = Cli::try_parse_from(["bifrost", "proxy", "--config", path]).unwrap();
        let Command::Proxy(args) = cli.command else { panic!("proxy is proxy") };
        (args, file)
    }
}
