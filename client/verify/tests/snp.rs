//! SEV-SNP: recorded reports, and one thing wrong at a time.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

mod amd;

use amd::{Content, Maker, certificate, name, pss, signed, tlv};
use attest_verify::collateral::{CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3};
use attest_verify::factor::{Factor, Outcome};
use attest_verify::hex::HexBytes;
use attest_verify::policy::Snp;
use attest_verify::snp::{
    AMD_KDS, Bundle, Certificate, Collateral, Inputs, Product, Report, ReportError, Roots, Signer, Table, TableError,
    Wanted, judge, read_anything,
};
use std::path::PathBuf;
use std::sync::LazyLock;

/// 1 January 2025.
const NOW: u64 = 1_735_689_600;

/// Accepts the recorded report of a Milan, and asks for no revocation list: none was recorded.
const MILAN: &str = r#"
products = ["Milan"]
signers = ["vcek"]
vmpl = [0]
measurement = ["7a1e5c266c0108dbc9bb94fa926951320940915d0aafb42464bd88b579ea158d3e1a0dc39b2c60bd95b9c480cd81841f"]
require_crl = false
[tcb.Milan]
bootloader = 3
tee = 0
snp = 8
microcode = 115
[guest]
smt = true
single_socket = false
"#;

static AMD: LazyLock<Roots> = LazyLock::new(|| Roots::amd().unwrap());

fn policy(text: &str) -> Snp {
    toml::from_str(text).unwrap()
}

/// With one line changed.
fn edited(from: &str, to: &str) -> Snp {
    let text = MILAN.replace(from, to);
    assert_ne!(text, MILAN, "{from} is not in the policy");
    policy(&text)
}

fn own(name: &str) -> Vec<u8> {
    std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)).unwrap()
}

/// What fails without a certificate: a report of version 2 does not name its product, so no floor is known either.
const NO_CERTIFICATE: [&str; 2] = ["snp.certificate", "snp.tcb.floor"];

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

fn milan() -> (Vec<u8>, Vec<u8>) {
    let text = String::from_utf8(own("sev-crate/report_milan.hex")).unwrap();
    (amd::hex(text.trim()), own("sev-crate/vcek_milan.der"))
}

fn report_data(report: &[u8]) -> [u8; 64] {
    report[0x50..0x90].try_into().unwrap()
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

/// A case, made right; tests put one thing wrong.
struct Case {
    report: Vec<u8>,
    certificates: Vec<u8>,
    endorsement: Option<Vec<u8>>,
    revocation: Vec<Vec<u8>>,
    roots: Roots,
    report_data: [u8; 64],
    now: u64,
}

impl Case {
    fn milan() -> Self {
        let (report, endorsement) = milan();
        let report_data = report_data(&report);
        Self {
            report,
            certificates: Vec::new(),
            endorsement: Some(endorsement),
            revocation: Vec::new(),
            roots: AMD.clone(),
            report_data,
            now: NOW,
        }
    }

    /// The same report under our own root, with what came with it in a table, and with a revocation list.
    fn made(edit: impl FnOnce(&mut [u8])) -> Self {
        let mut case = Self::milan();
        case.report = MAKER.report(&case.report, edit);
        case.report_data = report_data(&case.report);
        case.endorsement = None;
        case.certificates = table(&[(ASK, &signing()), (VCEK, &endorsement(|_| {}))]);
        case.revocation = vec![list("ARK-Milan", &MAKER.ark, ("240101000000Z", Some("260101000000Z")), &[])];
        case.roots = Roots::of(&[certificate(&MAKER.root(), &MAKER.ark)]).unwrap();
        case
    }

    fn judge(&self, policy: &Snp) -> Vec<Factor> {
        let inputs = Inputs {
            report: &self.report,
            certificates: &self.certificates,
            collateral: self,
            roots: &self.roots,
            report_data: &self.report_data,
            now: self.now,
        };
        judge(&inputs, policy)
    }

    fn failed(&self, policy: &Snp) -> Vec<&'static str> {
        failed(&self.judge(policy))
    }
}

