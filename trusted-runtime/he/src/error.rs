//! What can go wrong here: no entropy, or an answer that is not what was asked for.

/// Errors of this crate. None of them holds a secret, a plaintext or a residue of one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system gives no randomness; nothing is encrypted then.
    #[error("entropy source: {0}")]
    Entropy(getrandom::Error),
    /// The evaluator's answer has the wrong size, range or format.
    #[error("{0}")]
    Answer(String),
    /// A well-formed answer that is not the product it claims to be: the evaluator lies or is broken.
    #[error("answers wrongly: {0} fails its check")]
    Forged(&'static str),
    /// Sizes or integers that the caller promised not to pass.
    #[error("{0}")]
    Misuse(String),
}
