//! What stands before every request: a key that was released, and a model that is loaded.

use super::Served;
use crate::{
    attestation::Unlock,
    keys::{Held, Vault, now, session, tenant},
};
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status};

/// Nothing is served past it before a key was released; in local mode the process that started us has handed one over.
pub struct Front {
    served: OnceLock<Arc<Served>>,
    vault: Option<(Arc<Vault>, Arc<Unlock>)>,
    draining: CancellationToken,
}

impl Front {
    /// With keys in `vault`, or, in local mode, without; closed until [`Front::open`].
    pub fn new(vault: Option<(Arc<Vault>, Arc<Unlock>)>, draining: CancellationToken) -> Self {
        Self { served: OnceLock::new(), vault, draining }
    }

    /// There is something to serve.
    pub fn open(&self, served: Arc<Served>) {
        // Loaded once.
        let _ = self.served.set(served);
    }

    /// What is served, and the key of the connection that a request came on.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, `PERMISSION_DENIED` without a key, `UNAVAILABLE` while loading or draining.
    pub(super) fn admitted<T>(&self, request: &Request<T>) -> Result<(Arc<Served>, Option<Arc<Held>>), Status> {
        let held = match self.vault {
            None => None,
            Some(_) => Some(tenant(&*session(request)?)?),
        };
        if self.draining.is_cancelled() {
            return Err(Status::unavailable("the runtime is draining and takes no further requests"));
        }
        let served = self.served.get().cloned();
        Ok((served.ok_or_else(|| Status::unavailable("the model is being loaded; try again"))?, held))
    }

    /// Forgets what was computed under keys that ended lately.
    pub fn forget_ended(&self) {
        let (Some((vault, _)), Some(served)) = (&self.vault, self.served.get()) else { return };
        for digest in vault.ended_lately(now()) {
            let pages: usize = served.pools.iter().map(|pool| pool.forget(&digest)).sum();
            if pages > 0 {
                tracing::info!(pages, "pages of an ended key are forgotten");
            }
        }
    }

    /// Counts a request as running until the value is dropped.
    pub(super) fn running(&self, served: &Arc<Served>, held: Option<&Arc<Held>>) -> Running {
        served.answering.send_modify(|n| *n += 1);
        let under = self.vault.as_ref().and_then(|(_, unlock)| Some((unlock.clone(), held?.clone())));
        if let Some((unlock, held)) = &under {
            unlock.count(&held.tenant, &held.key_id, 1);
        }
        Running { answering: served.answering.clone(), under }
    }
}

/// A request that is being answered.
pub(super) struct Running {
    answering: watch::Sender<usize>,
    under: Option<(Arc<Unlock>, Arc<Held>)>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.answering.send_modify(|n| *n -= 1);
        if let Some((unlock, held)) = &self.under {
            unlock.count(&held.tenant, &held.key_id, -1);
        }
    }
}

/// Waits for the end of a key; without one, for ever.
pub(super) async fn ended(held: Option<&Held>) {
    match held {
        Some(held) => held.ended.cancelled().await,
        None => std::future::pending().await,
    }
}