impl CollateralSource for Case {
    fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        Err(CollateralError { wanted: key.to_string(), tried: Vec::new() })
    }

    fn snp(&self, wanted: &Wanted) -> Result<Collateral, CollateralError> {
        assert_eq!(wanted.chip.0, self.report[0x1a0..0x1e0]);
        Ok(Collateral { endorsement: self.endorsement.clone(), revocation: self.revocation.clone() })
    }
}

static MAKER: LazyLock<Maker> = LazyLock::new(Maker::new);
static STRANGER: LazyLock<Maker> = LazyLock::new(Maker::new);

fn chip() -> [u8; 64] {
    milan().0[0x1a0..0x1e0].try_into().unwrap()
}

fn signing() -> Vec<u8> {
    certificate(&MAKER.signing(), &MAKER.ark)
}

fn endorsement(edit: impl FnOnce(&mut Content)) -> Vec<u8> {
    let mut content = MAKER.endorsement(&chip());
    edit(&mut content);
    certificate(&content, &MAKER.ask)
}

const VCEK: &str = "63da758de6644564adc5f4b93be8accd";
const VLEK: &str = "a8074bc2a25a483eaae639c045a0b8a1";
const ASK: &str = "4ab7b379bbac4fe4a02f05aef327c782";

fn table(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (guid, der) in entries {
        let offset = u32::try_from(24 * (entries.len() + 1) + data.len()).unwrap();
        header.extend(amd::hex(guid));
        header.extend(offset.to_le_bytes());
        header.extend(u32::try_from(der.len()).unwrap().to_le_bytes());
        data.extend_from_slice(der);
    }
    header.extend([0; 24]);
    header.extend(data);
    header
}

/// A revocation list, RFC 5280 section 5.1.
fn list(issuer: &str, key: &aws_lc_rs::signature::RsaKeyPair, holds: (&str, Option<&str>), serials: &[u8]) -> Vec<u8> {
    let time = |text: &str| tlv(0x17, text.as_bytes());
    let revoked: Vec<u8> =
        serials.iter().flat_map(|serial| tlv(0x30, &[tlv(2, &[*serial]), time("240601000000Z")].concat())).collect();
    let mut body = vec![tlv(2, &[1]), pss(), name(issuer), time(holds.0)];
    body.extend(holds.1.map(time));
    if !revoked.is_empty() {
        body.push(tlv(0x30, &revoked));
    }
    signed(&tlv(0x30, &body.concat()), key)
}

#[test]
fn a_recorded_report_of_a_milan_is_accepted() {
    let case = Case::milan();
    assert_eq!(case.failed(&policy(MILAN)), [""; 0]);
    let factors = case.judge(&policy(MILAN));
    assert_eq!(found(&factors, "snp.chain"), "ARK-Milan, SEV-Milan, SEV-VCEK");
    assert_eq!(found(&factors, "snp.report.parse"), "version 2");
}

#[test]
fn without_a_revocation_list_nothing_is_accepted_unless_the_policy_says_so() {
    let text = MILAN.replace("require_crl = false\n", "");
    assert_eq!(Case::milan().failed(&policy(&text)), ["snp.revocation"]);
    assert_eq!(Case::made(|_| {}).failed(&policy(&text)), [""; 0]);
}

