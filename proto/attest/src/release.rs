//! Key release: HPKE (RFC 9180, base mode) to the key in the report data, and a signed receipt back.
//!
//! X-Wing (ML-KEM-768 with X25519), HKDF-SHA-256, ChaCha20-Poly1305. The KEM is a draft, therefore the suite's name has
//! a version and both sides must hold the same one.

use crate::{Domain, Error, secrets::Secrets};
use aws_lc_rs::{
    digest::{Context, SHA256},
    signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey},
};
use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, aead::ChaCha20Poly1305, kdf::HkdfSha256, kem::XWing,
    single_shot_open, single_shot_seal,
};
use proto::v1::{KeyHeader, Receipt, ReleaseRequest};
use std::marker::PhantomData;
use zeroize::Zeroizing;

/// Name of the suite.
pub const SUITE: &str = "xwing-draft-10/hkdf-sha256/chacha20poly1305/v1";

/// The secret half of one connection's release key. Consumed by the release, so it opens one message at most.
pub struct ReleaseKey<D> {
    secret: <XWing as Kem>::PrivateKey,
    public: Vec<u8>,
    domain: PhantomData<fn() -> D>,
}

impl<D: Domain> ReleaseKey<D> {
    /// Draws a key pair.
    #[must_use]
    pub fn draw() -> Self {
        let (secret, public) = XWing::gen_keypair();
        Self { secret, public: public.to_bytes().to_vec(), domain: PhantomData }
    }

    /// The public half.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Opens what [`seal`] made for this key on the connection `transcript`.
    ///
    /// # Errors
    /// [`Error::Key`]: of another suite, for another connection, changed on the way, or not what the header says.
    pub fn open(self, request: &ReleaseRequest, transcript: &[u8; 32]) -> Result<(KeyHeader, Secrets), Error> {
        let header = request.header.as_ref().ok_or_else(|| Error::Key("a release without a header".into()))?;
        if header.suite != SUITE {
            return Err(Error::Key(format!("release suite is {:?}, expected {SUITE}", header.suite)));
        }
        let encapsulated = <XWing as Kem>::EncappedKey::from_bytes(&request.encapsulated)
            .map_err(|e| Error::Key(format!("encapsulated key: {e}")))?;
        let aad = additional_data(header, transcript);
        let opened = single_shot_open::<ChaCha20Poly1305, HkdfSha256, XWing>(
            &OpModeR::Base,
            &self.secret,
            &encapsulated,
            D::RELEASE,
            &request.ciphertext,
            &aad,
        );
        let opened = opened.map_err(|_| Error::Key("a release that was not sealed for this connection".into()))?;
        let opened = Zeroizing::new(opened);
        Ok((header.clone(), Secrets::decode(&opened, header.with_model_key)?))
    }
}

/// Seals `secrets` to the release key `public` of the connection `transcript`.
///
/// # Errors
/// [`Error::Key`] if `public` is no X-Wing key.
pub fn seal<D: Domain>(
    public: &[u8],
    transcript: &[u8; 32],
    header: KeyHeader,
    secrets: &Secrets,
) -> Result<ReleaseRequest, Error> {
    let public = <XWing as Kem>::PublicKey::from_bytes(public).map_err(|e| Error::Key(format!("release key: {e}")))?;
    let header = KeyHeader { suite: SUITE.into(), with_model_key: secrets.model_key().is_some(), ..header };
    let aad = additional_data(&header, transcript);
    let (encapsulated, ciphertext) = single_shot_seal::<ChaCha20Poly1305, HkdfSha256, XWing>(
        &OpModeS::Base,
        &public,
        D::RELEASE,
        &secrets.encode(),
        &aad,
    )
    .map_err(|e| Error::Key(format!("sealing: {e}")))?;
    Ok(ReleaseRequest {
        header: Some(header),
        encapsulated: encapsulated.to_bytes().to_vec().into(),
        ciphertext: ciphertext.into(),
    })
}

/// Signs receipts for the life of a process.
pub struct ReceiptKey(Ed25519KeyPair);

impl ReceiptKey {
    /// Draws a key.
    ///
    /// # Errors
    /// [`Error::Platform`] without entropy.
    pub fn draw() -> Result<Self, Error> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|e| Error::Platform(format!("no entropy: {e}")))?;
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice());
        pair.map(Self).map_err(|e| Error::Platform(format!("receipt key: {e}")))
    }

    /// The public half, which the binding covers.
    #[must_use]
    pub fn public(&self) -> &[u8] {
        self.0.public_key().as_ref()
    }

    /// Fills in the signature.
    #[must_use]
    pub fn sign<D: Domain>(&self, receipt: Receipt) -> Receipt {
        let signature = self.0.sign(&receipt_bytes::<D>(&receipt)).as_ref().to_vec().into();
        Receipt { signature, ..receipt }
    }
}

