//! Models: architectures, files, tokenizers.
