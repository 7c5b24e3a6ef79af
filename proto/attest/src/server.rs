//! The runtime's door: TLS, challenge, evidence; what comes out is a connection that attested.
//!
//! gRPC is served on [`Attested`] streams only, so there is no RPC on a connection without evidence, and a connection
//! that was opened again has evidence of its own.

use crate::{
    Binding, Domain, Error, Opening, VERSION,
    attested::Ends,
    binding::Parts,
    frame,
    release::{ReceiptKey, ReleaseKey, SUITE},
    secrets::Secrets,
    source::Source,
    tls::ServerIdentity,
    waiting::{Limits, Place, Waiting},
};

pub use crate::attested::Attested;
use proto::v1::{Admission, Challenge, Evidence, KeyHeader, Receipt, ReleaseRequest, RuntimeValues};
use std::{
    future::Future,
    marker::PhantomData,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// What the runtime says of itself on every connection.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Digest of the parameter sets it may use.
    pub params_digest: [u8; 32],
    /// SHA-256 of the model as it lies on disk.
    pub model_digest: [u8; 32],
    /// SHA-256 of the effective configuration.
    pub config_digest: [u8; 32],
    /// Its version.
    pub software: String,
    /// For how long a connection may be used.
    pub session: Duration,
}

/// Knows which tenants' keys are held.
pub trait Admissions: Send + Sync + 'static {
    /// Who a connection belongs to.
    type Tenant: Clone + Send + Sync + 'static;

    /// The tenant one of whose keys made `proof` for the connection of `opening`; `None` if no such key is held.
    fn admit(&self, proof: &[u8], opening: &Opening) -> Option<Self::Tenant>;

    /// Resolves when the key that `tenant` was admitted by has ended, and never if it cannot.
    fn ended(&self, tenant: &Self::Tenant) -> impl Future<Output = ()> + Send + 'static;
}

/// Opens the one release of a connection.
type Opener = Box<dyn FnOnce(&ReleaseRequest) -> Result<(KeyHeader, Secrets), Error> + Send>;
/// Signs receipts.
type Signer = Arc<dyn Fn(Receipt) -> Receipt + Send + Sync>;

/// What is known of a connection that attested.
pub struct Session<T> {
    transcript: [u8; 32],
    not_after: u64,
    tenant: Option<T>,
    opener: Mutex<Option<Opener>>,
    signer: Signer,
}

impl<T> Session<T> {
    /// Names the connection.
    #[must_use]
    pub fn transcript(&self) -> &[u8; 32] {
        &self.transcript
    }

    /// Seconds since 1970 after which the client must attest again.
    #[must_use]
    pub fn not_after(&self) -> u64 {
        self.not_after
    }

    /// Who it belongs to; `None` where keys can be released and nothing else.
    #[must_use]
    pub fn tenant(&self) -> Option<&T> {
        self.tenant.as_ref()
    }

    /// Opens a release. The secret key is gone afterwards, whatever came of it.
    ///
    /// # Errors
    /// [`Error::Key`] as [`ReleaseKey::open`], and for a second release on one connection.
    pub fn open(&self, request: &ReleaseRequest) -> Result<(KeyHeader, Secrets), Error> {
        let opener = self.opener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let opener =
            opener.ok_or_else(|| Error::Key("this connection has had its release; open another one".into()))?;
        opener(request)
    }

    /// A receipt, signed.
    #[must_use]
    pub fn sign(&self, receipt: Receipt) -> Receipt {
        (self.signer)(receipt)
    }
}

/// Lets connections in, once they have got their evidence.
pub struct Acceptor<D, A> {
    identity: ServerIdentity,
    source: Arc<Mutex<Box<dyn Source>>>,
    /// Taken for the time of one statement: the hardware has one buffer.
    turn: tokio::sync::Mutex<()>,
    receipts: Arc<ReceiptKey>,
    settings: Settings,
    admissions: A,
    waiting: Arc<Waiting>,
    /// Connections of no tenant, from their challenge until they close.
    strangers: Arc<Waiting>,
    domain: PhantomData<fn() -> D>,
}

impl<D: Domain, A: Admissions> Acceptor<D, A> {
    /// With a TLS key and a receipt key drawn now.
    ///
    /// # Errors
    /// [`Error::Platform`] if they cannot be drawn.
    pub fn new(source: Box<dyn Source>, settings: Settings, admissions: A) -> Result<Self, Error> {
        Ok(Self {
            identity: ServerIdentity::draw::<D>()?,
            source: Arc::new(Mutex::new(source)),
            turn: tokio::sync::Mutex::new(()),
            receipts: Arc::new(ReceiptKey::draw()?),
            settings,
            admissions,
            waiting: Waiting::new(QUEUE),
            strangers: Waiting::new(STRANGERS),
            domain: PhantomData,
        })
    }

    /// SHA-256 of the TLS key's SubjectPublicKeyInfo, which names this process.
    #[must_use]
    pub fn instance(&self) -> &[u8; 32] {
        self.identity.instance()
    }

