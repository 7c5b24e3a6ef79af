//! Weights in one or several safetensors files.

use super::{
    Tensors,
    file::{Progress, read_and_hash},
    names::{self, Layout},
};
use crate::{Error, model::config::ModelConfig};
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// A file whose header says where each tensor is.
struct Shard {
    name: String,
    bytes: Vec<u8>,
}

struct Place {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// First byte in the shard, and one past the last.
    start: usize,
    end: usize,
}

/// All tensors of a directory, by their canonical names once the configuration is known.
pub(crate) struct ShardedTensors {
    directory: String,
    shards: Vec<Shard>,
    places: BTreeMap<String, Place>,
    config: ModelConfig,
}

/// The files to read: those that the index names, or the single one.
///
/// # Errors
/// [`Error::Model`] if there is no weight file or the index is malformed.
pub(super) fn shard_names(directory: &Path, index: Option<&[u8]>) -> Result<BTreeSet<String>, Error> {
    let dir = directory.display();
    let Some(index) = index else { return Ok(BTreeSet::from(["model.safetensors".to_owned()])) };
    let file = format!("{dir}/model.safetensors.index.json");
    let json: serde_json::Value =
        serde_json::from_slice(index).map_err(|e| Error::Model(format!("{file}: not JSON: {e}")))?;
    let map = json["weight_map"]
        .as_object()
        .ok_or_else(|| Error::Model(format!("{file}: field weight_map is missing, expected an object")))?;
    let mut names = BTreeSet::new();
    for (tensor, shard) in map {
        match shard.as_str() {
            Some(s) if !s.contains(['/', '\\']) && s.ends_with(".safetensors") => names.insert(s.to_owned()),
            _ => {
                return Err(Error::Model(format!(
                    "{file}: tensor {tensor:?} is in {shard}, expected a .safetensors file of the same directory"
                )));
            }
        };
    }
    if names.is_empty() {
        return Err(Error::Model(format!("{file}: field weight_map is empty")));
    }
    Ok(names)
}

impl ShardedTensors {
    /// Reads the shards; returns them with (name, sha256) of each.
    pub(super) fn read(
        directory: &Path,
        shards: &BTreeSet<String>,
        config: ModelConfig,
        progress: Progress<'_>,
    ) -> Result<(Self, Vec<(String, String)>), Error> {
        let mut all =
            Self { directory: directory.display().to_string(), shards: Vec::new(), places: BTreeMap::new(), config };
        let mut hashes = Vec::new();
        for name in shards {
            let path = directory.join(name);
            let (bytes, sha256) = read_and_hash(&path, progress)?;
            hashes.push((name.clone(), sha256));
            all.add(path.display().to_string(), bytes)?;
        }
        if all.config.tied_head {
            // Tied models may store the head again; the embedding is what counts.
            all.places.remove("lm_head.weight");
        }
        Ok((all, hashes))
    }

    fn add(&mut self, name: String, bytes: Vec<u8>) -> Result<(), Error> {
        let fail = |m: String| Error::Model(format!("{name}: {m}"));
        let (header, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|e| fail(format!("not a safetensors file: {e}")))?;
        let data = header + size_of::<u64>();
        for (tensor, info) in metadata.tensors() {
            let (start, end) = (data + info.data_offsets.0, data + info.data_offsets.1);
            if end > bytes.len() {
                return Err(fail(format!("tensor {tensor} ends at byte {end}, but the file has {}", bytes.len())));
            }
            let tensor = tensor.strip_prefix("transformer.").unwrap_or(&tensor).to_owned();
            if names::is_buffer(&tensor) {
                continue;
            }
            if !matches!(info.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16) {
                return Err(fail(format!("tensor {tensor} has type {:?}, expected F32, F16 or BF16", info.dtype)));
            }
            let place = Place { shard: self.shards.len(), dtype: info.dtype, shape: info.shape.clone(), start, end };
            if self.places.insert(tensor.clone(), place).is_some() {
                return Err(fail(format!("tensor {tensor} appears twice")));
            }
        }
        self.shards.push(Shard { name, bytes });
        Ok(())
    }

    /// (type name, weights) of every tensor.
    pub(crate) fn types(&self) -> impl Iterator<Item = (String, u64)> {
        self.places.values().map(|p| (format!("{:?}", p.dtype), p.shape.iter().product::<usize>() as u64))
    }

    fn find(&self, canonical: &str) -> Option<(&Place, Layout)> {
        let (name, layout) = self.config.architecture.family().stored(&self.config, canonical)?;
        Some((self.places.get(&name)?, layout))
    }
}

impl Tensors for ShardedTensors {
    fn file(&self) -> &str {
        match self.shards.as_slice() {
            [only] => &only.name,
            _ => &self.directory,
        }
    }

    fn native(&self, canonical: &str) -> String {
        self.config
            .architecture
            .family()
            .stored(&self.config, canonical)
            .map_or_else(|| canonical.to_owned(), |(name, _)| name)
    }

    fn has(&self, canonical: &str) -> bool {
        self.find(canonical).is_some()
    }

    fn shape(&self, canonical: &str, _wanted: &[usize]) -> Option<Vec<usize>> {
        let (place, layout) = self.find(canonical)?;
        Some(layout.shape(place.shape.clone()))
    }

    fn read(&self, canonical: &str, _shape: &[usize]) -> Result<Vec<f32>, Error> {
        let (place, layout) = self
            .find(canonical)
            .ok_or_else(|| Error::Model(format!("{}: tensor {} is missing", self.directory, self.native(canonical))))?;
        let bytes = &self.shards[place.shard].bytes[place.start..place.end];
        let values = match place.dtype {
            Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        };
        Ok(layout.canonical(&place.shape, values))
    }

    fn names(&self) -> Vec<String> {
        self.places.keys().cloned().collect()
    }
}
