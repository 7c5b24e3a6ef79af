//! Bytes that are no HCL report and no TPM quote.

use crate::made::*;

/// Row 26 of the table of reports: the sizes in the documentation are wrong, and those in the headers must agree; a read
/// of the NV index that is older than its hardware report does not match it.
#[test]
fn bug_26_lengths_come_from_the_headers_and_must_agree() {
    let data = var_data(&TPM);
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
fn mutated_inputs_are_read_without_a_panic() {
    let seeds = [
        own("az-cvm-vtpm-crate/hcl-report-snp.bin"),
        own("az-cvm-vtpm-crate/hcl-report-tdx.bin"),
        own("az-cvm-vtpm-crate/var-data.bin"),
        Quoted::new().bytes(),
    ];
    let mut random = Random(0x2545_f491_4f6c_dd1d);
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
