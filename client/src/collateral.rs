//! Collateral: Intel's from a bundle, from the cache, from a list of endpoints; AMD's from a bundle or a list of endpoints.
//!
//! Nothing here is trusted: signatures, root, age and evaluation number are checked with the quote.

mod cache;
pub mod command;
mod http;

use std::path::PathBuf;

use attest_verify::collateral::{
    Bundle, CollateralError, CollateralKey, CollateralSource, INTEL_PCS, MAX_BUNDLE, QuoteCollateralV3,
};
use attest_verify::{Floor, Policy, snp};

use crate::Error;
use crate::cli::TrustArgs;
use crate::file::bounded;
use cache::Cache;
pub use http::fetch;

/// Where collateral comes from.
pub struct Collateral {
    intel: Intel,
    amd: Amd,
}

/// Where Intel's comes from.
enum Intel {
    /// A file alone; nothing is fetched.
    Bundle(Bundle),
    /// The cache, and the endpoints in their order when what it has is too old.
    Fetched {
        /// Where what was fetched is kept.
        cache: PathBuf,
        /// Base URLs.
        endpoints: Vec<String>,
    },
}

/// What collateral must be so that it can be accepted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Freshness {
    /// Hours since Intel issued it, at most; any if absent.
    pub max_age_hours: Option<u32>,
    /// Its lowest evaluation number.
    pub least_eval: u32,
}

impl Freshness {
    /// What a policy and what was accepted before ask for.
    #[must_use]
    pub fn of(policy: &Policy, floor: &Floor) -> Self {
        let tcb = policy.rules().tcb.as_ref();
        let before = if floor.accept_rollback { 0 } else { floor.eval_number };
        Self {
            max_age_hours: tcb.map(|tcb| tcb.max_collateral_age_hours),
            least_eval: tcb.map_or(0, |tcb| tcb.min_eval_data_number).max(before),
        }
    }
}

/// Where AMD's comes from.
struct Amd {
    /// A file alone; nothing is fetched.
    bundle: Option<snp::Bundle>,
    /// Base URLs of key distribution services, in their order.
    endpoints: Vec<String>,
}

impl Collateral {
    /// As the arguments say.
    ///
    /// # Errors
    /// [`Error::File`] for a bundle that is none, [`Error::Usage`] for an endpoint that is no URL.
    pub fn of(args: &TrustArgs) -> Result<Self, Error> {
        let intel = match &args.collateral {
            Some(path) => {
                let bundle = Bundle::parse(&bounded(path, MAX_BUNDLE)?);
                Intel::Bundle(bundle.map_err(|error| Error::file(path, error))?)
            }
            None => {
                Intel::Fetched { cache: cache::dir()?, endpoints: endpoints(&args.collateral_endpoint, INTEL_PCS)? }
            }
        };
        let bundle = args.amd_collateral.as_ref().map(|path| {
            snp::Bundle::parse(&bounded(path, snp::Bundle::LIMIT)?).map_err(|error| Error::file(path, error))
        });
        let amd = Amd { bundle: bundle.transpose()?, endpoints: endpoints(&args.amd_endpoint, snp::AMD_KDS)? };
        Ok(Self { intel, amd })
    }

    /// The source of what is fresh enough at `now`, in seconds since 1970.
    #[must_use]
    pub fn at(&self, freshness: Freshness, now: u64) -> impl CollateralSource + '_ {
        At { collateral: self, freshness, now }
    }
}

/// The endpoints that were named, else the maker's own.
///
/// # Errors
/// [`Error::Usage`].
pub(crate) fn endpoints(named: &[String], makers: &str) -> Result<Vec<String>, Error> {
    let wrong =
        |url: &&String| !["https://", "http://"].iter().any(|s| url.strip_prefix(s).is_some_and(|h| !h.is_empty()));
    if let Some(url) = named.iter().find(wrong) {
        return Err(Error::Usage(format!("collateral endpoint is `{url}`, expected https://HOST or http://HOST")));
    }
    Ok(if named.is_empty() { vec![makers.to_owned()] } else { named.to_vec() })
}

/// A source at one moment.
struct At<'a> {
    collateral: &'a Collateral,
    freshness: Freshness,
    now: u64,
}

