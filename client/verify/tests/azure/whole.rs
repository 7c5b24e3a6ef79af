//! Evidence of SEV-SNP below the paravisor as it comes over a connection: chip, HCL report, virtual TPM, connection.

use crate::amd::bench::{Bench, MILAN, binding, policy_of, values, verified};
use crate::made::*;
use attest_verify::Verdict;
use proto::v1::{Evidence, Platform};
use x509_cert::der::pem::{LineEnding, encode_string};

fn evidence(nonce: u8) -> Evidence {
    let quoted = Quoted { extra: binding(nonce).transcript().to_vec(), ..Quoted::new() };
    let azure = quoted.evidence(&var_data(&TPM));
    let chip: [u8; 64] = azure.hcl_report[32 + 0x1a0..32 + 0x1e0].try_into().unwrap();
    let chain = [certificate(&MAKER.endorsement(&chip), &MAKER.ask), certificate(&MAKER.signing(), &MAKER.ark)]
        .map(|der| encode_string("CERTIFICATE", LineEnding::LF, &der).unwrap());
    Evidence {
        version: attest::VERSION,
        platform: Platform::AzureSevSnp.into(),
        certificates: chain.concat().into_bytes().into(),
        azure: Some(azure),
        values: Some(values()),
        ..Evidence::default()
    }
}

fn policy() -> attest_verify::Policy {
    let pcr = |index: u8| attest_verify::hex::encode(&[index ^ 0x5a; 32]);
    policy_of("azure_sev_snp", MILAN, &format!("[azure.pcr]\n4 = [\"{}\"]\n7 = [\"{}\"]", pcr(4), pcr(7)))
}

fn refused(evidence: &Evidence, nonce: u8) -> Vec<&'static str> {
    let outcome = verified::<Bench>(evidence, nonce, &policy());
    assert_eq!(outcome.verified.is_some(), outcome.report.verdict == Verdict::Accepted);
    failed(&outcome.report.factors)
}

#[test]
fn evidence_of_this_connection_is_accepted() {
    assert_eq!(refused(&evidence(7), 7), [""; 0]);
    let mut beside = evidence(7);
    let inner = beside.azure.as_ref().unwrap().hcl_report[32..1216].to_vec();
    beside.quote = inner.clone().into();
    assert_eq!(refused(&beside, 7), [""; 0]);
    beside.quote = inner[1..].to_vec().into();
    assert_eq!(refused(&beside, 7), ["azure.hcl.report"]);
}

#[test]
fn evidence_of_another_connection_is_refused_before_the_hardware_is_looked_at() {
    assert_eq!(refused(&evidence(7), 6), ["azure.tpm.nonce", "binding.report_data"]);
    let mut evidence = evidence(7);
    evidence.azure.as_mut().unwrap().tpm_quote = Vec::new().into();
    assert_eq!(refused(&evidence, 7), ["azure.tpm.quote", "binding.report_data"]);
    evidence.azure = None;
    assert_eq!(refused(&evidence, 7), ["azure.hcl.parse", "binding.report_data"]);
}

/// A TPM of one's own quotes the right connection, and no hardware vouches for it.
#[test]
fn a_virtual_tpm_that_the_hardware_does_not_know_is_refused() {
    let mut evidence = evidence(7);
    let azure = evidence.azure.as_mut().unwrap();
    let mut bytes = hcl(var_data(&STRANGER).as_bytes(), |_| {});
    // The report of the other TPM's machine, the variable data of this one's.
    bytes[32..1216].copy_from_slice(&azure.hcl_report[32..1216]);
    azure.hcl_report = bytes.into();
    azure.tpm_signature = sign(&STRANGER, &azure.tpm_quote).into();
    assert_eq!(refused(&evidence, 7), RELAYED);
}

#[test]
fn the_platform_must_be_what_the_hcl_report_says() {
    let mut evidence = evidence(7);
    evidence.platform = Platform::SevSnp.into();
    assert_eq!(refused(&evidence, 7), ["platform.accepted"]);
    let azure = evidence.azure.as_mut().unwrap();
    let mut bytes = azure.hcl_report.to_vec();
    bytes[1224] = 4;
    azure.hcl_report = bytes.into();
    evidence.platform = Platform::AzureSevSnp.into();
    assert_eq!(refused(&evidence, 7), ["azure.hcl.hardware"]);
}