#[test]
fn a_recorded_report_of_version_5_is_accepted() {
    let (Some(report), Some(vcek)) =
        (extra("attestation-rs/live-report-v5-genoa.bin"), extra("attestation-rs/live-vcek-genoa.der"))
    else {
        return;
    };
    let text = MILAN
        .replace("\"Milan\"", "\"Genoa\"")
        .replace(
            "[tcb.Milan]\nbootloader = 3\ntee = 0\nsnp = 8\nmicrocode = 115",
            "[tcb.Genoa]\nbootloader = 10\ntee = 0\nsnp = 27\nmicrocode = 27",
        )
        .replace(
            "7a1e5c266c0108dbc9bb94fa926951320940915d0aafb42464bd88b579ea158d3e1a0dc39b2c60bd95b9c480cd81841f",
            "d9912ba396ce409c2947841d93a5076b6839b898c22b4aae05edb3b2b058a99927f8cf9a4f8617ee695deb14795496c8",
        );
    let mut case = Case::milan();
    case.report_data = report_data(&report);
    (case.report, case.endorsement) = (report, Some(vcek));
    // 1 April 2026.
    case.now = 1_775_001_600;
    assert_eq!(case.failed(&policy(&text)), [""; 0]);
    assert_eq!(case.failed(&policy(&text.replace("snp = 27", "snp = 28"))), ["snp.tcb.snp"]);
    let milan_only = text.replace("products = [\"Genoa\"]", "products = [\"Milan\"]");
    assert_eq!(case.failed(&policy(&milan_only)), ["snp.product"]);
}

/// Rows 27 of the table of reports: a VLEK is not a VCEK, and its certificate hangs on another signing key.
#[test]
fn bug_27_a_report_by_a_vlek_is_checked_with_the_vlek_alone() {
    let (Some(report), Some(vlek)) =
        (extra("attestation-rs/test-vlek-report.bin"), extra("attestation-rs/test-vlek.der"))
    else {
        return;
    };
    let text = MILAN
        .replace("\"vcek\"", "\"vlek\"")
        .replace("vmpl = [0]", "vmpl = [1]")
        .replace("bootloader = 3", "bootloader = 4")
        .replace("snp = 8", "snp = 24")
        .replace("microcode = 115", "microcode = 217")
        .replace(
            "7a1e5c266c0108dbc9bb94fa926951320940915d0aafb42464bd88b579ea158d3e1a0dc39b2c60bd95b9c480cd81841f",
            "8922ebbdd00ec2c541f36a6e7a82a8773a7accb451ed67bc94e740dbe92c93c4e8c9af857f5ceeb5a493df2a570d7bf0",
        );
    let mut case = Case::milan();
    case.report_data = report_data(&report);
    (case.report, case.endorsement) = (report, Some(vlek.clone()));
    // 1 June 2025: this certificate holds for a year.
    case.now = 1_748_736_000;
    let factors = case.judge(&policy(&text));
    assert_eq!(failed(&factors), [""; 0]);
    assert_eq!(found(&factors, "snp.chip_id"), "not certified: VLEK of CN=cc-us-east-2.amazonaws.com");
    let wanted = Wanted::of(&case.report, &Product::ALL).unwrap();
    assert_eq!(wanted.certificate_urls(AMD_KDS), [""; 0]);
    assert_eq!(wanted.revocation_urls("https://kds.example/"), ["https://kds.example/vlek/v1/Milan/crl"]);
    let bundle = Bundle { certificates: [milan().1, vlek.clone()].map(HexBytes).to_vec(), revocation: Vec::new() };
    assert_eq!(bundle.find(&wanted).endorsement, Some(vlek.clone()));

    assert_eq!(case.failed(&policy(&text.replace("\"vlek\"", "\"vcek\""))), ["snp.signer"]);
    case.endorsement = Some(milan().1);
    assert_eq!(case.failed(&policy(&text)), ["snp.certificate"]);
    // In the entry of the other key it is not found, whatever it is.
    case.endorsement = None;
    case.certificates = table(&[(VCEK, &vlek)]);
    assert_eq!(
        found(&case.judge(&policy(&text)), "snp.certificate"),
        "a VCEK's alone came, and the report names a VLEK"
    );
    case.certificates = table(&[(VLEK, &vlek)]);
    assert_eq!(case.failed(&policy(&text)), [""; 0]);
}

