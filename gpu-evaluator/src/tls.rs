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
    let files = Files {
        cert: named("tls_cert", cert),
        key: named("tls_key", key),
        ca: named("tls_client_ca", client_ca),
        pins: None,
    };
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

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::{os::unix::fs::PermissionsExt, path::Path};

    /// Writes a new certificate, key and authority (itself), and returns the certificate's pin.
    fn write(dir: &Path) -> String {
        let key = KeyPair::generate().unwrap();
        let made = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        for (name, text) in [("cert.pem", made.pem()), ("key.pem", key.serialize_pem()), ("ca.pem", made.pem())] {
            std::fs::write(dir.join(name), text).unwrap();
            std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        identity::Pin::of(made.der()).unwrap().to_string()
    }

    fn load(dir: &Path) -> Result<Config, Error> {
        let path = |name: &str| dir.join(name).display().to_string();
        let flags = [("tls_cert", path("cert.pem")), ("tls_key", path("key.pem")), ("tls_client_ca", path("ca.pem"))];
        Config::load(Some(&dir.join("e.toml")), std::iter::empty(), &flags)
    }

    #[test]
    fn changed_files_are_taken_unasked_and_bad_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_owned();
        std::fs::write(at.join("e.toml"), "").unwrap();
        let first = write(&at);
        let door = door(&load(&at).unwrap().transport).unwrap().unwrap();
        let source = at.clone();
        let mut rotation = Rotation::new(door.clone(), Box::new(move || load(&source)), Some(at.join("e.toml")));
        rotation.look(false);
        assert!(door.summary().contains(&first));
        let second = write(&at);
        rotation.look(false);
        assert!(door.summary().contains(&second) && !door.is_stale(), "{}", door.summary());
        std::fs::write(at.join("key.pem"), "half of a").unwrap();
        rotation.look(false);
        assert!(door.summary().contains(&second) && rotation.trouble.is_some());
        let third = write(&at);
        rotation.look(false);
        assert!(door.summary().contains(&third) && rotation.trouble.is_none(), "{}", door.summary());
        // The pins are in the configuration file.
        std::fs::write(at.join("e.toml"), format!("tls_client_pins = \"{first}, {second}\"")).unwrap();
        rotation.look(false);
        assert!(door.summary().contains("2 pinned"), "{}", door.summary());
        std::fs::write(at.join("e.toml"), "tls_client_pins = \"all\"").unwrap();
        rotation.look(true);
        assert!(door.summary().contains("2 pinned") && rotation.trouble.as_ref().unwrap().contains("tls_client_pins"));
    }
}
