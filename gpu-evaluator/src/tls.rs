//! The identity of this daemon and of its peers, and how new certificates come in without a restart.
//!
//! It keeps strangers away from the accelerator and avoids mix-ups. It is no reason to trust anybody: runtimes do not
//! trust this daemon, whatever certificate it has.

use crate::{
    Error,
    config::{Config, Transport},
    drain::Draining,
};
use identity::{
    Door, Files, Pins,
    files::{Named, Stamp},
};
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use std::{path::PathBuf, sync::Arc, time::Duration};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

/// Reads the configuration once more, as at the start.
pub type Reload = Box<dyn Fn() -> Result<Config, Error> + Send + Sync>;

/// The door that the configuration describes; `None` without TLS.
///
/// # Errors
/// [`Error::Config`] naming the setting and what is wrong with it.
pub fn door(transport: &Transport) -> Result<Option<Arc<Door>>, Error> {
    opened(transport, Arc::new(DefaultTimeProvider))
}

fn opened(transport: &Transport, clock: Arc<dyn TimeProvider>) -> Result<Option<Arc<Door>>, Error> {
    let Some((files, pins)) = identity(transport) else { return Ok(None) };
    let door = Door::open(files, pins, clock).map_err(|e| Error::Config(e.to_string()))?;
    Ok(Some(Arc::new(door)))
}

fn identity(transport: &Transport) -> Option<(Files, Pins)> {
    let Transport::MutualTls { cert, key, client_ca, pins } = transport else { return None };
    let named = |setting, path: &PathBuf| Named { setting, path: path.clone() };
    let files =
        Files { cert: named("tls_cert", cert), key: named("tls_key", key), ca: named("tls_client_ca", client_ca) };
    Some((files, pins.clone()))
}

/// Watches for new certificates: on SIGHUP, and by the times of the files.
pub struct Rotation {
    door: Arc<Door>,
    reload: Reload,
    /// The configuration file, which has the pins, and the state in which it was read.
    file: Option<Named>,
    stamp: Stamp,
    /// What was said last about files that cannot be used.
    trouble: Option<String>,
}

impl Rotation {
    /// For `door`, whose settings `reload` reads from `file` and elsewhere.
    pub fn new(door: Arc<Door>, reload: Reload, file: Option<PathBuf>) -> Self {
        let file = file.map(|path| Named { setting: "configuration", path });
        let stamp = file.as_ref().and_then(Named::stamp);
        Self { door, reload, file, stamp, trouble: None }
    }

    /// Watches until the daemon drains.
    ///
    /// # Errors
    /// [`Error::Platform`] if signals cannot be watched.
    pub fn start(mut self, mut draining: Draining) -> Result<(), Error> {
        let mut hangup = signal(SignalKind::hangup()).map_err(|e| Error::Platform(format!("signal handler: {e}")))?;
        let mut tick = interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = hangup.recv() => {
                        tracing::info!("SIGHUP: reading certificates and pins anew");
                        self.look(true);
                    }
                    _ = tick.tick() => self.look(false),
                    () = draining.wait() => return,
                }
            }
        });
        Ok(())
    }

    /// Reads everything anew if it has changed, or in any case if `asked` to.
    fn look(&mut self, asked: bool) {
        let stamp = self.file.as_ref().and_then(Named::stamp);
        // What could not be used may have become good, with time or with another file.
        if !asked && stamp == self.stamp && !self.door.is_stale() && self.trouble.is_none() {
            return;
        }
        self.stamp = stamp;
        let renewed = (self.reload)().and_then(|config| match identity(&config.transport) {
            Some((files, pins)) => self.door.renew(files, pins).map_err(|e| Error::Config(e.to_string())),
            None => Err(Error::Config("danger_plaintext cannot be switched on while the daemon runs".into())),
        });
        match renewed {
            Ok(()) => {
                self.trouble = None;
                tracing::info!("certificates and pins were read anew: {}", self.door.summary());
            }
            Err(e) => {
                let said = e.to_string();
                if asked || self.trouble.as_ref() != Some(&said) {
                    tracing::error!("certificates or pins cannot be used, the old ones stay: {said}");
                }
                self.trouble = Some(said);
            }
        }
    }
}

/// How often the files' times are looked at.
const EVERY: Duration = Duration::from_secs(30);
