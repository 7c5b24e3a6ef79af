//! What is measured: an endpoint that runs, or both daemons and a proxy started here.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cli::{LocalArgs, Protocol};
use crate::daemon::{Daemon, Launch};
use crate::demo::announce;
use crate::deployment::{Deployment, Setup, installed};
use crate::progress::Progress;
use crate::stop::Stop;
use crate::{Error, model};

/// Connecting to a runtime that is ready takes milliseconds.
const PROXY_LIMIT: Duration = Duration::from_secs(60);
/// Requests that the proxy lets in at a time: not what is measured.
const MAX_CONCURRENT: u32 = 8192;

/// A proxy in front of a deployment. Dropping this ends all three processes.
pub(super) struct Proxied {
    // Dropped in this order: the proxy before the runtime it talks to.
    _proxy: Daemon,
    pub(super) deployment: Deployment,
    /// `http://127.0.0.1:PORT`.
    pub(super) url: String,
    _dir: tempfile::TempDir,
}

/// What `--model` or `--synthetic` name, as the runtime takes it; the default model if neither is there.
///
/// # Errors
/// [`Error::Usage`] for a shape that does not exist, whatever keeps a model from being fetched, daemons that are missing.
pub(super) async fn source(
    model: Option<&String>,
    synthetic: Option<&String>,
    progress: &Arc<Progress>,
    stop: &Stop,
) -> Result<String, Error> {
    let source = match (synthetic, model) {
        (Some(shape), _) => {
            model::synthetic(shape)?;
            format!("{}{shape}", model::SYNTHETIC)
        }
        (None, Some(model)) => model.clone(),
        (None, None) => model::DEFAULT.into(),
    };
    installed()?;
    model::resolve_async(&source, progress, stop).await
}

/// Starts both daemons and says so.
///
/// # Errors
/// Those of [`Deployment::start`].
pub(super) async fn daemons(
    source: &str,
    protocol: Protocol,
    local: LocalArgs,
    progress: &Arc<Progress>,
) -> Result<Deployment, Error> {
    let begin = Instant::now();
    let setup = Setup { model: source.into(), protocol, daemons: local };
    let deployment = Deployment::start(&setup, progress).await?;
    announce(&deployment, protocol, begin, progress);
    Ok(deployment)
}

impl Proxied {
    /// Starts `bifrost proxy` in front of `deployment`, as a process of its own.
    ///
    /// # Errors
    /// A proxy that ends early, with its last line.
    pub(super) async fn start(deployment: Deployment, verbose: bool, progress: &Arc<Progress>) -> Result<Self, Error> {
        let platform = |what: &str, error: std::io::Error| Error::Platform(format!("{what}: {error}"));
        let dir = tempfile::tempdir().map_err(|error| platform("temporary directory", error))?;
        let config = dir.path().join("proxy.toml");
        std::fs::write(&config, format!("max_concurrent = {MAX_CONCURRENT}\n"))
            .map_err(|error| Error::file(&config, error))?;
        let program = std::env::current_exe().map_err(|error| platform("own executable", error))?;
        let address = deployment.address();
        let mut args: Vec<OsString> = ["proxy", "--listen", "127.0.0.1:0"].map(Into::into).to_vec();
        args.extend(["--config".into(), config.into(), "--runtime".into(), address.url.clone().into()]);
        args.extend(["--ca".into(), address.ca.clone().into(), "--cert".into(), address.cert.clone().into()]);
        args.extend(["--key".into(), address.key.clone().into()]);
        let said = progress.clone();
        let watch: Option<crate::daemon::Watch> =
            if verbose { Some(Box::new(move |line| said.say(&format!("proxy: {line}")))) } else { None };
        let launch =
            Launch { program, args, port_file: dir.path().join("proxy.port"), envs: Vec::new(), watch, local: false };
        let mut proxy = Daemon::start(launch)?;
        let port = proxy.port(PROXY_LIMIT).await?;
        Ok(Self { _proxy: proxy, deployment, url: format!("http://127.0.0.1:{port}"), _dir: dir })
    }
}
