//! Azure: recorded HCL reports and TPM quotes, and one thing wrong at a time.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod amd;

use amd::{Maker, certificate};
use attest_verify::azure::{Hardware, HclError, HclReport, Opened, TpmError, TpmQuote, VarData, open, read_anything};
use attest_verify::factor::{Factor, Outcome};
use attest_verify::policy::{Azure, Snp};
use attest_verify::snp::{Inputs, Roots, judge};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair};
use proto::v1::AzureEvidence;
use std::path::PathBuf;
use std::sync::LazyLock;

fn own(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)).unwrap()
}

/// What fails for a report about something else: the signature is not looked at.
const RELAYED: [&str; 2] = ["binding.report_data", "snp.signature"];

/// A vector outside of the repository.
fn extra(name: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("BIFROST_EXTRA_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors"), PathBuf::from);
    let read = std::fs::read(root.join(name)).ok();
    if read.is_none() {
        println!("skipped: no {name} in {}", root.display());
    }
    read
}

/// Codes of the factors that do not hold.
fn failed(factors: &[Factor]) -> Vec<&'static str> {
    factors.iter().filter(|factor| !factor.holds()).map(|factor| factor.code).collect()
}

/// What a factor found, or why it could not look.
fn found(factors: &[Factor], code: &str) -> String {
    let factor = factors.iter().find(|factor| factor.code == code).unwrap();
    match &factor.outcome {
        Outcome::Skipped(reason) => reason.clone(),
        _ => factor.found.clone(),
    }
}

/// Evidence as another project recorded it: JSON with hexadecimal and base64url.
fn recorded(name: &str) -> Option<(AzureEvidence, Vec<u8>)> {
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

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn base64url(text: &str) -> Vec<u8> {
    let mut bits = Vec::new();
    for character in text.trim_end_matches('=').bytes() {
        let value = ALPHABET.iter().position(|other| *other == character).unwrap();
        bits.extend((0..6).rev().map(|bit| value >> bit & 1 == 1));
    }
    bits.chunks_exact(8).map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
}

fn to_base64url(bytes: &[u8]) -> String {
    let bits: Vec<u8> = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    bits.chunks(6)
        .map(|bits| {
            let value = (0..6).fold(0, |value, at| value << 1 | usize::from(bits.get(at).copied().unwrap_or(0)));
            char::from(ALPHABET[value])
        })
        .collect()
}

/// Accepts PCR 4 and 7 as the evidence has them.
fn policy(evidence: &AzureEvidence) -> Azure {
    let pcr = |index: usize| attest_verify::hex::encode(&evidence.pcrs[32 * index..32 * index + 32]);
    toml::from_str(&format!("[pcr]\n4 = [\"{}\", \"{}\"]\n7 = [\"{}\"]", "00".repeat(32), pcr(4), pcr(7))).unwrap()
}

const NONCE: [u8; 32] = [7; 32];

/// Evidence made here, with a virtual TPM of our own above a chip of our own.
struct Made {
    tpm: RsaKeyPair,
    maker: Maker,
}

static MADE: LazyLock<Made> =
    LazyLock::new(|| Made { tpm: RsaKeyPair::generate(KeySize::Rsa2048).unwrap(), maker: Maker::new() });
static STRANGER: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());

/// What a TPM quotes.
struct Quoted {
    magic: u32,
    kind: u16,
    extra: Vec<u8>,
    bank: u16,
    selected: u32,
    pcrs: Vec<u8>,
}

impl Quoted {
    fn new() -> Self {
        let pcrs = (0u8..24).flat_map(|index| [index ^ 0x5a; 32]).collect();
        Self { magic: 0xff54_4347, kind: 0x8018, extra: NONCE.to_vec(), bank: 11, selected: 0x00ff_ffff, pcrs }
    }

