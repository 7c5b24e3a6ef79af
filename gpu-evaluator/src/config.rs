//! Configuration: commented TOML compiled in as the defaults, a file over it, environment over that, few flags.

use crate::Error;
use identity::Pins;
use serde::{Deserialize, Deserializer};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

/// Every setting with its default and its explanation.
pub const DEFAULTS: &str = include_str!("../../deploy/gpu-evaluator.toml");

/// Prefix of the environment variables that override settings.
pub const ENV_PREFIX: &str = "BIFROST_EVALUATOR_";

/// Which implementation multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// The best that this build and this machine have.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

/// Checked settings. The fields are those of `deploy/gpu-evaluator.toml`, which explains them.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "deploy/gpu-evaluator.toml documents every field")]
pub struct Config {
    pub listen: SocketAddr,
    pub transport: Transport,
    pub backend: BackendKind,
    pub threads: usize,
    pub memory_budget: u64,
    pub cache_dir: Option<PathBuf>,
    pub metrics_listen: Option<SocketAddr>,
    pub max_message: usize,
    pub max_matrix: u64,
    pub max_uploads: usize,
    pub max_streams: usize,
    pub max_jobs_per_stream: usize,
    pub max_stream_memory: u64,
    pub max_queued_jobs: usize,
    pub default_deadline: Duration,
    pub max_deadline: Duration,
    pub drain: Duration,
    pub log: String,
}

/// How peers are authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Mutual TLS, from PEM files.
    MutualTls {
        /// This daemon's certificate chain.
        cert: PathBuf,
        /// Its key.
        key: PathBuf,
        /// The CA that signs the certificates of runtimes.
        client_ca: PathBuf,
        /// The keys of those that are let in; none for all of the CA.
        pins: Pins,
    },
    /// Nothing, on a loopback address.
    DangerPlaintext,
}

/// The settings as they are written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    listen: String,
    tls_cert: PathBuf,
    tls_key: PathBuf,
    tls_client_ca: PathBuf,
    tls_client_pins: String,
    danger_plaintext: bool,
    backend: BackendKind,
    threads: usize,
    #[serde(deserialize_with = "size")]
    memory_budget: u64,
    cache_dir: PathBuf,
    metrics_listen: String,
    #[serde(deserialize_with = "size")]
    max_message: u64,
    #[serde(deserialize_with = "size")]
    max_matrix: u64,
    max_uploads: usize,
    max_streams: usize,
    max_jobs_per_stream: usize,
    #[serde(deserialize_with = "size")]
    max_stream_memory: u64,
    max_queued_jobs: usize,
    default_deadline_ms: u64,
    max_deadline_ms: u64,
    drain_seconds: u64,
    log: String,
}

impl Config {
    /// Merges the sources and checks the result. `flags` are (setting, value) pairs from the command line.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting or file, what was found and what is allowed.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        flags: &[(&str, String)],
    ) -> Result<Self, Error> {
        let defaults: toml::Table =
            DEFAULTS.parse().map_err(|e| Error::Bug(format!("compiled-in configuration: {e}")))?;
        let mut settings = defaults.clone();
        if let Some(path) = file {
            let at = |e: &dyn std::fmt::Display| Error::Config(format!("{}: {e}", path.display()));
            let text = std::fs::read_to_string(path).map_err(|e| at(&e))?;
            let table: toml::Table = text.parse().map_err(|e| {
                let line = text[..toml::de::Error::span(&e).map_or(0, |s| s.start)].matches('\n').count() + 1;
                at(&format!("line {line}: {}", one_line(e.message())))
            })?;
            for (key, value) in table {
                if !defaults.contains_key(&key) {
                    return Err(at(&format!("unknown setting {key}")));
                }
                settings.insert(key, value);
            }
            // Now, while the file is known to be the cause.
            written(&settings).map_err(|what| at(&what))?;
        }
        for (name, value) in environment {
            let Some(key) = name.strip_prefix(ENV_PREFIX).map(str::to_lowercase) else { continue };
            if key != "config" {
                settings.insert(key.clone(), typed(&defaults, &key, &value, &name)?);
            }
        }
        for (key, value) in flags {
            let flag = format!("--{}", key.replace('_', "-"));
            settings.insert((*key).to_owned(), typed(&defaults, key, value, &flag)?);
        }
        written(&settings).map_err(Error::Config)?.check()
    }
}

