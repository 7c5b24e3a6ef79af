//! Key release: a tenant's key goes to a runtime that was verified, on the connection on which it was, and a receipt comes
//! back.
//!
//! [`release`] takes a [`VerifiedRuntime`], which exists only after verification, and a key of the same world. A runtime of
//! another world does not fit:
//!
//! ```compile_fail,E0308
//! # struct Toy;
//! # impl attest::Domain for Toy {
//! #     const MODE: &'static str = "toy";
//! #     const TAG: &'static [u8] = b"toy";
//! #     const ALPN: &'static [u8] = b"toy/1";
//! #     const EXPORTER: &'static [u8] = b"EXPORTER-toy";
//! #     const RELEASE: &'static [u8] = b"toy/release";
//! #     const BANNER: Option<&'static str> = Some("TOY");
//! # }
//! # impl attest_verify::Anchor for Toy {}
//! # impl client::Trust for Toy {
//! #     const TEST_KEYS: bool = true;
//! # }
//! use client::attested::VerifiedRuntime;
//! use client::key::TenantKey;
//! use client::release::{Extras, release};
//!
//! async fn leak(simulated: VerifiedRuntime<Toy>, key: TenantKey<attest::Hardware>) {
//!     let _ = release::<attest::Hardware>(simulated, key, Extras::default()).await;
//! }
//! ```
//!
//! One of its own does:
//!
//! ```
//! use client::attested::VerifiedRuntime;
//! use client::key::TenantKey;
//! use client::release::{Extras, release};
//!
//! async fn give(runtime: VerifiedRuntime<attest::Hardware>, key: TenantKey<attest::Hardware>) {
//!     let _ = release::<attest::Hardware>(runtime, key, Extras::default()).await;
//! }
//! ```

pub mod command;
mod receipt;
mod revoked;

use attest_verify::hex::{Hex, Sha256};
use proto::v1::{HeldKey, HeldRequest, KeyHeader, RevokeRequest};
use zeroize::Zeroizing;

use crate::Error;
use crate::attested::VerifiedRuntime;
use crate::key::TenantKey;
use crate::trust::Trust;
pub use receipt::{Asked, Kept, check};

/// What may go with a release.
#[derive(Default)]
pub struct Extras {
    /// The key of an encrypted model.
    pub model_key: Option<Zeroizing<Vec<u8>>>,
    /// Key of the tenant that is revoked as soon as the new one is held; empty for none.
    pub replaces: String,
}

/// Hands `key` to `runtime` and checks the receipt. Both are used up.
///
/// # Errors
/// [`Error::Usage`] if the key is for other parameter sets than the runtime's, before anything is sent;
/// [`Error::Runtime`] for a refusal or a receipt that is not about this release; [`Error::Platform`] if the connection
/// broke and it is not known whether the key arrived.
pub async fn release<W: Trust>(runtime: VerifiedRuntime<W>, key: TenantKey<W>, extras: Extras) -> Result<Kept, Error> {
    let values = runtime.values();
    let params = params(key.params_digest(), &values.params_digest)?;
    let header = KeyHeader {
        tenant: key.tenant().to_owned(),
        key_id: key.key_id().to_owned(),
        params_digest: params.0.to_vec().into(),
        expires_at: key.expires_at(),
        replaces: extras.replaces.clone(),
        ..KeyHeader::default()
    };
    let transcript = *runtime.verified().transcript();
    let asked = Asked {
        tenant: key.tenant().to_owned(),
        key_id: key.key_id().to_owned(),
        key_digest: key.admission().digest(),
        transcript,
        params_digest: params.0,
        expires_at: key.expires_at(),
    };
    let secrets = key.into_secrets(extras.model_key);
    let sealed = attest::release::seal::<W>(&values.hpke_key, &transcript, header, &secrets);
    let sealed = sealed.map_err(|error| Error::Runtime(error.to_string()))?;
    drop(secrets);
    let receipt = runtime.keys().release(sealed).await.map_err(|status| outcome(&status))?.into_inner();
    check::<W>(&receipt, &values.receipt_key, &asked).map_err(Error::Runtime)?;
    Ok(Kept::new(&runtime, &receipt, extras.replaces))
}

/// Takes a key of the admitted tenant away; returns how many requests that ended.
///
/// # Errors
/// As [`release`].
pub async fn revoke<W: Trust>(runtime: &VerifiedRuntime<W>, key_id: &str) -> Result<u32, Error> {
    let answer = runtime.keys().revoke(RevokeRequest { key_id: key_id.to_owned() }).await;
    Ok(answer.map_err(|status| outcome(&status))?.into_inner().ended)
}

/// The keys of the admitted tenant that the runtime holds.
///
/// # Errors
/// As [`release`].
pub async fn held<W: Trust>(runtime: &VerifiedRuntime<W>) -> Result<Vec<HeldKey>, Error> {
    let answer = runtime.keys().held(HeldRequest {}).await;
    Ok(answer.map_err(|status| outcome(&status))?.into_inner().keys)
}

/// What a status means: with a cause it is of the connection, else the runtime's own word.
fn outcome(status: &tonic::Status) -> Error {
    if std::error::Error::source(status).is_none() {
        return Error::from(status.clone());
    }
    let reason = status.message();
    Error::Platform(format!("the connection broke, and whether the key arrived is not known; --held tells: {reason}"))
}

/// The parameter sets that the release is for.
fn params(of_key: Option<Sha256>, of_runtime: &[u8]) -> Result<Sha256, Error> {
    let runtime: [u8; 32] = of_runtime.try_into().map_err(|_| {
        Error::Runtime(format!("params_digest of the runtime is {} bytes, expected 32", of_runtime.len()))
    })?;
    let runtime = Hex(runtime);
    match of_key {
        Some(key) if key != runtime => Err(Error::Usage(format!(
            "params_digest of the key is {key}, the runtime's is {runtime}: the key is for other parameters, nothing was sent"
        ))),
        _ => Ok(runtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_for_other_parameters_is_not_sent() {
        let (one, two) = (Hex([1; 32]), Hex([2; 32]));
        assert_eq!(params(None, &two.0).unwrap(), two);
        assert_eq!(params(Some(two), &two.0).unwrap(), two);
        let error = params(Some(one), &two.0).unwrap_err();
        assert_eq!(error.verdict_code(), 2);
        let error = error.to_string();
        assert!(error.contains(&one.to_string()) && error.contains(&two.to_string()), "{error}");
        assert!(params(None, &[1; 31]).is_err());
    }

    #[test]
    fn a_refusal_is_the_runtimes_word() {
        let error = outcome(&tonic::Status::failed_precondition("tenant acme holds k-1 already"));
        assert_eq!((error.verdict_code(), error.to_string().as_str()), (1, "tenant acme holds k-1 already"));
        let broken = tonic::Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(outcome(&broken).verdict_code(), 3);
    }
}