    /// Evidence about nothing, to find out at start whether there is any.
    ///
    /// # Errors
    /// The source's.
    pub async fn probe(&self) -> Result<(), Error> {
        self.collect([0; 64]).await.map(drop)
    }

    /// Takes a connection through the exchange.
    ///
    /// # Errors
    /// [`Error`], for the own log; the client has been told as much as it may know.
    pub async fn accept(&self, tcp: TcpStream, peer: IpAddr) -> Result<Attested<A::Tenant>, Error> {
        let place = self.waiting.enter(peer);
        if matches!(place, Place::Flood) {
            return Err(Error::Refused("too many connections wait for evidence".into()));
        }
        let late = |what: &'static str| move |_| Error::Wire(format!("{what}: no answer in time"));
        let hello = async {
            let mut tls = TlsAcceptor::from(self.identity.config.clone())
                .accept(tcp)
                .await
                .map_err(|e| Error::Wire(format!("TLS: {e}")))?;
            let exporter = exporter::<D, _>(tls.get_ref().1)?;
            let challenge: Challenge = frame::read(&mut tls, "challenge", frame::SMALL).await?;
            Ok::<_, Error>((tls, exporter, challenge))
        };
        let (mut tls, exporter, challenge) = timeout(HELLO, hello).await.map_err(late("challenge"))??;
        if let Place::Busy(_) = place {
            refuse(&mut tls, Admission::Busy).await?;
            return Err(Error::Refused("too many connections wait for evidence".into()));
        }
        let nonce = match checked(&challenge) {
            Ok(nonce) => nonce,
            Err(error) => {
                refuse(&mut tls, Admission::Version).await?;
                return Err(error);
            }
        };
        let admission = self.admission(&challenge.proof, &Opening::new::<D>(&nonce, &exporter));
        let stranger = match &admission {
            Ok(_) => None,
            Err(_) => match self.strangers.enter(peer) {
                Place::Queued(held) => Some(held),
                Place::Busy(_) | Place::Flood => {
                    refuse(&mut tls, Admission::Busy).await?;
                    return Err(Error::Refused("too many connections belong to no tenant".into()));
                }
            },
        };
        let key = ReleaseKey::<D>::draw();
        let values = self.values(&key);
        let not_after = values.not_after;
        let parts = Parts { nonce: &nonce, exporter: &exporter, spki: self.identity.instance(), values: &values };
        let binding = Binding::new::<D>(parts);
        let collected = match self.collect(*binding.report_data()).await {
            Ok(collected) => collected,
            Err(error) => {
                refuse(&mut tls, Admission::NoEvidence).await?;
                return Err(error);
            }
        };
        // Whoever takes his time to judge does not keep others from evidence.
        drop(place);
        let told = admission.as_ref().map_or_else(|other| *other, |_| Admission::Tenant);
        let evidence = collected.evidence(values, told);
        timeout(HELLO, frame::write(&mut tls, "evidence", &evidence)).await.map_err(late("evidence"))??;
        if told == Admission::Refused {
            return Err(Error::Refused("the proof fits no key that is held".into()));
        }
        let tenant = admission.ok();
        let (transcript, receipts) = (binding.transcript(), self.receipts.clone());
        let opener: Opener = Box::new(move |request| key.open(request, &transcript));
        let mut ends = Ends::new(if tenant.is_some() { self.settings.session + LINGER } else { JUDGEMENT + RELEASE });
        ends.begins(JUDGEMENT);
        if let Some(tenant) = &tenant {
            ends.with(self.admissions.ended(tenant), NOTICE);
        }
        let session = Session {
            transcript,
            not_after,
            tenant,
            opener: Mutex::new(Some(opener)),
            signer: Arc::new(move |receipt| receipts.sign::<D>(receipt)),
        };
        Ok(Attested::new(tls, Arc::new(session), ends, stranger))
    }

    /// The tenant, or what the connection is for instead.
    fn admission(&self, proof: &[u8], opening: &Opening) -> Result<A::Tenant, Admission> {
        if proof.is_empty() {
            return Err(Admission::Release);
        }
        self.admissions.admit(proof, opening).ok_or(Admission::Refused)
    }

    fn values(&self, key: &ReleaseKey<D>) -> RuntimeValues {
        let s = &self.settings;
        RuntimeValues {
            hpke_key: key.public().to_vec().into(),
            receipt_key: self.receipts.public().to_vec().into(),
            params_digest: s.params_digest.to_vec().into(),
            model_digest: s.model_digest.to_vec().into(),
            config_digest: s.config_digest.to_vec().into(),
            not_after: now() + s.session.as_secs(),
            software: s.software.clone(),
        }
    }

    async fn collect(&self, report_data: [u8; 64]) -> Result<crate::source::Collected, Error> {
        let _turn = self.turn.lock().await;
        let source = self.source.clone();
        let work = move || source.lock().unwrap_or_else(PoisonError::into_inner).collect(&report_data);
        let collected = tokio::task::spawn_blocking(work).await;
        Ok(collected.map_err(|_| Error::Platform("the source of evidence panicked".into()))??)
    }
}

