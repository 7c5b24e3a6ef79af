//! Leaving in good order: one flag that everybody watches, raised by SIGTERM or SIGINT.

use crate::Error;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{oneshot, watch},
};

/// Raises the flag.
pub struct Drain(watch::Sender<bool>);

/// Sees the flag.
#[derive(Clone)]
pub struct Draining(watch::Receiver<bool>);

/// A lowered flag.
pub fn flag() -> (Drain, Draining) {
    let (sender, receiver) = watch::channel(false);
    (Drain(sender), Draining(receiver))
}

impl Drain {
    /// Tells everybody to finish.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }
}

impl Draining {
    /// Whether it has begun.
    pub fn begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when it has begun.
    pub async fn wait(&mut self) {
        // The sender goes only after it has raised the flag, or with the whole daemon.
        let _ = self.0.wait_for(|&begun| begun).await;
    }
}

/// SIGTERM, SIGINT and, on demand, the end of standard input, watched from construction on: no signal ends the
/// process any more by itself.
pub struct Signals {
    term: Signal,
    int: Signal,
    parent: Option<oneshot::Receiver<()>>,
}

impl Signals {
    /// # Errors
    /// [`Error::Platform`] if signals cannot be watched.
    pub fn watch(exit_with_parent: bool) -> Result<Self, Error> {
        let watch = |kind| signal(kind).map_err(|e| Error::Platform(format!("signal handler: {e}")));
        Ok(Self {
            term: watch(SignalKind::terminate())?,
            int: watch(SignalKind::interrupt())?,
            parent: exit_with_parent.then(parent),
        })
    }

    /// Returns the name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
            () = gone(&mut self.parent) => "the parent has gone",
        }
    }
}

/// Reads standard input to its end on a thread of its own, which does not hold up the process's.
fn parent() -> oneshot::Receiver<()> {
    let (gone, seen) = oneshot::channel();
    std::thread::spawn(move || {
        // An input that cannot be read has ended, too.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = gone.send(());
    });
    seen
}

/// Returns once when the parent has gone.
async fn gone(parent: &mut Option<oneshot::Receiver<()>>) {
    match parent {
        Some(seen) => {
            let _ = seen.await;
            *parent = None;
        }
        None => std::future::pending().await,
    }
}
