//! One thing wrong at a time.

use crate::case::*;

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

/// What is commented out of the example is a policy too.
#[test]
fn the_sections_of_the_example_are_a_policy() {
    let text = include_str!("../../policy.example.toml").replace("\n#: ", "\n");
    let text = text.replace("platforms = [\"tdx\"]", "platforms = [\"sev_snp\", \"azure_tdx\", \"azure_sev_snp\"]");
    let policy = attest_verify::Policy::parse(&text).unwrap();
    let (snp, azure) = (policy.rules().snp.as_ref().unwrap(), policy.rules().azure.as_ref().unwrap());
    assert!(snp.require_crl && azure.require_secure_boot);
    assert_eq!(snp.products, [Product::Milan, Product::Genoa]);
    assert_eq!(azure.pcr.keys().copied().collect::<Vec<u8>>(), [4, 7]);
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        attest_verify::Policy::parse(&text.replace(from, to)).unwrap_err().to_string()
    };
    assert!(refused("[snp.tcb.Genoa]", "[snp.tcb.Turin]").contains("there is no [snp.tcb.Genoa]"));
    let turin =
        refused("[snp.tcb.Genoa]", "[snp.tcb.Turin]\nbootloader = 1\ntee = 1\nsnp = 1\nmicrocode = 1\n[snp.tcb.Genoa]");
    assert!(turin.contains("has no fmc"));
    assert!(refused("\"Genoa\"]", "\"Unknown\"]").contains("expected Milan, Genoa or Turin"));
    assert!(refused("\n4 = [", "\n24 = [").contains("names PCR 24, expected 0 to 23"));
    assert!(refused("[azure.pcr]\n4 =", "[azure.pcrs]\n4 =").contains("pcrs"));
}