#[test]
fn bug_27_a_report_by_a_vcek_is_checked_with_the_vcek_alone() {
    let policy = policy(MILAN);
    let (_, vcek) = milan();
    let mut case = Case::milan();
    case.endorsement = None;
    case.certificates = table(&[(VLEK, &vcek)]);
    assert_eq!(found(&case.judge(&policy), "snp.certificate"), "a VLEK's alone came, and the report names a VCEK");

    let mut case = Case::made(|_| {});
    let vlek = endorsement(|content| content.subject = "SEV-VLEK");
    case.certificates = table(&[(ASK, &signing()), (VCEK, &vlek)]);
    assert_eq!(case.failed(&policy), NO_CERTIFICATE);
    // The report's own word for its signer is signed too.
    let mut case = Case::made(|report| report[0x48] = 1 << 2);
    assert_eq!(case.failed(&policy), ["snp.signer", "snp.certificate", "snp.tcb.floor"]);
    case.certificates = table(&[(ASK, &signing()), (VLEK, &vlek)]);
    assert_eq!(case.failed(&policy), ["snp.signer", "snp.chain", "snp.chip_id"]);
}

#[test]
fn a_policy_that_asks_for_something_else_is_refused_by_that_factor() {
    let other = "00".repeat(48);
    let cases: Vec<(Snp, &str)> = vec![
        (edited("bootloader = 3", "bootloader = 4"), "snp.tcb.bootloader"),
        (edited("tee = 0", "tee = 1"), "snp.tcb.tee"),
        (edited("snp = 8", "snp = 9"), "snp.tcb.snp"),
        (edited("microcode = 115", "microcode = 116"), "snp.tcb.microcode"),
        (edited("tee = 0", "tee = 0\nfmc = 1"), "snp.tcb.fmc"),
        (edited("[tcb.Milan]", "[tcb.Genoa]"), "snp.tcb.floor"),
        (edited("smt = true", "smt = false"), "snp.guest.smt"),
        (edited("single_socket = false", "single_socket = true"), "snp.guest.single_socket"),
        (edited("smt = true", "smt = true\nmigration = true"), "snp.guest.migration"),
        (edited("smt = true", "smt = true\ncxl = true"), "snp.guest.cxl"),
        (edited("smt = true", "smt = true\nmin_abi_minor = 1"), "snp.guest.abi"),
        (edited("vmpl = [0]", "vmpl = [1]"), "snp.vmpl"),
        (edited("vmpl = [0]", "vmpl = []"), "snp.vmpl"),
        (edited("vmpl = [0]", "vmpl = [0]\nmin_guest_svn = 1"), "snp.guest_svn"),
        (edited("vmpl = [0]", "vmpl = [0]\nhost_data = []"), "snp.host_data"),
        (edited("vmpl = [0]", &format!("vmpl = [0]\nhost_data = [\"{}\"]", "11".repeat(32))), "snp.host_data"),
        (edited("vmpl = [0]", &format!("vmpl = [0]\nid_key_digest = [\"{}\"]", "11".repeat(48))), "snp.id_key_digest"),
        (
            edited("vmpl = [0]", &format!("vmpl = [0]\nauthor_key_digest = [\"{}\"]", "11".repeat(48))),
            "snp.author_key_digest",
        ),
        (edited("vmpl = [0]", &format!("vmpl = [0]\nfamily_id = [\"{}\"]", "11".repeat(16))), "snp.family_id"),
        (edited("vmpl = [0]", &format!("vmpl = [0]\nimage_id = [\"{}\"]", "11".repeat(16))), "snp.image_id"),
        (edited("vmpl = [0]", &format!("vmpl = [0]\nchip_id = [\"{}\"]", "11".repeat(64))), "snp.chip_allowed"),
        (edited("signers = [\"vcek\"]", "signers = []"), "snp.signer"),
        (edited("products = [\"Milan\"]", "products = [\"Genoa\"]"), "snp.product"),
        (
            edited(
                "7a1e5c266c0108dbc9bb94fa926951320940915d0aafb42464bd88b579ea158d3e1a0dc39b2c60bd95b9c480cd81841f",
                &other,
            ),
            "snp.measurement",
        ),
    ];
    let case = Case::milan();
    for (policy, code) in cases {
        assert_eq!(case.failed(&policy), [code]);
    }
}

