//! Keying material of the TLS session, which evidence is bound to: bug reports 23 (it is the same at both ends) and 24 (there
//! is none, and one carries on).

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use attest::{
    Binding, Domain, Error, Hardware, Opening,
    binding::Parts,
    client::{Credentials, Judge, Offer, attest},
    release::{ReleaseKey, SUITE},
    secrets::AdmissionKey,
    server::{Acceptor, Admissions, Attested, Settings},
    source::{Collected, Source, SourceError},
    tls::{NAME, client_config, spki_sha256},
};
use aws_lc_rs::digest::{SHA512, digest};
use prost::Message;
use proto::v1::{Admission, Challenge, Evidence, Platform, RuntimeValues};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Another world.
struct Other;

impl Domain for Other {
    const MODE: &'static str = "other";
    const TAG: &'static [u8] = b"other/attest/v1";
    const ALPN: &'static [u8] = b"other-attest/1";
    const EXPORTER: &'static [u8] = b"EXPORTER-other-attest-v1";
    const RELEASE: &'static [u8] = b"other/key-release/v1";
    const BANNER: Option<&'static str> = Some("OTHER");
}

/// Takes evidence whose quote is the report data of this connection.
struct AboutUs;

impl<D: Domain> Judge<D> for AboutUs {
    type Approval = ();

    async fn judge(&self, offer: &Offer<D>) -> Result<(), Error> {
        let ours = offer.evidence.quote == offer.binding.report_data()[..];
        ours.then_some(()).ok_or_else(|| Error::Rejected("report data is about something else".into()))
    }
}

/// What a statement is about, in whoever's hands.
#[derive(Clone)]
struct About {
    tag: &'static [u8],
    role: &'static [u8],
    mode: &'static [u8],
    nonce: [u8; 32],
    exporter: [u8; 32],
    spki: [u8; 32],
    values: RuntimeValues,
}

impl About {
    /// As the contract has it (proto/v1/attestation.proto), written down once more.
    fn report_data(&self) -> Vec<u8> {
        let v = &self.values;
        let not_after = v.not_after.to_be_bytes();
        let fields: [&[u8]; 13] = [
            self.tag,
            self.role,
            self.mode,
            &self.nonce,
            &self.exporter,
            &self.spki,
            &v.hpke_key,
            &v.receipt_key,
            &v.params_digest,
            &v.model_digest,
            &v.config_digest,
            &not_after,
            v.software.as_bytes(),
        ];
        let length = |field: &[u8]| u32::try_from(field.len()).unwrap().to_be_bytes();
        let all: Vec<u8> = fields.iter().flat_map(|field| [&length(field)[..], field].concat()).collect();
        digest(&SHA512, &all).as_ref().to_vec()
    }
}

fn values() -> RuntimeValues {
    RuntimeValues {
        hpke_key: ReleaseKey::<Hardware>::draw().public().to_vec().into(),
        receipt_key: vec![5; 32].into(),
        params_digest: vec![1; 32].into(),
        model_digest: vec![2; 32].into(),
        config_digest: vec![3; 32].into(),
        not_after: 4_000_000_000,
        software: "test".into(),
    }
}

/// A statement about everything as it is, in the runtime's role.
fn genuine() -> About {
    let (tag, mode) = (Hardware::TAG, Hardware::MODE.as_bytes());
    About { tag, role: b"runtime", mode, nonce: [1; 32], exporter: [2; 32], spki: [3; 32], values: values() }
}

/// What is changed, in words, and how.
type Change = (&'static str, fn(&mut About));

/// Statements that differ from a genuine one in one thing: of the client's own hardware, about another key, session, moment
/// or world.
const CHANGES: [Change; 8] = [
    ("the client's role", |about| about.role = b"client"),
    ("no role", |about| about.role = b""),
    ("another key of the server", |about| about.spki[0] ^= 1),
    ("another session", |about| about.exporter[0] ^= 1),
    ("no session", |about| about.exporter = [0; 32]),
    ("another challenge", |about| about.nonce[0] ^= 1),
    ("another world", |about| (about.tag, about.mode) = (Other::TAG, Other::MODE.as_bytes())),
    ("another mode", |about| about.mode = Other::MODE.as_bytes()),
];

/// The exporter is the same at both ends, so it is not all that a statement is about.
#[test]
fn bug_23_role_and_key_of_the_server_are_in_the_hash() {
    let about = genuine();
    let About { nonce, exporter, spki, values, .. } = &about;
    let expected = *Binding::new::<Hardware>(Parts { nonce, exporter, spki, values }).report_data();
    assert_eq!(about.report_data(), expected);
    for (what, change) in CHANGES {
        let mut other = about.clone();
        change(&mut other);
        assert_ne!(other.report_data(), expected, "{what}");
    }
}

/// TLS of whoever is at the other end, with a key of its own, and that key's name.
fn tls_of_its_own(alpn: &[&[u8]]) -> (TlsAcceptor, [u8; 32]) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    let certificate = made.cert.der().clone();
    let spki = spki_sha256(&certificate).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), spki)
}

/// A peer that takes one challenge and answers with a statement that `change` was made to.
async fn peer(change: fn(&mut About)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (acceptor, spki) = tls_of_its_own(&[Hardware::ALPN]);
        let mut tls = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let exporter = tls.get_ref().1.export_keying_material([0; 32], Hardware::EXPORTER, Some(b"runtime")).unwrap();
        let mut challenge = vec![0; tls.read_u32().await.unwrap() as usize];
        tls.read_exact(&mut challenge).await.unwrap();
        let nonce = Challenge::decode(challenge.as_slice()).unwrap().nonce.as_ref().try_into().unwrap();
        let mut about = About { nonce, exporter, spki, ..genuine() };
        change(&mut about);
        let evidence = Evidence {
            version: attest::VERSION,
            platform: Platform::Tdx.into(),
            quote: about.report_data().into(),
            values: Some(about.values),
            admission: Admission::Release.into(),
            ..Default::default()
        };
        tls.write_all(&framed(&evidence)).await.unwrap();
        tls.flush().await.unwrap();
        // Until the client has judged.
        let _ = tls.read(&mut [0]).await;
    });
    address
}

