//! Tenants' keys: what keeps the runtime locked until one is released, and what ends with each.
//!
//! The vault is memory only: whoever restarts the process has to release again.

mod service;

pub use service::KeysService;
pub(crate) use service::{session, tenant};

use attest::{
    Opening,
    secrets::{AdmissionKey, Secrets},
    server::Admissions,
};
use proto::v1::{HeldKey, KeyHeader};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// A key that was released. Its secrets are overwritten when the last request under it is over.
pub struct Held {
    /// Whose it is.
    pub tenant: String,
    /// Its name among the tenant's keys.
    pub key_id: String,
    /// When it was released, seconds since 1970.
    pub held_at: u64,
    /// When it ends, seconds since 1970.
    pub expires_at: u64,
    /// What the engine knows its requests by.
    pub digest: [u8; 32],
    /// Cancelled when the key has expired or was revoked.
    pub ended: CancellationToken,
    admission: AdmissionKey,
    /// When it was released by a clock that nobody can set back, and for how long it was.
    since: Instant,
    lasts: Duration,
}

impl Held {
    /// Whether requests may run under it. Does not depend on anybody having noticed its end.
    pub fn lives(&self, now: u64) -> bool {
        !self.ended.is_cancelled() && now < self.expires_at && self.since.elapsed() < self.lasts
    }
}

/// Why a key is not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A name that is none.
    #[error("{field} is {found:?}, expected 1 to 64 of A-Z a-z 0-9 . _ -")]
    Name {
        /// "tenant" or "key_id".
        field: &'static str,
        /// As it came.
        found: String,
    },
    /// Made for other parameter sets.
    #[error("the key is for parameters {found}, this runtime's are {expected}")]
    Params {
        /// Hexadecimal.
        found: String,
        /// Hexadecimal.
        expected: String,
    },
    /// Expired before it came, or lasts too long.
    #[error(
        "the key expires at {found} (seconds since 1970), expected after {after} and up to {until}; is a clock wrong?"
    )]
    Expiry {
        /// As it came.
        found: u64,
        /// Now.
        after: u64,
        /// The longest that is taken.
        until: u64,
    },
    /// Released twice.
    #[error("key {0:?} is held already")]
    Held(String),
    /// Revoked in this process.
    #[error("key {0:?} was revoked")]
    Revoked(String),
    /// The tenant has keys, and this connection does not belong to it.
    #[error("tenant {0:?} holds other keys: release further ones on a connection of that tenant (--as)")]
    Stranger(String),
    /// Nothing to replace.
    #[error("key {0:?}, to be replaced, is not held")]
    Replaces(String),
    /// Not among the tenants that the configuration names.
    #[error("tenant {0:?} is not among attestation.tenants, or its key is another one")]
    Tenant(String),
    /// Too many.
    #[error("{0} keys are held, and no more are taken")]
    Full(usize),
}

/// All keys that are held.
pub struct Vault {
    params: [u8; 32],
    /// Tenants that may release, with the digests of their admission keys where they are pinned; empty: anyone.
    tenants: Vec<(String, Option<String>)>,
    state: Mutex<State>,
    /// Counts calls of [`Vault::taken`].
    taken: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    held: BTreeMap<(String, String), Arc<Held>>,
    revoked: BTreeSet<(String, String)>,
    /// Digests of keys that have ended, and when.
    ended: Vec<([u8; 32], u64)>,
}

impl State {
    fn end(&mut self, key: &(String, String), now: u64) -> Option<Arc<Held>> {
        let held = self.held.remove(key)?;
        held.ended.cancel();
        self.ended.push((held.digest, now));
        Some(held)
    }
}

impl Vault {
    /// An empty vault of a runtime with these parameter sets. `tenants` is "name" or "name:DIGEST", separated by commas.
    #[must_use]
    pub fn new(params: [u8; 32], tenants: &str) -> Self {
        let entry = |text: &str| match text.split_once(':') {
            Some((name, digest)) => (name.to_owned(), Some(digest.to_ascii_lowercase())),
            None => (text.to_owned(), None),
        };
        let tenants = tenants.split(',').map(str::trim).filter(|t| !t.is_empty()).map(entry).collect();
        Self { params, tenants, state: Mutex::default(), taken: watch::Sender::new(0) }
    }

