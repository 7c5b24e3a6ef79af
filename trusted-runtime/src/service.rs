//! The `Inference` gRPC service: requests are checked here, run by the engine, and told back as they go.

pub mod describe;
mod front;
mod request;
mod status;
mod stop;

use crate::{
    Error,
    engine::{Engine, Event, Finish, Policy, Protocol, Ticket, runner::ModelRunner, sampler::Logprobs, timing::Timing},
    keys::Held,
    linear::Cost,
    metrics::{Ended, Metrics},
    model::{ChatTemplate, Tokenizer, kv::KvPool},
};
use describe::Description;
use proto::v1::{self, inference_server::Inference};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use stop::{StopMatcher, Stopped};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, metadata::MetadataMap};

pub use front::Front;
pub use status::status;

/// What all requests share.
pub struct Served {
    /// Runs sequences.
    pub engine: Engine<ModelRunner>,
    /// From text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders chats, where the model has a template.
    pub chat: Option<ChatTemplate>,
    /// What is served.
    pub description: Description,
    /// Sizes that requests are checked against.
    pub limits: RequestLimits,
    /// Counters.
    pub metrics: Metrics,
    /// Set when requests that still run are given up.
    pub abort: CancellationToken,
    /// Requests that are being answered.
    pub answering: watch::Sender<usize>,
    /// Keys and values of the engine, one pool a protocol.
    pub pools: Vec<Arc<KvPool>>,
}

/// Sizes that requests are checked against.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Positions the model can hold.
    pub context: usize,
    /// Token ids are below this.
    pub vocab: usize,
    /// `max_tokens` of requests that give none.
    pub default_max_tokens: usize,
    /// Protocol of requests that name none.
    pub default_protocol: Protocol,
    /// Policy of requests that name none.
    pub default_policy: Policy,
    /// Between two tokens on their way to a client; zero for none.
    pub token_interval: Duration,
    /// Longest time for a request, waiting included.
    pub max_time: Duration,
}

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct Service(pub Arc<Front>);

#[tonic::async_trait]
impl Inference for Service {
    type GenerateStream = ReceiverStream<Result<v1::GenerateEvent, Status>>;

    #[tracing::instrument(name = "generate", skip_all)]
    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Self::GenerateStream>, Status> {
        let (served, held) = self.0.admitted(&request)?;
        let time = client_timeout(request.metadata()).map_or(served.limits.max_time, |t| t.min(served.limits.max_time));
        let deadline = Instant::now() + time;
        let tenant = request::tenant(&request, held.as_deref());
        let admitted = admit(&served, request.into_inner(), tenant).await;
        let (ticket, started, stops) = admitted.map_err(|e| {
            served.metrics.ended(Ended::Refused, Cost::default());
            tracing::info!(kind = ?status(&e).code(), "request refused");
            status(&e)
        })?;
        let (out, stream) = mpsc::channel(EVENTS_IN_FLIGHT);
        let teller = Teller { _running: self.0.running(&served, held.as_ref()), served, held, out, deadline };
        tokio::spawn(teller.tell(ticket, started, stops));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    #[tracing::instrument(name = "tokenize", skip_all)]
    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeResponse>, Status> {
        let (served, _) = self.0.admitted(&request)?;
        let context_length = u32::try_from(served.limits.context).unwrap_or(u32::MAX);
        let tokens = tokio::task::spawn_blocking(move || request::tokens(request.into_inner(), &served));
        let tokens = tokens.await.map_err(|_| Status::internal("tokenizing panicked"))?.map_err(|e| status(&e))?;
        let count = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        let token_ids = Some(v1::TokenIds { ids: tokens.to_vec() });
        Ok(Response::new(v1::TokenizeResponse { token_ids, count, context_length }))
    }

    async fn describe(&self, request: Request<v1::DescribeRequest>) -> Result<Response<v1::DescribeResponse>, Status> {
        Ok(Response::new(self.0.admitted(&request)?.0.description.response()))
    }
}

/// Checks the request, off the network threads, and queues it.
async fn admit(
    served: &Arc<Served>,
    request: v1::GenerateRequest,
    tenant: request::Whose,
) -> Result<(Ticket, v1::Started, StopMatcher), Error> {
    let served = served.clone();
    let policy = request::policy(request.policy, served.limits.default_policy)?;
    let protocol = policy.protocol(request::protocol(request.protocol, served.limits.default_protocol)?);
    served.engine.check_room(protocol, &tenant.tenant)?;
    let admit = move || {
        let (request, stop) = request::check(request, &served, policy, tenant)?;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let started = v1::Started { prompt_tokens, protocol: describe::protocol(protocol).into() };
        Ok((served.engine.submit(protocol, request)?, started, StopMatcher::new(stop)))
    };
    tokio::task::spawn_blocking(admit).await.map_err(|_| Error::Bug("checking a request panicked".into()))?
}

/// Tells one client what its sequence does, until the end, the deadline, or the client's leaving.
/// Its end drops the ticket, which cancels the sequence.
struct Teller {
    served: Arc<Served>,
    /// The key under which the request runs; none in local mode.
    held: Option<Arc<Held>>,
    _running: front::Running,
    out: mpsc::Sender<Result<v1::GenerateEvent, Status>>,
    deadline: Instant,
}

impl Teller {
    async fn tell(self, ticket: Ticket, started: v1::Started, stops: StopMatcher) {
        let end = tokio::select! {
            end = self.events(ticket, started, stops) => end,
            () = self.out.closed() => return,
            () = tokio::time::sleep_until(self.deadline.into()) => Err(Status::deadline_exceeded("the request's time is over")),
            () = self.served.abort.cancelled() => Err(Status::unavailable("the runtime has shut down")),
            () = front::ended(self.held.as_deref()) => Err(Status::permission_denied("the key has expired or was revoked")),
        };
        if let Err(status) = end {
            // The client may be gone.
            let _ = self.out.send(Err(status)).await;
        }
    }

