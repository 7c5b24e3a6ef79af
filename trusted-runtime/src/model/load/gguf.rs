//! A reader of GGUF files (version 2 and 3, little-endian) that trusts nothing in them: every count, length,
//! offset and type is checked against the bytes that are there before it is used.

mod value;

pub use value::Value;

use super::{
    Tensors,
    cursor::Cursor,
    dequant::{self, TensorType},
};
use crate::Error;
use std::collections::BTreeMap;

/// One tensor as the header describes it.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Element type.
    pub kind: TensorType,
    /// Outermost dimension first: [rows, cols].
    pub shape: Vec<usize>,
    /// First byte in the file.
    offset: usize,
    /// Length in bytes.
    size: usize,
}

/// A parsed file, its bytes included.
pub struct Gguf {
    file: String,
    bytes: Vec<u8>,
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// More keys or tensors than any model has.
const MOST_ENTRIES: u64 = 1 << 16;

impl Gguf {
    /// Parses `bytes`; `file` is its name for messages.
    ///
    /// # Errors
    /// [`Error::Model`] naming file, field or tensor, found and expected.
    pub fn parse(file: &str, bytes: Vec<u8>) -> Result<Self, Error> {
        let mut c = Cursor::new(file, &bytes);
        let magic = c.take(4, "magic")?;
        if magic != b"GGUF" {
            return Err(Error::Model(format!("{file}: magic is {magic:02x?}, expected \"GGUF\"")));
        }
        let version = c.u32("version")?;
        if !(2..=3).contains(&version) {
            return Err(Error::Model(format!("{file}: GGUF version {version}, expected 2 or 3 (little-endian)")));
        }
        let tensor_count = c.count("tensor count", MOST_ENTRIES)?;
        let key_count = c.count("metadata count", MOST_ENTRIES)?;
        let mut metadata = BTreeMap::new();
        for i in 0..key_count {
            let key = c.text(&format!("name of metadata key {i}"), 1 << 16)?;
            let value = value::read(&mut c, &key)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(Error::Model(format!("{file}: metadata key {key:?} appears twice")));
            }
        }
        let mut headers = Vec::new();
        for i in 0..tensor_count {
            headers.push(Header::read(&mut c, i)?);
        }
        let alignment = alignment(file, &metadata)?;
        let data = c.position().next_multiple_of(alignment);
        let tensors = place(file, headers, alignment, data, bytes.len())?;
        Ok(Self { file: file.to_owned(), bytes, metadata, tensors })
    }

    /// Name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// All metadata.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// The weights of a tensor as f32.
    ///
    /// # Errors
    /// [`Error::Model`] naming the tensor if it is missing.
    pub fn weights(&self, name: &str) -> Result<Vec<f32>, Error> {
        let t =
            self.tensors.get(name).ok_or_else(|| Error::Model(format!("{}: tensor {name} is missing", self.file)))?;
        Ok(dequant::dequantize(t.kind, &self.bytes[t.offset..t.offset + t.size]))
    }

    /// A metadata value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// An error about `key` holding the wrong kind of value, or none.
    fn wrong<T>(&self, key: &str, expected: &str) -> Result<T, Error> {
        let found = match self.get(key) {
            None => "is missing".to_owned(),
            Some(Value::Int(v)) => format!("is {v}"),
            Some(Value::Float(v)) => format!("is {v}"),
            Some(Value::Bool(v)) => format!("is {v}"),
            Some(Value::Text(_)) => "is text".to_owned(),
            Some(Value::Ints(_) | Value::Floats(_) | Value::Texts(_)) => "is an array".to_owned(),
        };
        Err(Error::Model(format!("{}: metadata key {key} {found}, expected {expected}", self.file)))
    }

    /// A size: a non-negative integer.
    pub(super) fn size(&self, key: &str) -> Result<usize, Error> {
        match self.get(key) {
            Some(Value::Int(v)) if usize::try_from(*v).is_ok_and(|v| v <= 1 << 32) => {
                Ok(usize::try_from(*v).expect("checked by the guard"))
            }
            _ => self.wrong(key, "an integer of at most 2^32"),
        }
    }

    /// A size, or `default` if the key is absent.
    pub(super) fn size_or(&self, key: &str, default: usize) -> Result<usize, Error> {
        if self.get(key).is_none() { Ok(default) } else { self.size(key) }
    }

    /// A float.
    pub(super) fn float(&self, key: &str) -> Result<f64, Error> {
        match self.get(key) {
            Some(Value::Float(v)) => Ok(*v),
            _ => self.wrong(key, "a float"),
        }
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<&str, Error> {
        match self.get(key) {
            Some(Value::Text(v)) => Ok(v),
            _ => self.wrong(key, "text"),
        }
    }

    /// A text, if the key is there.
    pub(crate) fn optional_text(&self, key: &str) -> Result<Option<&str>, Error> {
        if self.get(key).is_none() { Ok(None) } else { self.text(key).map(Some) }
    }

    /// A boolean, if the key is there.
    pub(crate) fn optional_bool(&self, key: &str) -> Result<Option<bool>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(_) => self.wrong(key, "a boolean"),
        }
    }

    /// A token id below `vocab`, if the key is there.
    pub(crate) fn optional_token(&self, key: &str, vocab: usize) -> Result<Option<u32>, Error> {
        if self.get(key).is_none() {
            return Ok(None);
        }
        match self.size(key)? {
            v if v < vocab => Ok(u32::try_from(v).ok()),
            v => Err(Error::Model(format!("{}: metadata key {key} is {v}, expected a token below {vocab}", self.file))),
        }
    }

    /// An array of texts.
    pub(crate) fn texts(&self, key: &str) -> Result<&[String], Error> {
        match self.get(key) {
            Some(Value::Texts(v)) => Ok(v),
            _ => self.wrong(key, "an array of texts"),
        }
    }

    /// An array of floats.
    pub(crate) fn floats(&self, key: &str) -> Result<&[f64], Error> {
        match self.get(key) {
            Some(Value::Floats(v)) => Ok(v),
            _ => self.wrong(key, "an array of floats"),
        }
    }

    /// An array of integers.
    pub(crate) fn ints(&self, key: &str) -> Result<&[i64], Error> {
        match self.get(key) {
            Some(Value::Ints(v)) => Ok(v),
            _ => self.wrong(key, "an array of integers"),
        }
    }
}

