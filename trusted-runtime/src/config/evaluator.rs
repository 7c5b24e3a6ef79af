//! Who the runtime is towards evaluators, and that nobody else may say who an evaluator is.

use super::{Config, EvaluatorSection, read};
use crate::Error;
use identity::{Caller, Files, Pins, files::Named};
use rustls::time_provider::DefaultTimeProvider;
use std::{net::SocketAddr, sync::Arc};

impl EvaluatorSection {
    /// Certificates and pins, read once; `None` without certificates.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting and what is wrong with it.
    pub(super) fn caller(&self) -> Result<Option<Arc<Caller>>, Error> {
        let refuse = |e: identity::Error| Error::Config(e.to_string());
        let pins = Pins::parse("evaluator.pins", &self.pins).map_err(refuse)?;
        if [&self.ca, &self.cert, &self.key].into_iter().any(String::is_empty) {
            if !pins.is_empty() || !self.pins_file.is_empty() {
                return Err(Error::Config(
                    "evaluator.pins or pins_file is set without evaluator.ca, cert and key".into(),
                ));
            }
            return Ok(None);
        }
        if !pins.is_empty() && !self.pins_file.is_empty() {
            return Err(Error::Config("evaluator.pins and evaluator.pins_file are both set, expected one".into()));
        }
        let named = |setting, path: &String| Named { setting, path: path.into() };
        let files = Files {
            cert: named("evaluator.cert", &self.cert),
            key: named("evaluator.key", &self.key),
            ca: named("evaluator.ca", &self.ca),
            pins: (!self.pins_file.is_empty()).then(|| named("evaluator.pins_file", &self.pins_file)),
        };
        Caller::open(files, pins, Arc::new(DefaultTimeProvider)).map(|c| Some(Arc::new(c))).map_err(refuse)
    }
}

impl Config {
    /// Checks that clients and evaluators have authorities of their own: whoever may sign clients could else make an
    /// evaluator. On loopback, where one process may have started all of them, it is no more than a warning.
    ///
    /// # Errors
    /// [`Error::Config`] with the key that both have.
    pub fn authorities_apart(&self, listen: SocketAddr) -> Result<(), Error> {
        let (evaluators, clients) = (&self.evaluator.ca, &self.tls.client_ca);
        if self.evaluator.endpoint.is_empty() || evaluators.is_empty() || clients.is_empty() {
            return Ok(());
        }
        let apart = identity::apart(&read("evaluator.ca", evaluators)?, &read("tls.client_ca", clients)?);
        match apart {
            Err(e) if listen.ip().is_loopback() => tracing::warn!("loopback: {e}"),
            other => other.map_err(|e| Error::Config(e.to_string()))?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(ca: &std::path::Path, pins: &str) -> Result<Config, Error> {
        let ca = ca.display().to_string();
        let flags = [
            ("model.source", "m.gguf"),
            ("evaluator.endpoint", "https://localhost:1"),
            ("evaluator.ca", &ca),
            ("evaluator.cert", &ca),
            ("evaluator.key", &ca),
            ("evaluator.pins", pins),
            ("tls.client_ca", &ca),
        ];
        Config::load(None, [], &flags.map(|(k, v)| (k, v.to_owned())))
    }

    #[test]
    fn one_authority_is_for_loopback_only() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca.pem");
        std::fs::write(&ca, rcgen::generate_simple_self_signed(vec!["a".into()]).unwrap().cert.pem()).unwrap();
        let config = config(&ca, "").unwrap();
        assert!(config.authorities_apart("127.0.0.1:1".parse().unwrap()).is_ok());
        let error = config.authorities_apart("192.0.2.1:1".parse().unwrap()).unwrap_err().to_string();
        assert!(error.contains("evaluator.ca") && error.contains("tls.client_ca"), "{error}");
    }

    #[test]
    fn pins_and_files_are_refused_by_name() {
        let nowhere = std::path::Path::new("/nonexistent/ca.pem");
        let refused = |pins| config(nowhere, pins).unwrap().evaluators().err().unwrap().to_string();
        assert!(refused("a1").contains("evaluator.pins is \"a1\""), "{}", refused("a1"));
        assert!(refused("").contains("evaluator.cert /nonexistent/ca.pem"), "{}", refused(""));
        let mut both = config(nowhere, &"a1".repeat(32)).unwrap();
        both.evaluator.pins_file = "/nonexistent/pins".to_owned();
        let error = both.evaluators().err().unwrap().to_string();
        assert!(error.contains("evaluator.pins and evaluator.pins_file are both set"), "{error}");
        both.evaluator.ca.clear();
        assert!(both.evaluators().is_err_and(|e| e.to_string().contains("without evaluator.ca, cert and key")));
    }
}
