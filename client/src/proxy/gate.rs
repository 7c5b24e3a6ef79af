//! Who may come in: API keys and their limits, the bound on everybody together, draining.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::bucket::Bucket;
use super::config::{Config, KeyConfig};
use super::refusal::Refusal;

/// The door of one proxy.
pub(super) struct Gate {
    keys: Vec<Arc<Key>>,
    max_concurrent: usize,
    answering: watch::Sender<usize>,
    draining: AtomicBool,
}

/// A caller. Without configured keys there is one that everybody is.
pub(super) struct Key {
    digest: Option<[u8; 32]>,
    max_concurrent: Option<usize>,
    state: Mutex<State>,
}

struct State {
    running: usize,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

impl Gate {
    /// The door that `config` describes.
    pub(super) fn new(config: &Config) -> Self {
        let now = Instant::now();
        let mut keys: Vec<_> = config.keys.iter().map(|key| Arc::new(Key::new(key, now))).collect();
        if keys.is_empty() {
            let state = Mutex::new(State { running: 0, requests: None, tokens: None });
            keys.push(Arc::new(Key { digest: None, max_concurrent: None, state }));
        }
        let (answering, draining) = (watch::Sender::new(0), AtomicBool::new(false));
        Self { keys, max_concurrent: config.max_concurrent, answering, draining }
    }

    /// Whose key the request carries.
    ///
    /// # Errors
    /// 401.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Result<Arc<Key>, Refusal> {
        if let [only] = &self.keys[..]
            && only.digest.is_none()
        {
            return Ok(only.clone());
        }
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
        let (scheme, key) = shown.ok_or_else(Refusal::unauthorized)?;
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Err(Refusal::unauthorized());
        }
        let shown: [u8; 32] = Sha256::digest(key).into();
        // Every key is looked at, so that the time says nothing about which one it was.
        let mut found = None;
        for key in &self.keys {
            if key.digest.as_ref().is_some_and(|digest| same(digest, &shown)) {
                found = Some(key);
            }
        }
        found.cloned().ok_or_else(Refusal::unauthorized)
    }

    /// Lets a request of `key` in, or says when to come again.
    ///
    /// # Errors
    /// 503 while draining, 429 beyond a limit.
    pub(super) fn enter(self: &Arc<Self>, key: &Arc<Key>, now: Instant) -> Result<Admission, Refusal> {
        if self.is_draining() {
            return Err(Refusal::unavailable("this endpoint is shutting down and takes no further requests"));
        }
        let mut state = key.lock();
        if key.max_concurrent.is_some_and(|max| state.running >= max) {
            return Err(Refusal::busy(format!("{} requests of this key run already", state.running)));
        }
        if let Some(wait) = state.tokens.as_mut().and_then(|tokens| tokens.wait(1.0, now)) {
            return Err(Refusal::limited("this key's tokens per minute are used up", wait));
        }
        if let Some(wait) = state.requests.as_mut().and_then(|requests| requests.wait(1.0, now)) {
            return Err(Refusal::limited("this key's requests per minute are used up", wait));
        }
        let entered = self.answering.send_if_modified(|n| {
            let room = *n < self.max_concurrent;
            *n += usize::from(room);
            room
        });
        if !entered {
            return Err(Refusal::busy(format!("{} requests run already, as many as may", self.max_concurrent)));
        }
        state.running += 1;
        if let Some(requests) = &mut state.requests {
            requests.take(1.0);
        }
        drop(state);
        Ok(Admission { gate: self.clone(), key: key.clone() })
    }

    /// Takes no further requests.
    pub(super) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Waits until nothing is being answered.
    pub(super) async fn quiet(&self) {
        let mut answering = self.answering.subscribe();
        let _ = answering.wait_for(|n| *n == 0).await;
    }
}

impl Key {
    fn new(config: &KeyConfig, now: Instant) -> Self {
        let bucket = |rate: Option<u32>| rate.map(|rate| Bucket::new(rate, now));
        let (requests, tokens) = (bucket(config.requests_per_minute), bucket(config.tokens_per_minute));
        let state = Mutex::new(State { running: 0, requests, tokens });
        Self { digest: config.digest(), max_concurrent: config.max_concurrent, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was let in. Dropping it makes room.
pub(super) struct Admission {
    gate: Arc<Gate>,
    key: Arc<Key>,
}

impl Admission {
    /// A name of the key's holder that says nothing about the key, so that the runtime can tell tenants apart.
    pub(super) fn tenant(&self) -> String {
        let digest = self.key.digest.map(Sha256::digest);
        digest.map_or_else(|| "anyone".into(), |digest| digest.iter().take(16).map(|b| format!("{b:02x}")).collect())
    }

    /// Charges tokens of prompts and answers.
    pub(super) fn charge(&self, tokens: u64) {
        if let Some(bucket) = &mut self.key.lock().tokens {
            bucket.take(u32::try_from(tokens).map_or(f64::from(u32::MAX), f64::from));
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut state = self.key.lock();
        state.running = state.running.saturating_sub(1);
        drop(state);
        self.gate.answering.send_modify(|n| *n = n.saturating_sub(1));
    }
}

/// Compares without stopping at the first difference.
fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn gate(limits: &str) -> Arc<Gate> {
        let args = crate::proxy::tests::args(&format!("[[keys]]\nname = \"a\"\nsha256 = \"{HELLO}\"\n{limits}"));
        Arc::new(Gate::new(&Config::load(&args.0).unwrap()))
    }

    fn shown(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())])
    }

    #[test]
    fn only_the_right_key_is_let_in() {
        let gate = gate("");
        assert!(gate.caller(&shown("Bearer hello")).is_ok() && gate.caller(&shown("bearer hello")).is_ok());
        for wrong in ["Bearer hellO", "Bearer ", "Bearer", "Basic hello", "hello", "Bearer hello "] {
            assert_eq!(gate.caller(&shown(wrong)).map(|_| ()).unwrap_err().status, 401, "{wrong}");
        }
        assert_eq!(gate.caller(&HeaderMap::new()).map(|_| ()).unwrap_err().status, 401);
        assert!(
            same(&[7; 32], &[7; 32])
                && !same(&[7; 32], &{
                    let mut a = [7; 32];
                    a[31] = 6;
                    a
                })
        );
    }

    #[test]
    fn limits_say_when_to_come_again_and_dropping_makes_room() {
        let (g, now) = (gate("max_concurrent = 1"), Instant::now());
        let key = g.caller(&shown("Bearer hello")).unwrap();
        let first = g.enter(&key, now).unwrap();
        assert_eq!(g.enter(&key, now).map(|_| ()).unwrap_err().retry_after, Some(1));
        drop(first);
        let again = g.enter(&key, now).unwrap();
        g.drain();
        assert_eq!(g.enter(&key, now).map(|_| ()).unwrap_err().status, 503);
        drop(again);
        assert_eq!(*g.answering.borrow(), 0);

        let g = gate("requests_per_minute = 2\ntokens_per_minute = 600");
        let key = g.caller(&shown("Bearer hello")).unwrap();
        let now = Instant::now() + Duration::from_secs(1);
        g.enter(&key, now).unwrap().charge(700);
        let refused = g.enter(&key, now).map(|_| ()).unwrap_err();
        assert!(refused.message.contains("tokens per minute") && refused.retry_after == Some(11));
        let later = now + Duration::from_secs(12);
        drop(g.enter(&key, later).unwrap());
        let refused = g.enter(&key, later).map(|_| ()).unwrap_err();
        assert!(refused.message.contains("requests per minute") && refused.retry_after == Some(18), "{refused:?}");
    }
}
