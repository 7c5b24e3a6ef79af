//! The key file: TOML of known fields, each of them checked. Nothing here ever shows the root.

use attest_verify::hex::Sha256;
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::{Order, named};

/// Largest key file that is read, in bytes.
pub(super) const MAX_KEY_FILE: usize = 4 << 10;
/// Version of the form.
const VERSION: u32 = 1;

/// A key file before its fields are checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    version: Option<u32>,
    tenant: Option<String>,
    key_id: Option<String>,
    created: Option<u64>,
    expires_at: Option<u64>,
    params_digest: Option<String>,
    test: Option<bool>,
    root: Option<Text>,
}

/// A key file's fields.
pub(super) struct Checked {
    pub(super) tenant: String,
    pub(super) key_id: String,
    pub(super) expires_at: u64,
    pub(super) params_digest: Option<Sha256>,
    pub(super) test: bool,
    pub(super) root: Zeroizing<[u8; 32]>,
}

/// Text that is overwritten after use.
struct Text(Zeroizing<String>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

impl Written {
    /// # Errors
    /// A sentence naming line and field. Toml's own picture of the place is left out: it may show the root.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let at =
                error.span().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count() + 1);
            let field = at.and_then(|line| text.lines().nth(line - 1)).and_then(|line| line.split_once('='));
            let field = field.map(|(name, _)| name.trim()).filter(|name| FIELDS.contains(name));
            let place = match (at, field) {
                (Some(line), Some(field)) => format!("line {line}, {field}: "),
                (Some(line), None) => format!("line {line}: "),
                (None, _) => String::new(),
            };
            let message = if field == Some("root") { EXPECTED_ROOT } else { error.message() };
            format!("{place}{}", message.replace('\n', " "))
        })
    }

    /// # Errors
    /// A sentence naming the field, what was found and what was expected.
    pub(super) fn checked(self) -> Result<Checked, String> {
        let version = need("version", self.version, "1")?;
        if version != VERSION {
            return Err(format!("version is {version}, expected {VERSION}"));
        }
        let tenant = need("tenant", self.tenant, "a name")?;
        let key_id = need("key_id", self.key_id, "a name")?;
        named("tenant", &tenant)?;
        named("key_id", &key_id)?;
        need("created", self.created, "seconds since 1970")?;
        let expires_at = need("expires_at", self.expires_at, "seconds since 1970")?;
        let digest = self.params_digest.filter(|text| !text.is_empty());
        let digest = digest.map(|text| Sha256::parse(&text).map_err(|error| format!("params_digest is {error}")));
        let params_digest = digest.transpose()?;
        let test = need("test", self.test, "true or false")?;
        let Text(root) = need("root", self.root, "64 hexadecimal digits")?;
        let root = bytes(&root).ok_or_else(|| format!("root is {} characters, {EXPECTED_ROOT}", root.len()))?;
        Ok(Checked { tenant, key_id, expires_at, params_digest, test, root })
    }
}

const FIELDS: [&str; 8] = ["version", "tenant", "key_id", "created", "expires_at", "params_digest", "test", "root"];
const EXPECTED_ROOT: &str = "expected 64 hexadecimal digits";

fn need<T>(field: &str, found: Option<T>, expected: &str) -> Result<T, String> {
    found.ok_or_else(|| format!("{field} is missing, expected {expected}: the file is not whole"))
}

/// The text of a new key file.
pub(super) fn text(order: &Order, root: &[u8; 32]) -> Zeroizing<String> {
    let Order { tenant, key_id, created, expires_at, params_digest, test } = order;
    let params = params_digest.map(|digest| digest.to_string()).unwrap_or_default();
    // Large enough from the beginning, so that no copy is left behind by growing.
    let mut text = Zeroizing::new(String::with_capacity(MAX_KEY_FILE));
    text.push_str(&format!(
        "# A tenant's key. Whoever reads this file is the tenant: keep it at mode 600 and out of shared backups.\n\
         version = {VERSION}\ntenant = \"{tenant}\"\nkey_id = \"{key_id}\"\ncreated = {created}\n\
         expires_at = {expires_at}\nparams_digest = \"{params}\"\ntest = {test}\nroot = \""
    ));
    for byte in root {
        for digit in [byte >> 4, byte & 15] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
    text.push_str("\"\n");
    text
}

fn bytes(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut out = Zeroizing::new([0; 32]);
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            *byte = *byte << 4 | u8::try_from(char::from(*digit).to_digit(16)?).ok()?;
        }
    }
    Some(out)
}
