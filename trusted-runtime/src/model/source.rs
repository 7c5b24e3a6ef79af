//! Opening whatever a source names and loading a model from it.

use super::{
    ChatTemplate, Model, QuantizedMatrix, Tokenizer, Weights,
    chat::SpecialTexts,
    config::ModelConfig,
    family,
    load::{self, Directory, Keys, Progress, Reader, Sink, Tensors, gguf::Gguf},
    synthetic::Synthetic,
};
use crate::{Error, linear::LinearId, linear::float::FloatLinear};
use std::path::Path;

/// A model whose linear weights are integers.
pub struct LoadedModel {
    /// Everything but the linear weights.
    pub model: Model,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt, if the model says.
    pub chat: Option<ChatTemplate>,
    /// The linear weights: the head, then block by block.
    pub linears: Vec<QuantizedMatrix>,
    /// SHA-256 of what was loaded, hexadecimal; none for synthetic models.
    pub sha256: Option<String>,
}

/// A model whose linear weights are f32.
pub struct FloatModel {
    /// Everything but the linear weights.
    pub model: Model,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// How a conversation becomes a prompt, if the model says.
    pub chat: Option<ChatTemplate>,
    /// The linear weights.
    pub linear: FloatLinear,
}

/// What to load and what to insist on.
#[derive(Clone, Copy)]
pub struct LoadOptions<'a> {
    /// A GGUF file, a Hugging Face directory, or `synthetic:NAME`.
    pub source: &'a str,
    /// If given, the hexadecimal SHA-256 that the file must have. For a directory: of the lines that `sha256sum`
    /// prints for its config.json, model files and tokenizer files in the order of their names.
    pub expected_sha256: Option<&'a str>,
    /// Told (stage, done, total) as loading goes on.
    pub progress: &'a dyn Fn(&str, u64, u64),
}

/// Loads and quantizes a model. `source` is a GGUF file, a Hugging Face directory, or `synthetic:NAME`;
/// `progress` is told (stage, done, total).
///
/// # Errors
/// [`Error::Model`] naming the file and what is wrong with it.
pub fn load(source: &str, weights: Weights, progress: &dyn Fn(&str, u64, u64)) -> Result<LoadedModel, Error> {
    load_with(&LoadOptions { source, expected_sha256: None, progress }, weights)
}

/// As [`load`], with all options.
///
/// # Errors
/// As [`load`]; [`Error::Model`] with both hashes if the hash is not the expected one.
pub fn load_with(options: &LoadOptions<'_>, weights: Weights) -> Result<LoadedModel, Error> {
    let opened = Opened::new(options)?;
    let mut sink = Quantizer { weights, linears: Vec::new() };
    let model = opened.read(options.progress, &mut sink)?;
    let Opened { tokenizer, chat, sha256, .. } = opened;
    Ok(LoadedModel { model, tokenizer, chat, linears: sink.linears, sha256 })
}

/// Loads a model with f32 linear weights.
///
/// # Errors
/// As [`load`].
pub fn load_float(source: &str, progress: &dyn Fn(&str, u64, u64)) -> Result<FloatModel, Error> {
    let opened = Opened::new(&LoadOptions { source, expected_sha256: None, progress })?;
    let mut linear = FloatLinear::default();
    let model = opened.read(progress, &mut linear)?;
    Ok(FloatModel { model, tokenizer: opened.tokenizer, chat: opened.chat, linear })
}

/// Quantizes group by group.
struct Quantizer {
    weights: Weights,
    linears: Vec<QuantizedMatrix>,
}

impl Sink for Quantizer {
    fn matrix(&mut self, id: LinearId, rows: usize, cols: usize, weights: &[f32]) -> Result<(), Error> {
        self.linears.push(QuantizedMatrix::quantize(id, self.weights, rows, cols, weights)?);
        Ok(())
    }
}

