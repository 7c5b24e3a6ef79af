//! Section `[snp]`: what is accepted of AMD SEV-SNP.

use serde::Deserialize;

/// Section `[snp]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snp {}
