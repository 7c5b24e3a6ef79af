//! How long a recorded quote takes to verify, with its collateral at hand: signatures, chains, CRLs, TCB, policy.

#![forbid(unsafe_code)]

use attest_verify::{
    Policy,
    collateral::{CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3},
    tdx::{self, Appraisal, Quote},
};
use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;

/// 1 July 2025, when the recorded collateral is valid.
const NOW: u64 = 1_751_328_000;

struct Recorded(QuoteCollateralV3);

impl CollateralSource for Recorded {
    fn tdx(&self, _: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        Ok(self.0.clone())
    }
}

fn quote(c: &mut Criterion) {
    let bytes = include_bytes!("../testdata/dcap-qvl-crate/tdx_quote");
    let collateral = include_str!("../testdata/dcap-qvl-crate/tdx_quote_collateral.json");
    let collateral = Recorded(serde_json::from_str(collateral).expect("recorded collateral is collateral"));
    let policy = Policy::parse(include_str!("../policy.example.toml")).expect("the example is a policy");
    let tcb = policy.rules().tcb.as_ref().expect("the example has [tcb]");
    c.bench_function("tdx quote with collateral at hand", |b| {
        b.iter(|| {
            let quote = Quote::parse(black_box(bytes)).expect("a recorded quote is a quote");
            let appraisal = Appraisal { tcb, ppid: None, collateral: &collateral, root: None, eval_floor: 0, now: NOW };
            black_box(tdx::judge(&quote, &appraisal))
        });
    });
}

criterion_group!(benches, quote);
criterion_main!(benches);
