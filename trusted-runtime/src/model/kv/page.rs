//! Pages: those that are written, and those that are full.

use super::{Shape, pool::Permit};
use crate::Error;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The numbers of a page, [layers][heads][keys, values][PAGE][head_dim]; wiped on drop.
pub type PageData = Zeroizing<Vec<f32>>;

/// Where full pages are kept.
pub trait Backend: Send + Sync {
    /// For logs and descriptions.
    fn name(&self) -> &'static str;

    /// Takes a full page; `data` is left empty if and only if it was taken.
    ///
    /// # Errors
    /// [`Error::Platform`] with the reason, e.g. that a disk is full.
    fn put(&self, shape: Shape, data: &mut PageData, permit: Permit) -> Result<Arc<dyn FullPage>, Error>;
}

/// A page that does not change any more.
pub trait FullPage: Send + Sync {
    /// A layer, if it lies in the clear.
    fn plain(&self, layer: usize) -> Option<&[f32]>;

    /// Writes a layer to `out`.
    ///
    /// # Errors
    /// [`Error::Platform`] if what was kept is not what was put away.
    fn open(&self, layer: usize, out: &mut [f32]) -> Result<(), Error>;
}

/// A page that its sequence writes.
pub(super) struct OpenPage {
    pub(super) data: PageData,
    size: usize,
    pub(super) permit: Option<Permit>,
}

impl OpenPage {
    pub(super) fn new(shape: Shape, permit: Permit) -> Self {
        let data = Zeroizing::new(vec![0.0; shape.layers * shape.layer()]);
        Self { data, size: shape.layer(), permit: Some(permit) }
    }

    pub(super) fn layer(&self, layer: usize) -> &[f32] {
        &self.data[layer * self.size..][..self.size]
    }

    pub(super) fn layer_mut(&mut self, layer: usize) -> &mut [f32] {
        &mut self.data[layer * self.size..][..self.size]
    }
}

/// Full pages stay in enclave memory.
#[derive(Clone, Copy, Debug)]
pub struct Plaintext;

struct PlainPage {
    data: PageData,
    size: usize,
    _permit: Permit,
}

impl Backend for Plaintext {
    fn name(&self) -> &'static str {
        "plaintext"
    }

    fn put(&self, shape: Shape, data: &mut PageData, permit: Permit) -> Result<Arc<dyn FullPage>, Error> {
        Ok(Arc::new(PlainPage { data: std::mem::take(data), size: shape.layer(), _permit: permit }))
    }
}

impl FullPage for PlainPage {
    fn plain(&self, layer: usize) -> Option<&[f32]> {
        Some(&self.data[layer * self.size..][..self.size])
    }

    fn open(&self, layer: usize, out: &mut [f32]) -> Result<(), Error> {
        out.copy_from_slice(&self.data[layer * self.size..][..self.size]);
        Ok(())
    }
}
