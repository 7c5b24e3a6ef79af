//! Answers that are errors, in OpenAI's shape.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tonic::Code;

/// An error as a client of the API hears it. Never holds a prompt or generated text.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) message: String,
    kind: &'static str,
    pub(super) param: Option<String>,
    pub(super) code: Option<&'static str>,
    pub(super) retry_after: Option<u64>,
    no_retry: bool,
}

/// Why there is no answer: the runtime's status, or a refusal of this side.
#[derive(Debug)]
pub(super) enum Refused {
    Status(tonic::Status),
    Here(Refusal),
}

impl From<tonic::Status> for Refused {
    fn from(status: tonic::Status) -> Self {
        Self::Status(status)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Here(refusal)
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Status(status) => Self::of_status(&status),
            Refused::Here(refusal) => refusal,
        }
    }
}

const INVALID: &str = "invalid_request_error";
/// Seconds until a runtime that is not ready is worth another question.
const SOON: u64 = 2;
/// Seconds until a full queue is.
const QUEUE: u64 = 1;

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), kind, param: None, code: None, retry_after: None, no_retry: false }
    }

    /// 400 naming the parameter.
    pub(super) fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, INVALID, message) }
    }

    /// 400 for what is no request at all.
    pub(super) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, message)
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, format!("the body is longer than {limit} bytes"))
    }

    pub(super) fn no_such_model(name: &str, served: &str) -> Self {
        let message = format!("the model `{name}` does not exist here; this endpoint serves `{served}`");
        let base = Self::new(StatusCode::NOT_FOUND, INVALID, message);
        Self { param: Some("model".into()), code: Some("model_not_found"), ..base }
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, "there is nothing at this path")
    }

    pub(super) fn no_such_method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "this path does not have this method")
    }

    pub(super) fn unauthorized() -> Self {
        let message = "a valid API key is needed: Authorization: Bearer KEY";
        Self { code: Some("invalid_api_key"), ..Self::new(StatusCode::UNAUTHORIZED, INVALID, message) }
    }

    pub(super) fn limited(message: impl Into<String>, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let base = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        Self { code: Some("rate_limit_exceeded"), retry_after: Some(seconds.max(1)), ..base }
    }

    pub(super) fn busy(message: impl Into<String>) -> Self {
        Self::limited(message, Duration::from_secs(QUEUE))
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        let base = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message);
        Self { code: Some("unavailable"), retry_after: Some(SOON), ..base }
    }

    /// 503 until the runtime has proved what it is.
    pub(super) fn unattested(message: impl Into<String>) -> Self {
        Self { code: Some("attestation_failed"), ..Self::unavailable(message) }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// What the runtime says about a request.
    pub(super) fn of_status(status: &tonic::Status) -> Self {
        let message = status.message();
        // An error with a cause is of the connection, whatever its code.
        if std::error::Error::source(status).is_some() {
            return Self::unavailable("the connection to the runtime broke");
        }
        match status.code() {
            Code::InvalidArgument => {
                let base = Self::malformed(message);
                Self { param: param_of(message), code: code_of(message), ..base }
            }
            Code::OutOfRange => Self::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message),
            Code::ResourceExhausted => Self::busy(message),
            Code::Unavailable => Self::unavailable(message),
            // The runtime's evidence of this connection is too old for it; a new connection is being made.
            Code::Unauthenticated => Self::unattested(format!("the runtime asks for a new attestation: {message}")),
            // The tenant's key is not held, expired or revoked.
            Code::PermissionDenied => Self {
                code: Some("key_refused"),
                ..Self::new(
                    StatusCode::FORBIDDEN,
                    "permission_error",
                    format!("the runtime refuses this proxy: {message}"),
                )
            },
            Code::DeadlineExceeded => {
                Self { code: Some("timeout"), ..Self::new(StatusCode::GATEWAY_TIMEOUT, "server_error", message) }
            }
            _ => Self::internal(message),
        }
    }

    /// Names the parameter for `max_tokens` that the client used.
    pub(super) fn renamed(mut self, from: &str, to: &str) -> Self {
        if self.param.as_deref() == Some(from) {
            self.param = Some(to.into());
        }
        self
    }

    /// Tells the client not to repeat by itself what ran for `elapsed`, where that is `long`.
    pub(super) fn after(mut self, elapsed: Duration, long: Duration) -> Self {
        self.no_retry = self.status.is_server_error() && elapsed >= long;
        if self.no_retry {
            self.retry_after = None;
        }
        self
    }

    /// The body, also an event of a stream.
    pub(super) fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.body().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.no_retry {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The parameter that a refusal of the runtime is about: its messages begin with the field's name.
fn param_of(message: &str) -> Option<String> {
    let field = message.split([' ', '[']).next().unwrap_or_default();
    let field = field.strip_prefix("sampling.").unwrap_or(field);
    match field {
        "token_ids" => Some("prompt".into()),
        "logprobs" => Some("top_logprobs".into()),
        "the" | "this" if message.contains("chat") => Some("messages".into()),
        "the" if message.contains("prompt") => Some("prompt".into()),
        _ if field.starts_with("chat.messages") => Some("messages".into()),
        "temperature" | "top_k" | "top_p" | "min_p" | "repetition_penalty" | "seed" | "frequency_penalty"
        | "presence_penalty" | "logit_bias" | "max_tokens" | "min_tokens" | "stop" | "stop_token_ids" => {
            Some(field.into())
        }
        _ => None,
    }
}

fn code_of(message: &str) -> Option<&'static str> {
    message.contains("the context holds").then_some("context_length_exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Status;

    #[test]
    fn statuses_keep_whose_fault_it_was() {
        for (status, code, param, retry) in [
            (Status::invalid_argument("sampling.temperature is 3, allowed is 0 to 2"), 400, Some("temperature"), None),
            (Status::invalid_argument("sampling.logit_bias[9] is not below"), 400, Some("logit_bias"), None),
            (Status::invalid_argument("token_ids[0] is not below the vocabulary size 3"), 400, Some("prompt"), None),
            (Status::invalid_argument("the prompt is empty"), 400, Some("prompt"), None),
            (Status::invalid_argument("this model has no chat template; send a prompt"), 400, Some("messages"), None),
            (Status::resource_exhausted("the local queue is full"), 429, None, Some(1)),
            (Status::unavailable("the runtime is draining"), 503, None, Some(2)),
            (Status::unauthenticated("evidence is older than an hour"), 503, None, Some(2)),
            (Status::permission_denied("key k-1 is revoked"), 403, None, None),
            (Status::deadline_exceeded("the request's time is over"), 504, None, None),
            (Status::internal("a step panicked"), 500, None, None),
            (Status::failed_precondition("protocol"), 500, None, None),
        ] {
            let refusal = Refusal::of_status(&status);
            let found = (refusal.status.as_u16(), refusal.param.as_deref(), refusal.retry_after);
            assert_eq!(found, (code, param, retry), "{status:?}");
        }
    }

    #[test]
    fn what_trust_refuses_has_codes_of_its_own() {
        let code = |status: Status| Refusal::of_status(&status).body()["error"]["code"].clone();
        assert_eq!(code(Status::unauthenticated("x")), "attestation_failed");
        assert_eq!(code(Status::permission_denied("x")), "key_refused");
        let blocked = Refusal::unattested("the runtime's evidence was rejected (td.debug_off)");
        assert_eq!((blocked.status.as_u16(), blocked.retry_after), (503, Some(2)));
        assert_eq!(blocked.body()["error"]["code"], "attestation_failed");
    }

    #[test]
    fn long_runs_are_not_to_be_repeated_but_mistakes_may_be_told_again() {
        let long = Duration::from_secs(20);
        let header = |refusal: Refusal, name: &str| {
            refusal.into_response().headers().get(name).map(|v| v.to_str().unwrap().to_owned())
        };
        let failed = |s| Refusal::internal("x").after(Duration::from_secs(s), long);
        assert_eq!(header(failed(21), "x-should-retry").as_deref(), Some("false"));
        assert_eq!(header(failed(1), "x-should-retry"), None);
        assert_eq!(header(Refusal::busy("x").after(long, long), "x-should-retry"), None);
        assert_eq!(header(Refusal::limited("x", Duration::from_millis(1100)), "retry-after").as_deref(), Some("2"));
    }

    #[test]
    fn the_body_has_openais_shape() {
        let body = Refusal::no_such_model("a", "b").body();
        assert_eq!(body["error"]["code"], "model_not_found");
        assert_eq!(body["error"]["param"], "model");
        assert_eq!(body["error"]["type"], "invalid_request_error");
        assert!(Refusal::malformed("x").body()["error"]["param"].is_null());
    }
}
