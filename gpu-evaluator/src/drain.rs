//! Leaving in good order: one flag that everybody watches, raised by SIGTERM or SIGINT.

use crate::Error;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
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

/// SIGTERM and SIGINT, watched from construction on: neither ends the process any more by itself.
pub struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// # Errors
    /// [`Error::Platform`] if signals cannot be watched.
    pub fn watch() -> Result<Self, Error> {
        let watch = |kind| signal(kind).map_err(|e| Error::Platform(format!("signal handler: {e}")));
        Ok(Self { term: watch(SignalKind::terminate())?, int: watch(SignalKind::interrupt())? })
    }

    /// Returns the name of the next one.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}
