//! Any bytes as a SEV-SNP report, certificate table, certificate or revocation list: refused, or read within their bounds.

#![no_main]

use attest_verify::snp::{Report, Table, read_anything};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    read_anything(data);
    if let Ok(report) = Report::parse(data) {
        assert_eq!(data.len(), Report::LEN);
        assert_eq!(report.measurements().measurement.0, data[0x90..0xc0]);
        assert_eq!(report.fields().report_data, data[0x50..0x90]);
    }
    if let Ok(table) = Table::parse(data) {
        let held = [table.vcek, table.vlek, table.intermediate];
        assert!(held.iter().flatten().all(|der| der.len() <= data.len()));
    }
});
