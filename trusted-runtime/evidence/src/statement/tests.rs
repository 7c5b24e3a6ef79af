use super::*;
use crate::testing::{milan, td15ex, tdx_v4, unhex};
use proptest::prelude::*;
use proto::v1::AzureEvidence;

#[test]
fn version_4_and_5_and_snp_hold_their_report_data_where_the_specifications_say() {
    // Read off the real quotes by another program.
    let v4 = "9a9d48e7f6799642d3d1b34e1e5e1742d4bb02dd6ddd551862c1211d35c304f9eca3efdbb481601c163cf52493d6e44aed55d51ec39b7e518fadb92c2b523f20";
    assert_eq!(report_data(Platform::Tdx, &tdx_v4()).unwrap().as_slice(), unhex(v4));
    let v5 = "2945321c99222c3622a14cf7feaab073e799be14b5f3e73cd2e6cad64e5f062463ad204f33f0a39e47d098330db88ca5b5d0a7afce540dfe4c4fe4a377190731";
    assert_eq!(report_data(Platform::Tdx, &td15ex()).unwrap().as_slice(), unhex(v5));
    let report = milan();
    assert_eq!(report_data(Platform::SevSnp, &report).unwrap().as_slice(), &report[80..144]);
}

#[test]
fn a_quote_of_another_kind_is_named() {
    let text = |platform, quote: &[u8]| report_data(platform, quote).unwrap_err().to_string();
    let mut sgx = tdx_v4();
    sgx[4] = 0;
    assert_eq!(text(Platform::Tdx, &sgx), "TEE type of the quote is 0x0, expected 0x81 (TDX)");
    let mut v3 = tdx_v4();
    v3[0] = 3;
    assert_eq!(text(Platform::Tdx, &v3), "quote version is 3, expected 4 or 5");
    let mut body = td15ex();
    body[48] = 1;
    assert!(text(Platform::Tdx, &body).starts_with("body type of the quote is 1, expected 2, 3 or 4"));
    assert_eq!(text(Platform::SevSnp, &tdx_v4()), "SEV-SNP report is 5006 bytes, expected 1184 bytes");
    assert_eq!(report_data(Platform::Tdx, &[]), Err(Unfit::Empty));
    assert_eq!(report_data(Platform::Tdx, &tdx_v4()[..635]), Err(Unfit::Short { found: 635, least: 636 }));
    assert_eq!(report_data(Platform::SevSnp, &[0; 1183]), Err(Unfit::Short { found: 1183, least: 1184 }));
    assert!(report_data(Platform::Unspecified, &tdx_v4()).is_err());
}

#[test]
fn below_the_paravisor_the_tpm_quote_counts() {
    let ours = [9; 64];
    let mut attest = vec![0xff, b'T', b'C', b'G', 0x80, 0x18, 0, 2, 1, 2, 0, 32];
    attest.extend_from_slice(&Sha256::digest(ours));
    attest.extend_from_slice(&[0; 17]);
    let with = |tpm_quote: Vec<u8>| Collected {
        platform: Platform::AzureTdx,
        quote: tdx_v4(),
        azure: Some(AzureEvidence { tpm_quote: tpm_quote.into(), ..AzureEvidence::default() }),
        ..Collected::default()
    };
    assert_eq!(check(&with(attest.clone()), &ours), Ok(()));
    assert_eq!(check(&with(attest.clone()), &[8; 64]), Err(Unfit::OtherReportData("TPM quote")));
    for length in 0..attest.len() - 17 {
        assert!(check(&with(attest[..length].to_vec()), &ours).is_err(), "{length} bytes");
    }
    let none = Collected { azure: None, ..with(attest) };
    assert_eq!(check(&none, &ours).unwrap_err().to_string(), "azure is absent, expected HCL report and TPM quote");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..1400), version in 0u8..7) {
        let mut bytes = bytes;
        for platform in [Platform::Tdx, Platform::SevSnp, Platform::AzureTdx] {
            let _ = report_data(platform, &bytes);
        }
        let _ = qualifying_data(&bytes);
        if bytes.len() > 8 {
            bytes[..8].copy_from_slice(&[version, 0, 2, 0, 0x81, 0, 0, 0]);
            let _ = report_data(Platform::Tdx, &bytes);
        }
    }
}

/// Vectors that are not part of this repository: `BIFROST_EXTRA_VECTORS`, or `shared/vectors` beside the workspace.
#[test]
fn a_td15_body_and_a_padded_quote_are_read_at_their_offsets() {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/vectors");
    let vectors = std::env::var_os("BIFROST_EXTRA_VECTORS").map_or_else(|| beside.into(), std::path::PathBuf::from);
    if !vectors.exists() {
        println!("skipped: {} is not there", vectors.display());
        return;
    }
    let read = |name: &str| std::fs::read(vectors.join(name)).unwrap();
    let td15 = read("go-tdx-guest/quote_v5_sample.dat");
    let expected = "945eaacf5abc1f719d8666a942fda03d1edcb4490277396093dc5a5289ab9f1e094aed63060cd4a4933a4dd537ed1255c9c79ecb3ed82cd1b486233e31c25c3a";
    assert_eq!(report_data(Platform::Tdx, &td15).unwrap().as_slice(), unhex(expected));
    let padded = read("flashbots-attested-tls/gcp-tdx-1782809233226668671");
    assert_eq!((padded.len(), report_data(Platform::Tdx, &padded)), (8000, Ok(&[0; 64])));
}
