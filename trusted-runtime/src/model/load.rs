//! From a source (GGUF file, Hugging Face directory, synthetic shape) to a checked model whose linear
//! weights were handed, group by group, to a [`Sink`].

pub mod dequant;
pub mod gguf;

mod cursor;
mod directory;
mod file;
mod json;
mod metadata;
mod names;
mod safetensors;

pub(crate) use directory::Directory;
pub(crate) use file::{Progress, read_and_hash};
pub(crate) use gguf::Value;
pub(crate) use json::{Field, Rope};
pub(crate) use metadata::Keys;
pub(crate) use names::{Layout, block_part, gated_block};

use crate::{Error, linear::LinearId};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
};

/// Takes the linear weights as they are read, so that the f32 values of one group at most are alive.
pub trait Sink {
    /// `weights` is [rows][cols] of matrix `id`; every weight is finite.
    ///
    /// # Errors
    /// Whatever makes the load fail.
    fn matrix(&mut self, id: LinearId, rows: usize, cols: usize, weights: &[f32]) -> Result<(), Error>;
}

/// Tensors by their canonical names, which are GGUF's; layouts too: linear weights are [outputs][inputs] and
/// each family's file says what else is canonical.
pub(crate) trait Tensors {
    /// Name of the source, for messages.
    fn file(&self) -> &str;
    /// The name that this source itself uses.
    fn native(&self, canonical: &str) -> String;
    /// Whether the tensor is there.
    fn has(&self, canonical: &str) -> bool;
    /// Shape, outermost first, or none if the tensor is not there. Random tensors take the shape that is `wanted`.
    fn shape(&self, canonical: &str, wanted: &[usize]) -> Option<Vec<usize>>;
    /// The weights of this `shape` as f32.
    fn read(&self, canonical: &str, shape: &[usize]) -> Result<Vec<f32>, Error>;
    /// The native names of all tensors that must be used.
    fn names(&self) -> Vec<String>;
}

/// Reads tensors with every check: present, right shape, finite, and none left over at the end.
pub(crate) struct Reader<'a> {
    tensors: &'a dyn Tensors,
    progress: Progress<'a>,
    used: RefCell<BTreeSet<String>>,
    read: Cell<u64>,
    expected: u64,
}

impl<'a> Reader<'a> {
    /// A reader that reports progress out of about `expected` weights.
    pub(crate) fn new(tensors: &'a dyn Tensors, expected: u64, progress: Progress<'a>) -> Self {
        Self { tensors, progress, used: RefCell::default(), read: Cell::new(0), expected }
    }

    /// Whether the tensor is there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.has(name)
    }

    /// The tensor `name`, whose shape must be `shape`.
    pub(crate) fn read(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let (file, native) = (self.tensors.file(), self.tensors.native(name));
        match self.tensors.shape(name, shape) {
            None => {
                return Err(Error::Model(format!("{file}: tensor {native} is missing, expected shape {shape:?}")));
            }
            Some(found) if found != shape => {
                return Err(Error::Model(format!("{file}: tensor {native} has shape {found:?}, expected {shape:?}")));
            }
            Some(_) => {}
        }
        let values = self.tensors.read(name, shape)?;
        if let Some(at) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::Model(format!(
                "{file}: tensor {native} holds {} at index {at}, expected finite weights",
                values[at]
            )));
        }
        self.used.borrow_mut().insert(native);
        self.read.set(self.read.get() + values.len() as u64);
        (self.progress)("loading weights", self.read.get().min(self.expected), self.expected);
        Ok(values)
    }

    /// Number of weights read.
    ///
    /// # Errors
    /// [`Error::Model`] naming a tensor that nobody read: the model computes something else than we would.
    pub(crate) fn finish(&self) -> Result<u64, Error> {
        let used = self.used.borrow();
        match self.tensors.names().into_iter().find(|n| !used.contains(n)) {
            None => Ok(self.read.get()),
            Some(name) => {
                Err(Error::Model(format!("{}: tensor {name} has no place in this architecture", self.tensors.file())))
            }
        }
    }
}
