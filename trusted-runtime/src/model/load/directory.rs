//! Hugging Face directories: config.json, tokenizer.json, safetensors weights.

use super::{
    file::{Progress, hex, read_and_hash},
    json::Field,
    safetensors::{ShardedTensors, shard_names},
};
use crate::{
    Error,
    model::{ChatTemplate, Tokenizer, chat::SpecialTexts, config::ModelConfig, family},
};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::{collections::BTreeSet, path::Path};

/// A directory whose weights are read but not yet converted.
pub(crate) struct Directory {
    pub(crate) config: ModelConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat: Option<ChatTemplate>,
    /// Of the lines that `sha256sum` prints for all files read, in the order of their names.
    pub(crate) sha256: String,
    pub(crate) tensors: ShardedTensors,
}

/// The files of a directory as they are read, with their hashes.
struct Files<'a> {
    directory: &'a Path,
    progress: Progress<'a>,
    hashes: Vec<(String, String)>,
}

impl Files<'_> {
    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn bytes(&mut self, name: &str) -> Result<Vec<u8>, Error> {
        let (bytes, sha256) = read_and_hash(&self.directory.join(name), self.progress)?;
        self.hashes.push((name.to_owned(), sha256));
        Ok(bytes)
    }

    fn optional_bytes(&mut self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        if self.directory.join(name).exists() { self.bytes(name).map(Some) } else { Ok(None) }
    }

    fn optional_json(&mut self, name: &str) -> Result<Option<Value>, Error> {
        let Some(bytes) = self.optional_bytes(name)? else { return Ok(None) };
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|e| Error::Model(format!("{}: not JSON: {e}", self.path(name))))?;
        if value.is_object() {
            Ok(Some(value))
        } else {
            Err(Error::Model(format!("{}: not a JSON object", self.path(name))))
        }
    }
}

impl Directory {
    /// Reads every file of the model.
    ///
    /// # Errors
    /// [`Error::Model`] naming the file, the field, what was found and what was expected.
    pub(crate) fn open(directory: &Path, progress: Progress<'_>) -> Result<Self, Error> {
        let mut files = Files { directory, progress, hashes: Vec::new() };
        let config_file = files.path("config.json");
        let raw = files
            .optional_json("config.json")?
            .ok_or_else(|| Error::Model(format!("{config_file} is missing: not a Hugging Face model directory")))?;
        let config = family::from_json(&Field::new(&config_file, &raw))?;
        let generation = files.optional_json("generation_config.json")?;
        let tokenizer_config = files.optional_json("tokenizer_config.json")?;

        let mut end = BTreeSet::new();
        for source in [Some(&raw), generation.as_ref()].into_iter().flatten() {
            end.extend(end_tokens(&source["eos_token_id"]));
        }
        let tokenizer_file = files.path("tokenizer.json");
        let tokenizer = Tokenizer::from_json(&tokenizer_file, &files.bytes("tokenizer.json")?, config.vocab, end)?;
        let chat = chat_template(&mut files, tokenizer_config.as_ref())?;

        let index = files.optional_bytes("model.safetensors.index.json")?;
        let shards = shard_names(directory, index.as_deref())?;
        let (tensors, hashes) = ShardedTensors::read(directory, &shards, config.clone(), progress)?;
        files.hashes.extend(hashes);
        files.hashes.sort();
        let mut listing = Sha256::new();
        for (name, sha256) in &files.hashes {
            listing.update(format!("{sha256}  {name}\n"));
        }
        Ok(Self { config, tokenizer, chat, sha256: hex(&listing.finalize()), tensors })
    }
}

/// One id or a list of them.
fn end_tokens(value: &Value) -> Vec<u32> {
    let one = |v: &Value| v.as_u64().and_then(|v| u32::try_from(v).ok());
    match value {
        Value::Array(all) => all.iter().filter_map(one).collect(),
        other => one(other).into_iter().collect(),
    }
}

/// The template of chat_template.jinja, or the one of tokenizer_config.json (of several, the one called `default`).
fn chat_template(files: &mut Files<'_>, config: Option<&Value>) -> Result<Option<ChatTemplate>, Error> {
    let null = Value::Null;
    let config = config.unwrap_or(&null);
    let special = |key: &str| {
        let value = &config[key];
        value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
    };
    let (name, source) = match files.optional_bytes("chat_template.jinja")? {
        Some(bytes) => {
            let name = "chat_template.jinja";
            let text =
                String::from_utf8(bytes).map_err(|_| Error::Model(format!("{}: not UTF-8", files.path(name))))?;
            (name, Some(text))
        }
        None => {
            let named = |v: &Value| v["name"] == "default";
            let template = match &config["chat_template"] {
                Value::Array(all) => all.iter().find(|v| named(v)).and_then(|v| v["template"].as_str()),
                other => other.as_str(),
            };
            ("tokenizer_config.json", template.map(str::to_owned))
        }
    };
    let special = SpecialTexts { bos: special("bos_token"), eos: special("eos_token") };
    source.map(|source| ChatTemplate::new(&files.path(name), source, special)).transpose()
}
