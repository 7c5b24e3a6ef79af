use super::*;
use crate::testing;
use hcl::{AREA, HEADER, RUNTIME};

const VARIABLE: &[u8] = b"{\"keys\":[]}";

/// A machine that answers as it is told to.
struct Machine {
    hcl: Result<Vec<u8>, String>,
    td_quote: Result<Vec<u8>, String>,
    certificates: Result<Vec<u8>, String>,
    /// Error of every quote.
    refusal: Option<&'static str>,
    pcrs: usize,
    /// In place of what was asked.
    qualifying: Option<[u8; 32]>,
}

impl Vtpm for Machine {
    fn hcl_report(&self) -> Result<Vec<u8>, String> {
        self.hcl.clone()
    }

    fn quote(&self, qualifying: &[u8; 32]) -> Result<TpmQuote, String> {
        if let Some(refusal) = self.refusal {
            return Err(refusal.into());
        }
        let mut message = vec![0xff, b'T', b'C', b'G', 0x80, 0x18, 0, 0, 0, 32];
        message.extend_from_slice(&self.qualifying.unwrap_or(*qualifying));
        Ok(TpmQuote { message, signature: vec![7; 256], pcrs: vec![[5; 32]; self.pcrs] })
    }

    fn td_quote(&self, td_report: &[u8]) -> Result<Vec<u8>, String> {
        assert_eq!(td_report.len(), 1024);
        self.td_quote.clone()
    }

    fn certificates(&self) -> Result<Vec<u8>, String> {
        self.certificates.clone()
    }
}

fn bound() -> [u8; 64] {
    let mut report_data = [0; 64];
    report_data[..32].copy_from_slice(&Sha256::digest(VARIABLE));
    report_data
}

/// A recorded quote, with other report data.
fn tdx_v4(report_data: &[u8; 64]) -> Vec<u8> {
    let mut quote = testing::tdx_v4();
    quote[48 + 520..][..64].copy_from_slice(report_data);
    quote
}

fn hcl(kind: u32, report_data: &[u8; 64]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER + AREA + RUNTIME];
    bytes[..4].copy_from_slice(b"HCLA");
    bytes[HEADER + 0x50..][..64].copy_from_slice(report_data);
    bytes[HEADER + AREA + 8..][..4].copy_from_slice(&kind.to_le_bytes());
    bytes[HEADER + AREA + 16..][..4].copy_from_slice(&u32::try_from(VARIABLE.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(VARIABLE);
    // The index is longer than what lies in it.
    bytes.extend_from_slice(&[0; 100]);
    bytes
}

fn tdx() -> Machine {
    Machine {
        hcl: Ok(hcl(4, &[0; 64])),
        td_quote: Ok(tdx_v4(&bound())),
        certificates: Err("not asked".into()),
        refusal: None,
        pcrs: 24,
        qualifying: None,
    }
}

fn snp() -> Machine {
    let certificates = Ok(b"-----BEGIN CERTIFICATE-----".to_vec());
    Machine { hcl: Ok(hcl(2, &bound())), td_quote: Err("not asked".into()), certificates, ..tdx() }
}

fn error(machine: Machine) -> String {
    AzureVtpm::new(machine).collect(&[1; 64]).err().unwrap().to_string()
}

#[test]
fn the_report_says_whose_hardware_it_is() {
    let collected = AzureVtpm::new(tdx()).collect(&[1; 64]).unwrap();
    assert_eq!((collected.platform, collected.quote), (Platform::AzureTdx, tdx_v4(&bound())));
    let azure = collected.azure.unwrap();
    assert_eq!((azure.pcrs.len(), azure.hcl_report.len()), (768, HEADER + AREA + RUNTIME + VARIABLE.len() + 100));
    assert!(collected.certificates.is_empty());
    let collected = AzureVtpm::new(snp()).collect(&[1; 64]).unwrap();
    assert_eq!((collected.platform, collected.quote.len()), (Platform::AzureSevSnp, 1184));
    assert_eq!(collected.certificates, b"-----BEGIN CERTIFICATE-----");
}

#[test]
fn no_tpm_is_no_tee_and_everything_else_is_an_error_of_the_tee() {
    assert!(AzureVtpm::new(tdx()).present().is_ok());
    let absent = AzureVtpm::new(Machine { hcl: Err("/dev/tpm0: none".into()), ..tdx() });
    for absent in [absent.collect(&[1; 64]).err().unwrap(), absent.present().unwrap_err().into()] {
        assert!(matches!(&absent, SourceError::NoTee(why) if why.contains("/dev/tpm0: none")), "{absent}");
    }
    for (machine, says) in [
        (Machine { hcl: Ok(b"ACLH".to_vec()), ..tdx() }, "does not begin with HCLA"),
        (Machine { hcl: Ok(hcl(4, &[0; 64])[..1200].to_vec()), ..tdx() }, "HCL report of 1200 bytes, expected 1216"),
        (Machine { hcl: Ok(hcl(4, &[0; 64])[..1240].to_vec()), ..tdx() }, "expected 1247 at least"),
        (Machine { hcl: Ok(hcl(3, &[0; 64])), ..tdx() }, "HCL report of type 3"),
        (Machine { td_quote: Err("503".into()), ..tdx() }, "quote of the metadata service: 503"),
        (Machine { td_quote: Ok(Vec::new()), ..tdx() }, "quote is empty"),
        (Machine { td_quote: Ok(vec![0; MAX_BLOB + 1]), ..tdx() }, "expected at most 1048576"),
        (Machine { certificates: Err("404".into()), ..snp() }, "certificates of the metadata service: 404"),
        (Machine { certificates: Ok(vec![0; MAX_BLOB + 1]), ..snp() }, "expected at most 1048576"),
        (Machine { refusal: Some("handle 0x81000003"), ..tdx() }, "TPM quote: handle 0x81000003"),
        (Machine { pcrs: 23, ..tdx() }, "with 23 PCRs, expected 24"),
        (Machine { qualifying: Some([9; 32]), ..tdx() }, "report data in the TPM quote is not what was asked for"),
    ] {
        let text = error(machine);
        assert!(text.starts_with("no quote: azure_vtpm: ") && text.contains(says), "{says}: {text}");
    }
}

/// Bug report 26: the NV index may hold an older report than the one that the quote is about.
#[test]
fn bug_26_a_report_that_the_quote_is_not_about_is_not_handed_out() {
    for machine in [Machine { td_quote: Ok(tdx_v4(&[3; 64])), ..tdx() }, Machine { hcl: Ok(hcl(2, &[3; 64])), ..snp() }]
    {
        assert!(error(machine).contains("an old report was read"));
    }
}

#[cfg(not(feature = "azure_vtpm"))]
#[test]
fn without_the_feature_the_refusal_says_how_to_build() {
    let text = open().err().unwrap().to_string();
    assert!(text.contains("--features azure_vtpm") && text.contains("libtss2-dev"), "{text}");
}
