//! dcap-qvl as these tests call it.

use dcap_qvl::QuoteCollateralV3;
use dcap_qvl::verify::{QuoteVerifier, VerifiedReport};
use simulator::{Authority, CollateralSpec, Platform};
use std::sync::LazyLock;

/// 1 December 2026, noon.
pub(crate) const NOW: u64 = 1_796_126_400;

/// The default platform of the fixed authority.
pub(crate) fn platform() -> &'static Platform {
    &PLATFORM
}

/// A verifier that trusts the test root.
pub(crate) fn verifier() -> QuoteVerifier {
    PLATFORM.authority().verifier()
}

/// Under the test root, with the default collateral changed as wanted.
pub(crate) fn verify(
    quote: &[u8],
    change: impl FnOnce(CollateralSpec) -> CollateralSpec,
) -> Result<VerifiedReport, String> {
    let collateral = platform().collateral(&change(CollateralSpec::at(NOW))).expect("collateral");
    verify_at(quote, &collateral, NOW)
}

/// Under the test root, with this collateral at this time.
pub(crate) fn verify_at(quote: &[u8], collateral: &QuoteCollateralV3, now: u64) -> Result<VerifiedReport, String> {
    verifier().verify(quote, collateral, now).map_err(|error| format!("{error:#}"))
}

/// Asserts that something was refused for this reason.
#[track_caller]
pub(crate) fn assert_refused(result: Result<VerifiedReport, String>, reason: &str) {
    match result {
        Ok(report) => panic!("accepted as {}, expected a refusal with {reason:?}", report.status),
        Err(error) => assert!(error.contains(reason), "refused with {error:?}, expected {reason:?}"),
    }
}

static PLATFORM: LazyLock<Platform> =
    LazyLock::new(|| Authority::fixed().and_then(Platform::new).expect("the fixed authority and its platform"));
