//! One flag that says "end now", for code that blocks.
//!
//! The async half of the program is dropped when a signal arrives and cleans up in its destructors; blocking
//! work (a download, `pip`) has no such point and asks this flag between two steps instead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

/// A flag shared by everything that has to end when the user says so.
#[derive(Clone, Default, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks everybody to end.
    pub fn request(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// # Errors
    /// [`Error::Interrupted`] once [`Stop::request`] was called.
    pub fn check(&self) -> Result<(), Error> {
        if self.0.load(Ordering::SeqCst) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

/// Waits for SIGINT or SIGTERM.
///
/// # Errors
/// [`Error::Platform`] when the handlers cannot be installed, [`Error::Interrupted`] when a signal arrived.
pub async fn signalled() -> Result<std::convert::Infallible, Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let install = |kind| signal(kind).map_err(|error| Error::Platform(format!("signal handler: {error}")));
    let (mut interrupt, mut terminate) = (install(SignalKind::interrupt())?, install(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Err(Error::Interrupted)
}
