//! An evaluator that forwards everything to a real one, writes down what it is sent, and meddles with what comes back.
//!
//! It holds no weights and no arithmetic: what it changes, it changes in the messages. Whatever it does,
//! the runtime may fail or repeat, but must never turn it into a token that differs.

mod answer;
mod meddling;
mod record;
mod service;

pub use meddling::Meddling;
pub use record::{Record, Sent};

use crate::stage::{Evaluator, Stage};
use bytes::Bytes;
use proto::v1::evaluator_server::EvaluatorServer;
use service::Service;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

/// The streams on which numbers come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// Products of encrypted activations.
    Direct,
    /// Products of padded activations.
    Online,
    /// Products of encrypted masks.
    Bulk,
}

/// What the meddler says about itself in `Hello` in place of the truth.
#[derive(Clone, Default)]
pub struct Disguise {
    /// Another build.
    pub version: Option<String>,
    /// Another protocol revision.
    pub protocol: Option<u32>,
    /// Another ring.
    pub params_id: Option<Bytes>,
}

/// What the meddler has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Calls of `Upload`.
    pub uploads: u64,
    /// Answers meddled with.
    pub meddled: u64,
}

#[derive(Default)]
struct Plan {
    order: Option<Order>,
    disguise: Disguise,
    seen: Seen,
    record: Record,
    /// Numbers of an earlier answer, by path and size.
    past: HashMap<(Path, usize), Bytes>,
}

/// Meddle with `times` answers on `path` after `skip` of them.
struct Order {
    path: Path,
    what: Meddling,
    skip: u64,
    times: u64,
}

/// A fake evaluator in front of a real one. Dropping it stops it.
pub struct Meddler {
    /// Where it listens on loopback.
    pub port: u16,
    plan: Arc<Mutex<Plan>>,
    held: watch::Sender<Option<Path>>,
    server: tokio::task::JoinHandle<()>,
}

impl Meddler {
    /// Starts in front of `behind`.
    ///
    /// # Errors
    /// If there is no port or no certificate.
    pub async fn start(stage: &Stage, behind: &Evaluator) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let plan = Arc::new(Mutex::new(Plan::default()));
        let held = watch::Sender::new(None);
        let service = Service { channel: stage.channel(behind.port)?, plan: plan.clone(), held: held.subscribe() };
        let service = EvaluatorServer::new(service).max_decoding_message_size(service::LARGEST);
        let router = Server::builder().tls_config(stage.server_tls()?)?.tcp_nodelay(true).add_service(service);
        let server = tokio::spawn(async move {
            // Ends when it is aborted; an error shows as a connection that is refused.
            let _ = router.serve_with_incoming(TcpListenerStream::new(listener)).await;
        });
        Ok(Self { port, plan, held, server })
    }

    /// Meddles with the next `times` answers on `path`.
    pub fn meddle(&self, path: Path, what: Meddling, times: u64) {
        self.meddle_later(path, 0, what, times);
    }

    /// Meddles with `times` answers on `path` after the next `skip`.
    pub fn meddle_later(&self, path: Path, skip: u64, what: Meddling, times: u64) {
        lock(&self.plan).order = Some(Order { path, what, skip, times });
    }

    /// Keeps back every answer on `path` until it behaves.
    pub fn hold(&self, path: Path) {
        self.held.send_replace(Some(path));
    }

    /// Forwards faithfully from now on, and what was kept back.
    pub fn behave(&self) {
        lock(&self.plan).order = None;
        self.held.send_replace(None);
    }

    /// Pretends in `Hello`.
    pub fn disguise(&self, as_what: Disguise) {
        lock(&self.plan).disguise = as_what;
    }

    /// From now on another runtime is served, whose public polynomials are its own.
    pub fn another_runtime(&self) {
        lock(&self.plan).record.another_runtime();
    }

    /// The counts so far.
    pub fn seen(&self) -> Seen {
        lock(&self.plan).seen
    }

    /// How much of each kind the runtime has sent so far.
    pub fn sent(&self) -> Sent {
        lock(&self.plan).record.sent()
    }

    /// Looks through everything that was ever sent.
    ///
    /// # Errors
    /// What came twice.
    pub fn nothing_came_twice(&self) -> anyhow::Result<()> {
        lock(&self.plan).record.nothing_came_twice()
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn lock(plan: &Mutex<Plan>) -> MutexGuard<'_, Plan> {
    plan.lock().expect("no panic in the meddler")
}
