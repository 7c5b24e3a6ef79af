//! See the function of the same name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| attest_verify_fuzz::entries::evidence(data));
