//! A client of an HTTP endpoint: JSON out, JSON or a stream in, connections kept alive.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::Error;

/// Connecting takes milliseconds.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The longest time in which an endpoint says nothing at all; it sends comments sooner.
const SILENCE: Duration = Duration::from_secs(600);

type Connection = SendRequest<Full<Bytes>>;

/// Why a request was not answered. Holds no generated text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection could not be made, or it broke.
    Connection(String),
    /// An answer that is not 200, with what it says.
    Status(u16, String),
    /// An error event in a stream, with what it says.
    Stream(String),
    /// A stream or a body that is not what it should be.
    Malformed(String),
    /// Fewer or more tokens than were asked for.
    Length(String),
    /// Another text than the same prompt got alone.
    Different(String),
}

impl Fault {
    /// By what faults are counted.
    pub(super) fn kind(&self) -> String {
        match self {
            Self::Connection(_) => "connection".into(),
            Self::Status(code, _) => format!("status_{code}"),
            Self::Stream(_) => "stream".into(),
            Self::Malformed(_) => "malformed".into(),
            Self::Length(_) => "length".into(),
            Self::Different(_) => "different".into(),
        }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Status(code, says) => write!(f, "status {code}: {says}"),
            Self::Stream(says) => write!(f, "error in the stream: {says}"),
            Self::Connection(says) | Self::Malformed(says) | Self::Length(says) | Self::Different(says) => {
                write!(f, "{says}")
            }
        }
    }
}

/// An endpoint and the connections to it that are free.
pub(super) struct Endpoint {
    authority: String,
    key: Option<String>,
    idle: Mutex<Vec<Connection>>,
}

/// An answer whose head has come.
pub(super) struct Answer<'a> {
    endpoint: &'a Endpoint,
    connection: Connection,
    body: Incoming,
}

impl Endpoint {
    /// The endpoint at `http://HOST:PORT`, with or without `/v1`.
    ///
    /// # Errors
    /// [`Error::Usage`] for anything else.
    pub(super) fn new(url: &str, key: Option<String>) -> Result<Self, Error> {
        let expected = || Error::Usage(format!("--url is `{url}`, expected http://HOST:PORT (plain HTTP only)"));
        let rest = url.strip_prefix("http://").ok_or_else(expected)?.trim_end_matches('/');
        let authority = rest.strip_suffix("/v1").unwrap_or(rest);
        let port =
            authority.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        if port.is_none() || authority.contains(['/', '?', '@']) {
            return Err(expected());
        }
        if key.as_ref().is_some_and(|key| header::HeaderValue::from_str(key).is_err()) {
            return Err(Error::Usage("--api-key has characters that a header cannot hold".into()));
        }
        Ok(Self { authority: authority.to_owned(), key, idle: Mutex::default() })
    }

    /// `http://HOST:PORT`.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.authority)
    }

    /// The JSON at `path`.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Fault> {
        self.send(Method::GET, path, String::new()).await?.json().await
    }

    /// Posts JSON; the answer's head has come when this returns.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Answer<'_>, Fault> {
        self.send(Method::POST, path, body.to_string()).await
    }

    async fn send(&self, method: Method, path: &str, body: String) -> Result<Answer<'_>, Fault> {
        let mut connection = self.connection().await?;
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.authority);
        request = request.header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(Bytes::from(body)));
        let request = request.map_err(|error| Fault::Malformed(format!("request: {error}")))?;
        let response = timely(connection.send_request(request)).await?;
        let (status, body) = (response.status(), response.into_body());
        let answer = Answer { endpoint: self, connection, body };
        if status == StatusCode::OK {
            return Ok(answer);
        }
        let says = answer.json().await.ok();
        let says = says.as_ref().and_then(|body| body.pointer("/error/message")?.as_str());
        Err(Fault::Status(status.as_u16(), says.unwrap_or("no reason given").to_owned()))
    }

    /// One that is free and alive, or a new one.
    async fn connection(&self) -> Result<Connection, Fault> {
        loop {
            let free = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut free) = free else { break };
            if free.ready().await.is_ok() {
                return Ok(free);
            }
        }
        let fault = |error: &dyn std::fmt::Display| Fault::Connection(format!("{}: {error}", self.authority));
        let stream = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect(&self.authority)).await;
        let stream = stream.map_err(|error| fault(&error))?.map_err(|error| fault(&error))?;
        stream.set_nodelay(true).map_err(|error| fault(&error))?;
        let (connection, work) = handshake(TokioIo::new(stream)).await.map_err(|error| fault(&error))?;
        tokio::spawn(work);
        Ok(connection)
    }
}

impl Answer<'_> {
    /// The next piece of the body; none at its end, which frees the connection.
    pub(super) async fn piece(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            let frame = frame.map_err(|_| Fault::Connection("the answer stopped coming".into()))?;
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(error)) => return Err(Fault::Connection(format!("the answer broke off: {error}"))),
            }
        }
    }

    /// The connection may serve another request: the body has been read to its end.
    pub(super) fn done(self) {
        self.endpoint.idle.lock().unwrap_or_else(PoisonError::into_inner).push(self.connection);
    }

    /// All of the body as JSON.
    pub(super) async fn json(mut self) -> Result<Value, Fault> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            all.extend_from_slice(&piece);
        }
        self.done();
        serde_json::from_slice(&all).map_err(|_| Fault::Malformed("an answer is not JSON".into()))
    }
}

async fn timely<T>(answer: impl Future<Output = hyper::Result<T>>) -> Result<T, Fault> {
    match tokio::time::timeout(SILENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Fault::Connection(format!("no answer: {error}"))),
        Err(_) => Err(Fault::Connection(format!("no answer for {} s", SILENCE.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_of_one_kind() {
        for good in ["http://127.0.0.1:8000", "http://localhost:80/", "http://[::1]:80/v1", "http://a:1/v1/"] {
            let url = Endpoint::new(good, None).map(|endpoint| endpoint.url()).unwrap();
            assert!(good.starts_with(&url) && !url.contains("/v1"), "{url}");
        }
        for bad in ["https://a:1", "a:1", "http://a", "http://a:b", "http://:80", "http://a:1/v2", "http://u@a:1"] {
            assert!(Endpoint::new(bad, None).err().is_some_and(|e| e.exit_code() == 64), "{bad}");
        }
        assert!(Endpoint::new("http://a:1", Some("a\nb".into())).is_err());
    }
}
