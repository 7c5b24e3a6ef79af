//! What the runtime says of itself, which its binding covers, and the policy it is judged by.

use super::Case;
use crate::{
    factor::Factor,
    hex::{Sha256, encode, one_of},
    policy::ConfigDigest,
    time,
};
use proto::v1::RuntimeValues;

/// Caps of a runtime's values, in bytes.
const MAX_KEY: usize = 4096;
const MAX_SOFTWARE: usize = 256;
/// Ed25519, RFC 8032.
const RECEIPT_KEY: usize = 32;

impl Case<'_> {
    pub(super) fn version(&self) -> Factor {
        let found = self.evidence.version;
        Factor::judged("evidence.version", found == attest::VERSION, attest::VERSION.to_string(), found.to_string())
    }

    /// One factor for each value that the policy or the clock judges.
    pub(super) fn values(&self) -> Vec<Factor> {
        let Some(values) = &self.evidence.values else {
            return vec![Factor::judged("runtime.values", false, "the runtime's values", "none")];
        };
        let rules = &self.policy.rules().runtime;
        let listed = |code, list: &[Sha256], found: &[u8]| {
            Factor::judged(code, list.iter().any(|digest| digest.0 == found), one_of(list), clipped(found))
        };
        vec![
            well_formed(values),
            listed("runtime.params_digest", &rules.params_digest, &values.params_digest),
            listed("runtime.model_digest", &rules.model_digest, &values.model_digest),
            match &rules.config_digest {
                ConfigDigest::Any => Factor::noted("runtime.config_digest", clipped(&values.config_digest)),
                ConfigDigest::Listed(list) => listed("runtime.config_digest", list, &values.config_digest),
            },
            Factor::judged(
                "runtime.not_after",
                values.not_after > self.now,
                format!("later than {}", time::show(self.now)),
                time::show(values.not_after),
            ),
        ]
    }

    /// Whether the policy is no older than one that something was accepted by.
    pub(super) fn policy_version(&self) -> Factor {
        const CODE: &str = "policy.version";
        let version = self.policy.rules().version;
        let before = self.floor.policy_version;
        if self.floor.accept_rollback && version < before {
            return Factor::noted(CODE, format!("{version}, and {before} was used before: rollback accepted"));
        }
        Factor::judged(CODE, version >= before, format!("{before} or more, used before"), version.to_string())
    }
}

fn well_formed(values: &RuntimeValues) -> Factor {
    let found = [
        (values.hpke_key.is_empty() || values.hpke_key.len() > MAX_KEY)
            .then(|| format!("hpke_key of {} bytes, expected 1 to {MAX_KEY}", values.hpke_key.len())),
        (values.receipt_key.len() != RECEIPT_KEY)
            .then(|| format!("receipt_key of {} bytes, expected {RECEIPT_KEY}", values.receipt_key.len())),
        (values.software.len() > MAX_SOFTWARE)
            .then(|| format!("software of {} bytes, expected {MAX_SOFTWARE} at most", values.software.len())),
    ];
    let found = found.into_iter().flatten().next();
    Factor::judged(
        "runtime.values",
        found.is_none(),
        "keys and texts of the lengths they have",
        found.as_deref().unwrap_or("so they are"),
    )
}

/// Bytes for a report, no more of them than a digest has.
fn clipped(bytes: &[u8]) -> String {
    const SHOWN: usize = 32;
    match bytes.get(..SHOWN) {
        Some(start) if bytes.len() > SHOWN => format!("{}... of {} bytes", encode(start), bytes.len()),
        _ => encode(bytes),
    }
}
