//! What is wrong with settings and files.

use std::path::PathBuf;

/// Why there is no identity. Messages name the setting, what was found and what was expected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file that a setting names.
    #[error("{setting} {path}: {reason}", path = path.display())]
    File {
        /// The setting.
        setting: &'static str,
        /// The file.
        path: PathBuf,
        /// What was found, and what was expected.
        reason: String,
    },
    /// A value of a setting.
    #[error("{setting} is {found:?}, expected {expected}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A certificate that is none, or says something that it must not.
    #[error("{0}")]
    Certificate(String),
    /// TLS as a whole.
    #[error("TLS: {0}")]
    Tls(String),
}
