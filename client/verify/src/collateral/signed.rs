//! Whether collateral is signed as it should be, without a quote: for someone who keeps a bundle. What counts for
//! evidence is the check that comes with a quote, which also looks for revoked signers.

use super::QuoteCollateralV3;
use crate::time;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use x509_cert::{
    Certificate,
    crl::CertificateList,
    der::{Decode as _, Encode as _},
};

/// Public key of Intel's root, which signs itself as "Intel SGX Root CA": an uncompressed point of P-256.
const INTEL_ROOT: [u8; 65] = [
    0x04, 0x0b, 0xa9, 0xc4, 0xc0, 0xc0, 0xc8, 0x61, 0x93, 0xa3, 0xfe, 0x23, 0xd6, 0xb0, 0x2c, 0xda, 0x10, 0xa8, 0xbb,
    0xd4, 0xe8, 0x8e, 0x48, 0xb4, 0x45, 0x85, 0x61, 0xa3, 0x6e, 0x70, 0x55, 0x25, 0xf5, 0x67, 0x91, 0x8e, 0x2e, 0xdc,
    0x88, 0xe4, 0x0d, 0x86, 0x0b, 0xd0, 0xcc, 0x4e, 0xe2, 0x6a, 0xac, 0xc9, 0x88, 0xe5, 0x05, 0xa9, 0x53, 0x55, 0x8c,
    0x45, 0x3f, 0x6b, 0x09, 0x04, 0xae, 0x73, 0x94,
];
/// Most certificates of a chain.
const MAX_CHAIN: usize = 4;

/// Checks the signatures of TCB info, QE identity and both revocation lists below a root, given as a DER certificate, or
/// Intel's. `now` is in seconds since 1970.
///
/// # Errors
/// A sentence naming the part.
pub fn signatures(collateral: &QuoteCollateralV3, root: Option<&[u8]>, now: u64) -> Result<(), String> {
    let root = match root {
        Some(der) => key(&Certificate::from_der(der).map_err(|error| format!("root: {error}"))?)?,
        None => INTEL_ROOT.to_vec(),
    };
    let document = |field: &str, text: &str, signature: &[u8], chain: &str| -> Result<(), String> {
        let signer = leaf(field, chain, &root, now)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, key(&signer)?)
            .verify(text.as_bytes(), signature)
            .map_err(|_| format!("the signature of {field} is wrong"))
    };
    let QuoteCollateralV3 { tcb_info, tcb_info_signature, tcb_info_issuer_chain, .. } = collateral;
    document("tcb_info", tcb_info, tcb_info_signature, tcb_info_issuer_chain)?;
    let QuoteCollateralV3 { qe_identity, qe_identity_signature, qe_identity_issuer_chain, .. } = collateral;
    document("qe_identity", qe_identity, qe_identity_signature, qe_identity_issuer_chain)?;
    list("root_ca_crl", &collateral.root_ca_crl, &root, now)?;
    let issuer = leaf("pck_crl", &collateral.pck_crl_issuer_chain, &root, now)?;
    list("pck_crl", &collateral.pck_crl, &key(&issuer)?, now)
}

/// The first certificate of a chain in PEM, which the root must have issued directly.
fn leaf(field: &str, chain: &str, root: &[u8], now: u64) -> Result<Certificate, String> {
    let chain =
        Certificate::load_pem_chain(chain.as_bytes()).map_err(|error| format!("{field}: issuer chain: {error}"))?;
    if chain.len() > MAX_CHAIN {
        return Err(format!("{field}: issuer chain of {} certificates, expected {MAX_CHAIN} at most", chain.len()));
    }
    let leaf = chain.into_iter().next().ok_or_else(|| format!("{field}: issuer chain is empty"))?;
    let signed = leaf.tbs_certificate().to_der().map_err(|error| format!("{field}: issuer chain: {error}"))?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, root)
        .verify(&signed, leaf.signature().raw_bytes())
        .map_err(|_| format!("the signer of {field} was not certified by the root"))?;
    let validity = leaf.tbs_certificate().validity();
    let from = validity.not_before.to_unix_duration().as_secs();
    let to = validity.not_after.to_unix_duration().as_secs();
    within(&format!("the signer's certificate of {field}"), from, to, now)?;
    Ok(leaf)
}

fn list(field: &str, der: &[u8], issuer: &[u8], now: u64) -> Result<(), String> {
    let list: CertificateList = CertificateList::from_der(der).map_err(|error| format!("{field}: {error}"))?;
    let signed = list.tbs_cert_list.to_der().map_err(|error| format!("{field}: {error}"))?;
    UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, issuer)
        .verify(&signed, list.signature.raw_bytes())
        .map_err(|_| format!("the signature of {field} is wrong"))?;
    let from = list.tbs_cert_list.this_update.to_unix_duration().as_secs();
    let to = list.tbs_cert_list.next_update.map_or(u64::MAX, |time| time.to_unix_duration().as_secs());
    within(field, from, to, now)
}

fn within(what: &str, from: u64, to: u64, now: u64) -> Result<(), String> {
    if (from..=to).contains(&now) {
        return Ok(());
    }
    Err(format!(
        "{what} is valid from {} to {}: check the clock of this machine, then fetch collateral anew",
        time::show(from),
        time::show(to)
    ))
}

fn key(certificate: &Certificate) -> Result<Vec<u8>, String> {
    let key = certificate.tbs_certificate().subject_public_key_info().subject_public_key.as_bytes();
    key.map(<[u8]>::to_vec).ok_or_else(|| "a certificate's public key is no whole number of bytes".to_owned())
}
