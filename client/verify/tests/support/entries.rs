//! The ways in for bytes from others, as fuzz targets and the test of mutations run them. None may panic.

use attest::{Binding, Hardware, binding::Parts};
use attest_verify::{
    Floor, Policy,
    collateral::{
        Answer, Answers, Bundle, CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3, assemble, dates,
        signatures,
    },
    eventlog::EventLog,
    explain::explain,
    hex::Hex,
    tdx::{self, Appraisal, Quote},
    verify,
};
use prost::Message as _;
use proto::v1::{Evidence, RuntimeValues};
use std::sync::LazyLock;

/// 1 July 2025, when the recorded collateral is valid.
const NOW: u64 = 1_751_328_000;

/// The example with its sections for AMD and Azure, for every kind of evidence.
static POLICY: LazyLock<Policy> = LazyLock::new(|| {
    let text = include_str!("../../policy.example.toml").replace("\n#: ", "\n");
    let all = r#"platforms = ["tdx", "sev_snp", "azure_tdx", "azure_sev_snp"]"#;
    Policy::parse(&text.replace(r#"platforms = ["tdx"]"#, all)).expect("the example is a policy")
});

static COLLATERAL: LazyLock<QuoteCollateralV3> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../testdata/dcap-qvl-crate/tdx_quote_collateral.json"))
        .expect("recorded collateral is collateral")
});

static QUOTE: LazyLock<Quote> = LazyLock::new(|| {
    Quote::parse(include_bytes!("../../testdata/dcap-qvl-crate/tdx_quote")).expect("a recorded quote is a quote")
});

struct Recorded;

impl CollateralSource for Recorded {
    fn tdx(&self, _: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        Ok(COLLATERAL.clone())
    }
}

/// A quote: taken apart, its measurements judged, its platform explained.
pub fn quote(bytes: &[u8]) {
    let Ok(quote) = Quote::parse(bytes) else { return };
    let _ = tdx::needs(&quote);
    let _ = explain(&quote, &COLLATERAL);
    let rules = POLICY.rules();
    if let Some(td) = &rules.td {
        let _ = tdx::judge_domain(&quote, td);
    }
    let _ = tdx::judge_registers(&quote, rules, &Evidence::default(), false);
}

/// A quote, its signatures included.
pub fn signed_quote(bytes: &[u8]) {
    let Ok(quote) = Quote::parse(bytes) else { return };
    let _ = judged(&quote, &Recorded);
}

fn judged(quote: &Quote, collateral: &dyn CollateralSource) -> Option<tdx::Findings> {
    let tcb = POLICY.rules().tcb.as_ref()?;
    Some(tdx::judge(quote, &Appraisal { tcb, ppid: None, collateral, root: None, eval_floor: 0, now: NOW }))
}

/// A firmware's event log.
pub fn event_log(bytes: &[u8]) {
    if let Ok(log) = EventLog::parse(bytes) {
        let _ = log.replay();
    }
}

/// One collateral as JSON, a bundle, and the answers of a service.
pub fn collateral(bytes: &[u8]) {
    struct One(QuoteCollateralV3);
    impl CollateralSource for One {
        fn tdx(&self, _: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
            Ok(self.0.clone())
        }
    }
    if let Ok(collateral) = serde_json::from_slice::<QuoteCollateralV3>(bytes) {
        let readable = dates(&collateral).is_ok();
        let _ = signatures(&collateral, None, NOW);
        let _ = explain(&QUOTE, &collateral);
        if readable {
            let _ = judged(&QUOTE, &One(collateral));
        }
    }
    if let Ok(bundle) = Bundle::parse(bytes) {
        let _ = bundle.check(NOW);
    }
    let answer = Answer {
        body: bytes.to_vec(),
        headers: vec![("TCB-Info-Issuer-Chain".to_owned(), String::from_utf8_lossy(bytes).into_owned())],
    };
    let _ = assemble(&Answers {
        tcb_info: answer.clone(),
        qe_identity: answer.clone(),
        pck_crl: answer.clone(),
        root_ca_crl: answer,
    });
}

/// The message that carries evidence: decoded and checked, against a binding of its own values.
pub fn evidence(bytes: &[u8]) {
    let Ok(evidence) = Evidence::decode(bytes) else { return };
    let values = evidence.values.clone().unwrap_or_else(RuntimeValues::default);
    let parts = Parts { nonce: &[0; 32], exporter: &[0; 32], spki: &[0; 32], values: &values };
    let binding = Binding::new::<Hardware>(parts);
    let outcome = verify::<Hardware>(&evidence, &binding, &POLICY, &Bundle::default(), &Floor::default(), NOW);
    assert!(outcome.verified.is_none(), "nobody can make this: {:?}", Hex(binding.transcript()));
}
