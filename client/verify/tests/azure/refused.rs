//! One thing wrong at a time.

use crate::made::*;

#[test]
fn a_quote_of_another_key_connection_or_kind_is_refused() {
    let good = Quoted::new().evidence(&var_data(&TPM));
    let policy = policy(&good);
    let with = |edit: fn(&mut Quoted)| {
        let mut quoted = Quoted::new();
        edit(&mut quoted);
        refused(&quoted.evidence(&var_data(&TPM)), &policy)
    };
    assert_eq!(with(|_| {}), [""; 0]);
    assert_eq!(with(|quoted| quoted.extra[31] ^= 1), ["azure.tpm.nonce"]);
    assert_eq!(with(|quoted| quoted.extra.truncate(31)), ["azure.tpm.nonce"]);
    assert_eq!(with(|quoted| quoted.extra.clear()), ["azure.tpm.nonce"]);
    assert_eq!(with(|quoted| quoted.magic ^= 1), ["azure.tpm.quote"]);
    assert_eq!(with(|quoted| quoted.kind = 0x8017), ["azure.tpm.quote"]);
    assert_eq!(with(|quoted| quoted.bank = 4), ["azure.tpm.quote"]);
    // Its key is not the one in the variable data.
    assert_eq!(refused(&Quoted::new().evidence(&var_data(&STRANGER)), &policy), ["azure.tpm.signature"]);
    let mut other = good.clone();
    other.tpm_signature = sign(&STRANGER, &good.tpm_quote).into();
    assert_eq!(refused(&other, &policy), ["azure.tpm.signature"]);
    other.tpm_signature = Vec::new().into();
    assert_eq!(refused(&other, &policy), ["azure.tpm.signature"]);
    // Nothing else says that the evidence is fresh.
    other.tpm_quote = Vec::new().into();
    assert_eq!(refused(&other, &policy), ["azure.tpm.quote"]);
    assert_eq!(failed(&open(None, Hardware::SevSnp, &NONCE, &policy).factors), ["azure.hcl.parse"]);
}

#[test]
fn every_pcr_of_the_policy_must_be_quoted_and_accepted() {
    let good = Quoted::new().evidence(&var_data(&TPM));
    let policy = policy(&good);
    let with = |edit: fn(&mut Quoted)| {
        let mut quoted = Quoted::new();
        edit(&mut quoted);
        refused(&quoted.evidence(&var_data(&TPM)), &policy)
    };
    // A PCR that is not covered does not count, whatever value is written beside the quote.
    assert_eq!(with(|quoted| quoted.selected &= !(1 << 7)), ["azure.tpm.selection", "azure.pcr7"]);
    assert_eq!(with(|quoted| quoted.selected = 0), ["azure.tpm.selection", "azure.pcr4", "azure.pcr7"]);
    assert_eq!(with(|quoted| quoted.selected = 1 << 4 | 1 << 7), [""; 0]);
    assert_eq!(with(|quoted| quoted.pcrs[32 * 4] ^= 1), ["azure.pcr4"]);
    assert_eq!(with(|quoted| quoted.pcrs[32 * 8] ^= 1), [""; 0]);
    let beside = |edit: fn(&mut Vec<u8>)| {
        let mut pcrs = good.pcrs.to_vec();
        edit(&mut pcrs);
        refused(&AzureEvidence { pcrs: pcrs.into(), ..good.clone() }, &policy)
    };
    assert_eq!(beside(|pcrs| pcrs[32 * 8] ^= 1), ["azure.tpm.pcr_digest"]);
    assert_eq!(beside(|pcrs| pcrs[32 * 7] ^= 1), ["azure.tpm.pcr_digest", "azure.pcr7"]);
    assert_eq!(beside(|pcrs| pcrs.rotate_left(32)), ["azure.tpm.pcr_digest", "azure.pcr4", "azure.pcr7"]);
    assert_eq!(beside(|pcrs| pcrs.truncate(32 * 23)), ["azure.pcrs"]);
    assert_eq!(beside(Vec::clear), ["azure.pcrs"]);
    let empty: Azure = toml::from_str("[pcr]\n4 = []").unwrap();
    assert_eq!(refused(&good, &empty), ["azure.pcr4"]);
}

#[test]
fn secure_boot_must_be_stated_unless_the_policy_says_otherwise() {
    let stated = var_data(&TPM);
    for (text, said) in
        [(stated.replace("true", "false"), "off"), (stated.replace("secure-boot", "secure-boots"), "not stated")]
    {
        let evidence = Quoted::new().evidence(&text);
        let mut policy = policy(&evidence);
        let opened = opened(&evidence, &policy);
        assert_eq!(failed(&opened.factors), ["azure.secure_boot"]);
        assert_eq!(found(&opened.factors, "azure.secure_boot"), said);
        policy.require_secure_boot = false;
        assert_eq!(refused(&evidence, &policy), [""; 0]);
    }
}

#[test]
fn policies_with_other_keys_are_errors() {
    let value = "00".repeat(32);
    for bad in [
        "".to_owned(),
        format!("[pcr]\nfour = [\"{value}\"]"),
        format!("[pcr]\n256 = [\"{value}\"]"),
        format!("[pcr]\n4 = [\"{value}00\"]"),
        format!("[pcr]\n4 = \"{value}\""),
        format!("pcrs = []\n[pcr]\n4 = [\"{value}\"]"),
        format!("[pcr]\n4 = [\"{value}\"]\n04 = []"),
    ] {
        assert!(toml::from_str::<Azure>(&bad).is_err(), "{bad}");
    }
}
