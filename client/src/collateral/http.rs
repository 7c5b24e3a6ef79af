//! Fetching collateral: four GETs of each endpoint, the first endpoint that has all of it.

use std::sync::Arc;
use std::time::Duration;

use attest_verify::collateral::{
    Answer, Answers, CollateralError, CollateralKey, MAX_PART, QuoteCollateralV3, assemble, dates, urls,
};
use attest_verify::snp;

/// Short, so that an endpoint that is down does not hold up the next one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For one answer as a whole.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);

/// Asks the endpoints in their order; the first whose answer is `fresh` counts, and without one the last that had an answer,
/// about which the judge then says what is wrong. Blocks.
///
/// # Errors
/// [`CollateralError`] with every endpoint and what it answered.
pub fn fetch(
    key: &CollateralKey,
    endpoints: &[String],
    fresh: impl Fn(&QuoteCollateralV3) -> bool,
) -> Result<QuoteCollateralV3, CollateralError> {
    let agent = agent(ANSWER_TIMEOUT);
    let (mut tried, mut stale) = (Vec::new(), None);
    for endpoint in endpoints {
        match from(&agent, endpoint, key) {
            Ok(collateral) if fresh(&collateral) => return Ok(collateral),
            Ok(collateral) => stale = Some(collateral),
            Err(reason) => tried.push((endpoint.clone(), reason)),
        }
    }
    stale.ok_or_else(|| CollateralError { wanted: key.to_string(), tried })
}

/// What an SEV-SNP report needs beside itself, from the first endpoint that has all of it. Blocks.
///
/// # Errors
/// [`CollateralError`] with every endpoint and what it answered.
pub(super) fn fetch_amd(wanted: &snp::Wanted, endpoints: &[String]) -> Result<snp::Collateral, CollateralError> {
    amd(&agent(ANSWER_TIMEOUT), wanted, endpoints)
}

fn amd(agent: &ureq::Agent, wanted: &snp::Wanted, endpoints: &[String]) -> Result<snp::Collateral, CollateralError> {
    let mut tried = Vec::new();
    for endpoint in endpoints {
        match amd_from(agent, endpoint, wanted) {
            Ok(collateral) => return Ok(collateral),
            Err(reason) => tried.push((endpoint.clone(), reason)),
        }
    }
    Err(CollateralError { wanted: wanted.to_string(), tried })
}

fn amd_from(agent: &ureq::Agent, endpoint: &str, wanted: &snp::Wanted) -> Result<snp::Collateral, String> {
    let (certificates, mut lists) = (wanted.certificate_urls(endpoint), wanted.revocation_urls(endpoint));
    // One address for each product the report may be from; the one that knows the chip says whose list is wanted.
    let endorsement = match first(agent, &certificates)? {
        Some((product, answer)) => {
            lists = lists.into_iter().skip(product).take(1).collect();
            Some(answer.body)
        }
        None => None,
    };
    let revocation = first(agent, &lists)?.map(|(_, answer)| answer.body);
    let collateral = snp::Collateral { endorsement, revocation: revocation.into_iter().collect() };
    collateral.readable().map(|()| collateral)
}

/// The answer of the first address that has one, and which that is; nothing without an address.
fn first(agent: &ureq::Agent, urls: &[String]) -> Result<Option<(usize, Answer)>, String> {
    let mut reasons = Vec::new();
    for (index, url) in urls.iter().enumerate() {
        match get(agent, url) {
            Ok(answer) => return Ok(Some((index, answer))),
            Err(reason) => reasons.push(reason),
        }
    }
    if reasons.is_empty() { Ok(None) } else { Err(reasons.join("; ")) }
}

fn from(agent: &ureq::Agent, endpoint: &str, key: &CollateralKey) -> Result<QuoteCollateralV3, String> {
    let urls = urls(endpoint, key);
    let answers = Answers {
        tcb_info: get(agent, &urls.tcb_info)?,
        qe_identity: get(agent, &urls.qe_identity)?,
        pck_crl: get(agent, &urls.pck_crl)?,
        root_ca_crl: get(agent, &urls.root_ca_crl)?,
    };
    let collateral = assemble(&answers).map_err(|error| error.to_string())?;
    let found = dates(&collateral)?;
    if found.fmspc == key.fmspc {
        Ok(collateral)
    } else {
        Err(format!("tcb info is for FMSPC {}, expected {}", found.fmspc, key.fmspc))
    }
}

fn get(agent: &ureq::Agent, url: &str) -> Result<Answer, String> {
    let failed = |error: ureq::Error| format!("{url}: {error}");
    let mut response = agent.get(url).call().map_err(failed)?;
    let status = response.status();
    if !status.is_success() {
        // AMD's service wants to be left alone between two chips.
        let seconds = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
        let later = seconds.map(|seconds| format!(", retry after {seconds} s")).unwrap_or_default();
        return Err(format!("{url}: http status: {}{later}", status.as_u16()));
    }
    let headers = response.headers().iter();
    let headers =
        headers.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect();
    let body = response.body_mut().with_config().limit(MAX_PART as u64).read_to_vec().map_err(failed)?;
    Ok(Answer { body, headers })
}

/// `answer` is for one answer as a whole.
fn agent(answer: Duration) -> ureq::Agent {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ureq::Agent::new_with_config(
        ureq::Agent::config_builder()
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(answer))
            // A refusal's headers are wanted as well.
            .http_status_as_error(false)
            // Issuer chains are in headers.
            .max_response_header_size(256 << 10)
            .tls_config(ureq::tls::TlsConfig::builder().unversioned_rustls_crypto_provider(provider).build())
            .build(),
    )
}

#[cfg(test)]
mod tests;
