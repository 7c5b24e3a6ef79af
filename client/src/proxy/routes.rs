//! The paths of the API, and the way of a request: key, limits, body, parameters, runtime, answer.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use proto::v1;
use proto::v1::inference_client::InferenceClient;
use serde_json::{Value, json};
use tonic::transport::Channel;

use super::ask::{Ask, model};
use super::behind::{Behind, plain};
use super::config::Config;
use super::fields::Fields;
use super::gate::{Admission, Gate};
use super::metrics::Metrics;
use super::refusal::{Refusal, Refused};
use super::shape::{End, Head};
use super::sse::{self, Telling};
use super::tokens::{Answers, Step};
use super::{chat, completions};

/// What all requests share.
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) gate: Arc<Gate>,
    pub(super) behind: Behind,
    pub(super) metrics: Metrics,
    /// The protocol that every request names; none for the runtime's default.
    pub(super) protocol: Option<v1::Protocol>,
    pub(super) started: u64,
    /// How the runtime is known: `local` by its certificate, else what it proves to be.
    pub(super) attestation: &'static str,
}

type Parse = fn(&[u8], &[&str]) -> Result<Ask, Refusal>;
type Proxy = State<Arc<Shared>>;

/// Everything that is served.
pub(super) fn router(shared: Arc<Shared>) -> Router {
    let chats = |proxy: Proxy, request: Request| generate(proxy, request, chat::parse);
    let completions = |proxy: Proxy, request: Request| generate(proxy, request, completions::parse);
    Router::new()
        .route("/v1/chat/completions", post(chats))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(one_model))
        .route("/tokenize", post(tokenize))
        .route("/health", get(health))
        .route("/metrics", get(|State(shared): Proxy| async move { shared.metrics.render() }))
        .route("/version", get(|| async { whole(&json!({"version": proto::VERSION})) }))
        .fallback(|| async { Refusal::no_such_path() })
        .method_not_allowed_fallback(|| async { Refusal::no_such_method() })
        .layer(from_fn_with_state(shared.clone(), marked))
        .with_state(shared)
}

/// Gives every answer the client's `x-request-id`, or a new one, and says how the runtime is known.
async fn marked(State(shared): Proxy, request: Request, next: Next) -> Response {
    const NAME: &str = "x-request-id";
    const ATTESTATION: &str = "x-bifrost-attestation";
    let own = request.headers().get(NAME).filter(|id| id.len() <= 128).cloned();
    let id = own.or_else(|| HeaderValue::from_str(&format!("req-{}", random())).ok());
    let mut response = next.run(request).await;
    if let Some(id) = id {
        response.headers_mut().insert(NAME, id);
    }
    response.headers_mut().insert(ATTESTATION, HeaderValue::from_static(shared.attestation));
    response
}