impl Tensors for Gguf {
    fn file(&self) -> &str {
        &self.file
    }

    fn native(&self, canonical: &str) -> String {
        canonical.to_owned()
    }

    fn has(&self, canonical: &str) -> bool {
        self.tensors.contains_key(canonical)
    }

    fn shape(&self, canonical: &str, _wanted: &[usize]) -> Option<Vec<usize>> {
        self.tensors.get(canonical).map(|t| t.shape.clone())
    }

    fn read(&self, canonical: &str, _shape: &[usize]) -> Result<Vec<f32>, Error> {
        self.weights(canonical)
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}

fn alignment(file: &str, metadata: &BTreeMap<String, Value>) -> Result<usize, Error> {
    match metadata.get("general.alignment") {
        None => Ok(32),
        Some(Value::Int(v)) if (8..=1 << 20).contains(v) && v.count_ones() == 1 => {
            Ok(usize::try_from(*v).expect("checked by the guard"))
        }
        Some(other) => {
            Err(Error::Model(format!("{file}: general.alignment is {other:?}, expected a power of two, 8 to 2^20")))
        }
    }
}

/// A tensor before its offset is resolved.
struct Header {
    name: String,
    kind: TensorType,
    shape: Vec<usize>,
    size: usize,
    relative: u64,
}

impl Header {
    fn read(c: &mut Cursor<'_>, index: usize) -> Result<Self, Error> {
        let name = c.text(&format!("name of tensor {index}"), 1 << 10)?;
        let what = format!("tensor {name:?}");
        let fail = |c: &Cursor<'_>, m: String| Err(Error::Model(format!("{}: {what} {m}", c.file())));
        let dimensions = c.u32(&what)?;
        if !(1..=4).contains(&dimensions) {
            return fail(c, format!("has {dimensions} dimensions, expected 1 to 4"));
        }
        let mut shape = Vec::new();
        let mut elements = 1usize;
        for _ in 0..dimensions {
            let raw = c.u64(&what)?;
            let product = usize::try_from(raw).ok().filter(|&d| d > 0).and_then(|d| {
                elements = elements.checked_mul(d).filter(|&e| e <= 1 << 40)?;
                Some(d)
            });
            let Some(d) = product else {
                return fail(c, format!("has a dimension of {raw}, expected a total of 1 to 2^40 weights"));
            };
            shape.insert(0, d);
        }
        let tag = c.u32(&what)?;
        let Some(kind) = TensorType::from_ggml(tag) else {
            return fail(c, format!("has ggml type {tag}, expected one of: {}", TensorType::SUPPORTED));
        };
        let (weights, bytes) = kind.block();
        let row = *shape.last().expect("at least one dimension");
        if !row.is_multiple_of(weights) {
            return fail(c, format!("has rows of {row} weights, expected a multiple of {weights} for {kind:?}"));
        }
        let relative = c.u64(&what)?;
        Ok(Self { name, kind, shape, size: elements / weights * bytes, relative })
    }
}

/// Resolves offsets; refuses duplicates, misalignment, overlap and data beyond the end.
fn place(
    file: &str,
    headers: Vec<Header>,
    alignment: usize,
    data: usize,
    len: usize,
) -> Result<BTreeMap<String, TensorInfo>, Error> {
    let mut tensors = BTreeMap::new();
    let mut spans = Vec::new();
    for h in headers {
        if h.relative % alignment as u64 != 0 {
            return Err(Error::Model(format!(
                "{file}: tensor {:?} is at offset {}, expected a multiple of {alignment}",
                h.name, h.relative
            )));
        }
        let span = usize::try_from(h.relative)
            .ok()
            .and_then(|r| data.checked_add(r))
            .and_then(|offset| Some((offset, offset.checked_add(h.size)?)))
            .filter(|&(_, end)| end <= len);
        let Some((offset, end)) = span else {
            return Err(Error::Model(format!(
                "{file}: tensor {:?} needs {} bytes at {data} + {}, but the file has {len}",
                h.name, h.size, h.relative
            )));
        };
        spans.push((offset, end, h.name.clone()));
        let info = TensorInfo { kind: h.kind, shape: h.shape, offset, size: h.size };
        if tensors.insert(h.name.clone(), info).is_some() {
            return Err(Error::Model(format!("{file}: tensor {:?} appears twice", h.name)));
        }
    }
    spans.sort();
    for pair in spans.windows(2) {
        if pair[1].0 < pair[0].1 {
            return Err(Error::Model(format!("{file}: tensors {:?} and {:?} overlap", pair[0].2, pair[1].2)));
        }
    }
    Ok(tensors)
}
