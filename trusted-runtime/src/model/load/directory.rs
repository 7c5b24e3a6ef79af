//! Hugging Face directories.
use super::{Tensors, file::Progress};
use crate::{
    Error,
    model::{ChatTemplate, Tokenizer, config::ModelConfig},
};
use std::path::Path;
pub(crate) struct Directory {
    pub(crate) config: ModelConfig,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) chat: Option<ChatTemplate>,
    pub(crate) sha256: String,
    pub(crate) tensors: Stub,
}
pub(crate) struct Stub;
impl Stub {
    pub(crate) fn types(&self) -> std::iter::Empty<(String, u64)> {
        std::iter::empty()
    }
}
impl Tensors for Stub {
    fn file(&self) -> &str {
        ""
    }
    fn native(&self, c: &str) -> String {
        c.to_owned()
    }
    fn shape(&self, _: &str) -> Option<Vec<usize>> {
        None
    }
    fn read(&self, _: &str) -> Result<Vec<f32>, Error> {
        Err(Error::Model(String::new()))
    }
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}
impl Directory {
    pub(crate) fn open(path: &Path, _: Progress<'_>) -> Result<Self, Error> {
        Err(Error::Model(format!("{}: directories are not supported yet", path.display())))
    }
}
