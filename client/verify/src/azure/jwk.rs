//! The variable data of an HCL report: JSON with the TPM's attestation key as a JWK, RFC 7517.

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use serde::Deserialize;

/// What matters of the variable data.
#[derive(Clone, Debug)]
pub struct VarData {
    key: AttestationKey,
    secure_boot: Option<bool>,
}

/// RSA key of a virtual TPM that signs its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttestationKey {
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

/// Why variable data are of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VarDataError {
    /// Larger than the NV index can be.
    #[error("variable data are {0} bytes, expected 8192 at most")]
    Size(usize),
    /// Not JSON of the structure.
    #[error("variable data: {0}")]
    Json(String),
    /// None or several.
    #[error("variable data hold {0} keys HCLAkPub, expected one")]
    Keys(usize),
    /// Not a key that signs.
    #[error("key HCLAkPub: {field} is {found}, expected {expected}")]
    Key {
        /// Which part.
        field: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
}

impl VarData {
    /// Largest JSON that is read, in bytes.
    pub const LIMIT: usize = 8 << 10;

    /// # Errors
    /// [`VarDataError`]
    pub fn parse(json: &[u8]) -> Result<Self, VarDataError> {
        if json.len() > Self::LIMIT {
            return Err(VarDataError::Size(json.len()));
        }
        let written: Written = serde_json::from_slice(json).map_err(|error| VarDataError::Json(error.to_string()))?;
        let mut keys = written.keys.iter().filter(|key| key.kid == "HCLAkPub");
        let key = match (keys.next(), keys.count()) {
            (Some(key), 0) => AttestationKey::of(key)?,
            (None, _) => return Err(VarDataError::Keys(0)),
            (Some(_), more) => return Err(VarDataError::Keys(more + 1)),
        };
        Ok(Self { key, secure_boot: written.vm_configuration.and_then(|configuration| configuration.secure_boot) })
    }

    /// HCLAkPub.
    #[must_use]
    pub fn key(&self) -> &AttestationKey {
        &self.key
    }

    /// As the paravisor states it, if it does.
    #[must_use]
    pub fn secure_boot(&self) -> Option<bool> {
        self.secure_boot
    }
}

impl AttestationKey {
    fn of(key: &Jwk) -> Result<Self, VarDataError> {
        let refused = |field, found: &str, expected| VarDataError::Key { field, found: found.to_owned(), expected };
        if key.kty != "RSA" {
            return Err(refused("kty", &key.kty, "RSA"));
        }
        let modulus = base64url(&key.n).ok_or_else(|| refused("n", "malformed", "base64url without padding"))?;
        let exponent = base64url(&key.e).ok_or_else(|| refused("e", "malformed", "base64url without padding"))?;
        if !(256..=512).contains(&modulus.len()) {
            return Err(refused("n", &format!("{} bytes", modulus.len()), "256 to 512 bytes"));
        }
        if exponent != [1, 0, 1] {
            return Err(refused("e", &key.e, "AQAB, which is 65537"));
        }
        Ok(Self { modulus, exponent })
    }

    /// Whether this key signed the message, RSASSA-PKCS1-v1_5 with SHA-256 (RFC 8017 section 8.2).
    #[must_use]
    pub fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        RsaPublicKeyComponents { n: &self.modulus, e: &self.exponent }
            .verify(&RSA_PKCS1_2048_8192_SHA256, message, signature)
            .is_ok()
    }
}

#[derive(Deserialize)]
struct Written {
    keys: Vec<Jwk>,
    #[serde(rename = "vm-configuration")]
    vm_configuration: Option<Configuration>,
}

#[derive(Deserialize)]
struct Jwk {
    kid: String,
    kty: String,
    #[serde(default)]
    n: String,
    #[serde(default)]
    e: String,
}

#[derive(Deserialize)]
struct Configuration {
    #[serde(rename = "secure-boot")]
    secure_boot: Option<bool>,
}

/// RFC 4648 section 5, without padding; bits beyond the last byte must be zero.
pub(crate) fn base64url(text: &str) -> Option<Vec<u8>> {
    let (mut out, mut bits, mut held) = (Vec::with_capacity(text.len() * 3 / 4), 0u32, 0u32);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push(u8::try_from(bits >> held).ok()?);
            bits &= (1 << held) - 1;
        }
    }
    (held < 6 && bits == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_has_one_text_for_each_byte_string() {
        assert_eq!(base64url("AQAB"), Some(vec![1, 0, 1]));
        assert_eq!(base64url("-_8"), Some(vec![0xfb, 0xff]));
        for bad in ["AQ==", "A", "AR", "+/8", "A B"] {
            assert_eq!(base64url(bad), None, "{bad}");
        }
    }

    #[test]
    fn two_attestation_keys_are_none() {
        let key = r#"{"kid":"HCLAkPub","kty":"RSA","n":"AQAB","e":"AQAB"}"#;
        let refused = |json: &str| VarData::parse(json.as_bytes()).unwrap_err();
        assert_eq!(refused(r#"{"keys":[]}"#), VarDataError::Keys(0));
        assert_eq!(refused(&format!(r#"{{"keys":[{key},{key}]}}"#)), VarDataError::Keys(2));
        assert!(matches!(refused(&format!(r#"{{"keys":[{key}]}}"#)), VarDataError::Key { field: "n", .. }));
        assert!(matches!(refused(&format!(r#"{{"keys":[{key}],"keys":[{key}]}}"#)), VarDataError::Json(_)));
    }
}
