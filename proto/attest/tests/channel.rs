//! The exchange between a client and runtimes that are what they say, and ones that are not.
//!
//! Quotes here are the bare report data: whether a quote is genuine is for others to test, whether it is about this very
//! connection is tested here.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use attest::{
    Domain, Error, Hardware, Opening,
    client::{Credentials, Judge, Offer, attest},
    release::{check_receipt, seal},
    secrets::{AdmissionKey, Secrets},
    server::{Acceptor, Admissions, Attested, Settings},
    source::{Collected, Source, SourceError},
    tls::{NAME, ServerIdentity, client_config},
};
use proto::v1::{Admission, Evidence, KeyHeader, Platform, Receipt};
use rustls::pki_types::ServerName;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const ROOT: [u8; 32] = [7; 32];

/// Hardware that states whatever it is asked to.
struct Mirror;

impl Source for Mirror {
    fn name(&self) -> &'static str {
        "mirror"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        Ok(Collected { platform: Platform::Tdx, quote: report_data.to_vec(), ..Default::default() })
    }
}

/// No hardware.
struct Nothing;

impl Source for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn collect(&self, _: &[u8; 64]) -> Result<Collected, SourceError> {
        Err(SourceError::NoTee("no such directory".into()))
    }
}

/// The one tenant.
struct Acme;

impl Admissions for Acme {
    type Tenant = String;

    fn admit(&self, proof: &[u8], opening: &Opening) -> Option<String> {
        AdmissionKey::of(&ROOT).verify(opening, proof).then(|| "acme".into())
    }

    fn ended(&self, _: &String) -> impl Future<Output = ()> + Send + 'static {
        std::future::pending()
    }
}

/// Takes evidence whose quote is about this connection.
struct AboutUs;

impl<D: Domain> Judge<D> for AboutUs {
    type Approval = Evidence;

    async fn judge(&self, offer: &Offer<D>) -> Result<Evidence, Error> {
        if offer.evidence.quote == offer.binding.report_data()[..] {
            return Ok(offer.evidence.clone());
        }
        Err(Error::Rejected("report data is about another connection".into()))
    }
}

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

fn acceptor<D: Domain>(source: Box<dyn Source>) -> Arc<Acceptor<D, Acme>> {
    let settings = Settings {
        params_digest: [1; 32],
        model_digest: [2; 32],
        config_digest: [3; 32],
        software: "test".into(),
        session: Duration::from_secs(60),
    };
    Arc::new(Acceptor::new(source, settings, Acme).unwrap())
}

/// A runtime that takes one connection.
async fn serve<D: Domain>(
    acceptor: Arc<Acceptor<D, Acme>>,
) -> (std::net::SocketAddr, tokio::task::JoinHandle<Result<Attested<String>, Error>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let taken = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        acceptor.accept(tcp, PEER).await
    });
    (address, taken)
}

async fn connect(address: std::net::SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn a_tenant_is_let_in_by_its_key_and_a_stranger_only_to_release_one() {
    for (key, good) in [(ROOT, true), ([8; 32], false)] {
        let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
        let key = AdmissionKey::of(&key);
        let credentials = Credentials { tenant: "acme", key_id: "k1", key: &key };
        let outcome = attest::<Hardware, _>(connect(address).await, &AboutUs, Some(credentials)).await;
        let taken = taken.await.unwrap();
        assert_eq!((outcome.is_ok(), taken.is_ok()), (good, good));
        if let Err(error) = outcome {
            assert!(error.to_string().contains("holds no key"), "{error}");
        }
    }
    let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
    let (_, mut tls) = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.unwrap();
    let mut taken = taken.await.unwrap().unwrap();
    assert!(taken.session().tenant().is_none());
    taken.write_all(b"rpc").await.unwrap();
    taken.flush().await.unwrap();
    let mut got = [0; 3];
    tls.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"rpc");
}

/// The proof is sent before anybody is verified: whoever gets it must not be able to use it.
#[tokio::test]
async fn a_proof_is_worth_nothing_on_another_connection_and_names_nobody() {
    let key = AdmissionKey::of(&ROOT);
    let opening = Opening::new::<Hardware>(&[1; 32], &[2; 32]);
    let proof = key.prove(&opening);
    assert_eq!(proof.len(), 32);
    assert!(key.verify(&opening, &proof));
    for other in [
        Opening::new::<Hardware>(&[3; 32], &[2; 32]),
        Opening::new::<Hardware>(&[1; 32], &[3; 32]),
        Opening::new::<Other>(&[1; 32], &[2; 32]),
    ] {
        assert!(!key.verify(&other, &proof));
    }
}