impl Written {
    fn check(self) -> Result<Config, Error> {
        let bad = |what: String| Err(Error::Config(what));
        let listen = address("listen", &self.listen)?;
        let transport = if self.danger_plaintext {
            if !self.tls_client_pins.trim().is_empty() {
                return bad("tls_client_pins is set together with danger_plaintext; choose one".into());
            }
            if !listen.ip().is_loopback() {
                return bad(format!("danger_plaintext is only accepted on a loopback address, listen is {listen}"));
            }
            Transport::DangerPlaintext
        } else {
            for (name, path) in
                [("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key), ("tls_client_ca", &self.tls_client_ca)]
            {
                if path.as_os_str().is_empty() {
                    return bad(format!("{name} is not set; mutual TLS needs tls_cert, tls_key and tls_client_ca"));
                }
            }
            let pins = Pins::parse("tls_client_pins", &self.tls_client_pins);
            let pins = pins.map_err(|e| Error::Config(e.to_string()))?;
            Transport::MutualTls { cert: self.tls_cert, key: self.tls_key, client_ca: self.tls_client_ca, pins }
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads > 1024 {
            return bad(format!("threads is {}, at most 1024", self.threads));
        }
        for (name, value, least, most) in [
            ("max_message", self.max_message, 64 << 10, 1 << 30),
            ("max_matrix", self.max_matrix, 1, 1 << 40),
            ("max_uploads", self.max_uploads as u64, 1, 1024),
            ("max_streams", self.max_streams as u64, 1, 1 << 20),
            ("max_jobs_per_stream", self.max_jobs_per_stream as u64, 1, 1 << 20),
            ("max_stream_memory", self.max_stream_memory, 1 << 20, 1 << 40),
            ("max_queued_jobs", self.max_queued_jobs as u64, 1, 1 << 20),
            ("default_deadline_ms", self.default_deadline_ms, 1, self.max_deadline_ms),
            ("max_deadline_ms", self.max_deadline_ms, 1, 86_400_000),
            ("drain_seconds", self.drain_seconds, 0, 86_400),
        ] {
            if !(least..=most).contains(&value) {
                return bad(format!("{name} is {value}, allowed are {least} to {most}"));
            }
        }
        Ok(Config {
            listen,
            transport,
            backend: self.backend,
            threads: if self.threads == 0 { cores } else { self.threads },
            memory_budget: self.memory_budget,
            cache_dir: Some(self.cache_dir).filter(|p| !p.as_os_str().is_empty()),
            metrics_listen: Some(self.metrics_listen)
                .filter(|s| !s.is_empty())
                .map(|s| address("metrics_listen", &s))
                .transpose()?,
            max_message: usize::try_from(self.max_message).unwrap_or(usize::MAX),
            max_matrix: self.max_matrix,
            max_uploads: self.max_uploads,
            max_streams: self.max_streams,
            max_jobs_per_stream: self.max_jobs_per_stream,
            max_stream_memory: self.max_stream_memory,
            max_queued_jobs: self.max_queued_jobs,
            default_deadline: Duration::from_millis(self.default_deadline_ms),
            max_deadline: Duration::from_millis(self.max_deadline_ms),
            drain: Duration::from_secs(self.drain_seconds),
            log: self.log,
        })
    }
}

/// The settings in their types, or one line that names what is wrong.
fn written(settings: &toml::Table) -> Result<Written, String> {
    settings.clone().try_into().map_err(|e: toml::de::Error| one_line(&e.to_string()))
}

fn one_line(text: &str) -> String {
    text.trim_end().replace('\n', " ")
}

fn address(name: &str, text: &str) -> Result<SocketAddr, Error> {
    text.parse().map_err(|_| Error::Config(format!("{name} is {text:?}, expected ADDRESS:PORT with a numeric address")))
}

/// A value given as text, in the type that the setting's default has. `source` names where it came from.
fn typed(defaults: &toml::Table, key: &str, value: &str, source: &str) -> Result<toml::Value, Error> {
    let bad = |kind: &str| Error::Config(format!("{source} is {value:?}, expected {kind}"));
    Ok(match defaults.get(key) {
        None => return Err(Error::Config(format!("{source} names no setting"))),
        Some(toml::Value::Boolean(_)) => value.parse::<bool>().map_err(|_| bad("true or false"))?.into(),
        Some(toml::Value::Integer(_)) => value.parse::<i64>().map_err(|_| bad("a whole number"))?.into(),
        Some(_) => value.into(),
    })
}

/// A size in bytes: a number, or text with a unit.
fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(deserializer)? {
        Size::Bytes(n) => Ok(n),
        Size::Text(text) => parse_size(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("size is {text:?}, expected bytes or e.g. \"8 GiB\""))),
    }
}

/// "8 GiB", "500MB", "4096".
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(flags: &[(&str, &str)], environment: &[(&str, &str)]) -> Result<Config, Error> {
        let flags: Vec<_> = flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        let environment = environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        Config::load(None, environment.collect::<Vec<_>>().into_iter(), &flags)
    }

