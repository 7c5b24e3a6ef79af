//! `bifrost explain-tcb`: which component of a platform is behind, and what raises it.

use std::marker::PhantomData;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attest::client::{Judge, Offer, attest};
use attest_verify::collateral::{CollateralSource, QuoteCollateralV3};
use attest_verify::explain::explain;
use attest_verify::tdx::{Quote, needs};
use proto::v1::{Evidence, Platform};

use crate::Error;
use crate::attested::{Endpoint, Failure, Kind};
use crate::cli::{ExplainArgs, TrustArgs};
use crate::collateral::{Collateral, Freshness};
use crate::progress::Progress;
use crate::report::print;
use crate::trust::{Clock, Trust};
use crate::verify::read_evidence;

/// For TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Explains, whatever a policy would say.
///
/// # Errors
/// Evidence that is no TDX quote, no collateral for it, no evidence at all.
pub async fn run<W: Trust>(args: &ExplainArgs, progress: &Arc<Progress>, clock: &Clock) -> Result<ExitCode, Error> {
    let trust = TrustArgs {
        collateral: args.collateral.clone(),
        collateral_endpoint: args.collateral_endpoint.clone(),
        ..TrustArgs::default()
    };
    let collateral = Collateral::of(&trust)?;
    let evidence = match (&args.runtime, &args.evidence) {
        (Some(url), None) => {
            let endpoint = Endpoint::parse(url)?;
            progress.busy(format!("asking {endpoint} for evidence"));
            let evidence = ask::<W>(&endpoint).await;
            progress.idle();
            evidence?
        }
        (None, Some(path)) => read_evidence(path)?,
        _ => return Err(Error::Usage("one of URL and --evidence FILE is needed".into())),
    };
    let unchecked = |reason: String| Error::from(Failure::new(Kind::Unchecked, reason));
    if !matches!(evidence.platform(), Platform::Tdx | Platform::AzureTdx) {
        let found = evidence.platform().as_str_name();
        return Err(unchecked(format!("platform is {found}, expected TDX: others have no TCB levels of Intel's")));
    }
    let quote = Quote::parse(&evidence.quote).map_err(|error| unchecked(error.to_string()))?;
    let key = needs(&quote).map_err(|error| unchecked(error.to_string()))?;
    let now = clock.now();
    let fetched = tokio::task::spawn_blocking(move || -> Result<QuoteCollateralV3, String> {
        collateral.at(Freshness::default(), now).tdx(&key).map_err(|error| error.to_string())
    });
    let fetched = fetched.await.map_err(|error| Error::Platform(format!("a thread of this process: {error}")))?;
    let explanation = explain(&quote, &fetched.map_err(unchecked)?).map_err(unchecked)?;
    let text = if args.json {
        let text = serde_json::to_string(&explanation).map_err(|error| Error::Platform(format!("JSON: {error}")))?;
        format!("{text}\n")
    } else {
        explanation.to_string()
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Evidence without a connection: the judge takes it and says no.
async fn ask<W: Trust>(endpoint: &Endpoint) -> Result<Evidence, Failure> {
    let tcp = endpoint.connect(CONNECT_TIMEOUT).await?;
    let taker = Taker::<W> { evidence: Mutex::new(None), world: PhantomData };
    let outcome = attest(tcp, &taker, None).await;
    let taken = taker.evidence.into_inner().unwrap_or_else(PoisonError::into_inner);
    taken.ok_or_else(|| {
        let error = outcome.err().map(|error| error.to_string()).unwrap_or_default();
        Failure::new(Kind::NoEvidence, format!("{endpoint}: {error}"))
    })
}

struct Taker<W> {
    evidence: Mutex<Option<Evidence>>,
    world: PhantomData<fn() -> W>,
}

impl<W: Trust> Judge<W> for Taker<W> {
    type Approval = ();

    async fn judge(&self, offer: &Offer<W>) -> Result<(), attest::Error> {
        *self.evidence.lock().unwrap_or_else(PoisonError::into_inner) = Some(offer.evidence.clone());
        Err(attest::Error::Rejected("evidence was asked for and no connection".into()))
    }
}
