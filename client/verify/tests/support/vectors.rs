//! Recorded evidence: what is in `testdata`, and more of it in a folder beside the repository where that exists.

use attest_verify::{
    Factor, Policy,
    collateral::{CollateralError, CollateralKey, CollateralSource, QuoteCollateralV3},
    factor::Outcome,
    tdx::{Appraisal, Findings, Quote, judge},
};
use std::path::{Path, PathBuf};

/// A recorded file. What is not in `testdata` may be absent: then this says so and is nothing.
pub(crate) fn file(name: &str) -> Option<Vec<u8>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if name.starts_with("dcap-qvl-crate/") {
        return Some(std::fs::read(here.join("testdata").join(name)).unwrap());
    }
    let folder =
        std::env::var_os("BIFROST_EXTRA_VECTORS").map_or_else(|| here.join("../../../shared/vectors"), PathBuf::from);
    let read = std::fs::read(folder.join(name)).ok();
    if read.is_none() {
        println!("skipped: no {name} in {}; BIFROST_EXTRA_VECTORS names the folder", folder.display());
    }
    read
}

/// A recorded quote.
pub(crate) fn quote(name: &str) -> Option<Quote> {
    file(name).map(|bytes| Quote::parse(&bytes).unwrap())
}

/// Recorded collateral, as one source that has nothing else.
pub(crate) fn collateral(name: &str) -> Option<Fixed> {
    file(name).map(|bytes| Fixed(serde_json::from_slice(&bytes).unwrap()))
}

/// The same collateral whatever is asked for.
#[derive(Clone)]
pub(crate) struct Fixed(pub(crate) QuoteCollateralV3);

impl CollateralSource for Fixed {
    fn tdx(&self, _: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        Ok(self.0.clone())
    }
}

/// Seconds since 1970 of midnight that day.
pub(crate) fn day(text: &str) -> u64 {
    format!("{text}T00:00:00Z").parse::<x509_cert::der::DateTime>().unwrap().unix_duration().as_secs()
}

/// What a test changes of a policy that takes every platform, and measurements of a quote.
pub(crate) struct Asked<'a> {
    pub(crate) accept: &'a str,
    pub(crate) grace: &'a str,
    pub(crate) eval: u32,
    pub(crate) hours: u32,
    pub(crate) reject: &'a str,
    pub(crate) allow: &'a str,
    pub(crate) rest: &'a str,
}

impl Default for Asked<'_> {
    fn default() -> Self {
        Self {
            accept: r#""UpToDate""#,
            grace: "",
            eval: 15,
            hours: 1000,
            reject: "",
            allow: "dynamic_platform = true, cached_keys = true, smt = true",
            rest: "",
        }
    }
}

impl Asked<'_> {
    /// The policy, with the registers of this quote.
    pub(crate) fn of(&self, quote: &Quote) -> Policy {
        Policy::parse(&self.text(quote)).unwrap()
    }

    /// Its text.
    pub(crate) fn text(&self, quote: &Quote) -> String {
        let m = quote.measurements();
        let [rtmr0, rtmr1, rtmr2, rtmr3] = m.rtmr;
        let rtmr3 = if rtmr3.0 == [0; 48] { "zero" } else { "replay" };
        let Self { accept, grace, eval, hours, reject, allow, rest } = self;
        format!(
            r#"
version = 3
platforms = ["tdx"]
[tcb]
accept = [{accept}]
grace_days = {{ {grace} }}
min_eval_data_number = {eval}
max_collateral_age_hours = {hours}
reject_advisories = [{reject}]
allow = {{ {allow} }}
[td]
xfam = ["{xfam}"]
mr_config_id = "{config}"
mr_owner = "{owner}"
mr_owner_config = "{owner_config}"
[[platform]]
name = "recorded"
mr_td = "{mr_td}"
rtmr0 = ["{rtmr0}"]
[[image]]
name = "recorded"
rtmr1 = "{rtmr1}"
rtmr2 = "{rtmr2}"
rtmr3 = "{rtmr3}"
[runtime]
params_digest = ["{params}"]
model_digest = ["{model}"]
config_digest = "any"
{rest}
"#,
            xfam = m.xfam,
            config = m.mr_config_id,
            owner = m.mr_owner,
            owner_config = m.mr_owner_config,
            mr_td = m.mr_td,
            params = "01".repeat(32),
            model = "02".repeat(32),
        )
    }
}

/// Signatures and platform of a quote by a policy, under Intel's root.
pub(crate) fn appraise(quote: &Quote, collateral: &dyn CollateralSource, policy: &Policy, now: u64) -> Findings {
    let rules = policy.rules();
    judge(
        quote,
        &Appraisal {
            tcb: rules.tcb.as_ref().unwrap(),
            ppid: rules.runtime.ppid.as_deref(),
            collateral,
            root: None,
            eval_floor: 0,
            now,
        },
    )
}

/// How the factor of this code went, and what it says.
pub(crate) fn how<'a>(factors: &'a [Factor], code: &str) -> (&'a Outcome, &'a str) {
    let factor = factors.iter().find(|factor| factor.code == code);
    let factor = factor.unwrap_or_else(|| panic!("no factor {code}"));
    match &factor.outcome {
        Outcome::Skipped(reason) => (&factor.outcome, reason),
        outcome => (outcome, &factor.found),
    }
}

/// The codes of the factors that do not hold.
pub(crate) fn failing(factors: &[Factor]) -> Vec<&'static str> {
    factors.iter().filter(|factor| !factor.holds()).map(|factor| factor.code).collect()
}
