//! Recorded reports, and whose key is whose.

use crate::case::*;

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