impl CollateralSource for At<'_> {
    fn tdx(&self, key: &CollateralKey) -> Result<QuoteCollateralV3, CollateralError> {
        match &self.collateral.intel {
            Intel::Bundle(bundle) => bundle.tdx(key),
            Intel::Fetched { cache, endpoints } => {
                let cache = Cache::at(cache);
                let held = cache.read(key);
                if let Ok(Some(held)) = &held
                    && fresh(held, self.freshness, self.now)
                {
                    return Ok(held.clone());
                }
                let fetched = fetch(key, endpoints, |collateral| fresh(collateral, self.freshness, self.now));
                let fetched = fetched.map_err(|error| match held {
                    Ok(None) => error,
                    Ok(Some(_)) => with(error, &cache, "is too old, or of an earlier round than was accepted before"),
                    Err(reason) => with(error, &cache, &reason),
                })?;
                // A cache that cannot be written costs a fetch the next time, and nothing else.
                cache.write(key, &fetched, self.now);
                Ok(fetched)
            }
        }
    }

    fn snp(&self, wanted: &snp::Wanted) -> Result<snp::Collateral, CollateralError> {
        let Amd { bundle, endpoints } = &self.collateral.amd;
        match bundle {
            Some(bundle) => Ok(bundle.find(wanted)),
            None => http::fetch_amd(wanted, endpoints),
        }
    }
}

fn with(mut error: CollateralError, cache: &Cache<'_>, reason: &str) -> CollateralError {
    error.tried.insert(0, (format!("the cache {cache}"), reason.to_owned()));
    error
}

/// Whether collateral need not be replaced. What comes from the future is kept: the clock is to be checked then.
fn fresh(collateral: &QuoteCollateralV3, freshness: Freshness, now: u64) -> bool {
    const HOUR: u64 = 3600;
    let Ok(dates) = attest_verify::collateral::dates(collateral) else { return false };
    let young = |hours: u32| dates.issued.saturating_add(u64::from(hours) * HOUR) >= now;
    now < dates.next_update && freshness.max_age_hours.is_none_or(young) && dates.eval_number >= freshness.least_eval
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issued at 1000 h, due at 1720 h, evaluation number 19.
    fn collateral() -> QuoteCollateralV3 {
        let head = |id: &str| {
            format!(
                r#"{{"id":"{id}","issueDate":"1970-02-11T16:00:00Z","nextUpdate":"1970-03-13T16:00:00Z","tcbEvaluationDataNumber":19,"fmspc":"00806f050000"}}"#
            )
        };
        QuoteCollateralV3 {
            pck_crl_issuer_chain: String::new(),
            root_ca_crl: Vec::new(),
            pck_crl: Vec::new(),
            tcb_info_issuer_chain: String::new(),
            tcb_info: head("TDX"),
            tcb_info_signature: Vec::new(),
            qe_identity_issuer_chain: String::new(),
            qe_identity: head("TD_QE"),
            qe_identity_signature: Vec::new(),
            pck_certificate_chain: None,
        }
    }

    #[test]
    fn what_is_too_old_or_of_an_earlier_round_is_fetched_anew() {
        let asked = |max_age_hours, least_eval| Freshness { max_age_hours, least_eval };
        for (freshness, hours, good) in [
            (asked(None, 0), 1001, true),
            (asked(None, 0), 1719, true),
            (asked(None, 0), 1720, false),
            (asked(Some(168), 0), 1168, true),
            (asked(Some(168), 0), 1169, false),
            (asked(Some(168), 19), 1001, true),
            (asked(Some(168), 20), 1001, false),
            (asked(Some(168), 0), 10, true),
        ] {
            assert_eq!(fresh(&collateral(), freshness, hours * 3600), good, "{freshness:?} at {hours} h");
        }
        let broken = QuoteCollateralV3 { tcb_info: "{}".into(), ..collateral() };
        assert!(!fresh(&broken, Freshness::default(), 1001 * 3600));
    }

    #[test]
    fn endpoints_are_urls_and_intels_by_default() {
        assert_eq!(endpoints(&[], INTEL_PCS).unwrap(), [INTEL_PCS]);
        for bad in ["", "pccs.example", "https://", "ftp://a"] {
            assert!(endpoints(&[bad.to_owned()], INTEL_PCS).unwrap_err().to_string().contains("https://HOST"), "{bad}");
        }
    }
}