#[tokio::test]
async fn connections_of_no_tenant_are_few_and_a_tenant_gets_in_beside_them() {
    let acceptor = acceptor::<Hardware>(Box::new(Mirror));
    let mut open = Vec::new();
    for _ in 0..8 {
        let (address, taken) = serve(acceptor.clone()).await;
        let ours = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.unwrap();
        open.push((ours, taken.await.unwrap().unwrap()));
    }
    let (address, taken) = serve(acceptor.clone()).await;
    let error = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.err().unwrap();
    assert!(matches!(&error, Error::Refused(why) if why.contains("try again")), "{error}");
    assert!(taken.await.unwrap().err().unwrap().to_string().contains("belong to no tenant"));
    let key = AdmissionKey::of(&ROOT);
    let credentials = Some(Credentials { tenant: "acme", key_id: "k1", key: &key });
    let (address, taken) = serve(acceptor.clone()).await;
    let (evidence, _tls) = attest::<Hardware, _>(connect(address).await, &AboutUs, credentials).await.unwrap();
    assert_eq!(evidence.admission(), Admission::Tenant);
    assert!(taken.await.unwrap().is_ok());
    open.pop();
    let (address, _taken) = serve(acceptor).await;
    let (evidence, _tls) = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.unwrap();
    assert_eq!(evidence.admission(), Admission::Release);
}

#[tokio::test]
async fn a_key_is_released_once_on_the_connection_that_attested() {
    let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
    let (evidence, _tls) = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.unwrap();
    let taken = taken.await.unwrap().unwrap();
    let (session, values) = (taken.session(), evidence.values.unwrap());
    let secrets = Secrets::new(Zeroizing::new(ROOT), None);
    let header = KeyHeader { tenant: "acme".into(), key_id: "k1".into(), ..Default::default() };
    let request = seal::<Hardware>(&values.hpke_key, session.transcript(), header, &secrets).unwrap();
    let (header, opened) = session.open(&request).ok().unwrap();
    assert_eq!((header.tenant.as_str(), opened.admission().digest()), ("acme", secrets.admission().digest()));
    let error = session.open(&request).err().unwrap().to_string();
    assert!(error.contains("has had its release"), "{error}");
    let receipt = session.sign(Receipt { transcript: session.transcript().to_vec().into(), ..Default::default() });
    check_receipt::<Hardware>(&receipt, &values.receipt_key).unwrap();
    assert!(check_receipt::<Other>(&receipt, &values.receipt_key).is_err(), "of another domain");
}

/// Bug reports 22 (relay, diversion): someone in the middle ends our TLS with a key of his own and passes the challenge to a
/// genuine runtime and its evidence to us. Our proof does not let him in as us either.
#[tokio::test]
async fn bug_22_relayed_evidence_is_rejected() {
    for tenant in [false, true] {
        let (genuine, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let middle = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let config = tests_only_server::<Hardware>();
            let (tcp, _) = listener.accept().await.unwrap();
            let mut to_client = tokio_rustls::TlsAcceptor::from(config).accept(tcp).await.unwrap();
            let connector = TlsConnector::from(client_config::<Hardware>().unwrap());
            let name = ServerName::try_from(NAME).unwrap();
            let mut to_runtime = connector.connect(name, TcpStream::connect(genuine).await.unwrap()).await.unwrap();
            // Both directions, byte by byte.
            let _ = tokio::io::copy_bidirectional(&mut to_client, &mut to_runtime).await;
        });
        let key = AdmissionKey::of(&ROOT);
        let credentials = tenant.then_some(Credentials { tenant: "acme", key_id: "k1", key: &key });
        let error = attest::<Hardware, _>(connect(middle).await, &AboutUs, credentials).await.err().unwrap();
        assert!(matches!(&error, Error::Rejected(why) if why.contains("another connection")), "{error}");
        match taken.await.unwrap() {
            Err(error) => assert!(tenant && error.to_string().contains("fits no key"), "{error}"),
            Ok(mut taken) => {
                assert!(!tenant && taken.session().tenant().is_none());
                assert_eq!(taken.read(&mut [0; 1]).await.unwrap_or(0), 0, "the client went away");
            }
        }
    }
}

