//! Bytes are where readers of quotes look for them.

use crate::dcap::{platform, verify};
use simulator::TdReport;

/// Where the report data is: after a header of 48 bytes and, in version 5, body type and size; then 520 bytes of report.
const REPORT_DATA: [usize; 2] = [568, 574];
/// Where the signature is: after the body and the length of what follows it.
const SIGNATURE: [usize; 2] = [48 + 584 + 4, 48 + 6 + 648 + 4];

#[test]
fn report_data_and_measurements_are_at_their_offsets() {
    let mut data = [0; 64];
    data.iter_mut().zip(0x80..).for_each(|(byte, value)| *byte = value);
    let td = TdReport::new(data);
    for (quote, [start, version]) in [(platform().quote(&td), [48, 4]), (platform().quote(&td.clone().td15()), [54, 5])]
    {
        assert_eq!(quote[..2], [u8::try_from(version).unwrap(), 0]);
        assert_eq!(quote[4..8], [0x81, 0, 0, 0]);
        assert_eq!(quote[start + 120..][..8], td.attributes);
        assert_eq!(quote[start + 128..][..8], td.xfam);
        assert_eq!(quote[start + 136..][..48], td.mr_td);
        assert_eq!(quote[start + 328..][..192], td.rtmrs.concat());
        assert_eq!(quote[start + 520..][..64], data);
        assert_eq!(REPORT_DATA[version - 4], start + 520);
    }
}

#[test]
fn only_report_data_and_signature_move_with_the_nonce() {
    for version in [0, 1] {
        let quote = |nonce: u8| {
            let td = TdReport::new([nonce; 64]);
            platform().quote(&if version == 0 { td } else { td.td15() })
        };
        let (one, other) = (quote(1), quote(2));
        assert_eq!(one.len(), other.len());
        let moved = |at: &usize| one[*at] != other[*at];
        let (data, signature) = (REPORT_DATA[version], SIGNATURE[version]);
        assert!((data..data + 64).all(|at| moved(&at)));
        assert!((signature..signature + 64).any(|at| moved(&at)));
        let elsewhere = (0..one.len())
            .filter(|at| !(data..data + 64).contains(at) && !(signature..signature + 64).contains(at))
            .filter(moved);
        assert_eq!(elsewhere.collect::<Vec<_>>(), [0; 0]);
    }
}

#[test]
fn a_report_of_version_5_says_its_type_and_size() {
    let quote = platform().quote(&TdReport::default().td15());
    assert_eq!(quote[48..54], [3, 0, 0x88, 0x02, 0, 0]);
}

#[test]
fn zeros_behind_a_quote_are_no_part_of_it() {
    let mut quote = platform().quote(&TdReport::default());
    quote.resize(8000, 0);
    assert_eq!(verify(&quote, |spec| spec).unwrap().status, "UpToDate");
}
