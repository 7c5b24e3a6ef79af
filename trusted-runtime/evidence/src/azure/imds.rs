//! What the host says over Azure's metadata service. az-tdx-vtpm would ask it too, but for as long as it likes and through
//! a proxy of the environment: statements are made one at a time, so one that never ends would be the last.

use base64::{
    Engine as _,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use plain_http::{Agent, Body, Error, http::Response};
use serde::{Deserialize, de::DeserializeOwned};
use std::time::Duration;

pub(super) struct Imds {
    agent: Agent,
    base: String,
}

impl Default for Imds {
    fn default() -> Self {
        Self::at("http://169.254.169.254".into(), Duration::from_secs(30))
    }
}

impl Imds {
    /// Every answer comes within `limit`.
    fn at(base: String, limit: Duration) -> Self {
        let config = Agent::config_builder().proxy(None).max_redirects(0).timeout_global(Some(limit));
        Self { agent: config.build().into(), base }
    }

    /// Microsoft, "Quote generation from a TD report": base64 without padding goes there, and comes back.
    pub(super) fn td_quote(&self, td_report: &[u8]) -> Result<Vec<u8>, String> {
        #[derive(Deserialize)]
        struct Answer {
            quote: String,
        }
        let url = format!("{}/acc/tdquote", self.base);
        let request = self.agent.post(&url).header("Metadata", "true");
        let body = serde_json::json!({ "report": BASE64.encode(td_report) });
        let answer: Answer = read(&url, request.send_json(body))?;
        BASE64.decode(answer.quote).map_err(|e| format!("{url}: quote: {e}"))
    }

    /// Microsoft, "Trusted Hardware Identity Management": certificate of the VCEK, and the chain above it.
    pub(super) fn certificates(&self) -> Result<Vec<u8>, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Answer {
            vcek_cert: String,
            certificate_chain: String,
        }
        let url = format!("{}/metadata/THIM/amd/certification", self.base);
        let request = self.agent.get(&url).header("Metadata", "true");
        let answer: Answer = read(&url, request.call())?;
        Ok(format!("{}\n{}", answer.vcek_cert.trim(), answer.certificate_chain.trim()).into_bytes())
    }
}

fn read<T: DeserializeOwned>(url: &str, answer: Result<Response<Body>, Error>) -> Result<T, String> {
    // A redirection is not followed and not an error of the client library.
    let good = answer.and_then(|answer| match answer.status() {
        status if status.is_success() => Ok(answer),
        status => Err(Error::StatusCode(status.as_u16())),
    });
    let read = good.and_then(|mut answer| answer.body_mut().with_config().limit(LIMIT).read_json());
    read.map_err(|e| format!("{url}: {e}"))
}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Bytes of an answer: a quote of the largest size in base64.
const LIMIT: u64 = 2 << 20;

#[cfg(test)]
mod tests;