fn framed(message: &impl Message) -> Vec<u8> {
    let body = message.encode_to_vec();
    [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
}

/// Both ends have the exporter and the nonce: what the client's hardware would state about them in the client's role, or what
/// a runtime states under another key, is shown to the client, and rejected. The same peer is believed in the runtime's role.
#[tokio::test]
async fn bug_23_a_reflected_statement_is_rejected() {
    let told = async |change| attest::<Hardware, _>(connect(peer(change).await).await, &AboutUs, None).await.map(drop);
    told(|_| {}).await.unwrap();
    for (what, change) in CHANGES {
        let error = told(change).await.unwrap_err();
        assert!(matches!(&error, Error::Rejected(why) if why.contains("something else")), "{what}: {error}");
    }
}

/// A client that is shown, byte for byte, whatever it said itself: its own challenge is neither evidence nor admission.
#[tokio::test]
async fn bug_23_a_reflected_challenge_is_no_evidence() {
    let key = AdmissionKey::of(&[7; 32]);
    for credentials in [None, Some(Credentials { tenant: "acme", key_id: "k1", key: &key })] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mirror = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (acceptor, _) = tls_of_its_own(&[Hardware::ALPN]);
            let tls = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            let (mut from, mut to) = tokio::io::split(tls);
            let _ = tokio::io::copy(&mut from, &mut to).await;
        });
        let error = attest::<Hardware, _>(connect(mirror).await, &AboutUs, credentials).await.err().unwrap();
        assert!(matches!(&error, Error::Wire(why) if why.starts_with("evidence is malformed")), "{error}");
    }
}

/// Hardware that states whatever it is asked to.
struct Willing;

impl Source for Willing {
    fn name(&self) -> &'static str {
        "willing"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        Ok(Collected { platform: Platform::Tdx, quote: report_data.to_vec(), ..Default::default() })
    }
}

struct Nobody;

impl Admissions for Nobody {
    type Tenant = ();

    fn admit(&self, _: &[u8], _: &Opening) -> Option<()> {
        None
    }

    fn ended(&self, (): &()) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

/// A runtime of the world `D` that takes one connection.
async fn runtime<D: Domain>() -> (SocketAddr, JoinHandle<Result<Attested<()>, Error>>) {
    let settings = Settings {
        params_digest: [1; 32],
        model_digest: [2; 32],
        config_digest: [3; 32],
        software: "test".into(),
        session: Duration::from_secs(60),
    };
    let acceptor = Arc::new(Acceptor::<D, Nobody>::new(Box::new(Willing), settings, Nobody).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taken = tokio::spawn(async move {
        let (tcp, peer) = listener.accept().await.unwrap();
        acceptor.accept(tcp, peer.ip()).await
    });
    (address, taken)
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// A session of another protocol has another exporter, and none at all is asked for.
#[tokio::test]
async fn bug_24_another_protocol_ends_the_connection() {
    let (address, taken) = runtime::<Other>().await;
    let error = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.err().unwrap();
    assert!(matches!(&error, Error::Version(why) if why.contains("bifrost-attest/1")), "{error}");
    assert!(taken.await.unwrap().is_err());
}

/// A session that agreed on no protocol: the runtime takes no challenge on it, and says nothing.
#[tokio::test]
async fn bug_24_a_runtime_without_an_exporter_states_nothing() {
    let good =
        Challenge { version: attest::VERSION, nonce: vec![0; 32].into(), suite: SUITE.into(), ..Default::default() };
    for (named, states) in [(true, true), (false, false)] {
        let (address, taken) = runtime::<Hardware>().await;
        let mut config = (*client_config::<Hardware>().unwrap()).clone();
        if !named {
            config.alpn_protocols.clear();
        }
        let name = ServerName::try_from(NAME).unwrap();
        let mut tls = TlsConnector::from(Arc::new(config)).connect(name, connect(address).await).await.unwrap();
        // It may have hung up before it is all written.
        let _ = tls.write_all(&framed(&good)).await;
        let mut length = [0; 4];
        assert_eq!(tls.read_exact(&mut length).await.is_ok(), states, "evidence");
        match taken.await.unwrap() {
            Ok(_) => assert!(states),
            Err(error) => assert!(!states && error.to_string().contains("nothing in particular"), "{error}"),
        }
    }
}

/// The same at the other end: a client without an exporter does not even say what it would prove.
#[tokio::test]
async fn bug_24_a_client_without_an_exporter_says_nothing() {
    let key = AdmissionKey::of(&[7; 32]);
    for (alpn, says) in [(&[Hardware::ALPN][..], true), (&[][..], false)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let heard = tokio::spawn(async move {
            let (acceptor, _) = tls_of_its_own(alpn);
            let mut tls = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            let mut first = [0; 64];
            tls.read(&mut first).await.unwrap_or(0)
        });
        let credentials = Some(Credentials { tenant: "acme", key_id: "k1", key: &key });
        let error = attest::<Hardware, _>(connect(address).await, &AboutUs, credentials).await.err().unwrap();
        assert_eq!(heard.await.unwrap() > 0, says, "a challenge");
        assert_eq!(matches!(&error, Error::Version(why) if why.contains("nothing in particular")), !says, "{error}");
    }
}