    fn bytes(&self) -> Vec<u8> {
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

    fn evidence(&self, var_data: &str) -> AzureEvidence {
        let tpm_quote = self.bytes();
        AzureEvidence {
            hcl_report: hcl(var_data.as_bytes(), |_| {}).into(),
            tpm_signature: sign(&MADE.tpm, &tpm_quote).into(),
            tpm_quote: tpm_quote.into(),
            pcrs: self.pcrs.clone().into(),
        }
    }
}

fn sign(key: &RsaKeyPair, message: &[u8]) -> Vec<u8> {
    let mut signature = vec![0; key.public_modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
    signature
}

fn var_data(key: &RsaKeyPair) -> String {
    // RSAPublicKey of 2048 bits, RFC 8017 appendix A.1.1: headers of 9 bytes, the modulus, the exponent.
    var_data_of(&key.public_key().as_ref()[9..265])
}

fn var_data_of(modulus: &[u8]) -> String {
    format!(
        r#"{{"keys":[{{"kid":"HCLAkPub","key_ops":["sign"],"kty":"RSA","e":"AQAB","n":"{}"}}],"vm-configuration":{{"secure-boot":true}}}}"#,
        to_base64url(modulus)
    )
}

/// An HCL report around a recorded SEV-SNP report that our chip signs.
fn hcl(var_data: &[u8], edit: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let length = |value: usize| u32::try_from(value).unwrap().to_le_bytes();
    let text = String::from_utf8(own("sev-crate/report_milan.hex")).unwrap();
    let report = MADE.maker.report(&amd::hex(text.trim()), |report| {
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

fn opened(evidence: &AzureEvidence, policy: &Azure) -> Opened {
    open(Some(evidence), Hardware::SevSnp, &NONCE, policy)
}

fn refused(evidence: &AzureEvidence, policy: &Azure) -> Vec<&'static str> {
    failed(&opened(evidence, policy).factors)
}

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

/// The whole of it: chip, HCL report, virtual TPM, connection.
#[test]
fn evidence_of_sev_snp_is_accepted() {
    let quoted = Quoted::new();
    let evidence = quoted.evidence(&var_data(&MADE.tpm));
    let opened = opened(&evidence, &policy(&evidence));
    assert_eq!(failed(&opened.factors), [""; 0]);
    assert_eq!(found(&opened.factors, "azure.secure_boot"), "on");

    let report = opened.report.as_slice();
    let chip: [u8; 64] = report[0x1a0..0x1e0].try_into().unwrap();
    let maker = &MADE.maker;
    let roots = Roots::of(&[certificate(&maker.root(), &maker.ark)]).unwrap();
    let pem =
        [certificate(&maker.endorsement(&chip), &maker.ask), certificate(&maker.signing(), &maker.ark)].map(|der| {
            x509_cert::der::pem::encode_string("CERTIFICATE", x509_cert::der::pem::LineEnding::LF, &der).unwrap()
        });
    let measurement = attest_verify::hex::encode(&report[0x90..0xc0]);
    let snp: Snp = toml::from_str(&format!(
        "products = [\"Milan\"]\nsigners = [\"vcek\"]\nvmpl = [0]\nmeasurement = [\"{measurement}\"]\nrequire_crl = false\n\
         [tcb.Milan]\nbootloader = 3\ntee = 0\nsnp = 8\nmicrocode = 115\n[guest]\nsmt = true\nsingle_socket = false"
    ))
    .unwrap();
    let mut inputs = Inputs {
        report,
        certificates: pem.concat().as_bytes().to_vec().leak(),
        collateral: &attest_verify::snp::Bundle::default(),
        roots: &roots,
        report_data: &opened.report_data.unwrap(),
        now: 1_735_689_600,
    };
    assert_eq!(failed(&judge(&inputs, &snp)), [""; 0]);
    // Variable data with another TPM's key: the hardware does not vouch for them.
    let other = hcl(var_data(&STRANGER).as_bytes(), |_| {});
    let report_data = HclReport::parse(&other).unwrap().report_data();
    inputs.report_data = &report_data;
    assert_eq!(failed(&judge(&inputs, &snp)), RELAYED);
}

#[test]
fn a_quote_of_another_key_connection_or_kind_is_refused() {
    let good = Quoted::new().evidence(&var_data(&MADE.tpm));
    let policy = policy(&good);
    let with = |edit: fn(&mut Quoted)| {
        let mut quoted = Quoted::new();
        edit(&mut quoted);
        refused(&quoted.evidence(&var_data(&MADE.tpm)), &policy)
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
    let good = Quoted::new().evidence(&var_data(&MADE.tpm));
    let policy = policy(&good);
    let with = |edit: fn(&mut Quoted)| {
        let mut quoted = Quoted::new();
        edit(&mut quoted);
        refused(&quoted.evidence(&var_data(&MADE.tpm)), &policy)
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
    let stated = var_data(&MADE.tpm);
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

/// Row 26 of the table of reports: the sizes in the documentation are wrong, and those in the headers must agree; a read
/// of the NV index that is older than its hardware report does not match it.
#[test]
fn bug_26_lengths_come_from_the_headers_and_must_agree() {
    let data = var_data(&MADE.tpm);
    let refused = |edit: fn(&mut [u8])| HclReport::parse(&hcl(data.as_bytes(), edit)).map(|_| ()).unwrap_err();
    let number = |error: HclError| match error {
        HclError::Length { field, .. } | HclError::Field { field, .. } | HclError::Truncated(field) => field,
        other => panic!("{other}"),
    };
    assert_eq!(number(refused(|report| report[8] ^= 1)), "length of the report");
    assert_eq!(number(refused(|report| report[1216] ^= 1)), "length of the runtime data");
    assert_eq!(number(refused(|report| report[1232] -= 1)), "length of the runtime data");
    assert_eq!(number(refused(|report| report[1232] += 1)), "variable data");
    assert_eq!(number(refused(|report| report[1235] = 0xff)), "variable data");
    assert_eq!(number(refused(|report| report[4] = 3)), "version");
    assert_eq!(number(refused(|report| report[12] = 1)), "request type");
    assert_eq!(number(refused(|report| report[16] = 1)), "status");
    assert_eq!(number(refused(|report| report[1220] = 2)), "runtime version");
    assert_eq!(number(refused(|report| report[1224] = 3)), "report type");
    assert_eq!(refused(|report| report[0] = b'h'), HclError::Signature);
    // Longer and shorter variable data are both read, wherever they end.
    for length in [0, 1, 1184, 5000] {
        let bytes = hcl(&vec![b' '; length], |_| {});
        assert_eq!(HclReport::parse(&bytes).unwrap().var_data().len(), length);
    }
    // A stale read: variable data of another boot beside this report.
    let stale = hcl(data.as_bytes(), |report| {
        let at = report.len() - 5;
        report[at - 4..at].copy_from_slice(b"null");
    });
    let report = HclReport::parse(&stale).unwrap();
    assert_ne!(report.report_data(), report.hardware_report()[0x50..0x90]);
}

/// A hash type that is chosen by whoever wrote the report is an error and no panic.
#[test]
fn bug_26_an_unknown_hash_type_is_an_error() {
    for kind in [0, 2, 3, 4, 255] {
        let bytes = hcl(b"{}", |report| report[1228] = kind);
        let error = HclReport::parse(&bytes).map(|_| ()).unwrap_err();
        assert_eq!(error, HclError::Field { field: "hash type", found: kind.into(), expected: "1 (SHA-256)" });
    }
}

#[test]
fn what_follows_the_structures_is_refused_unless_it_is_padding() {
    let report = own("az-cvm-vtpm-crate/hcl-report-snp.bin");
    for length in 0..1819 {
        assert!(HclReport::parse(&report[..length]).is_err(), "{length}");
    }
    HclReport::parse(&report[..1819]).unwrap();
    let mut padded = report.clone();
    padded[2047] = 1;
    assert_eq!(HclReport::parse(&padded).map(|_| ()), Err(HclError::Trailing(229)));
    assert_eq!(HclReport::parse(&vec![0; HclReport::LIMIT + 1]).map(|_| ()), Err(HclError::Size(HclReport::LIMIT + 1)));

    let quote = Quoted::new().bytes();
    for length in 1..quote.len() {
        assert!(matches!(TpmQuote::parse(&quote[..length]), Err(TpmError::Truncated(_))), "{length}");
    }
    assert_eq!(TpmQuote::parse(&[quote.as_slice(), &[0]].concat()), Err(TpmError::Trailing(1)));
    assert_eq!(TpmQuote::parse(&[0; 1025]), Err(TpmError::Size(1025)));
    assert_eq!(TpmQuote::parse(&[]), Err(TpmError::Missing));
}

#[test]
fn no_flipped_bit_of_recorded_evidence_is_accepted() {
    let mut vectors = vec![(Quoted::new().evidence(&var_data(&MADE.tpm)), NONCE.to_vec(), Hardware::SevSnp)];
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

#[test]
fn mutated_inputs_are_read_without_a_panic() {
    let seeds = [
        own("az-cvm-vtpm-crate/hcl-report-snp.bin"),
        own("az-cvm-vtpm-crate/hcl-report-tdx.bin"),
        own("az-cvm-vtpm-crate/var-data.bin"),
        Quoted::new().bytes(),
    ];
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(limit.max(1)).unwrap()).unwrap()
    };
    let mut read = 0;
    for round in 0..20_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..=below(3) {
            let at = below(bytes.len());
            match below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, 0xff),
                _ if at < bytes.len() => bytes[at] ^= 1 << below(8),
                _ => {}
            }
        }
        read += read_anything(&bytes);
    }
    assert!(read > 0, "no mutation was read as anything: the seeds are not what they should be");
}
