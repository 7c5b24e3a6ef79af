//! The `Keys` gRPC service: release, revocation, what is held. Attested connections only.

use super::{Held, Refusal, Vault, now};
use crate::{attestation::Unlock, metrics::Metrics};
use attest::server::Session;
use proto::v1::{HeldRequest, HeldResponse, Receipt, ReleaseRequest, RevokeRequest, RevokeResponse, keys_server::Keys};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct KeysService {
    /// Where keys are held.
    pub vault: Arc<Vault>,
    /// What a released model key is for.
    pub unlock: Arc<Unlock>,
    /// Counters.
    pub metrics: Metrics,
}

#[tonic::async_trait]
impl Keys for KeysService {
    #[tracing::instrument(name = "release", skip_all)]
    async fn release(&self, request: Request<ReleaseRequest>) -> Result<Response<Receipt>, Status> {
        let session = session(&request)?;
        let outcome = self.take(&session, request.get_ref());
        self.metrics.released(outcome.is_ok());
        let (held, receipt) =
            outcome.inspect_err(|status| tracing::warn!(reason = status.message(), "release refused"))?;
        tracing::info!(
            tenant = held.tenant,
            key_id = held.key_id,
            expires_at = held.expires_at,
            keys = self.vault.count(),
            "a key was released to this runtime"
        );
        Ok(Response::new(receipt))
    }

    #[tracing::instrument(name = "revoke", skip_all)]
    async fn revoke(&self, request: Request<RevokeRequest>) -> Result<Response<RevokeResponse>, Status> {
        let session = session(&request)?;
        let by = tenant(&session)?;
        let key_id = &request.get_ref().key_id;
        let running = self.unlock.running(&by.tenant, key_id);
        if !self.vault.revoke(&by.tenant, key_id, now()) {
            return Err(Status::not_found(format!("tenant {:?} holds no key {key_id:?}", by.tenant)));
        }
        tracing::warn!(tenant = by.tenant, key_id, ended = running, "a key was revoked");
        Ok(Response::new(RevokeResponse { ended: running }))
    }

    async fn held(&self, request: Request<HeldRequest>) -> Result<Response<HeldResponse>, Status> {
        let session = session(&request)?;
        let by = tenant(&session)?;
        Ok(Response::new(HeldResponse { keys: self.vault.of(&by.tenant) }))
    }
}

impl KeysService {
    fn take(&self, session: &Session<Arc<Held>>, request: &ReleaseRequest) -> Result<(Arc<Held>, Receipt), Status> {
        let (header, secrets) = session.open(request).map_err(|e| Status::invalid_argument(e.to_string()))?;
        self.unlock.check(&secrets).map_err(|e| Status::failed_precondition(e.to_string()))?;
        let by = session.tenant().map(|held| &**held);
        let held = self.vault.take(&header, &secrets, by, now()).map_err(|e| refused(&e))?;
        self.unlock.model_key(&secrets);
        self.vault.taken();
        let receipt = session.sign(Receipt {
            tenant: held.tenant.clone(),
            key_id: held.key_id.clone(),
            key_digest: held.digest.to_vec().into(),
            transcript: session.transcript().to_vec().into(),
            params_digest: header.params_digest,
            held_at: held.held_at,
            expires_at: held.expires_at,
            signature: Default::default(),
        });
        Ok((held, receipt))
    }
}

fn refused(refusal: &Refusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        Refusal::Name { .. } | Refusal::Expiry { .. } => Status::invalid_argument(message),
        Refusal::Params { .. } | Refusal::Revoked(_) => Status::failed_precondition(message),
        Refusal::Held(_) => Status::already_exists(message),
        Refusal::Stranger(_) | Refusal::Tenant(_) => Status::permission_denied(message),
        Refusal::Replaces(_) => Status::not_found(message),
        Refusal::Full(_) => Status::resource_exhausted(message),
    }
}

/// The connection that a request came on; it attested, or it would not be there.
///
/// # Errors
/// `UNAUTHENTICATED` when its time is over.
pub(crate) fn session<T>(request: &Request<T>) -> Result<Arc<Session<Arc<Held>>>, Status> {
    let session = request.extensions().get::<Arc<Session<Arc<Held>>>>().cloned();
    let session = session.ok_or_else(|| Status::unauthenticated("this connection has not attested"))?;
    if session.not_after() < now() {
        return Err(Status::unauthenticated("this connection's evidence is too old; connect again"));
    }
    Ok(session)
}

/// Whose connection it is.
///
/// # Errors
/// `PERMISSION_DENIED` for one that belongs to nobody, or whose key has ended.
pub(crate) fn tenant(session: &Session<Arc<Held>>) -> Result<Arc<Held>, Status> {
    let held = session.tenant().cloned();
    let held = held.ok_or_else(|| {
        Status::permission_denied("locked: this connection belongs to no tenant whose key was released")
    })?;
    if !held.lives(now()) {
        return Err(Status::permission_denied(format!("key {:?} has expired or was revoked", held.key_id)));
    }
    Ok(held)
}
