//! The threads that talk to peers. A connection belongs to one of them, a runtime with a single worker: on a
//! runtime with several, every message wakes a second worker that finds nothing to do, and an online job is too
//! short for that (measured: 30 of 100 us).

use crate::{Error, drain::Draining};
use futures::{StreamExt, future::try_join_all};
use identity::Door;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Router;

/// Threads at least, as a runtime keeps several connections that must not wait for each other, and at most.
const LEAST: usize = 4;
const MOST: usize = 16;
/// Connections that may wait for their thread to take them.
const BACKLOG: usize = 16;
/// Handshakes that one thread has under way.
const HANDSHAKES: usize = 1024;
/// Pause after a connection that could not be accepted, e.g. for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// Threads, each of which serves its share of the connections.
pub struct Reception {
    runtimes: Vec<Runtime>,
    serving: Vec<JoinHandle<Result<(), tonic::transport::Error>>>,
    connections: Vec<mpsc::Sender<std::net::TcpStream>>,
}

impl Reception {
    /// Starts the threads. They serve what `router` has, behind `door` if there is one, until the daemon drains and their
    /// connections have ended.
    ///
    /// # Errors
    /// [`Error::Platform`] if a thread cannot be started.
    pub fn start(router: &Router, door: Option<&Arc<Door>>, draining: &Draining) -> Result<Self, Error> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut reception = Self { runtimes: Vec::new(), serving: Vec::new(), connections: Vec::new() };
        for i in 0..cores.clamp(LEAST, MOST) {
            let runtime = Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name(format!("peers-{i}"))
                .enable_all()
                .build()
                .map_err(|e| Error::Platform(format!("runtime {i} for peers: {e}")))?;
            let (sender, receiver) = mpsc::channel(BACKLOG);
            // Belongs to the runtime that polls it.
            let incoming = ReceiverStream::new(receiver).map(TcpStream::from_std);
            let (router, door, mut draining) = (router.clone(), door.cloned(), draining.clone());
            let serving = runtime.spawn(async move {
                let end = async { draining.wait().await };
                match door {
                    None => router.serve_with_incoming_shutdown(incoming, end).await,
                    Some(door) => {
                        let handshakes = incoming.map(move |tcp| shake(door.clone(), tcp)).buffer_unordered(HANDSHAKES);
                        let incoming = handshakes.filter_map(async |stream| stream.map(Ok::<_, std::io::Error>));
                        router.serve_with_incoming_shutdown(Box::pin(incoming), end).await
                    }
                }
            });
            reception.runtimes.push(runtime);
            reception.serving.push(serving);
            reception.connections.push(sender);
        }
        Ok(reception)
    }

    /// Accepts connections and deals them out until the daemon drains; returns when all have ended.
    ///
    /// # Errors
    /// [`Error::Platform`] if they cannot be served.
    pub async fn serve(
        &mut self,
        listener: TcpListener,
        address: SocketAddr,
        draining: &Draining,
    ) -> Result<(), Error> {
        let mut begun = draining.clone();
        tokio::select! {
            () = accept(listener, &self.connections) => {}
            () = begun.wait() => {}
        }
        let at = |e: &dyn std::fmt::Display| Error::Platform(format!("serving {address}: {e}"));
        let ends = try_join_all(&mut self.serving).await.map_err(|e| at(&e))?;
        ends.into_iter().collect::<Result<(), _>>().map_err(|e| at(&e))
    }
}

impl Drop for Reception {
    fn drop(&mut self) {
        for runtime in self.runtimes.drain(..) {
            // What is still at work then was given up.
            runtime.shutdown_background();
        }
    }
}

/// Takes a connection through TLS, or says why it is not let in.
async fn shake(door: Arc<Door>, tcp: std::io::Result<TcpStream>) -> Option<TlsStream<TcpStream>> {
    let tcp = tcp.inspect_err(|e| tracing::warn!("a connection was lost before its handshake: {e}")).ok()?;
    let peer = tcp.peer_addr().map_or_else(|_| "?".into(), |a| a.to_string());
    match door.accept(tcp).await {
        Ok(stream) => Some(stream),
        Err(refused) if refused.identity => {
            tracing::warn!(peer, reason = %refused, "a peer was not let in");
            None
        }
        Err(refused) => {
            tracing::debug!(peer, reason = %refused, "a peer was not let in");
            None
        }
    }
}

/// Deals connections out in turn.
async fn accept(listener: TcpListener, threads: &[mpsc::Sender<std::net::TcpStream>]) {
    for thread in threads.iter().cycle() {
        let accepted = match listener.accept().await {
            Ok((stream, _)) => stream.set_nodelay(true).and_then(|()| stream.into_std()),
            Err(e) => Err(e),
        };
        match accepted {
            // A thread goes only when the daemon does.
            Ok(stream) => drop(thread.send(stream).await),
            Err(e) => {
                tracing::warn!("a connection was not accepted: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
