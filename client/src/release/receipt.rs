//! Receipts: checked against what was asked, kept as JSON.

use std::path::{Path, PathBuf};

use attest_verify::hex::{Hex, HexBytes, Sha256};
use proto::v1::Receipt;
use serde::Serialize;

use crate::Error;
use crate::attested::VerifiedRuntime;
use crate::file::{create, private_dir};
use crate::trust::Trust;

/// What a receipt must be about.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The tenant.
    pub tenant: String,
    /// The key's name.
    pub key_id: String,
    /// SHA-256 of its admission key.
    pub key_digest: [u8; 32],
    /// SHA-256 of the connection's binding.
    pub transcript: [u8; 32],
    /// Parameter sets that it was released for.
    pub params_digest: [u8; 32],
    /// Seconds since 1970 when it expires.
    pub expires_at: u64,
}

/// A receipt as it is kept, with what is needed to check it again.
#[derive(Clone, Debug, Serialize)]
pub struct Kept {
    world: &'static str,
    endpoint: String,
    instance: Sha256,
    tenant: String,
    key_id: String,
    key_digest: HexBytes,
    transcript: HexBytes,
    params_digest: HexBytes,
    held_at: u64,
    expires_at: u64,
    replaces: String,
    receipt_key: HexBytes,
    signature: HexBytes,
    policy_version: u32,
    policy_digest: Sha256,
}

/// Checks a receipt by the runtime's key, which its evidence covered.
///
/// # Errors
/// A sentence naming the field, what was found and what was expected.
pub fn check<W: Trust>(receipt: &Receipt, receipt_key: &[u8], asked: &Asked) -> Result<(), String> {
    attest::release::check_receipt::<W>(receipt, receipt_key).map_err(|error| error.to_string())?;
    for (field, found, expected) in
        [("tenant", &receipt.tenant, &asked.tenant), ("key_id", &receipt.key_id, &asked.key_id)]
    {
        if found != expected {
            return Err(format!("{field} of the receipt is {found:?}, expected {expected:?}"));
        }
    }
    for (field, found, expected) in [
        ("transcript", &receipt.transcript, &asked.transcript),
        ("key_digest", &receipt.key_digest, &asked.key_digest),
        ("params_digest", &receipt.params_digest, &asked.params_digest),
    ] {
        if found != &expected[..] {
            let (found, expected) = (attest_verify::hex::encode(found), Hex(*expected));
            return Err(format!("{field} of the receipt is {found}, expected {expected}"));
        }
    }
    // The runtime may hold a key for less time than it was given, and not for more.
    let (found, limit) = (receipt.expires_at, asked.expires_at);
    if found > limit {
        return Err(format!("expires_at of the receipt is {found}, expected {limit} at most"));
    }
    Ok(())
}

impl Kept {
    pub(super) fn new<W: Trust>(runtime: &VerifiedRuntime<W>, receipt: &Receipt, replaces: String) -> Self {
        let bytes = |bytes: &[u8]| HexBytes(bytes.to_vec());
        let report = runtime.verified().report();
        Self {
            world: W::LABEL,
            endpoint: runtime.endpoint().to_string(),
            instance: Hex(*runtime.instance()),
            tenant: receipt.tenant.clone(),
            key_id: receipt.key_id.clone(),
            key_digest: bytes(&receipt.key_digest),
            transcript: bytes(&receipt.transcript),
            params_digest: bytes(&receipt.params_digest),
            held_at: receipt.held_at,
            expires_at: receipt.expires_at,
            replaces,
            receipt_key: bytes(&runtime.values().receipt_key),
            signature: bytes(&receipt.signature),
            policy_version: report.policy_version,
            policy_digest: report.policy_digest,
        }
    }

    /// Seconds since 1970 when the runtime forgets the key.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        self.expires_at
    }

    /// As one line of JSON.
    ///
    /// # Errors
    /// [`Error::Platform`], which does not happen.
    pub fn to_json(&self) -> Result<String, Error> {
        serde_json::to_string(self).map_err(|error| Error::Platform(format!("JSON: {error}")))
    }

    /// Writes it into a new file of the folder, which nobody else may read.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn store(&self, dir: &Path) -> Result<PathBuf, Error> {
        private_dir(dir)?;
        // Two releases of one key differ in their connection.
        let connection: String = attest_verify::hex::encode(&self.transcript.0).chars().take(8).collect();
        let path = dir.join(format!("{}-{}-{}-{connection}.json", self.tenant, self.key_id, self.held_at));
        create(&path, format!("{}\n", self.to_json()?).as_bytes())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use attest::Hardware;
    use attest::release::ReceiptKey;

    use super::*;

    fn asked() -> Asked {
        Asked {
            tenant: "acme".into(),
            key_id: "k-1".into(),
            key_digest: [1; 32],
            transcript: [2; 32],
            params_digest: [3; 32],
            expires_at: 100,
        }
    }

    fn receipt() -> Receipt {
        Receipt {
            tenant: "acme".into(),
            key_id: "k-1".into(),
            key_digest: vec![1; 32].into(),
            transcript: vec![2; 32].into(),
            params_digest: vec![3; 32].into(),
            held_at: 10,
            expires_at: 100,
            ..Receipt::default()
        }
    }

    #[test]
    fn a_receipt_is_about_this_release_or_refused() {
        let key = ReceiptKey::draw().unwrap();
        let judged = |receipt: Receipt| check::<Hardware>(&key.sign::<Hardware>(receipt), key.public(), &asked());
        judged(receipt()).unwrap();
        judged(Receipt { expires_at: 99, ..receipt() }).unwrap();
        let short = vec![2; 31];
        for (receipt, says) in [
            (Receipt { tenant: "other".into(), ..receipt() }, "tenant of the receipt is \"other\", expected \"acme\""),
            (Receipt { key_id: "k-2".into(), ..receipt() }, "key_id of the receipt"),
            (Receipt { transcript: vec![9; 32].into(), ..receipt() }, "transcript of the receipt is 0909"),
            (Receipt { transcript: short.into(), ..receipt() }, "transcript of the receipt"),
            (Receipt { key_digest: vec![9; 32].into(), ..receipt() }, "key_digest of the receipt"),
            (Receipt { params_digest: vec![9; 32].into(), ..receipt() }, "params_digest of the receipt"),
            (Receipt { expires_at: 101, ..receipt() }, "expires_at of the receipt is 101, expected 100 at most"),
        ] {
            let error = judged(receipt).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
        let other = ReceiptKey::draw().unwrap();
        let error = check::<Hardware>(&other.sign::<Hardware>(receipt()), key.public(), &asked()).unwrap_err();
        assert!(error.contains("not signed"), "{error}");
    }

    #[test]
    fn receipts_are_kept_once_and_for_the_owner_alone() {
        let kept = Kept {
            world: "hardware",
            endpoint: "attested://h:1".into(),
            instance: Hex([4; 32]),
            tenant: "acme".into(),
            key_id: "k-1".into(),
            key_digest: HexBytes(vec![1; 32]),
            transcript: HexBytes(vec![2; 32]),
            params_digest: HexBytes(vec![3; 32]),
            held_at: 10,
            expires_at: 100,
            replaces: String::new(),
            receipt_key: HexBytes(vec![5; 32]),
            signature: HexBytes(vec![6; 64]),
            policy_version: 1,
            policy_digest: Hex([7; 32]),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = kept.store(&dir.path().join("receipts")).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((read["world"].as_str(), read["key_id"].as_str()), (Some("hardware"), Some("k-1")));
        assert!(kept.store(&dir.path().join("receipts")).is_err(), "a receipt is never written over");
    }
}