    async fn events(&self, mut ticket: Ticket, started: v1::Started, mut stops: StopMatcher) -> Result<(), Status> {
        use v1::generate_event::Event as Told;
        let mut text = self.served.tokenizer.decoder();
        let (prompt_tokens, mut told, mut stopped) = (started.prompt_tokens, 0, None);
        self.send(Told::Started(started)).await;
        let mut pace = Pace::new(self.served.limits.token_interval);
        while let Some(event) = ticket.events.recv().await {
            match event {
                // Made before the engine heard that the answer is complete.
                Event::Token(_) if stopped.is_some() => {}
                Event::Token(token) => {
                    let (text, end) = stops.push(token.id, &text.push(token.id));
                    let (logprob, top) = self.logprobs(token.id, token.logprobs.as_ref());
                    told += 1;
                    pace.next().await;
                    self.send(Told::Token(v1::Token { id: token.id, text, logprob, top })).await;
                    stopped = end;
                    if stopped.is_some() {
                        ticket.stop();
                    }
                }
                Event::Finished { finish, timing, cached, .. } => {
                    pace.next().await;
                    let (stop, stop_token_id) = match stopped {
                        Some(Stopped::Text(which)) => (stops.text(which).to_owned(), None),
                        Some(Stopped::Token(id)) => (String::new(), Some(id)),
                        None => Default::default(),
                    };
                    let finish = if stopped.is_some() { Finish::Stop } else { finish };
                    let finished = v1::Finished {
                        reason: reason(finish).into(),
                        prompt_tokens,
                        completion_tokens: told,
                        timing: Some(self::told(&timing)),
                        masked_steps: u32::try_from(timing.masked_steps).unwrap_or(u32::MAX),
                        direct_steps: u32::try_from(timing.direct_steps).unwrap_or(u32::MAX),
                        text: stops.finish(),
                        stop,
                        stop_token_id,
                        cached_tokens: u32::try_from(cached).unwrap_or(u32::MAX),
                    };
                    self.send(Told::Finished(finished)).await;
                    return Ok(());
                }
                Event::Failed(error) => {
                    tracing::warn!(%error, "request failed");
                    return Err(status(&error));
                }
            }
        }
        Err(Status::internal("the engine dropped the request"))
    }

    fn logprobs(&self, id: u32, logprobs: Option<&Logprobs>) -> (Option<v1::TokenLogprob>, Vec<v1::TokenLogprob>) {
        let Some(logprobs) = logprobs else { return Default::default() };
        let of = |id, logprob| {
            let bytes = self.served.tokenizer.token_bytes(id);
            let text = String::from_utf8_lossy(bytes).into_owned();
            v1::TokenLogprob { id, text, bytes: bytes.to_vec().into(), logprob }
        };
        (Some(of(id, logprobs.chosen)), logprobs.top.iter().map(|(id, logprob)| of(*id, *logprob)).collect())
    }

    /// A client that is gone shows by `out.closed()`.
    async fn send(&self, event: v1::generate_event::Event) {
        let _ = self.out.send(Ok(v1::GenerateEvent { event: Some(event) })).await;
    }
}

/// Lets something happen at a constant rate, from the first time on.
struct Pace(Option<tokio::time::Interval>);

impl Pace {
    fn new(interval: Duration) -> Self {
        Self((!interval.is_zero()).then(|| tokio::time::interval(interval)))
    }

    /// Waits for the next tick; one that was missed is not made up for.
    async fn next(&mut self) {
        if let Some(interval) = &mut self.0 {
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            interval.tick().await;
        }
    }
}

fn reason(finish: Finish) -> v1::FinishReason {
    match finish {
        Finish::Stop => v1::FinishReason::Stop,
        Finish::Length => v1::FinishReason::Length,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of round trips")]
fn told(t: &Timing) -> v1::Timing {
    v1::Timing {
        ttft_ms: t.ttft_ms,
        decode_ms_per_token: t.decode_ms,
        enclave_crypto_ms: t.crypto_ms,
        enclave_other_ms: t.other_ms,
        evaluator_ms: t.evaluator_ms,
        wire_ms: t.wire_ms,
        bytes_up_per_token: t.bytes_up,
        bytes_down_per_token: t.bytes_down,
        round_trips_per_token: t.round_trips as f64,
        retries: u32::try_from(t.retries).unwrap_or(u32::MAX),
        verify_ms: t.verify_ms,
    }
}

/// The client's deadline: `grpc-timeout` is up to eight digits and a unit, gRPC over HTTP/2, "Requests".
fn client_timeout(metadata: &MetadataMap) -> Option<Duration> {
    let value = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    let n: u32 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    unit.checked_mul(n)
}

/// Events on their way to a client that reads slowly.
const EVENTS_IN_FLIGHT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_deadlines_are_read() {
        let read = |v: &str| {
            let mut m = MetadataMap::new();
            m.insert("grpc-timeout", v.parse().expect("ascii"));
            client_timeout(&m)
        };
        assert_eq!(read("5S"), Some(Duration::from_secs(5)));
        assert_eq!(read("250m"), Some(Duration::from_millis(250)));
        assert_eq!(read("99999999H").map(|d| d.as_secs()), Some(99_999_999 * 3600));
        for bad in ["", "S", "5", "5x", "-5S", "123456789S"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