#[test]
fn an_unknown_key_of_the_policy_is_an_error() {
    for (from, to) in [("vmpl", "vmpls"), ("smt = true", "smt = true\nsmtt = true"), ("tee = 0", "tee = 0\nteee = 0")] {
        assert!(toml::from_str::<Snp>(&MILAN.replace(from, to)).is_err(), "{to}");
    }
    for missing in ["vmpl = [0]\n", "signers = [\"vcek\"]\n", "smt = true\n", "microcode = 115\n"] {
        assert!(toml::from_str::<Snp>(&MILAN.replace(missing, "")).is_err(), "{missing}");
    }
}

#[test]
fn a_report_about_something_else_is_refused() {
    let mut case = Case::milan();
    for at in [0, 31, 32, 63] {
        case.report_data[at] ^= 1;
        assert_eq!(case.failed(&policy(MILAN)), RELAYED);
        case.report_data[at] ^= 1;
    }
}

#[test]
fn a_clock_outside_of_the_certificates_is_refused_and_says_so() {
    let mut case = Case::milan();
    // 2 April 2023, a day before the VCEK's certificate; 5 April 2030, two days after it.
    for now in [1_680_393_600, 1_901_577_600] {
        case.now = now;
        let factors = case.judge(&policy(MILAN));
        assert_eq!(failed(&factors), ["snp.validity"]);
        assert!(found(&factors, "snp.validity").ends_with("check the clock of this machine"));
    }
}

#[test]
fn what_a_guest_is_started_with_is_judged() {
    let policy = policy(MILAN);
    let flip = |bit: u64| move |report: &mut [u8]| report[8 + usize::try_from(bit / 8).unwrap()] ^= 1 << (bit % 8);
    for (bit, code) in [
        (16, "snp.guest.smt"),
        (17, "snp.guest.reserved"),
        (18, "snp.guest.migration"),
        (19, "snp.guest.debug_off"),
        (20, "snp.guest.single_socket"),
        (21, "snp.guest.cxl"),
        (26, "snp.guest.reserved"),
        (63, "snp.guest.reserved"),
    ] {
        assert_eq!(Case::made(flip(bit)).failed(&policy), [code], "bit {bit}");
    }
}

#[test]
fn the_chip_and_its_versions_must_be_those_of_the_certificate() {
    let policy = policy(MILAN);
    let mut case = Case::made(|_| {});
    assert_eq!(case.failed(&policy), [""; 0]);
    case.certificates = table(&[(ASK, &signing()), (VCEK, &endorsement(|content| content.extensions[5].1[63] ^= 1))]);
    assert_eq!(case.failed(&policy), ["snp.chip_id"]);
    case.certificates =
        table(&[(ASK, &signing()), (VCEK, &endorsement(|content| content.extensions[5].1.truncate(8)))]);
    assert_eq!(case.failed(&policy), ["snp.chip_id"]);
    for level in 1..5 {
        let other = endorsement(|content| content.extensions[level].1[2] += 1);
        case.certificates = table(&[(ASK, &signing()), (VCEK, &other)]);
        assert_eq!(case.failed(&policy), ["snp.tcb.certified"], "{level}");
    }
    // Reported above committed, committed above current.
    assert_eq!(Case::made(|report| report[0x1e7] -= 1).failed(&policy), ["snp.tcb.order"]);
    assert_eq!(Case::made(|report| report[0x3f] -= 1).failed(&policy), ["snp.tcb.order"]);
}