    /// Takes a key. `by` is the tenant of the connection, if it has one.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has changed then.
    pub fn take(
        &self,
        header: &KeyHeader,
        secrets: &Secrets,
        by: Option<&Held>,
        now: u64,
    ) -> Result<Arc<Held>, Refusal> {
        name("tenant", &header.tenant)?;
        name("key_id", &header.key_id)?;
        if header.params_digest != self.params[..] {
            let (found, expected) = (hex(&header.params_digest), hex(&self.params));
            return Err(Refusal::Params { found, expected });
        }
        let until = now + LONGEST;
        if header.expires_at <= now || header.expires_at > until {
            return Err(Refusal::Expiry { found: header.expires_at, after: now, until });
        }
        let admission = secrets.admission();
        let digest = admission.digest();
        let known = |(name, pin): &(String, Option<String>)| {
            *name == header.tenant && pin.as_ref().is_none_or(|pin| *pin == hex(&digest))
        };
        // A tenant that is here already may bring a key that nobody could pin before it was drawn.
        let own = by.is_some_and(|by| by.tenant == header.tenant && by.lives(now));
        if !own && !self.tenants.is_empty() && !self.tenants.iter().any(known) {
            return Err(Refusal::Tenant(header.tenant.clone()));
        }
        let mut state = self.state();
        let key = (header.tenant.clone(), header.key_id.clone());
        if state.held.contains_key(&key) {
            return Err(Refusal::Held(key.1));
        }
        if state.revoked.contains(&key) {
            return Err(Refusal::Revoked(key.1));
        }
        if !own && state.held.keys().any(|(tenant, _)| *tenant == header.tenant) {
            return Err(Refusal::Stranger(key.0));
        }
        let replaced = (header.tenant.clone(), header.replaces.clone());
        if !header.replaces.is_empty() && !state.held.contains_key(&replaced) {
            return Err(Refusal::Replaces(header.replaces.clone()));
        }
        if state.held.len() >= MOST {
            return Err(Refusal::Full(MOST));
        }
        let held = Arc::new(Held {
            tenant: key.0.clone(),
            key_id: key.1.clone(),
            held_at: now,
            expires_at: header.expires_at,
            digest,
            ended: CancellationToken::new(),
            admission,
            since: Instant::now(),
            lasts: Duration::from_secs(header.expires_at - now),
        });
        state.held.insert(key, held.clone());
        if state.end(&replaced, now).is_some() {
            state.revoked.insert(replaced);
        }
        drop(state);
        // Before anything is drawn under the key.
        trusted_he::contribute(&secrets.derive("masks, encryption, sealed pages"));
        Ok(held)
    }

    /// Says that everything about a key that was taken is in its place; the first one unlocks the runtime.
    pub fn taken(&self) {
        self.taken.send_modify(|n| *n += 1);
    }

    /// Takes a key away for good; false if it is not held.
    pub fn revoke(&self, tenant: &str, key_id: &str, now: u64) -> bool {
        let mut state = self.state();
        let key = (tenant.to_owned(), key_id.to_owned());
        state.end(&key, now).is_some() && state.revoked.insert(key)
    }

    /// Ends the keys whose time is over, and returns them.
    pub fn expire(&self, now: u64) -> Vec<Arc<Held>> {
        let mut state = self.state();
        let over: Vec<_> = state.held.iter().filter(|(_, k)| !k.lives(now)).map(|(k, _)| k.clone()).collect();
        over.iter().filter_map(|key| state.end(key, now)).collect()
    }

    /// Digests of keys that ended a short while ago: what ran under them may have left something behind since.
    pub fn ended_lately(&self, now: u64) -> Vec<[u8; 32]> {
        let mut state = self.state();
        state.ended.retain(|(_, at)| at + LINGER >= now);
        state.ended.iter().map(|(digest, _)| *digest).collect()
    }

    /// The keys of a tenant.
    pub fn of(&self, tenant: &str) -> Vec<HeldKey> {
        let state = self.state();
        let own = state.held.values().filter(|held| held.tenant == tenant);
        own.map(|h| HeldKey { key_id: h.key_id.clone(), held_at: h.held_at, expires_at: h.expires_at }).collect()
    }

    /// How many keys are held.
    pub fn count(&self) -> usize {
        self.state().held.len()
    }