/// Checks a receipt's signature by the key `public`.
///
/// # Errors
/// [`Error::Key`] if it does not hold.
pub fn check_receipt<D: Domain>(receipt: &Receipt, public: &[u8]) -> Result<(), Error> {
    let key = UnparsedPublicKey::new(&ED25519, public);
    let held = key.verify(&receipt_bytes::<D>(receipt), &receipt.signature);
    held.map_err(|_| Error::Key("the receipt is not signed by the runtime that attested".into()))
}

/// SHA-256 over the length-prefixed transcript and header, so that a key opens on one connection, as what it is, only.
fn additional_data(header: &KeyHeader, transcript: &[u8; 32]) -> [u8; 32] {
    let KeyHeader { suite, tenant, key_id, params_digest, expires_at, replaces, with_model_key } = header;
    let (expires, model) = (expires_at.to_be_bytes(), [u8::from(*with_model_key)]);
    let fields: [&[u8]; 8] = [
        transcript,
        suite.as_bytes(),
        tenant.as_bytes(),
        key_id.as_bytes(),
        params_digest,
        &expires,
        replaces.as_bytes(),
        &model,
    ];
    let mut out = [0; 32];
    let mut hash = Context::new(&SHA256);
    hash.update(&framed(&fields));
    out.copy_from_slice(hash.finish().as_ref());
    out
}

fn receipt_bytes<D: Domain>(receipt: &Receipt) -> Vec<u8> {
    let (held, expires) = (receipt.held_at.to_be_bytes(), receipt.expires_at.to_be_bytes());
    framed(&[
        D::TAG,
        b"receipt",
        receipt.tenant.as_bytes(),
        receipt.key_id.as_bytes(),
        &receipt.key_digest,
        &receipt.transcript,
        &receipt.params_digest,
        &held,
        &expires,
    ])
}

fn framed(fields: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for field in fields {
        out.extend_from_slice(&u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(field);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Hardware;

    fn header() -> KeyHeader {
        KeyHeader { tenant: "acme".into(), key_id: "k1".into(), expires_at: 9, ..Default::default() }
    }

    fn secrets() -> Secrets {
        Secrets::new(Zeroizing::new([5; 32]), None)
    }

    #[test]
    fn a_release_opens_on_its_connection_with_its_header_only() {
        let seal = |key: &ReleaseKey<Hardware>| seal::<Hardware>(key.public(), &[1; 32], header(), &secrets()).unwrap();
        let key = ReleaseKey::<Hardware>::draw();
        let request = seal(&key);
        let (header, opened) = key.open(&request, &[1; 32]).ok().unwrap();
        assert_eq!((header.key_id.as_str(), opened.admission().digest()), ("k1", secrets().admission().digest()));
        let change: [fn(&mut ReleaseRequest); 6] = [
            |r| r.header.as_mut().unwrap().expires_at += 1,
            |r| r.header.as_mut().unwrap().tenant.push('x'),
            |r| r.header.as_mut().unwrap().with_model_key = true,
            |r| r.header.as_mut().unwrap().suite = "xwing-draft-11".into(),
            |r| r.ciphertext = r.ciphertext.iter().map(|b| b ^ 1).collect::<Vec<_>>().into(),
            |r| r.encapsulated = r.encapsulated.slice(1..),
        ];
        for change in change {
            let key = ReleaseKey::<Hardware>::draw();
            let mut request = seal(&key);
            change(&mut request);
            assert!(key.open(&request, &[1; 32]).is_err());
        }
        let key = ReleaseKey::<Hardware>::draw();
        let request = seal(&key);
        assert!(key.open(&request, &[2; 32]).is_err(), "another connection");
        assert!(ReleaseKey::<Hardware>::draw().open(&request, &[1; 32]).is_err(), "another key");
    }

    #[test]
    fn receipts_are_signed_as_a_whole() {
        let key = ReceiptKey::draw().unwrap();
        let receipt = key.sign::<Hardware>(Receipt { tenant: "acme".into(), held_at: 3, ..Default::default() });
        check_receipt::<Hardware>(&receipt, key.public()).unwrap();
        let other = Receipt { held_at: 4, ..receipt.clone() };
        assert!(check_receipt::<Hardware>(&other, key.public()).is_err());
        assert!(check_receipt::<Hardware>(&receipt, ReceiptKey::draw().unwrap().public()).is_err());
    }
}