#[test]
fn an_extension_that_is_twice_there_or_missing_is_refused() {
    let policy = policy(MILAN);
    let mut case = Case::made(|_| {});
    for edit in [
        (|content: &mut Content| content.extensions.push(content.extensions[3].clone())) as fn(&mut Content),
        |content| drop(content.extensions.remove(3)),
        |content| content.extensions[3].1 = vec![2, 2, 1, 0],
        |content| content.extensions[0].1 = vec![0x16, 5, b'R', b'y', b'z', b'e', b'n'],
    ] {
        case.certificates = table(&[(ASK, &signing()), (VCEK, &endorsement(edit))]);
        assert_eq!(case.failed(&policy)[0], "snp.certificate");
    }
}

#[test]
fn another_root_is_refused() {
    let policy = policy(MILAN);
    // Ours for AMD's: the certificates compiled in are not replaced by those that came with the evidence.
    let mut case = Case::made(|_| {});
    case.roots = AMD.clone();
    assert_eq!(case.failed(&policy), ["snp.chain"]);
    // AMD's for ours.
    let mut case = Case::milan();
    case.roots = Case::made(|_| {}).roots;
    assert_eq!(case.failed(&policy), NO_CERTIFICATE);
    case.certificates = table(&[(ASK, &signing())]);
    assert_eq!(case.failed(&policy), ["snp.chain"]);
    // A stranger's under our names.
    let mut case = Case::made(|_| {});
    let ask = certificate(&STRANGER.signing(), &STRANGER.ark);
    let vcek = certificate(&STRANGER.endorsement(&chip()), &STRANGER.ask);
    case.certificates = table(&[(ASK, &ask), (VCEK, &vcek)]);
    assert_eq!(case.failed(&policy), ["snp.chain", "snp.signature"]);
    // The root itself in the place of the signing key.
    case.certificates = table(&[(ASK, &certificate(&MAKER.root(), &MAKER.ark)), (VCEK, &endorsement(|_| {}))]);
    assert_eq!(case.failed(&policy), ["snp.chain"]);
}

#[test]
fn revoked_certificates_and_unsound_lists_are_refused() {
    let policy = policy(&MILAN.replace("require_crl = false\n", ""));
    let holds = ("240101000000Z", Some("260101000000Z"));
    let (ark, ask) = ("ARK-Milan", "SEV-Milan");
    let good = || list(ark, &MAKER.ark, holds, &[1, 77]);
    let mut case = Case::made(|_| {});
    for (lists, text) in [
        (vec![list(ark, &MAKER.ark, holds, &[77, 2])], "SEV-Milan is revoked"),
        (vec![good(), list(ask, &MAKER.ask, holds, &[9])], "SEV-VCEK is revoked"),
        (vec![list(ark, &STRANGER.ark, holds, &[])], "does not carry its signature"),
        (vec![list(ark, &MAKER.ark, ("200101000000Z", Some("241231000000Z")), &[])], "check the clock"),
        (vec![list(ark, &MAKER.ark, ("250102000000Z", Some("260101000000Z")), &[])], "check the clock"),
        (vec![list(ark, &MAKER.ark, ("240101000000Z", None), &[])], "does not say until when"),
        (vec![list("ARK-Genoa", &MAKER.ark, holds, &[])], "no list of ARK-Milan"),
        (vec![list(ask, &MAKER.ask, holds, &[])], "no list of ARK-Milan"),
        (vec![], "no list of ARK-Milan"),
        (vec![good()[..200].to_vec()], "malformed"),
        (vec![vec![0x30; (1 << 20) + 1]], "expected 1048576 at most"),
    ] {
        case.revocation = lists;
        let factors = case.judge(&policy);
        assert_eq!(failed(&factors), ["snp.revocation"], "{text}");
        assert!(found(&factors, "snp.revocation").contains(text), "{}", found(&factors, "snp.revocation"));
    }
    case.revocation = vec![good(), list(ask, &MAKER.ask, holds, &[10])];
    assert_eq!(case.failed(&policy), [""; 0]);
}