    /// Waits for the first key.
    pub async fn unlocked(&self) {
        // The sender lives as long as the vault.
        let _ = self.taken.subscribe().wait_for(|n| *n > 0).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete when the lock is given up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets tenants in whose keys the vault holds.
pub struct Gate(pub Arc<Vault>);

impl Admissions for Gate {
    type Tenant = Arc<Held>;

    /// The proof names nobody, so every key is asked, the one that fits as long as the others.
    fn admit(&self, proof: &[u8], opening: &Opening) -> Option<Arc<Held>> {
        let now = now();
        let state = self.0.state();
        state.held.values().fold(None, |found, held| {
            let fits = held.admission.verify(opening, proof);
            if fits && held.lives(now) { Some(held.clone()) } else { found }
        })
    }

    fn ended(&self, tenant: &Arc<Held>) -> impl Future<Output = ()> + Send + 'static {
        tenant.ended.clone().cancelled_owned()
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

fn name(field: &'static str, text: &str) -> Result<(), Refusal> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    if (1..=64).contains(&text.len()) && text.bytes().all(good) {
        return Ok(());
    }
    Err(Refusal::Name { field, found: text.chars().take(80).collect() })
}

/// Lower case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing into a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Seconds in which everything that ran under an ended key has noticed.
const LINGER: u64 = 60;
/// A key lasts 400 days at most.
const LONGEST: u64 = 400 * 86_400;
/// Keys of all tenants.
const MOST: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::Zeroizing;

    const NOW: u64 = 1_800_000_000;
    const PARAMS: [u8; 32] = [9; 32];

    fn header(tenant: &str, key_id: &str) -> KeyHeader {
        KeyHeader {
            tenant: tenant.into(),
            key_id: key_id.into(),
            params_digest: PARAMS.to_vec().into(),
            expires_at: NOW + 100,
            ..Default::default()
        }
    }

    fn secrets(n: u8) -> Secrets {
        Secrets::new(Zeroizing::new([n; 32]), None)
    }

    #[test]
    fn a_key_is_taken_once_and_ends_by_time_or_by_revocation() {
        let vault = Vault::new(PARAMS, "");
        let held = vault.take(&header("acme", "k1"), &secrets(1), None, NOW).unwrap();
        let again = vault.take(&header("acme", "k1"), &secrets(1), Some(&held), NOW);
        assert_eq!(again.err(), Some(Refusal::Held("k1".into())));
        assert!(vault.expire(NOW + 99).is_empty() && !held.ended.is_cancelled());
        assert_eq!(vault.expire(NOW + 100).len(), 1);
        assert!(held.ended.is_cancelled() && vault.count() == 0);
        assert_eq!((vault.ended_lately(NOW + 101).len(), vault.ended_lately(NOW + 300).len()), (1, 0));
        let second = vault.take(&header("acme", "k2"), &secrets(1), None, NOW).unwrap();
        assert!(vault.revoke("acme", "k2", NOW) && second.ended.is_cancelled() && !vault.revoke("acme", "k2", NOW));
        let again = vault.take(&header("acme", "k2"), &secrets(1), None, NOW);
        assert_eq!(again.err(), Some(Refusal::Revoked("k2".into())));
    }

    #[test]
    fn rotation_ends_the_replaced_key_and_strangers_cannot_touch_a_tenant() {
        let vault = Vault::new(PARAMS, "");
        let first = vault.take(&header("acme", "k1"), &secrets(1), None, NOW).unwrap();
        let other = vault.take(&header("other", "k1"), &secrets(2), None, NOW).unwrap();
        let rotate = KeyHeader { replaces: "k1".into(), ..header("acme", "k2") };
        for by in [None, Some(&*other)] {
            let refused = vault.take(&rotate, &secrets(3), by, NOW).err();
            assert_eq!(refused, Some(Refusal::Stranger("acme".into())));
        }
        let missing = KeyHeader { replaces: "k7".into(), ..header("acme", "k2") };
        assert_eq!(vault.take(&missing, &secrets(3), Some(&first), NOW).err(), Some(Refusal::Replaces("k7".into())));
        assert!(!first.ended.is_cancelled());
        vault.take(&rotate, &secrets(3), Some(&first), NOW).unwrap();
        assert!(first.ended.is_cancelled() && !other.ended.is_cancelled());
        assert_eq!(vault.of("acme").iter().map(|k| k.key_id.as_str()).collect::<Vec<_>>(), ["k2"]);
    }

    #[test]
    fn keys_that_do_not_fit_are_refused_by_field() {
        let vault = Vault::new(PARAMS, "acme");
        let take = |header: &KeyHeader| vault.take(header, &secrets(1), None, NOW).err().unwrap().to_string();
        for (header, says) in [
            (header("", "k1"), "tenant is \"\""),
            (header("acme", "k 1"), "key_id is \"k 1\""),
            (header("acme", &"k".repeat(65)), "1 to 64"),
            (KeyHeader { params_digest: vec![8; 32].into(), ..header("acme", "k1") }, "the key is for parameters 0808"),
            (KeyHeader { expires_at: NOW, ..header("acme", "k1") }, "is a clock wrong"),
            (KeyHeader { expires_at: NOW + LONGEST + 1, ..header("acme", "k1") }, "is a clock wrong"),
            (header("other", "k1"), "not among attestation.tenants"),
        ] {
            let error = take(&header);
            assert!(error.contains(says), "{says}: {error}");
        }
        let pinned = Vault::new(PARAMS, &format!("acme:{}", hex(&secrets(1).admission().digest())));
        assert!(pinned.take(&header("acme", "k1"), &secrets(2), None, NOW).is_err());
        assert!(pinned.take(&header("acme", "k1"), &secrets(1), None, NOW).is_ok());
    }
}
