//! Section `[azure]`: what is accepted of the virtual TPM below Azure's paravisor.

use serde::Deserialize;

/// Section `[azure]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Azure {}
