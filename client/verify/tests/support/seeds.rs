//! What mutations and fuzz targets start from: recorded evidence, and messages made of it.

use prost::Message as _;
use proto::v1::{AzureEvidence, Evidence, Platform, RuntimeEvent, RuntimeValues};

macro_rules! recorded {
    ($name:literal) => {
        include_bytes!(concat!("../../testdata/", $name)).to_vec()
    };
}

/// Quotes: versions 4 and 5, an outdated one, and one of SGX.
pub fn quotes() -> Vec<Vec<u8>> {
    vec![
        recorded!("dcap-qvl-crate/tdx_quote"),
        recorded!("dcap-qvl-crate/tdx_quote_td15ex"),
        recorded!("dcap-qvl-crate/tdx_quote_outdated"),
        recorded!("dcap-qvl-crate/sgx_quote"),
    ]
}

/// A log of a few entries, since no recorded one is in the repository.
pub fn log() -> Vec<u8> {
    const SPEC: [u8; 37] = *b"Spec ID Event03\0\0\0\0\0\0\x02\0\x02\x02\0\0\0\x0b\0\x20\0\x0c\0\x30\0\0";
    let mut bytes = [1u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
    bytes.extend([0; 20]);
    bytes.extend(37u32.to_le_bytes());
    bytes.extend(SPEC);
    for (index, kind) in [(1u32, 0x8000_0008u32), (u32::MAX, 3), (2, 6), (3, 13), (4, 6)] {
        bytes.extend(index.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(2u32.to_le_bytes());
        bytes.extend([0x0b, 0]);
        bytes.extend([6; 32]);
        bytes.extend([0x0c, 0]);
        bytes.extend([7; 48]);
        bytes.extend(5u32.to_le_bytes());
        bytes.extend(*b"event");
    }
    bytes.extend([0xff; 64]);
    bytes
}

/// Collateral, current and outdated, and a bundle of one.
pub fn collateral() -> Vec<Vec<u8>> {
    let one = recorded!("dcap-qvl-crate/tdx_quote_collateral.json");
    let text = String::from_utf8_lossy(&one);
    let bundle = format!(r#"[{{"fmspc":"B0C06F000000","ca":"platform","fetched_at":1,"collateral":{text}}}]"#);
    vec![one, recorded!("dcap-qvl-crate/tdx_quote_outdated_collateral.json"), bundle.into_bytes()]
}

/// The SEV-SNP report inside the HCL report: behind a header of 32 bytes.
pub fn snp_report() -> Vec<u8> {
    recorded!("az-cvm-vtpm-crate/hcl-report-snp.bin")
        .into_iter()
        .skip(32)
        .take(attest_verify::snp::Report::LEN)
        .collect()
}

/// What a TPM quoted, its signature, and its PCRs; where they lie in the file, its README says.
pub fn tpm() -> [Vec<u8>; 3] {
    let file = recorded!("az-cvm-vtpm-crate/quote.bin");
    [272..394, 8..264, 402..file.len()].map(|range| file.get(range).unwrap_or_default().to_vec())
}

/// A message for each quote, one for SEV-SNP and one for each hardware below Azure's paravisor.
pub fn evidence() -> Vec<Vec<u8>> {
    let azure = |hcl: Vec<u8>| {
        let [tpm_quote, tpm_signature, pcrs] = tpm().map(Into::into);
        Some(AzureEvidence { hcl_report: hcl.into(), tpm_quote, tpm_signature, pcrs })
    };
    let certificates = || recorded!("az-cvm-vtpm-crate/certs.pem").into();
    let (snp, tdx) =
        (recorded!("az-cvm-vtpm-crate/hcl-report-snp.bin"), recorded!("az-cvm-vtpm-crate/hcl-report-tdx.bin"));
    let below = message(Platform::AzureTdx, recorded!("dcap-qvl-crate/tdx_quote"));

    let mut messages: Vec<Evidence> = quotes().into_iter().map(|quote| message(Platform::Tdx, quote)).collect();
    messages.extend([
        Evidence { certificates: certificates(), ..message(Platform::SevSnp, snp_report()) },
        Evidence { azure: azure(tdx), ..below },
        Evidence { certificates: certificates(), azure: azure(snp), ..message(Platform::AzureSevSnp, Vec::new()) },
    ]);
    messages.iter().map(Evidence::encode_to_vec).collect()
}

fn message(platform: Platform, quote: Vec<u8>) -> Evidence {
    Evidence {
        version: attest::VERSION,
        platform: platform.into(),
        quote: quote.into(),
        event_log: log().into(),
        runtime_log: vec![RuntimeEvent { name: "model".to_owned(), payload: vec![1; 32].into() }],
        values: Some(RuntimeValues {
            hpke_key: vec![3; 1216].into(),
            receipt_key: vec![4; 32].into(),
            params_digest: vec![1; 32].into(),
            model_digest: vec![2; 32].into(),
            config_digest: vec![5; 32].into(),
            not_after: u64::MAX,
            software: "0.1.0".to_owned(),
        }),
        ..Evidence::default()
    }
}
