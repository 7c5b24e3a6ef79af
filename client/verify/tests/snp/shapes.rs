//! Bytes that are no report, no table, no certificate.

use crate::case::*;

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
fn mutated_inputs_are_read_without_a_panic() {
    let (report, vcek) = milan();
    let made = Case::made(|_| {});
    let seeds =
        [report, vcek, made.certificates.clone(), made.revocation[0].clone(), own("az-cvm-vtpm-crate/certs.pem")];
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut read = 0;
    // As many as are asked for, or enough to notice.
    let times = std::env::var("BIFROST_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(20_000);
    for round in 0..times {
        let mut bytes = seeds[round % seeds.len()].clone();
        random.mutate(&mut bytes);
        read += read_anything(&bytes);
    }
    assert!(read > 0, "no mutation was read as anything: the seeds are not what they should be");
}
