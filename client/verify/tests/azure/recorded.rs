//! Recorded evidence.

use crate::made::*;

#[test]
fn recorded_evidence_of_tdx_is_accepted() {
    for (name, nonce) in [
        ("attestation-rs/evidence-v1.json", b"challenge".as_slice()),
        ("attestation-rs/live-evidence.json", b"attestation-test-fixture"),
        ("coco-trustee/evidence-v1.json", b"challenge"),
    ] {
        let Some((evidence, td_quote)) = recorded(name) else { continue };
        let policy = policy(&evidence);
        let opened = open(Some(&evidence), Hardware::Tdx, nonce, &policy);
        assert_eq!(failed(&opened.factors), [""; 0], "{name}");
        // Report data of a quote of version 4: a header of 48 bytes, then at 520 of the body.
        assert_eq!(opened.report_data.unwrap().as_slice(), &td_quote[568..632], "{name}");
        assert_eq!(failed(&open(Some(&evidence), Hardware::SevSnp, nonce, &policy).factors), ["azure.hcl.hardware"]);
        assert_eq!(failed(&open(Some(&evidence), Hardware::Tdx, &NONCE, &policy).factors), ["azure.tpm.nonce"]);
    }
}

#[test]
fn recorded_hcl_reports_are_what_their_hardware_vouches_for() {
    let snp = own("az-cvm-vtpm-crate/hcl-report-snp.bin");
    let report = HclReport::parse(&snp).unwrap();
    assert_eq!((report.version(), report.hardware()), (1, Hardware::SevSnp));
    assert_eq!(report.report_data(), report.hardware_report()[0x50..0x90]);
    VarData::parse(report.var_data()).unwrap();

    // Of a TDX guest only REPORTDATA of the TDREPORT, at 128, is here; the quote is not.
    let tdx = [
        Some(own("az-cvm-vtpm-crate/hcl-report-tdx.bin")),
        extra("flashbots-attested-tls/hclreport.bin"),
        extra("coco-trustee/hcl-report.bin"),
    ];
    for bytes in tdx.into_iter().flatten() {
        let report = HclReport::parse(&bytes).unwrap();
        assert_eq!((report.version(), report.hardware()), (2, Hardware::Tdx));
        assert_eq!(report.report_data(), report.hardware_report()[128..192]);
        VarData::parse(report.var_data()).unwrap();
    }
    VarData::parse(&own("az-cvm-vtpm-crate/var-data.bin")).unwrap();
}

/// The quote was recorded with the key beside it, and not with the HCL reports.
#[test]
fn a_recorded_tpm_quote_is_signed_by_its_key_alone() {
    let recorded = own("az-cvm-vtpm-crate/quote.bin");
    let (signature, rest) = recorded[8..].split_at(256);
    let length = usize::try_from(u64::from_le_bytes(rest[..8].try_into().unwrap())).unwrap();
    let quote = &rest[8..8 + length];
    let parsed = TpmQuote::parse(quote).unwrap();
    assert_eq!(parsed.extra_data(), b"challenge");
    assert!((0..24).all(|index| parsed.covers(index)) && !parsed.covers(24));
    let pcrs: Vec<u8> = rest[8 + length + 8..].chunks_exact(32).flatten().copied().collect();
    let evidence = AzureEvidence {
        hcl_report: Vec::new().into(),
        tpm_quote: quote.to_vec().into(),
        tpm_signature: signature.to_vec().into(),
        pcrs: pcrs.into(),
    };
    let (_, spki) = x509_cert::der::pem::decode_vec(&own("az-cvm-vtpm-crate/akpub.pem")).unwrap();
    // SubjectPublicKeyInfo of 2048 bits: 33 bytes of headers before the modulus, the exponent after it.
    let own_data = var_data_of(&spki[33..289]);
    let other_data = String::from_utf8(own("az-cvm-vtpm-crate/var-data.bin")).unwrap();
    for (text, refused) in [(own_data, vec![]), (other_data, vec!["azure.tpm.signature"])] {
        let evidence = AzureEvidence { hcl_report: hcl(text.as_bytes(), |_| {}).into(), ..evidence.clone() };
        let mut policy = policy(&evidence);
        policy.require_secure_boot = false;
        assert_eq!(failed(&open(Some(&evidence), Hardware::SevSnp, b"challenge", &policy).factors), refused);
    }
}

#[test]
fn no_flipped_bit_of_recorded_evidence_is_accepted() {
    let mut vectors = vec![(Quoted::new().evidence(&var_data(&TPM)), NONCE.to_vec(), Hardware::SevSnp)];
    if let Some((evidence, _)) = recorded("attestation-rs/live-evidence.json") {
        vectors.push((evidence, b"attestation-test-fixture".to_vec(), Hardware::Tdx));
    }
    for (evidence, nonce, hardware) in vectors {
        let policy = policy(&evidence);
        let good = open(Some(&evidence), hardware, &nonce, &policy);
        assert_eq!(failed(&good.factors), [""; 0]);
        let same = |evidence: &AzureEvidence| {
            let opened = open(Some(evidence), hardware, &nonce, &policy);
            failed(&opened.factors).is_empty() && opened.report_data == good.report_data && opened.report == good.report
        };
        for part in 0..3 {
            let bytes = [&evidence.tpm_quote, &evidence.tpm_signature, &evidence.pcrs][part];
            for bit in 0..8 * bytes.len() {
                let mut flipped = bytes.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let mut evidence = evidence.clone();
                *[&mut evidence.tpm_quote, &mut evidence.tpm_signature, &mut evidence.pcrs][part] = flipped.into();
                assert!(!same(&evidence), "part {part}, bit {bit}");
            }
        }
        // Of the HCL report, the reserved bytes of the header say nothing; the area of the hardware's report is Intel's
        // to vouch for, or judged by itself.
        for bit in 0..8 * evidence.hcl_report.len() {
            let at = bit / 8;
            if (20..32).contains(&at) || (32..1216).contains(&at) {
                continue;
            }
            let mut flipped = evidence.hcl_report.to_vec();
            flipped[at] ^= 1 << (bit % 8);
            assert!(!same(&AzureEvidence { hcl_report: flipped.into(), ..evidence.clone() }), "hcl bit {bit}");
        }
    }
}
