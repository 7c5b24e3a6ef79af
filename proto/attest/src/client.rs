//! The client's side of the exchange: challenge, evidence, judgement.

use crate::{
    Binding, Domain, Error, Opening, VERSION,
    binding::Parts,
    frame,
    release::SUITE,
    secrets::AdmissionKey,
    server::exporter,
    tls::{NAME, client_config, spki_sha256},
};
use proto::v1::{Admission, Challenge, Evidence, Platform, RuntimeValues};
use rustls::pki_types::ServerName;
use std::{future::Future, time::Duration};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// Decides about evidence. There is no stream without its approval.
pub trait Judge<D>: Send + Sync {
    /// What is known of a runtime that was approved.
    type Approval: Send;

    /// Whether `offer` is evidence of a runtime one wants to talk to.
    ///
    /// # Errors
    /// [`Error::Rejected`], or why it could not be judged.
    fn judge(&self, offer: &Offer<D>) -> impl Future<Output = Result<Self::Approval, Error>> + Send;
}

/// Evidence, and what it must be bound to as this end of the connection saw it.
pub struct Offer<D> {
    /// What the runtime sent.
    pub evidence: Evidence,
    /// Computed here; never taken from the runtime.
    pub binding: Binding,
    /// SHA-256 of the server's SubjectPublicKeyInfo: names the process.
    pub instance: [u8; 32],
    domain: std::marker::PhantomData<fn() -> D>,
}

/// Whose connection this is to be.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// Its key; like the tenant for messages alone, neither is sent.
    pub key_id: &'a str,
    /// What proves that we hold it.
    pub key: &'a AdmissionKey,
}

/// Takes a fresh connection through the exchange, one round trip after TLS; `credentials` are `None` to release a key.
///
/// # Errors
/// [`Error`]: the network, a peer of another revision or domain, rejected evidence, no admission.
pub async fn attest<D: Domain, J: Judge<D>>(
    tcp: TcpStream,
    judge: &J,
    credentials: Option<Credentials<'_>>,
) -> Result<(J::Approval, TlsStream<TcpStream>), Error> {
    let name = ServerName::try_from(NAME).map_err(|e| Error::Platform(format!("server name: {e}")))?;
    let late = |what: &'static str| move |_| Error::Wire(format!("{what}: no answer in time"));
    let connector = TlsConnector::from(client_config::<D>()?);
    let connected = timeout(HELLO, connector.connect(name, tcp)).await.map_err(late("TLS"))?;
    let mut tls = connected.map_err(|e| refusal_of_tls::<D>(&e))?;
    let (exporter, instance) = {
        let connection = tls.get_ref().1;
        let exporter = exporter::<D, _>(connection)?;
        let certificate = connection.peer_certificates().and_then(|c| c.first());
        let certificate = certificate.ok_or_else(|| Error::Wire("the runtime showed no certificate".into()))?;
        (exporter, spki_sha256(certificate)?)
    };
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|e| Error::Platform(format!("no entropy: {e}")))?;
    let proof = credentials.map(|c| c.key.prove(&Opening::new::<D>(&nonce, &exporter))).unwrap_or_default();
    let challenge =
        Challenge { version: VERSION, nonce: nonce.to_vec().into(), suite: SUITE.into(), proof: proof.into() };
    frame::write(&mut tls, "challenge", &challenge).await?;
    let evidence = timeout(EVIDENCE, frame::read::<Evidence>(&mut tls, "evidence", frame::EVIDENCE));
    let evidence = evidence.await.map_err(late("evidence"))??;
    let values = checked(&evidence)?;
    let parts = Parts { nonce: &nonce, exporter: &exporter, spki: &instance, values };
    let binding = Binding::new::<D>(parts);
    let offer = Offer { evidence, binding, instance, domain: std::marker::PhantomData };
    let approval = judge.judge(&offer).await?;
    match (offer.evidence.admission(), credentials) {
        (Admission::Tenant, Some(_)) | (Admission::Release, None) => Ok((approval, tls)),
        (Admission::Refused, Some(c)) => Err(Error::Refused(format!(
            "the runtime holds no key {:?} of tenant {:?} that fits ours: released never, to an earlier process, expired or revoked",
            c.key_id, c.tenant
        ))),
        (other, _) => Err(Error::Wire(format!("an admission of kind {other:?}"))),
    }
}

/// The values of evidence whose outer form is right.
fn checked(evidence: &Evidence) -> Result<&RuntimeValues, Error> {
    match evidence.refusal() {
        Admission::Unspecified => {}
        Admission::Busy => return Err(Error::Refused("the runtime attests to too many others; try again".into())),
        Admission::NoEvidence => {
            return Err(Error::Refused("the runtime's hardware gives no evidence; its log says why".into()));
        }
        Admission::Version => {
            return Err(Error::Version(format!(
                "the runtime speaks another revision than {VERSION} or another suite than {SUITE}"
            )));
        }
        other => return Err(Error::Wire(format!("a refusal of kind {other:?}"))),
    }
    if evidence.version != VERSION {
        return Err(Error::Version(format!("evidence of revision {}, expected {VERSION}", evidence.version)));
    }
    if evidence.platform() == Platform::Unspecified {
        return Err(Error::Wire(format!("evidence of an unknown platform ({})", evidence.platform)));
    }
    let values = evidence.values.as_ref().ok_or_else(|| Error::Wire("evidence without values".into()))?;
    for (name, bytes, expected) in [
        ("hpke_key", &values.hpke_key, XWING_PUBLIC_KEY),
        ("receipt_key", &values.receipt_key, 32),
        ("params_digest", &values.params_digest, 32),
        ("model_digest", &values.model_digest, 32),
        ("config_digest", &values.config_digest, 32),
    ] {
        if bytes.len() != expected {
            return Err(Error::Wire(format!("{name} of {} bytes, expected {expected}", bytes.len())));
        }
    }
    Ok(values)
}

fn refusal_of_tls<D: Domain>(error: &std::io::Error) -> Error {
    let alpn = rustls::AlertDescription::NoApplicationProtocol;
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    if inner == Some(&rustls::Error::AlertReceived(alpn)) {
        let ours = String::from_utf8_lossy(D::ALPN);
        return Error::Version(format!("the runtime does not speak {ours}: it is of another mode or revision"));
    }
    Error::Wire(format!("TLS: {error}"))
}

/// Bytes of an X-Wing public key: ML-KEM-768's 1184 and X25519's 32.
const XWING_PUBLIC_KEY: usize = 1216;
/// For one round trip.
const HELLO: Duration = Duration::from_secs(10);
/// A quote takes about a second, and others may wait before us.
const EVIDENCE: Duration = Duration::from_secs(60);
