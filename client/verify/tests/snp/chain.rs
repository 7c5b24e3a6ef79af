//! From the root to the certificate of the key that signs.

use crate::case::*;

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