async fn health(State(shared): Proxy) -> Response {
    match shared.behind.ready() {
        Ok(_) if !shared.gate.is_draining() => StatusCode::OK.into_response(),
        Ok(_) => Refusal::unavailable("this endpoint is shutting down").into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn models(State(shared): Proxy, headers: HeaderMap) -> Result<Response, Refusal> {
    Ok(whole(&json!({"object": "list", "data": [described(&shared, &headers, None)?]})))
}

async fn one_model(State(shared): Proxy, Path(id): Path<String>, headers: HeaderMap) -> Result<Response, Refusal> {
    Ok(whole(&described(&shared, &headers, Some(&id))?))
}

fn described(shared: &Shared, headers: &HeaderMap, id: Option<&str>) -> Result<Value, Refusal> {
    shared.gate.caller(headers)?;
    let description = shared.behind.ready()?;
    let own = plain(&description.model);
    let names = shared.behind.names(&description, &own);
    let first = names.first().copied().unwrap_or_default();
    if let Some(id) = id.filter(|id| !names.contains(id)) {
        return Err(Refusal::no_such_model(&id.chars().take(128).collect::<String>(), first));
    }
    Ok(json!({
        "id": first, "object": "model", "created": shared.started, "owned_by": "bifrost",
        "max_model_len": description.context_length,
    }))
}

/// The ids of a prompt, as vLLM tells them.
async fn tokenize(State(shared): Proxy, request: Request) -> Result<Response, Refusal> {
    use v1::tokenize_request::Input;
    let (_admission, description) = enter(&shared, request.headers())?;
    let body = body(request.into_body(), shared.config.max_body_bytes).await?;
    let mut fields = Fields::parse(&body)?;
    let own = plain(&description.model);
    model(&mut fields, &shared.behind.names(&description, &own))?;
    let input = match (fields.text("prompt")?, fields.take("messages")) {
        (Some(text), None) => Input::Prompt(text),
        (None, Some(messages)) => Input::Chat(chat::chat(messages)?),
        _ => return Err(Refusal::param("prompt", "one of prompt and messages is needed")),
    };
    fields.only("add_special_tokens", &[json!(true)])?;
    fields.only("add_generation_prompt", &[json!(true)])?;
    fields.finish("")?;
    let asked = v1::TokenizeRequest { input: Some(input) };
    let ask = |mut client: InferenceClient<Channel>| {
        let asked = asked.clone();
        async move { client.tokenize(asked).await }
    };
    let told = shared.behind.ask(ask).await?.into_inner();
    let ids = told.token_ids.unwrap_or_default().ids;
    Ok(whole(&json!({"count": told.count, "max_model_len": told.context_length, "tokens": ids, "token_strs": null})))
}

/// Lets a request in before anything of its body is read.
fn enter(shared: &Shared, headers: &HeaderMap) -> Result<(Admission, Arc<v1::DescribeResponse>), Refusal> {
    let entered = shared.gate.caller(headers).and_then(|key| {
        let description = shared.behind.ready()?;
        Ok((shared.gate.enter(&key, Instant::now())?, description))
    });
    entered.inspect_err(|_| shared.metrics.refused())
}

async fn generate(State(shared): Proxy, request: Request, parse: Parse) -> Result<Response, Refusal> {
    let (admission, description) = enter(&shared, request.headers())?;
    let counted = |_: &Refusal| shared.metrics.refused();
    let body = body(request.into_body(), shared.config.max_body_bytes).await.inspect_err(counted)?;
    let own = plain(&description.model);
    let names = shared.behind.names(&description, &own);
    let mut ask = parse(&body, &names).inspect_err(counted)?;
    drop(body);
    if let Some(protocol) = shared.protocol {
        ask.generation.set_protocol(protocol);
    }
    let head = Head {
        shape: ask.shape,
        id: format!("{}{}", ask.shape.prefix(), random()),
        created: now(),
        model: names.first().copied().unwrap_or_default().to_owned(),
    };
    let (began, long, time) = (Instant::now(), shared.config.long_run(), shared.config.request_time());
    let refused = |refused: Refused| {
        let refusal = Refusal::from(refused).after(began.elapsed(), long);
        let of_chat = ask.shape == super::shape::Shape::Chat;
        let refusal = refusal.renamed("max_tokens", ask.max_tokens_name);
        if of_chat { refusal.renamed("prompt", "messages") } else { refusal.renamed("top_logprobs", "logprobs") }
    };
    let answers = Answers::ask(&shared.behind, &ask, time, shared.metrics.clone(), admission).await.map_err(refused)?;
    if let Some(stream) = ask.stream {
        let telling = Telling {
            head,
            usage: stream.usage,
            obfuscation: stream.obfuscation.unwrap_or(shared.config.obfuscation),
            keep_alive: shared.config.keep_alive(),
            long_run: long,
        };
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
        return Ok((headers, sse::body(answers, &ask, telling)).into_response());
    }
    collected(answers, &ask, &head).await.map_err(|status| refused(status.into()))
}

/// All answers in one piece. The client's leaving drops this, and with it the answers.
async fn collected(mut answers: Answers, ask: &Ask, head: &Head) -> Result<Response, tonic::Status> {
    let n = (ask.n as usize).max(1);
    let begin = |choice: usize| (ask.echo.get(choice / n).cloned().unwrap_or_default(), Vec::new());
    let mut texts: Vec<(String, Vec<v1::Token>)> = (0..ask.choices()).map(begin).collect();
    let mut choices = vec![Value::Null; texts.len()];
    while let Some(step) = answers.next().await {
        match step? {
            Step::Token(choice, token) => {
                if let Some((text, tokens)) = texts.get_mut(choice) {
                    text.push_str(&token.text);
                    tokens.push(token);
                }
            }
            Step::Finished(choice, finished) => {
                if let (Some((text, tokens)), Some(whole)) = (texts.get_mut(choice), choices.get_mut(choice)) {
                    text.push_str(&finished.text);
                    *whole = head.choice(choice, text, tokens, &End::from(&finished));
                }
            }
        }
    }
    Ok(whole(&head.whole(choices, answers.usage())))
}

/// Reads a body up to its limit.
async fn body(body: Body, limit: usize) -> Result<Vec<u8>, Refusal> {
    let (mut bytes, mut chunks) = (Vec::new(), body.into_data_stream());
    let mut read = 0;
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Refusal::malformed("the body broke off"))?;
        read += chunk.len();
        if read <= limit {
            bytes.extend_from_slice(&chunk);
        } else if read > limit.saturating_mul(2) {
            // A client that sends a little too much hears the answer; one that sends on and on is cut off.
            break;
        }
    }
    if read > limit { Err(Refusal::too_large(limit)) } else { Ok(bytes) }
}

fn whole(value: &Value) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

/// Twelve random bytes in hexadecimal; names, not secrets.
fn random() -> String {
    let mut bytes = [0u8; 12];
    // Without entropy all names are alike, which harms nobody.
    let _ = getrandom::fill(&mut bytes);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
