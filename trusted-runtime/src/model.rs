//! Models: architectures, files, tokenizers.

pub mod quantize;