/// Bug report 21: a server that says again what it said to an earlier challenge.
#[tokio::test]
async fn bug_21_repeated_evidence_is_rejected() {
    struct Repeats(std::sync::Mutex<Option<[u8; 64]>>);
    impl Source for Repeats {
        fn name(&self) -> &'static str {
            "repeats"
        }
        fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
            let first = *self.0.lock().unwrap().get_or_insert(*report_data);
            Ok(Collected { platform: Platform::Tdx, quote: first.to_vec(), ..Default::default() })
        }
    }
    let acceptor = acceptor::<Hardware>(Box::new(Repeats(std::sync::Mutex::new(None))));
    let (address, _taken) = serve(acceptor.clone()).await;
    attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.unwrap();
    let (address, _taken) = serve(acceptor).await;
    let error = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.err().unwrap();
    assert!(matches!(error, Error::Rejected(_)), "{error}");
}

#[tokio::test]
async fn no_hardware_is_an_error_at_both_ends_and_never_something_weaker() {
    let (address, taken) = serve(acceptor::<Hardware>(Box::new(Nothing))).await;
    let error = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.err().unwrap();
    assert!(matches!(&error, Error::Refused(why) if why.contains("gives no evidence")), "{error}");
    let error = taken.await.unwrap().err().unwrap().to_string();
    assert_eq!(error, "no TEE: no such directory");
}

#[tokio::test]
async fn other_revisions_and_wild_frames_are_refused() {
    use prost::Message;
    use proto::v1::{Challenge, Evidence};
    async fn answer(challenge: Vec<u8>) -> (Result<Attested<String>, Error>, Option<Evidence>) {
        let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
        let connector = TlsConnector::from(client_config::<Hardware>().unwrap());
        let name = ServerName::try_from(NAME).unwrap();
        let mut tls = connector.connect(name, connect(address).await).await.unwrap();
        tls.write_all(&challenge).await.unwrap();
        tls.shutdown().await.unwrap();
        let mut got = Vec::new();
        let _ = tls.read_to_end(&mut got).await;
        let evidence = got.get(4..).and_then(|bytes| Evidence::decode(bytes).ok());
        (taken.await.unwrap(), evidence)
    }
    fn framed(c: &Challenge) -> Vec<u8> {
        let body = c.encode_to_vec();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    }
    let good = Challenge {
        version: attest::VERSION,
        nonce: vec![0; 32].into(),
        suite: attest::release::SUITE.into(),
        ..Default::default()
    };
    for (challenge, says) in [
        (framed(&Challenge { version: 9, ..good.clone() }), "speaks revision 9"),
        (framed(&Challenge { suite: "xwing-draft-11".into(), ..good.clone() }), "release suite is \"xwing-draft-11\""),
        (framed(&Challenge { nonce: vec![0; 31].into(), ..good.clone() }), "a nonce of 31 bytes, expected 32"),
    ] {
        let (taken, evidence) = answer(challenge).await;
        let error = taken.err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
        assert!(evidence.unwrap().quote.is_empty(), "nothing was stated");
    }
    let (taken, evidence) = answer(vec![0xff; 64]).await;
    assert!(taken.err().unwrap().to_string().contains("at most 4096 are taken"));
    assert!(evidence.is_none());
    let (taken, _) = answer(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()).await;
    assert!(taken.is_err(), "an RPC on a connection without evidence");
}

#[tokio::test]
async fn what_does_not_speak_tls_1_3_is_turned_away() {
    let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
    let mut tcp = connect(address).await;
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(taken.await.unwrap(), Err(Error::Wire(_))));
    let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    assert!(TlsConnector::from(Arc::new(config)).connect(name, connect(address).await).await.is_err());
    assert!(matches!(taken.await.unwrap(), Err(Error::Wire(_))));
}

#[tokio::test]
async fn the_key_exchange_is_post_quantum_and_nothing_is_resumed() {
    let (address, taken) = serve(acceptor::<Hardware>(Box::new(Mirror))).await;
    let (_, tls) = attest::<Hardware, _>(connect(address).await, &AboutUs, None).await.unwrap();
    let connection = tls.get_ref().1;
    assert_eq!(connection.negotiated_key_exchange_group().unwrap().name(), rustls::NamedGroup::X25519MLKEM768);
    assert_eq!(connection.handshake_kind(), Some(rustls::HandshakeKind::Full));
    assert_eq!(connection.tls13_tickets_received(), 0);
    drop(taken);
}

/// TLS with a key of whoever is in the middle.
fn tests_only_server<D: Domain>() -> Arc<rustls::ServerConfig> {
    let made = rcgen::generate_simple_self_signed(vec![NAME.into()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut config =
        rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
    config.alpn_protocols = vec![D::ALPN.to_vec()];
    assert_ne!(ServerIdentity::draw::<D>().unwrap().instance(), &[0; 32]);
    Arc::new(config)
}
