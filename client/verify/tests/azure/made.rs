//! Evidence made here, with a virtual TPM of our own above a chip of our own.

pub(crate) use crate::amd::vectors::{RELAYED, Random, extra, failed, found, own};
pub(crate) use crate::amd::{self, MAKER, certificate};
pub(crate) use attest_verify::azure::{
    Hardware, HclError, HclReport, Opened, TpmError, TpmQuote, VarData, open, read_anything,
};
pub(crate) use attest_verify::policy::Azure;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
pub(crate) use proto::v1::AzureEvidence;
use std::sync::LazyLock;

/// Evidence as another project recorded it: JSON with hexadecimal and base64url.
pub(crate) fn recorded(name: &str) -> Option<(AzureEvidence, Vec<u8>)> {
    let json: serde_json::Value = serde_json::from_slice(&extra(name)?).unwrap();
    let json = json.get("evidence").unwrap_or(&json);
    let quote = &json["tpm_quote"];
    let hex = |value: &serde_json::Value| amd::hex(value.as_str().unwrap());
    let evidence = AzureEvidence {
        hcl_report: base64url(json["hcl_report"].as_str().unwrap()).into(),
        tpm_quote: hex(&quote["message"]).into(),
        tpm_signature: hex(&quote["signature"]).into(),
        pcrs: quote["pcrs"].as_array().unwrap().iter().flat_map(hex).collect::<Vec<u8>>().into(),
    };
    Some((evidence, base64url(json["td_quote"].as_str().unwrap())))
}

pub(crate) const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

pub(crate) fn base64url(text: &str) -> Vec<u8> {
    let mut bits = Vec::new();
    for character in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|other| *other == character).unwrap();
        bits.extend((0..6).rev().map(|bit| value >> bit & 1 == 1));
    }
    bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
}

pub(crate) fn to_base64url(bytes: &[u8]) -> String {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    bits.chunks(6)
        .map(|bits| {
            let value = (0..6).fold(0, |value, at| value << 1 | usize::from(bits.get(at).copied().unwrap_or(0)));
            char::from(ALPHABET[value])
        })
        .collect()
}

/// Accepts PCR 4 and 7 as the evidence has them.
pub(crate) fn policy(evidence: &AzureEvidence) -> Azure {
    let pcr = |index: usize| attest_verify::hex::encode(&evidence.pcrs[32 * index..32 * index + 32]);
    toml::from_str(&format!("[pcr]\n4 = [\"{}\", \"{}\"]\n7 = [\"{}\"]", "00".repeat(32), pcr(4), pcr(7))).unwrap()
}

pub(crate) const NONCE: [u8; 32] = [7; 32];

pub(crate) static TPM: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());
pub(crate) static STRANGER: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());

/// What a TPM quotes.
pub(crate) struct Quoted {
    pub(crate) magic: u32,
    pub(crate) kind: u16,
    pub(crate) extra: Vec<u8>,
    pub(crate) bank: u16,
    pub(crate) selected: u32,
    pub(crate) pcrs: Vec<u8>,
}

impl Quoted {
    pub(crate) fn new() -> Self {
        let pcrs = (0u8..24).flat_map(|index| [index ^ 0x5a; 32]).collect();
        Self { magic: 0xff54_4347, kind: 0x8018, extra: NONCE.to_vec(), bank: 11, selected: 0x00ff_ffff, pcrs }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let covered: Vec<u8> = (0..24)
            .filter(|index| self.selected >> index & 1 == 1)
            .flat_map(|at| self.pcrs[32 * at..32 * at + 32].to_vec())
            .collect();
        let sized = |bytes: &[u8]| [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat();
        [
            self.magic.to_be_bytes().to_vec(),
            self.kind.to_be_bytes().to_vec(),
            sized(&[1; 34]),
            sized(&self.extra),
            vec![0; 25],
            1u32.to_be_bytes().to_vec(),
            self.bank.to_be_bytes().to_vec(),
            vec![3],
            self.selected.to_le_bytes()[..3].to_vec(),
            sized(digest(&SHA256, &covered).as_ref()),
        ]
        .concat()
    }

    pub(crate) fn evidence(&self, var_data: &str) -> AzureEvidence {
        let tpm_quote = self.bytes();
        AzureEvidence {
            hcl_report: hcl(var_data.as_bytes(), |_| {}).into(),
            tpm_signature: sign(&TPM, &tpm_quote).into(),
            tpm_quote: tpm_quote.into(),
            pcrs: self.pcrs.clone().into(),
        }
    }
}

pub(crate) fn sign(key: &RsaKeyPair, message: &[u8]) -> Vec<u8> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

pub(crate) fn var_data(key: &RsaKeyPair) -> String {
    // RSAPublicKey of 2048 bits, RFC 8017 appendix A.1.1: headers of 9 bytes, the modulus, the exponent.
    var_data_of(&key.public_key().as_ref()[9..265])
}

pub(crate) fn var_data_of(modulus: &[u8]) -> String {
    format!(
        r#"{{"keys":[{{"kid":"HCLAkPub","key_ops":["sign"],"kty":"RSA","e":"AQAB","n":"{}"}}],"vm-configuration":{{"secure-boot":true}}}}"#,
        to_base64url(modulus)
    )
}

/// An HCL report around a recorded SEV-SNP report that our chip signs.
pub(crate) fn hcl(var_data: &[u8], edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let length = |value: usize| u32::try_from(value).unwrap().to_le_bytes();
    let text = String::from_utf8(own("sev-crate/report_milan.hex")).unwrap();
    let report = MAKER.report(&amd::hex(text.trim()), |report| {
        report[0x50..0x70].copy_from_slice(digest(&SHA256, var_data).as_ref());
        report[0x70..0x90].fill(0);
    });
    let mut out = [
        b"HCLA".to_vec(),
        length(2).to_vec(),
        length(32 + 1184 + 20 + var_data.len()).to_vec(),
        length(2).to_vec(),
        vec![0; 16],
        report,
        length(20 + var_data.len()).to_vec(),
        length(1).to_vec(),
        length(2).to_vec(),
        length(1).to_vec(),
        length(var_data.len()).to_vec(),
        var_data.to_vec(),
    ]
    .concat();
    edit(&mut out);
    out
}

pub(crate) fn opened(evidence: &AzureEvidence, policy: &Azure) -> Opened {
    open(Some(evidence), Hardware::SevSnp, &NONCE, policy)
}

pub(crate) fn refused(evidence: &AzureEvidence, policy: &Azure) -> Vec<&'static str> {
    failed(&opened(evidence, policy).factors)
}