    #[test]
    fn defaults_fail_closed() {
        let err = load(&[], &[]).expect_err("no certificates");
        assert!(err.to_string().contains("tls_cert is not set"), "{err}");
    }

    #[test]
    fn plaintext_needs_loopback() {
        let err = load(&[("danger_plaintext", "true"), ("listen", "0.0.0.0:1")], &[]).expect_err("not loopback");
        assert!(err.to_string().contains("loopback"), "{err}");
        assert!(load(&[("danger_plaintext", "true"), ("listen", "[::1]:1")], &[]).is_ok());
    }

    #[test]
    fn environment_overrides_defaults_and_flags_override_environment() {
        let env = [("BIFROST_EVALUATOR_DANGER_PLAINTEXT", "true"), ("BIFROST_EVALUATOR_MEMORY_BUDGET", "2 MiB")];
        assert_eq!(load(&[], &env).expect("valid").memory_budget, 2 << 20);
        assert_eq!(load(&[("memory_budget", "77")], &env).expect("valid").memory_budget, 77);
    }

    #[test]
    fn a_file_overrides_defaults_and_unknown_settings_are_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "danger_plaintext = true\nmemory_budget = 5").expect("write");
        assert_eq!(Config::load(Some(&path), std::iter::empty(), &[]).expect("valid").memory_budget, 5);
        std::fs::write(&path, "memory_bugdet = 5").expect("write");
        let err = Config::load(Some(&path), std::iter::empty(), &[]).expect_err("typo");
        assert!(err.to_string().ends_with("unknown setting memory_bugdet"), "{err}");
        for (text, message) in [
            ("threads = 2\nlisten = [", "c.toml: line 2: "),
            ("threads = \"two\"", "c.toml: invalid type: string \"two\", expected usize in `threads`"),
            ("memory_budget = \"8 gigs\"", "c.toml: size is \"8 gigs\""),
        ] {
            std::fs::write(&path, text).expect("write");
            let err = Config::load(Some(&path), std::iter::empty(), &[]).expect_err(message).to_string();
            assert!(err.contains(message) && !err.contains('\n'), "{err} should contain {message}");
        }
        let err = Config::load(Some(&dir.path().join("none")), std::iter::empty(), &[]).expect_err("absent");
        assert!(err.to_string().contains("none: "), "{err}");
    }

    #[test]
    fn bad_values_name_their_source() {
        let plain = ("danger_plaintext", "true");
        for (flags, env, message) in [
            (vec![("danger_plaintext", "yes")], vec![], "--danger-plaintext is \"yes\", expected true or false"),
            (vec![plain, ("listen", "localhost")], vec![], "listen is \"localhost\""),
            (vec![plain, ("backend", "tpu")], vec![], "unknown variant `tpu`"),
            (vec![plain, ("memory_budget", "8 gigs")], vec![], "size is \"8 gigs\""),
            (vec![plain], vec![("BIFROST_EVALUATOR_THREADS", "two")], "BIFROST_EVALUATOR_THREADS is \"two\""),
            (vec![plain], vec![("BIFROST_EVALUATOR_NOPE", "1")], "BIFROST_EVALUATOR_NOPE names no setting"),
            (vec![plain], vec![("BIFROST_EVALUATOR_MAX_STREAMS", "0")], "max_streams is 0, allowed are 1 to"),
            (vec![plain], vec![("BIFROST_EVALUATOR_THREADS", "-1")], "invalid value"),
        ] {
            let err = load(&flags, &env).expect_err(message);
            assert!(err.to_string().contains(message), "{err} should contain {message}");
        }
    }
}