/// A source that was read and whose small parts were parsed.
pub(super) struct Opened {
    pub(super) config: ModelConfig,
    pub(super) tokenizer: Tokenizer,
    pub(super) chat: Option<ChatTemplate>,
    pub(super) sha256: Option<String>,
    pub(super) tensors: Box<dyn Tensors>,
    /// Number of tensors and weights per element type, by its name.
    pub(super) types: Vec<(String, usize, u64)>,
}

impl Opened {
    pub(super) fn new(options: &LoadOptions<'_>) -> Result<Self, Error> {
        if let Some(name) = options.source.strip_prefix("synthetic:") {
            if options.expected_sha256.is_some() {
                return Err(Error::Config("a synthetic model has no sha256 to expect".to_owned()));
            }
            return Synthetic::open(name);
        }
        let path = Path::new(options.source);
        let opened = if path.is_dir() { Self::directory(path, options.progress)? } else { Self::gguf(path, options)? };
        check_hash(options, opened.sha256.as_deref())?;
        Ok(opened)
    }

    fn gguf(path: &Path, options: &LoadOptions<'_>) -> Result<Self, Error> {
        let file = path.display().to_string();
        let (bytes, sha256) = load::read_and_hash(path, options.progress)?;
        check_hash(options, Some(&sha256))?;
        let gguf = Gguf::parse(&file, bytes)?;
        let config = family::from_gguf(&Keys::new(&gguf)?)?;
        let tokenizer = Tokenizer::from_gguf(&gguf, config.vocab)?;
        let chat = match gguf.optional_text("tokenizer.chat_template")? {
            None => None,
            Some(template) => {
                let tokens = gguf.texts("tokenizer.ggml.tokens")?;
                let eos = gguf.optional_token("tokenizer.ggml.eos_token_id", config.vocab)?;
                let special = SpecialTexts {
                    bos: tokenizer.bos_text().to_owned(),
                    eos: eos.map_or(String::new(), |id| tokens[id as usize].clone()),
                };
                Some(ChatTemplate::new(&file, template.to_owned(), special)?)
            }
        };
        let types = histogram(
            gguf.tensors().values().map(|t| (format!("{:?}", t.kind), t.shape.iter().product::<usize>() as u64)),
        );
        Ok(Self { config, tokenizer, chat, sha256: Some(sha256), tensors: Box::new(gguf), types })
    }

    fn directory(path: &Path, progress: Progress<'_>) -> Result<Self, Error> {
        let directory = Directory::open(path, progress)?;
        Ok(Self {
            config: directory.config,
            tokenizer: directory.tokenizer,
            chat: directory.chat,
            sha256: Some(directory.sha256),
            types: histogram(directory.tensors.types()),
            tensors: Box::new(directory.tensors),
        })
    }

    /// Reads the model, handing linear weights to `sink`.
    pub(super) fn read(&self, progress: Progress<'_>, sink: &mut dyn Sink) -> Result<Model, Error> {
        let weights = self.types.iter().map(|t| t.2).sum();
        let reader = Reader::new(&*self.tensors, weights, progress);
        Model::read(self.config.clone(), &reader, sink)
    }
}

/// Tensors and weights per type name.
fn histogram(tensors: impl Iterator<Item = (String, u64)>) -> Vec<(String, usize, u64)> {
    let mut counts = std::collections::BTreeMap::<String, (usize, u64)>::new();
    for (kind, weights) in tensors {
        let entry = counts.entry(kind).or_default();
        entry.0 += 1;
        entry.1 += weights;
    }
    counts.into_iter().map(|(kind, (tensors, weights))| (kind, tensors, weights)).collect()
}

fn check_hash(options: &LoadOptions<'_>, found: Option<&str>) -> Result<(), Error> {
    match (options.expected_sha256, found) {
        (Some(expected), Some(found)) if !expected.eq_ignore_ascii_case(found) => {
            Err(Error::Model(format!("{}: sha256 is {found}, expected {expected}", options.source)))
        }
        _ => Ok(()),
    }
}
