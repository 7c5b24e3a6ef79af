//! A maker of chips for tests: root, signing keys, endorsement keys and reports as AMD's are made, under keys of our own.

pub(crate) mod bench;
pub(crate) mod vectors;

use aws_lc_rs::encoding::AsDer as _;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PSS_SHA384, RsaKeyPair};
use std::sync::LazyLock;

/// Keys of one product's chain.
pub(crate) struct Maker {
    pub(crate) ark: RsaKeyPair,
    pub(crate) ask: RsaKeyPair,
    pub(crate) vek: EcdsaKeyPair,
}

/// What a certificate says.
#[derive(Clone)]
pub(crate) struct Content {
    pub(crate) serial: u8,
    pub(crate) issuer: &'static str,
    pub(crate) subject: &'static str,
    /// UTCTime.
    pub(crate) validity: (&'static str, &'static str),
    /// `SubjectPublicKeyInfo`.
    pub(crate) key: Vec<u8>,
    /// Extension value by object identifier, both encoded.
    pub(crate) extensions: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Maker {
    pub(crate) fn new() -> Self {
        let rsa = || RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        Self { ark: rsa(), ask: rsa(), vek: EcdsaKeyPair::generate(&ECDSA_P384_SHA384_FIXED_SIGNING).unwrap() }
    }

    pub(crate) fn root(&self) -> Content {
        authority("ARK-Milan", &self.ark, 1)
    }

    pub(crate) fn signing(&self) -> Content {
        authority("SEV-Milan", &self.ask, 2)
    }

    /// Of a chip endorsement key, for boot loader 3, TEE 0, SNP 8, microcode 115.
    pub(crate) fn endorsement(&self, chip: &[u8; 64]) -> Content {
        let level = |oid: &str, value: u8| (oid_of(oid), tlv(2, &[value]));
        let point = self.vek.public_key().as_ref();
        let algorithm = [tlv(6, &hex("2a8648ce3d0201")), tlv(6, &hex("2b81040022"))].concat();
        Content {
            serial: 9,
            issuer: "SEV-Milan",
            subject: "SEV-VCEK",
            validity: VALID,
            key: tlv(0x30, &[tlv(0x30, &algorithm), bits(point)].concat()),
            extensions: vec![
                (oid_of("02"), tlv(0x16, b"Milan-B0")),
                level("0301", 3),
                level("0302", 0),
                level("0303", 8),
                level("0308", 115),
                (oid_of("04"), chip.to_vec()),
            ],
        }
    }

    /// A report of version 2 as the real one has it, with `edit` applied before it is signed.
    pub(crate) fn report(&self, real: &[u8], edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut report = real.to_vec();
        edit(&mut report);
        let signature = self.vek.sign(&SystemRandom::new(), &report[..0x2a0]).unwrap();
        for (at, half) in [(0x2a0, &signature.as_ref()[..48]), (0x2e8, &signature.as_ref()[48..])] {
            for (out, byte) in report[at..at + 48].iter_mut().zip(half.iter().rev()) {
                *out = *byte;
            }
        }
        report
    }
}

/// Of every chip here whose root is trusted.
pub(crate) static MAKER: LazyLock<Maker> = LazyLock::new(Maker::new);

/// Validity of certificates here: 2020 to 2039.
const VALID: (&str, &str) = ("200101000000Z", "390101000000Z");

fn authority(name: &'static str, key: &RsaKeyPair, serial: u8) -> Content {
    let key = key.public_key().as_der().unwrap().as_ref().to_vec();
    Content { serial, issuer: "ARK-Milan", subject: name, validity: VALID, key, extensions: Vec::new() }
}

/// DER of a certificate, signed.
pub(crate) fn certificate(content: &Content, issuer: &RsaKeyPair) -> Vec<u8> {
    let extensions: Vec<u8> =
        content.extensions.iter().flat_map(|(oid, value)| tlv(0x30, &[tlv(6, oid), tlv(4, value)].concat())).collect();
    let mut body = vec![
        tlv(0xa0, &tlv(2, &[2])),
        tlv(2, &[content.serial]),
        pss(),
        name(content.issuer),
        tlv(0x30, &[tlv(0x17, content.validity.0.as_bytes()), tlv(0x17, content.validity.1.as_bytes())].concat()),
        name(content.subject),
        content.key.clone(),
    ];
    if !extensions.is_empty() {
        body.push(tlv(0xa3, &tlv(0x30, &extensions)));
    }
    signed(&tlv(0x30, &body.concat()), issuer)
}

/// Body, algorithm, signature.
pub(crate) fn signed(body: &[u8], key: &RsaKeyPair) -> Vec<u8> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PSS_SHA384, &SystemRandom::new(), body, &mut signature).unwrap();
    tlv(0x30, &[body.to_vec(), pss(), bits(&signature)].concat())
}

/// RSASSA-PSS with SHA-384 and 48 bytes of salt, RFC 4055.
pub(crate) fn pss() -> Vec<u8> {
    hex(
        "304106092a864886f70d01010a3034a00f300d06096086480165030402020500a11c301a06092a864886f70d010108300d06096086480165030402020500a203020130",
    )
}

/// A name with a common name alone.
pub(crate) fn name(common: &str) -> Vec<u8> {
    tlv(0x30, &tlv(0x31, &tlv(0x30, &[tlv(6, &hex("550403")), tlv(0x0c, common.as_bytes())].concat())))
}

/// Tag, length, value.
pub(crate) fn tlv(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap().to_be_bytes();
    let header: &[u8] = match value.len() {
        0..=127 => &[tag, length[1]],
        128..=255 => &[tag, 0x81, length[1]],
        _ => &[tag, 0x82, length[0], length[1]],
    };
    [header, value].concat()
}

pub(crate) fn hex(text: &str) -> Vec<u8> {
    attest_verify::hex::decode(text).unwrap()
}

/// Below AMD's arc 1.3.6.1.4.1.3704.1.
fn oid_of(rest: &str) -> Vec<u8> {
    hex(&format!("2b060104019c7801{rest}"))
}

fn bits(value: &[u8]) -> Vec<u8> {
    tlv(3, &[&[0], value].concat())
}
