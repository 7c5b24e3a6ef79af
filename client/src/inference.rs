//! The gRPC client of a runtime: connect with mutual TLS, wait for health, describe, generate.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proto::v1;
use proto::v1::generate_event::Event;
use proto::v1::inference_client::InferenceClient;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A runtime's address and the files of mutual TLS. Attested connections are in [`crate::attested`].
#[derive(Clone, Debug)]
pub struct Address {
    /// `https://HOST:PORT`.
    pub url: String,
    /// Certificate of the authority the runtime must be signed by.
    pub ca: PathBuf,
    /// This client's certificate.
    pub cert: PathBuf,
    /// The key of `cert`.
    pub key: PathBuf,
}

/// What one request produced. Holds generated text, so it has no `Debug`.
pub struct Completion {
    /// The text, complete UTF-8.
    pub text: String,
    /// The ids in order.
    pub token_ids: Vec<u32>,
    /// Tokens of the prompt, template included.
    pub prompt_tokens: u32,
    /// "stop" or "length".
    pub finish_reason: &'static str,
    /// How the linear layers were executed.
    pub protocol: v1::Protocol,
    /// Medians over the decode steps.
    pub timing: v1::Timing,
    /// Decode steps whose linear calls were all masked.
    pub masked_steps: u32,
    /// The other decode steps of a delegating protocol.
    pub direct_steps: u32,
}

/// An open connection to a runtime.
#[derive(Clone)]
pub struct Runtime {
    channel: Channel,
    url: String,
}

impl Runtime {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Usage`] for a URL that is not `https://HOST:PORT`, [`Error::File`] for an unreadable PEM file,
    /// [`Error::Runtime`] when nobody answers or the certificates do not match.
    pub async fn connect(address: &Address) -> Result<Self, Error> {
        let url = address.url.clone();
        let connected = endpoint(address)?.connect().await;
        let channel =
            connected.map_err(|error| Error::Runtime(format!("no connection to {url}: {}", chain(&error))))?;
        Ok(Self { channel, url })
    }

    /// A connection that is opened when it is first used, and again after it broke.
    ///
    /// # Errors
    /// [`Error::Usage`] and [`Error::File`] as [`Runtime::connect`].
    pub fn connect_lazy(address: &Address) -> Result<Self, Error> {
        Ok(Self { channel: endpoint(address)?.connect_lazy(), url: address.url.clone() })
    }

    /// Over a channel that is made elsewhere; `url` names the runtime in errors.
    pub(crate) fn over(channel: Channel, url: String) -> Self {
        Self { channel, url }
    }

    /// Whether grpc.health.v1 says that the runtime is serving.
    ///
    /// # Errors
    /// [`Error::Runtime`] when the question cannot be asked.
    pub async fn serving(&self) -> Result<bool, Error> {
        Ok(self.health().await?)
    }

    /// [`Runtime::serving`], with the answer as it came.
    pub(crate) async fn health(&self) -> Result<bool, tonic::Status> {
        let mut health = HealthClient::new(self.channel.clone());
        let answer = health.check(HealthCheckRequest { service: String::new() }).await?.into_inner();
        Ok(answer.status == ServingStatus::Serving as i32)
    }

    /// What is being served, and how.
    ///
    /// # Errors
    /// [`Error::Runtime`].
    pub async fn describe(&self) -> Result<v1::DescribeResponse, Error> {
        Ok(self.client().describe(v1::DescribeRequest {}).await?.into_inner())
    }

    /// The mask pool as of now; none where nothing is masked.
    ///
    /// # Errors
    /// [`Error::Runtime`].
    pub async fn lanes(&self) -> Result<Option<v1::Lanes>, Error> {
        Ok(self.describe().await?.lanes)
    }

    /// Runs one request; `on_text` sees every piece of text as it comes.
    ///
    /// # Errors
    /// [`Error::Runtime`] with the runtime's reason, or when its stream ends without a finish.
    pub async fn generate(
        &self,
        request: v1::GenerateRequest,
        mut on_text: impl FnMut(&str),
    ) -> Result<Completion, Error> {
        let mut events = self.client().generate(request).await?.into_inner();
        let (mut text, mut token_ids) = (String::new(), Vec::new());
        let mut started = v1::Started::default();
        while let Some(event) = events.message().await? {
            match event.event {
                Some(Event::Started(event)) => started = event,
                Some(Event::Token(token)) => {
                    token_ids.push(token.id);
                    on_text(&token.text);
                    text.push_str(&token.text);
                }
                Some(Event::Finished(finished)) => {
                    on_text(&finished.text);
                    text.push_str(&finished.text);
                    let finish_reason = match finished.reason() {
                        v1::FinishReason::Stop => "stop",
                        v1::FinishReason::Length => "length",
                        v1::FinishReason::Unspecified => return Err(self.broken("a finish without a reason")),
                    };
                    let timing = finished.timing.ok_or_else(|| self.broken("a finish without timing"))?;
                    return Ok(Completion {
                        text,
                        token_ids,
                        prompt_tokens: finished.prompt_tokens,
                        finish_reason,
                        protocol: started.protocol(),
                        timing,
                        masked_steps: finished.masked_steps,
                        direct_steps: finished.direct_steps,
                    });
                }
                None => return Err(self.broken("an event of an unknown kind")),
            }
        }
        Err(self.broken("an end of the stream before the finish"))
    }

    /// The service without conveniences, for whoever follows the events itself.
    pub(crate) fn client(&self) -> InferenceClient<Channel> {
        InferenceClient::new(self.channel.clone())
    }

    fn broken(&self, what: &str) -> Error {
        Error::Runtime(format!("{} sent {what}", self.url))
    }
}

/// Where a runtime is and how it is spoken to.
fn endpoint(address: &Address) -> Result<Endpoint, Error> {
    let url = address.url.clone();
    if !url.starts_with("https://") {
        return Err(Error::Usage(format!(
            "endpoint `{url}`: expected https://HOST:PORT (runtimes speak mutual TLS only)"
        )));
    }
    let identity = Identity::from_pem(read(&address.cert)?, read(&address.key)?);
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(&address.ca)?)).identity(identity);
    Ok(Endpoint::from_shared(url.clone())
        .map_err(|error| Error::Usage(format!("endpoint `{url}`: {error}; expected https://HOST:PORT")))?
        .tls_config(tls)
        .map_err(|error| Error::Usage(format!("endpoint `{url}`: TLS files: {}", chain(&error))))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true))
}

/// The request for `prompt`: a user's chat message when the model has a template and `raw` is off.
#[must_use]
pub fn request(prompt: &str, model: &v1::DescribeResponse, raw: bool) -> v1::GenerateRequest {
    use v1::generate_request::Input;
    let input = if model.has_chat_template && !raw {
        let message = v1::ChatMessage { role: "user".into(), content: prompt.into() };
        Input::Chat(v1::Chat { messages: vec![message] })
    } else {
        Input::Prompt(prompt.into())
    };
    v1::GenerateRequest { input: Some(input), ..Default::default() }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|error| Error::file(path, error))
}

/// An error and its causes on one line; the transport's own message alone says nothing.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
