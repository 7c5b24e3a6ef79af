//! Leaving in good order: one flag that everybody watches, raised by SIGTERM or SIGINT.

use crate::Error;
use tokio::{
    signal::unix::{SignalKind, signal},
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
        // A sender that is gone has taken the daemon with it.
        let _ = self.0.wait_for(|&begun| begun).await;
    }
}

/// Returns the name of the first SIGTERM or SIGINT.
///
/// # Errors
/// [`Error::Platform`] if signals cannot be watched.
pub async fn asked_to_leave() -> Result<&'static str, Error> {
    let watch = |kind| signal(kind).map_err(|e| Error::Platform(format!("signal handler: {e}")));
    let (mut term, mut int) = (watch(SignalKind::terminate())?, watch(SignalKind::interrupt())?);
    Ok(tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    })
}