/// Keying material that both ends of this session have, and nobody else. Without it there is no connection.
pub(crate) fn exporter<D: Domain, C>(connection: &rustls::ConnectionCommon<C>) -> Result<[u8; 32], Error> {
    if connection.alpn_protocol() != Some(D::ALPN) {
        return Err(Error::Version(format!(
            "the peer speaks {}, expected {}",
            connection.alpn_protocol().map_or("nothing in particular".into(), String::from_utf8_lossy),
            String::from_utf8_lossy(D::ALPN)
        )));
    }
    keying_material::<D, _>(connection)
}

/// An error and never a constant: without this there is nothing that evidence could be bound to.
fn keying_material<D: Domain, C>(connection: &rustls::ConnectionCommon<C>) -> Result<[u8; 32], Error> {
    let exported = connection.export_keying_material([0; 32], D::EXPORTER, Some(ROLE));
    exported.map_err(|e| Error::Wire(format!("TLS exporter: {e}")))
}

fn checked(challenge: &Challenge) -> Result<[u8; 32], Error> {
    if challenge.version != VERSION {
        return Err(Error::Version(format!("the client speaks revision {}, expected {VERSION}", challenge.version)));
    }
    if challenge.suite != SUITE {
        return Err(Error::Version(format!("the client's release suite is {:?}, expected {SUITE}", challenge.suite)));
    }
    let nonce = challenge.nonce.as_ref().try_into();
    nonce.map_err(|_| Error::Wire(format!("a nonce of {} bytes, expected 32", challenge.nonce.len())))
}

async fn refuse(tls: &mut TlsStream<TcpStream>, refusal: Admission) -> Result<(), Error> {
    let evidence = Evidence { version: VERSION, refusal: refusal.into(), ..Default::default() };
    let late = |_| Error::Wire("refusal: the peer does not read".into());
    timeout(HELLO, frame::write(tls, "refusal", &evidence)).await.map_err(late)?
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// Context of the exporter; the role is in the binding once more.
pub(crate) const ROLE: &[u8] = b"runtime";
/// Connections that wait for evidence.
const QUEUE: Limits = Limits { most: 64, of_one: 8, flood: 256 };
/// Connections that belong to no tenant.
const STRANGERS: Limits = Limits { most: 32, of_one: 8, flood: usize::MAX };
/// For TLS and the challenge, and for a client to take what it is sent.
const HELLO: Duration = Duration::from_secs(5);
/// What runs when a connection's evidence grows too old may end in this time.
const LINGER: Duration = Duration::from_secs(600);
/// For the client to judge the evidence; it may fetch collateral meanwhile.
const JUDGEMENT: Duration = Duration::from_secs(180);
/// For a release, once the evidence is judged.
const RELEASE: Duration = Duration::from_secs(60);
/// From the end of a key to the end of its connections: for their requests to say why they end.
const NOTICE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Hardware,
        tls::{NAME, client_config},
    };

    /// One flight of messages.
    fn flight(mut write: impl FnMut(&mut Vec<u8>) -> std::io::Result<usize>) -> Vec<u8> {
        let mut bytes = Vec::new();
        while write(&mut bytes).unwrap() > 0 {}
        bytes
    }

    fn take<C>(connection: &mut rustls::ConnectionCommon<C>, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            connection.read_tls(&mut bytes).unwrap();
            connection.process_new_packets().unwrap();
        }
    }

    /// Bug report 24: where the exporter gives nothing, one must not carry on without it. Each end gets it with the other's
    /// last message of the handshake, and has agreed on the protocol before.
    #[test]
    fn bug_24_no_exporter_is_an_error() {
        let name = rustls::pki_types::ServerName::try_from(NAME).unwrap();
        let mut client = rustls::ClientConnection::new(client_config::<Hardware>().unwrap(), name).unwrap();
        let identity = ServerIdentity::draw::<Hardware>().unwrap();
        let mut server = rustls::ServerConnection::new(identity.config).unwrap();
        let none = |got: Result<[u8; 32], Error>| {
            let error = got.expect_err("keying material of no session").to_string();
            assert!(error.contains("TLS exporter: "), "{error}");
        };
        none(keying_material::<Hardware, _>(&client));
        assert!(matches!(exporter::<Hardware, _>(&client), Err(Error::Version(_))), "no protocol is agreed on yet");
        take(&mut server, &flight(|out| client.write_tls(out)));
        assert_eq!(server.alpn_protocol(), Some(Hardware::ALPN));
        none(exporter::<Hardware, _>(&server));
        take(&mut client, &flight(|out| server.write_tls(out)));
        let ours = exporter::<Hardware, _>(&client).unwrap();
        none(exporter::<Hardware, _>(&server));
        take(&mut server, &flight(|out| client.write_tls(out)));
        assert_eq!(exporter::<Hardware, _>(&server).unwrap(), ours, "the same at both ends");
        assert_ne!(ours, [0; 32]);
    }
}
