//! A tenant's key: a file that only its owner can read, loaded into memory that is overwritten after use.

mod written;

use std::marker::PhantomData;
use std::path::Path;

use attest::client::Credentials;
use attest::secrets::{AdmissionKey, Secrets};
use attest_verify::hex::Sha256;
use zeroize::Zeroizing;

use crate::Error;
use crate::file::{create, secret};
use crate::trust::{Trust, time_of};
use written::{MAX_KEY_FILE, Written};

/// Longest name of a tenant or a key, in bytes.
const MAX_NAME: usize = 64;

/// A tenant's key that belongs to the world `W`. Not `Clone`, not `Debug`.
pub struct TenantKey<W> {
    tenant: String,
    key_id: String,
    expires_at: u64,
    params_digest: Option<Sha256>,
    root: Zeroizing<[u8; 32]>,
    world: PhantomData<fn() -> W>,
}

/// What a new key is to be.
#[derive(Clone, Debug)]
pub struct Order {
    /// Whose it is.
    pub tenant: String,
    /// Its name.
    pub key_id: String,
    /// Seconds since 1970 when it is made.
    pub created: u64,
    /// Seconds since 1970 when it expires.
    pub expires_at: u64,
    /// Parameter sets it is for; decided at release if absent.
    pub params_digest: Option<Sha256>,
    /// Whether it is for simulated runtimes.
    pub test: bool,
}

impl<W: Trust> TenantKey<W> {
    /// Reads a key file. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// [`Error::File`]: not readable, readable by others, half-written, with a field that does not belong there, expired,
    /// or of another world.
    pub fn load(path: &Path, now: u64) -> Result<Self, Error> {
        let wrong = |reason: String| Error::file(path, reason);
        let text = secret(path, MAX_KEY_FILE)?;
        let text = str::from_utf8(&text).map_err(|_| wrong("key file is not UTF-8".into()))?;
        let fields = Written::parse(text).and_then(Written::checked).map_err(wrong)?;
        if fields.test != W::TEST_KEYS {
            let (found, expected) = (fields.test, W::TEST_KEYS);
            let world = if expected {
                "simulated runtimes get test keys alone"
            } else {
                "a test key is for simulated runtimes"
            };
            return Err(Error::file(path, format!("test is {found}, expected {expected}: {world}")));
        }
        if fields.expires_at <= now {
            let (end, now) = (time_of(fields.expires_at), time_of(now));
            return Err(Error::file(
                path,
                format!("expires_at is {end}, expected later than {now}: the key is expired"),
            ));
        }
        let written::Checked { tenant, key_id, expires_at, params_digest, root, .. } = fields;
        Ok(Self { tenant, key_id, expires_at, params_digest, root, world: PhantomData })
    }
}

impl<W> TenantKey<W> {
    /// Whose it is.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// Its name.
    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    /// Seconds since 1970 when it expires.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        self.expires_at
    }

    /// Parameter sets it is for, if that is decided.
    #[must_use]
    pub fn params_digest(&self) -> Option<Sha256> {
        self.params_digest
    }

    /// What proves that we hold it.
    #[must_use]
    pub fn admission(&self) -> AdmissionKey {
        AdmissionKey::of(&self.root)
    }

    /// For a connection of this tenant.
    #[must_use]
    pub fn credentials<'a>(&'a self, admission: &'a AdmissionKey) -> Credentials<'a> {
        Credentials { tenant: &self.tenant, key_id: &self.key_id, key: admission }
    }

    /// What a release hands over.
    pub(crate) fn into_secrets(self, model_key: Option<Zeroizing<Vec<u8>>>) -> Secrets {
        Secrets::new(self.root, model_key)
    }
}

/// Draws a key into a new file, and returns the digest of its admission key, which names it in receipts.
///
/// # Errors
/// [`Error::File`] if the file exists or cannot be written, [`Error::Usage`] for names, [`Error::Platform`] without
/// entropy.
pub fn draw(path: &Path, order: &Order) -> Result<Sha256, Error> {
    for (field, name) in [("tenant", &order.tenant), ("key_id", &order.key_id)] {
        named(field, name).map_err(Error::Usage)?;
    }
    let root = Secrets::draw().map_err(|error| Error::Platform(error.to_string()))?;
    create(path, written::text(order, &root).as_bytes())?;
    Ok(attest_verify::hex::Hex(AdmissionKey::of(&root).digest()))
}

/// Names go into file names and logs.
pub(crate) fn named(field: &str, name: &str) -> Result<(), String> {
    let within = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    let bytes = name.as_bytes();
    let good = bytes.len() <= MAX_NAME
        && ends(bytes.first().copied())
        && ends(bytes.last().copied())
        && bytes.iter().all(|byte| within(*byte));
    let shown: String = name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect();
    let expected = format!("expected 1 to {MAX_NAME} letters and digits, with . _ - inside");
    if good { Ok(()) } else { Err(format!("{field} is {shown:?}, {expected}")) }
}

#[cfg(test)]
mod tests;
