//! Any bytes: refused, or the canonical message of the words they give.

#![no_main]

use kernels::{params, wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let params = params::DEFAULT.check().expect("the default is checked");
    let Some((&first, bytes)) = data.split_first() else { return };
    let (count, kind) = (usize::from(first >> 1), if first & 1 == 0 { wire::Kind::Ntt } else { wire::Kind::Coefficients });
    let mut words = vec![0; count];
    if wire::decode(&params, kind, bytes, &mut words).is_ok() {
        let mut again = vec![];
        wire::encode(&params, kind, &words, &mut again);
        assert_eq!(again, bytes);
    }
});
