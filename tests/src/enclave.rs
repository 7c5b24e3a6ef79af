//! A runtime under test: what it answers, logs and counts.

use crate::stage::LIMIT;
use anyhow::Context;
use client::{
    daemon::Daemon,
    inference::{Address, Completion, Runtime},
};
use proto::v1::{self, generate_event::Event, inference_client::InferenceClient};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tonic::{Streaming, transport::Channel};

/// A running `trusted-runtime` and a connection to it.
pub struct Enclave {
    /// The process.
    pub daemon: Daemon,
    /// The connection of an authorized client.
    pub connection: Runtime,
    /// Where it is.
    pub address: Address,
    pub(crate) channel: Channel,
    pub(crate) log: Log,
}

/// What a daemon has written to standard error so far.
pub(crate) type Log = Arc<Mutex<Vec<String>>>;

impl Enclave {
    /// Runs one request.
    ///
    /// # Errors
    /// The runtime's reason, or that it took longer than [`LIMIT`].
    pub async fn generate(&self, request: v1::GenerateRequest) -> anyhow::Result<Completion> {
        let answer = tokio::time::timeout(LIMIT, self.connection.generate(request, |_| {})).await;
        Ok(answer.context("no end of a request; the test hangs")??)
    }

    /// The service without the conveniences of a client.
    pub fn inference(&self) -> InferenceClient<Channel> {
        InferenceClient::new(self.channel.clone())
    }

    /// Starts a request and returns its stream once three tokens have come.
    ///
    /// # Errors
    /// The runtime's reason.
    pub async fn begun(
        &self,
        request: v1::GenerateRequest,
    ) -> anyhow::Result<(Streaming<v1::GenerateEvent>, Vec<u32>)> {
        let mut events = self.inference().generate(request).await?.into_inner();
        let mut seen = Vec::new();
        while seen.len() < 3 {
            let event = events.message().await?.context("the stream ended early")?;
            seen.extend(token(&event));
        }
        Ok((events, seen))
    }

    /// The mask pool as of now.
    ///
    /// # Errors
    /// If the runtime cannot be asked or has none.
    pub async fn lanes(&self) -> anyhow::Result<v1::Lanes> {
        self.connection.lanes().await?.context("the runtime keeps no lanes")
    }

    /// Waits until the mask pool is as `enough` wants it.
    ///
    /// # Errors
    /// If that takes longer than [`LIMIT`].
    pub async fn lanes_until(&self, enough: impl Fn(&v1::Lanes) -> bool) -> anyhow::Result<v1::Lanes> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let lanes = self.lanes().await?;
            if enough(&lanes) {
                return Ok(lanes);
            }
            anyhow::ensure!(Instant::now() < deadline, "the mask pool stays at {lanes:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// The first line of its log that holds every one of `words`.
    pub fn logged(&self, words: &[&str]) -> Option<String> {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().find(|line| words.iter().all(|word| line.contains(word))).cloned()
    }

    /// How many lines it has logged with this text.
    pub fn count_logged(&self, text: &str) -> usize {
        let lines = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().filter(|line| line.contains(text)).count()
    }

    /// What it tells Prometheus; needs `metrics_listen` with port 0.
    ///
    /// # Errors
    /// If there is no such listener.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let line = self.logged(&["metrics on http://"]).context("metrics are off")?;
        let address = line.rsplit("http://").next().and_then(|url| url.split('/').next()).context("an address")?;
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// Waits until the runtime says that its evaluator is connected and the weights are there.
    ///
    /// # Errors
    /// If that takes longer than [`LIMIT`].
    pub async fn connected(&self) -> anyhow::Result<v1::EvaluatorInfo> {
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(info) = self.connection.describe().await?.evaluator {
                return Ok(info);
            }
            anyhow::ensure!(Instant::now() < deadline, "the runtime never connected to its evaluator");
            tokio::time::sleep(POLL).await;
        }
    }
}

/// The token of an event that has one.
pub fn token(event: &v1::GenerateEvent) -> Option<u32> {
    match &event.event {
        Some(Event::Token(token)) => Some(token.id),
        _ => None,
    }
}

/// Between two questions.
const POLL: Duration = Duration::from_millis(20);
