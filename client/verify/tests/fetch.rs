//! Collateral from a service: the addresses, and what becomes of the answers.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use attest_verify::{
    collateral::{
        Answer, Answers, Ca, CollateralKey, FetchError, INTEL_PCS, QuoteCollateralV3, assemble, signatures, urls,
    },
    hex::{Hex, encode},
};

fn recorded() -> QuoteCollateralV3 {
    serde_json::from_str(include_str!("../testdata/dcap-qvl-crate/tdx_quote_collateral.json")).unwrap()
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// As Intel answers; a caching service differs in the root's list.
fn answers(of: &QuoteCollateralV3) -> Answers {
    let header = |name: &str, pem: &str| vec![(name.to_owned(), percent_encoded(pem))];
    let signed = |name: &str, json: &str, signature: &[u8]| {
        format!(r#"{{"{name}":{json},"signature":"{}"}}"#, encode(signature)).into_bytes()
    };
    Answers {
        tcb_info: Answer {
            body: signed("tcbInfo", &of.tcb_info, &of.tcb_info_signature),
            headers: header("TCB-Info-Issuer-Chain", &of.tcb_info_issuer_chain),
        },
        qe_identity: Answer {
            body: signed("enclaveIdentity", &of.qe_identity, &of.qe_identity_signature),
            headers: header("sgx-enclave-identity-issuer-chain", &of.qe_identity_issuer_chain),
        },
        pck_crl: Answer {
            body: of.pck_crl.clone(),
            headers: header("SGX-PCK-CRL-Issuer-Chain", &of.pck_crl_issuer_chain),
        },
        root_ca_crl: Answer { body: of.root_ca_crl.clone(), headers: vec![] },
    }
}

#[test]
fn answers_become_the_collateral_byte_for_byte() {
    let of = recorded();
    assert_eq!(assemble(&answers(&of)).unwrap(), of);
    let mut cached = answers(&of);
    for body in [encode(&of.root_ca_crl), format!("\"{}\"\n", encode(&of.root_ca_crl).to_uppercase())] {
        cached.root_ca_crl.body = body.into_bytes();
        assert_eq!(assemble(&cached).unwrap(), of);
    }
}

#[test]
fn what_is_missing_or_odd_is_named() {
    let good = answers(&recorded());
    let mut no_header = good.clone();
    no_header.pck_crl.headers.clear();
    let expected = FetchError::Header { answer: "pck crl", header: "SGX-PCK-CRL-Issuer-Chain" };
    assert_eq!(assemble(&no_header).unwrap_err(), expected);
    let mut html = good.clone();
    html.tcb_info.body = b"<html>busy</html>".to_vec();
    assert!(assemble(&html).unwrap_err().to_string().starts_with("tcb info: not the JSON of a signed answer"));
    let mut odd = good.clone();
    odd.root_ca_crl.body = b"not a list".to_vec();
    assert!(assemble(&odd).unwrap_err().to_string().starts_with("root ca crl: neither DER"));
    let mut pem = good.clone();
    pem.qe_identity.headers[0].1 = "%ZZ".to_owned();
    assert!(assemble(&pem).unwrap_err().to_string().contains("no percent-encoded PEM"));
    let mut large = good;
    large.tcb_info.body = vec![b' '; (1 << 20) + 1];
    assert!(matches!(assemble(&large), Err(FetchError::Size { answer: "tcb info", .. })));
}

#[test]
fn addresses_of_intel_and_of_a_cache() {
    let key = CollateralKey { fmspc: Hex([0xb0, 0xc0, 0x6f, 0, 0, 0]), ca: Ca::Platform };
    let intel = urls(INTEL_PCS, &key);
    assert_eq!(intel.tcb_info, "https://api.trustedservices.intel.com/tdx/certification/v4/tcb?fmspc=B0C06F000000");
    assert_eq!(intel.qe_identity, "https://api.trustedservices.intel.com/tdx/certification/v4/qe/identity");
    assert_eq!(
        intel.pck_crl,
        "https://api.trustedservices.intel.com/sgx/certification/v4/pckcrl?ca=platform&encoding=der"
    );
    assert_eq!(intel.root_ca_crl, "https://certificates.trustedservices.intel.com/IntelSGXRootCA.der");
    for base in ["https://pccs:8081", "https://pccs:8081/", "https://pccs:8081/sgx/certification/v4/"] {
        let cache = urls(base, &CollateralKey { ca: Ca::Processor, ..key });
        assert_eq!(cache.root_ca_crl, "https://pccs:8081/sgx/certification/v4/rootcacrl", "{base}");
        assert!(cache.pck_crl.ends_with("ca=processor&encoding=der"));
    }
}

const ROOT: &[u8] = include_bytes!("../testdata/dcap-qvl-crate/Intel_SGX_Root_CA.der");
/// 1 July 2025.
const NOW: u64 = 1_751_328_000;

#[test]
fn signatures_hold_below_intels_root_alone() {
    let good = recorded();
    signatures(&good, None, NOW).unwrap();
    signatures(&good, Some(ROOT), NOW).unwrap();
    let leaf = good.tcb_info_issuer_chain.clone();
    assert!(signatures(&good, Some(leaf.as_bytes()), NOW).unwrap_err().starts_with("root:"));
    type Change = (fn(&mut QuoteCollateralV3), &'static str);
    let changes: [Change; 7] = [
        (|held| held.tcb_info.push(' '), "the signature of tcb_info is wrong"),
        (|held| held.tcb_info_signature[5] ^= 1, "the signature of tcb_info is wrong"),
        (|held| held.qe_identity.push(' '), "the signature of qe_identity is wrong"),
        (|held| held.qe_identity_signature.clear(), "the signature of qe_identity is wrong"),
        (|held| held.root_ca_crl.clone_from(&held.pck_crl), "the signature of root_ca_crl is wrong"),
        (|held| held.pck_crl.clone_from(&held.root_ca_crl), "the signature of pck_crl is wrong"),
        (|held| held.pck_crl_issuer_chain.clear(), "pck_crl: issuer chain"),
    ];
    for (change, text) in changes {
        let mut held = good.clone();
        change(&mut held);
        let error = signatures(&held, None, NOW).unwrap_err();
        assert!(error.starts_with(text), "{error}");
    }
    assert!(signatures(&good, None, 4_000_000_000).unwrap_err().contains("check the clock"));
}