#[test]
fn reports_of_other_shapes_are_refused() {
    let (report, _) = milan();
    let with = |at: usize, value: u8| {
        let mut report = report.clone();
        report[at] = value;
        Report::parse(&report).map(|_| ()).unwrap_err()
    };
    assert_eq!(Report::parse(&report[..1183]).unwrap_err(), ReportError::Length(1183));
    assert_eq!(Report::parse(&[report.as_slice(), &[0]].concat()).unwrap_err(), ReportError::Length(1185));
    assert_eq!(Report::parse(&[]).unwrap_err(), ReportError::Length(0));
    for version in [0, 1, 4, 6, 255] {
        assert_eq!(with(0, version), ReportError::Version(version.into()));
    }
    assert_eq!(with(0x34, 2), ReportError::Algorithm(2));
    assert_eq!(with(0x48, 7 << 2), ReportError::SigningKey(7));
    assert_eq!(with(0x48, 2), ReportError::Masked);
    assert_eq!(with(0x2a0 + 48, 1), ReportError::Padding);
    assert_eq!(with(0x2a0 + 72 + 48, 1), ReportError::Padding);
    assert_eq!(with(1183, 1), ReportError::Padding);
}

#[test]
fn no_flipped_bit_of_a_recorded_report_is_accepted() {
    let (report, vcek) = milan();
    let mut vectors = vec![(report, vcek)];
    vectors.extend(extra("attestation-rs/live-report-v5-genoa.bin").zip(extra("attestation-rs/live-vcek-genoa.der")));
    vectors.extend(extra("attestation-rs/test-vlek-report.bin").zip(extra("attestation-rs/test-vlek.der")));
    for (report, endorsement) in vectors {
        let certificate = Certificate::parse(&endorsement).unwrap();
        let good = |report: &[u8]| Report::parse(report).is_ok_and(|report| report.signed_by(certificate.key()));
        assert!(good(&report));
        let mut flipped = report.clone();
        for bit in 0..8 * report.len() {
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!good(&flipped), "bit {bit}");
            flipped[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn no_flipped_bit_of_a_certificate_changes_what_it_certifies() {
    let case = Case::milan();
    let (policy, good) = (policy(MILAN), case.judge(&policy(MILAN)));
    let (_, vcek) = milan();
    for at in 0..vcek.len() {
        let mut flipped = vcek.clone();
        flipped[at] ^= 1 << (at % 8);
        let factors = Case { endorsement: Some(flipped), ..Case::milan() }.judge(&policy);
        assert!(!failed(&factors).is_empty() || factors == good, "byte {at}");
    }
}

#[test]
fn tables_are_read_within_their_bounds() {
    let (_, vcek) = milan();
    let good = table(&[(VCEK, &vcek), ("92f81bc358114d3d97ffd19f88dc67ea", b"other")]);
    assert_eq!(Table::parse(&good), Ok(Table { vcek: Some(vcek.clone()), ..Table::default() }));
    assert_eq!(Table::parse(&[]), Ok(Table::default()));
    assert_eq!(Table::parse(&good[..good.len() - 6]), Err(TableError::Range(0)));
    assert_eq!(Table::parse(&good[..48]), Err(TableError::Range(0)));
    assert_eq!(Table::parse(&[amd::hex(ASK), vec![0; 8]].concat()), Err(TableError::Unterminated));
    assert_eq!(Table::parse(&table(&[(VCEK, &vcek), (VCEK, &vcek)])), Err(TableError::Twice("VCEK")));
    assert_eq!(Table::parse(&vec![1; Table::LIMIT + 1]), Err(TableError::Size(Table::LIMIT + 1)));
    assert_eq!(Table::parse(&[1; 24 * 40]), Err(TableError::Range(0)));
    let mut wraps = good.clone();
    wraps[16..24].fill(0xff);
    assert_eq!(Table::parse(&wraps), Err(TableError::Range(0)));
}

#[test]
fn a_chain_in_pem_is_read_by_its_names() {
    let chain = own("az-cvm-vtpm-crate/certs.pem");
    let table = Table::parse(&chain).unwrap();
    assert!(table.vcek.is_some() && table.intermediate.is_some() && table.vlek.is_none());
    assert_eq!(Table::parse(&chain[..1000]), Err(TableError::Pem));
    let twice = [chain.as_slice(), &chain].concat();
    assert!(matches!(Table::parse(&twice), Err(TableError::Twice(_))));
}

#[test]
fn the_recorded_certificate_of_a_turin_names_its_chip_in_8_bytes() {
    let certificate = Certificate::parse(&own("sev-crate/vcek_turin.der")).unwrap();
    let endorsement = certificate.endorsement().unwrap();
    assert_eq!(endorsement.product, Product::Turin);
    assert_eq!(endorsement.chip.map(|chip| chip.len()), Some(8));
    assert!(endorsement.tcb.fmc.is_some());
    let root = AMD.root(endorsement.product).unwrap();
    let intermediate = root.intermediate(Signer::Vcek, None).unwrap();
    assert!(certificate.issued_by(&intermediate) && intermediate.issued_by(root.ark()));
}

#[test]
fn the_service_is_asked_for_the_reported_versions() {
    let (report, vcek) = milan();
    let wanted = Wanted::of(&report, &[Product::Milan, Product::Genoa]).unwrap();
    let chip = "d49554ec717f4e5b0fe6b143bcf0405bd7ae304727edf46603f2a76aef6a3abc15d7af38db757039029f0efacfd08e244324884738c72b082e2f87a44d541eb6";
    let url = |product: &str| {
        format!("https://kdsintf.amd.com/vcek/v1/{product}/{chip}?blSPL=03&teeSPL=00&snpSPL=08&ucodeSPL=115")
    };
    assert_eq!(wanted.certificate_urls(AMD_KDS), [url("Milan"), url("Genoa")]);
    assert_eq!(
        wanted.revocation_urls("https://kds.example"),
        ["https://kds.example/vcek/v1/Milan/crl", "https://kds.example/vcek/v1/Genoa/crl"]
    );
    assert_eq!(Wanted::of(&report[1..], &Product::ALL), None);

    let other = endorsement(|content| content.extensions[5].1[0] ^= 1);
    let later = endorsement(|content| content.extensions[4].1[2] += 1);
    let certificates: Vec<HexBytes> = [other, later, b"no certificate".to_vec(), vcek.clone()].map(HexBytes).to_vec();
    let bundle = Bundle { certificates, revocation: vec![HexBytes(b"a list".to_vec())] };
    let bundle = Bundle::parse(&serde_json::to_vec(&bundle).unwrap()).unwrap();
    assert_eq!(bundle.find(&wanted), Collateral { endorsement: Some(vcek), revocation: vec![b"a list".to_vec()] });
    assert!(Bundle::parse(br#"{"certificates":[],"revocations":[]}"#).is_err());
}

#[test]
fn mutated_inputs_are_read_without_a_panic() {
    let (report, vcek) = milan();
    let made = Case::made(|_| {});
    let seeds =
        [report, vcek, made.certificates.clone(), made.revocation[0].clone(), own("az-cvm-vtpm-crate/certs.pem")];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    for round in 0..20_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        random.mutate(&mut bytes);
        read += read_anything(&bytes);
    }
    assert!(read > 0, "no mutation was read as anything: the seeds are not what they should be");
}

/// A generator with a fixed seed: xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit.max(1)).unwrap()).unwrap()
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, 0xff),
                2 if at < bytes.len() => bytes[at] = [0, 0x7f, 0x80, 0xff][self.below(4)],
                _ if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                _ => {}
            }
        }
    }
}
