//! Any bytes as an HCL report, variable data or a TPM quote: refused, or read within their bounds.

#![no_main]

use attest_verify::azure::{HclReport, TpmQuote, VarData, read_anything};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    read_anything(data);
    if let Ok(report) = HclReport::parse(data) {
        assert!(data.len() <= HclReport::LIMIT);
        assert!(report.hardware_report().len() + report.var_data().len() <= data.len());
        assert_eq!(report.report_data()[32..], [0; 32]);
    }
    if let Ok(quote) = TpmQuote::parse(data) {
        assert!(quote.extra_data().len() < data.len() && data.len() <= TpmQuote::LIMIT);
    }
    if VarData::parse(data).is_ok() {
        assert!(data.len() <= VarData::LIMIT);
    }
});
