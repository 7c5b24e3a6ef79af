//! Configuration in four layers: the commented defaults compiled in, a file, the environment, flags.

mod evaluator;
mod layers;

use crate::{
    Error,
    engine::{Policy, Protocol},
    linear::{link::EvaluatorConfig, padded::Shapes},
    planner::residency::Wish,
    pool::Settings,
};
use layers::Layers;
use serde::Deserialize;
use std::{
    net::{SocketAddr, ToSocketAddrs},
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

/// Everything that `trusted-runtime serve` can be told; see `deploy/trusted-runtime.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct Config {
    pub listen: String,
    pub port_file: String,
    pub metrics_listen: String,
    pub threads: u32,
    pub drain_seconds: u32,
    pub model: ModelSection,
    pub engine: EngineSection,
    pub hardening: HardeningSection,
    pub limits: LimitsSection,
    pub attestation: AttestationSection,
    pub tls: TlsSection,
    pub evaluator: EvaluatorSection,
    pub pool: PoolSection,
    /// SHA-256 of all settings but addresses and threads; clients may insist on it.
    #[serde(skip)]
    pub digest: [u8; 32],
}

/// `[model]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct ModelSection {
    pub source: String,
    pub weights: WeightsName,
    pub sha256: String,
}

/// `model.weights`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub enum WeightsName {
    W8,
    W16,
}

/// `[engine]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct EngineSection {
    pub protocol: Protocol,
    pub policy: String,
    pub max_queue: u32,
    pub max_queue_per_tenant: u32,
    pub max_running: NonZeroU32,
    pub prefill_chunk: NonZeroU32,
    pub kv_memory: String,
    pub kv_backend: KvBackend,
    pub kv_file: String,
    pub default_max_tokens: NonZeroU32,
    pub max_request_seconds: NonZeroU32,
}

/// `engine.kv_backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub enum KvBackend {
    Plaintext,
    Sealed,
}

/// `[hardening]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct HardeningSection {
    pub batch_shapes: String,
    pub answer_multiple: NonZeroU32,
    pub token_interval_ms: u32,
}

/// `[limits]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct LimitsSection {
    pub max_request_bytes: NonZeroU32,
}

/// `[attestation]`.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct AttestationSection {
    pub session_seconds: NonZeroU32,
    pub tenants: String,
    pub danger_listen_anywhere: bool,
    /// Where evidence comes from.
    #[serde(flatten)]
    pub evidence: evidence::Settings,
}

/// `[tls]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct TlsSection {
    pub cert: String,
    pub key: String,
    pub client_ca: String,
    pub danger_plaintext: bool,
}

/// `[evaluator]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct EvaluatorSection {
    pub endpoint: String,
    pub ca: String,
    pub cert: String,
    pub key: String,
    pub pins: String,
    pub pins_file: String,
    pub danger_plaintext: bool,
    pub retry_for_seconds: u32,
    pub deadline_seconds: NonZeroU32,
    pub residency: ResidencyName,
    pub quarantine_seconds: NonZeroU32,
    pub refresh_seconds: NonZeroU32,
}

impl EvaluatorSection {
    /// The addresses in `endpoint`.
    fn endpoints(&self) -> impl Iterator<Item = &str> {
        self.endpoint.split(',').map(str::trim).filter(|e| !e.is_empty())
    }
}

/// `[pool]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub struct PoolSection {
    pub lanes: u32,
    pub memory: String,
    pub threads: u32,
}

/// `evaluator.residency`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "documented in deploy/trusted-runtime.toml")]
pub enum ResidencyName {
    Pinned,
    Fallback,
    Auto,
}

impl Config {
    /// Reads all layers and checks what can be checked before anything starts.
    /// `environment` and `flags` are (name, value) pairs, flags by their path (`tls.cert`).
    ///
    /// # Errors
    /// [`Error::Config`] naming the layer, the field, what was found and what is expected.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: &[(&str, String)],
    ) -> Result<Self, Error> {
        let mut layers = Layers::defaults(DEFAULTS)?;
        if let Some(path) = file {
            layers.file(path)?;
        }
        layers.environment(ENV_PREFIX, environment)?;
        for (path, value) in flags {
            layers.set(path, value, &format!("flag for {path}"))?;
        }
        let digest = layers.digest();
        let config = Self { digest, ..layers.finish()? };
        config.check()?;
        Ok(config)
    }

    /// Compute threads: as configured, or one per core.
    pub fn compute_threads(&self) -> usize {
        match self.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n as usize,
        }
    }

    /// The protocol of requests that name none.
    pub fn default_protocol(&self) -> Protocol {
        let protocol = self.engine.protocol;
        self.policy().map_or(protocol, |policy| policy.protocol(protocol))
    }

    /// The policy of requests that name none.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn policy(&self) -> Result<Policy, Error> {
        self.engine.policy.parse().map_err(|e: Error| match e {
            Error::Config(what) => Error::Config(format!("engine.{what}")),
            e => e,
        })
    }

    /// Sizes that delegated calls are filled up to.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn batch_shapes(&self) -> Result<Shapes, Error> {
        let text = &self.hardening.batch_shapes;
        let sizes = text.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::parse);
        let sizes = sizes
            .collect::<Result<Vec<usize>, _>>()
            .map_err(|_| Error::Config(format!("hardening.batch_shapes is {text:?}, expected sizes like \"16,64\"")))?;
        Shapes::new(sizes)
    }

    /// Bytes for keys and values.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn kv_memory(&self) -> Result<u64, Error> {
        bytes("engine.kv_memory", &self.engine.kv_memory)
    }

    /// The mask pool of protocols `masked` and `auto`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn pool(&self) -> Result<Settings, Error> {
        let bytes = bytes("pool.memory", &self.pool.memory)?;
        let threads = if self.pool.threads == 0 { self.compute_threads() } else { self.pool.threads as usize };
        Ok(Settings { lanes: self.pool.lanes as usize, memory: bytes, threads })
    }

    /// How to reach the first evaluator; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn evaluator(&self) -> Result<Option<EvaluatorConfig>, Error> {
        self.evaluators().map(|all| all.into_iter().next())
    }

    /// How to reach each evaluator, its files read, with the others to turn to; none if there is none.
    ///
    /// # Errors
    /// [`Error::Config`] naming the setting.
    pub fn evaluators(&self) -> Result<Vec<EvaluatorConfig>, Error> {
        if self.policy()? == Policy::CpuTee {
            return Ok(Vec::new());
        }
        let names: Vec<String> = self.evaluator.endpoints().map(str::to_owned).collect();
        let from = |i: usize| {
            let mut names = names.clone();
            names.rotate_left(i);
            self.reaching(&names)
        };
        (0..names.len()).map(from).collect()
    }

    /// How to reach the first of `names`, and the others while it is gone.
    fn reaching(&self, names: &[String]) -> Result<EvaluatorConfig, Error> {
        let e = &self.evaluator;
        let (endpoint, others) = names.split_first().map_or_else(Default::default, |(a, b)| (a.clone(), b.to_vec()));
        let config = EvaluatorConfig {
            endpoint,
            others,
            caller: e.caller()?,
            danger_plaintext: e.danger_plaintext,
            retry_for: Duration::from_secs(e.retry_for_seconds.into()),
            deadline: Duration::from_secs(e.deadline_seconds.get().into()),
            residency: match e.residency {
                // Masks are multiplied by int8 weights.
                _ if self.engine.protocol.uses_masks() => Wish::Fallback,
                ResidencyName::Pinned => Wish::Pinned,
                ResidencyName::Fallback => Wish::Fallback,
                ResidencyName::Auto => Wish::Auto,
            },
            budget: None,
            quarantine: Duration::from_secs(e.quarantine_seconds.get().into()),
        };
        config.endpoints()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), Error> {
        let fail = |what: String| Err(Error::Config(what));
        if self.model.source.is_empty() {
            return fail("model.source is not set; give --model PATH".into());
        }
        if self.threads > MAX_THREADS {
            return fail(format!("threads is {}, allowed is 0 to {MAX_THREADS}", self.threads));
        }
        address("listen", &self.listen)?;
        if !self.metrics_listen.is_empty() {
            address("metrics_listen", &self.metrics_listen)?;
        }
        for (field, threads) in [("pool.threads", self.pool.threads)] {
            if threads > MAX_THREADS {
                return fail(format!("{field} is {threads}, allowed is 0 to {MAX_THREADS}"));
            }
        }
        self.pool()?;
        self.policy()?;
        self.kv_memory()?;
        self.batch_shapes()?;
        if self.engine.kv_backend == KvBackend::Plaintext && !self.engine.kv_file.is_empty() {
            return fail(format!(
                "engine.kv_file is {:?}, but engine.kv_backend plaintext keeps everything in enclave memory; it needs sealed",
                self.engine.kv_file
            ));
        }
        self.check_evaluator()?;
        Ok(())
    }

    fn check_evaluator(&self) -> Result<(), Error> {
        let fail = |what: String| Err(Error::Config(what));
        let e = &self.evaluator;
        if e.endpoint.is_empty() {
            return match self.default_protocol() {
                Protocol::Local => Ok(()),
                protocol => fail(format!(
                    "engine.protocol is {protocol}, but evaluator.endpoint is not set; give --evaluator URL or --protocol local"
                )),
            };
        }
        if self.engine.protocol.uses_masks() && matches!(e.residency, ResidencyName::Pinned) {
            return fail(format!(
                "evaluator.residency is pinned, but engine.protocol {} needs int8 weights: auto or fallback",
                self.engine.protocol
            ));
        }
        let mut plain = 0;
        for endpoint in e.endpoints() {
            if let Some(rest) = endpoint.strip_prefix("http://") {
                if !e.danger_plaintext {
                    return fail(format!(
                        "evaluator.endpoint {endpoint} is plaintext; use https, or evaluator.danger_plaintext on loopback"
                    ));
                }
                if !address("evaluator.endpoint", rest.trim_end_matches('/'))?.ip().is_loopback() {
                    return fail(format!("evaluator.danger_plaintext needs a loopback address, found {endpoint}"));
                }
                plain += 1;
            } else if !endpoint.starts_with("https://") {
                return fail(format!("evaluator.endpoint is {endpoint:?}, expected https://host:port"));
            } else if e.danger_plaintext {
                return fail("evaluator.danger_plaintext is set, but evaluator.endpoint is https".into());
            }
        }
        if plain > 0 {
            return Ok(());
        }
        for (name, value) in [("ca", &e.ca), ("cert", &e.cert), ("key", &e.key)] {
            if value.is_empty() {
                return fail(format!("evaluator.{name} is not set; mutual TLS needs it (flag --evaluator-{name})"));
            }
        }
        Ok(())
    }
}

fn bytes(field: &str, text: &str) -> Result<u64, Error> {
    size(text).ok_or_else(|| Error::Config(format!("{field} is {text:?}, expected bytes or a size like \"8 GiB\"")))
}

/// "8 GiB", "500MB", "4096".
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
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

/// Resolves `host:port`.
///
/// # Errors
/// [`Error::Config`] naming the field.
pub fn address(field: &str, value: &str) -> Result<SocketAddr, Error> {
    let found = value.to_socket_addrs().ok().and_then(|mut a| a.next());
    found.ok_or_else(|| Error::Config(format!("{field} is {value:?}, expected an address like 127.0.0.1:7600")))
}

/// Reads a file that the configuration names.
///
/// # Errors
/// [`Error::Config`] naming field and path.
pub fn read(field: &str, path: &str) -> Result<Vec<u8>, Error> {
    std::fs::read(PathBuf::from(path)).map_err(|e| Error::Config(format!("{field} {path}: {e}")))
}

/// The commented defaults.
pub const DEFAULTS: &str = include_str!("../../deploy/trusted-runtime.toml");
/// What environment variables start with.
pub const ENV_PREFIX: &str = "BIFROST_RUNTIME_";
const MAX_THREADS: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn load(env: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, Error> {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let flags: Vec<_> = flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect();
        Config::load(None, env, &flags)
    }

    const LOCAL: [(&str, &str); 2] = [("model.source", "m.gguf"), ("engine.protocol", "local")];

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let dir = tempfile::tempdir().expect("temp dir");
        let file = dir.path().join("c.toml");
        std::fs::write(&file, "threads = 3\ndrain_seconds = 5\n[engine]\nmax_queue = 7\n").expect("write");
        let env = [("BIFROST_RUNTIME_THREADS", "4"), ("BIFROST_RUNTIME_ENGINE_MAX_QUEUE", "8"), ("PATH", "x")];
        let env = env.map(|(k, v)| (k.to_owned(), v.to_owned()));
        let flags: Vec<_> =
            LOCAL.iter().chain(&[("engine.max_queue", "9")]).map(|(k, v)| (*k, (*v).to_owned())).collect();
        let c = Config::load(Some(&file), env, &flags).expect("valid");
        assert_eq!((c.engine.max_queue, c.threads, c.drain_seconds, c.engine.max_running.get()), (9, 4, 5, 16));
    }

    #[test]
    fn defaults_fail_closed() {
        let c = load(&[], &LOCAL).expect("valid");
        assert!(!c.tls.danger_plaintext && !c.evaluator.danger_plaintext);
        assert!(address("listen", &c.listen).expect("an address").ip().is_loopback());
    }

    #[test]
    fn masked_is_the_default_and_takes_int8_weights_and_a_pool() {
        let url = ("evaluator.endpoint", "http://127.0.0.1:1");
        let flags = [("model.source", "m.gguf"), url, ("evaluator.danger_plaintext", "true"), ("threads", "3")];
        let c = load(&[], &flags).expect("valid");
        assert_eq!(c.default_protocol(), Protocol::Masked);
        let Settings { lanes, memory, threads } = c.pool().expect("valid");
        assert_eq!((lanes, memory, threads), (0, 8 << 30, 3));
        let evaluator = c.evaluator().expect("valid").expect("configured");
        assert_eq!((evaluator.residency, evaluator.quarantine), (Wish::Fallback, Duration::from_secs(60)));
        let env = [
            ("BIFROST_RUNTIME_POOL_LANES", "96"),
            ("BIFROST_RUNTIME_POOL_MEMORY", "500MB"),
            ("BIFROST_RUNTIME_POOL_THREADS", "1"),
            ("BIFROST_RUNTIME_ENGINE_PROTOCOL", "direct"),
        ];
        let c = load(&env, &flags).expect("valid");
        let Settings { lanes, memory, threads } = c.pool().expect("valid");
        assert_eq!((lanes, memory, threads), (96, 500_000_000, 1));
        let evaluator = c.evaluator().expect("valid").expect("configured");
        assert_eq!((c.default_protocol(), evaluator.residency), (Protocol::Direct, Wish::Auto));
    }

    #[test]
    fn sizes_have_units_or_none() {
        for (text, bytes) in [
            ("4096", Some(4096)),
            (" 7 B ", Some(7)),
            ("2KiB", Some(2048)),
            ("3 MB", Some(3_000_000)),
            ("1 TiB", Some(1 << 40)),
            ("17 EB", None),
            ("-1", None),
            ("1.5 GiB", None),
            ("GiB", None),
            ("", None),
            ("99999999 TiB", None),
        ] {
            assert_eq!(size(text), bytes, "{text:?}");
        }
    }

    #[test]
    fn bad_values_are_one_line_naming_the_field() {
        let url = "evaluator.endpoint";
        let direct = [("model.source", "m.gguf"), (url, "https://h:1")];
        for (env, flags, says) in [
            (vec![], vec![], "model.source is not set"),
            (vec![("BIFROST_RUNTIME_COLOUR", "1")], LOCAL.to_vec(), "BIFROST_RUNTIME_COLOUR names no setting"),
            (vec![("BIFROST_RUNTIME_THREADS", "many")], LOCAL.to_vec(), "BIFROST_RUNTIME_THREADS is \"many\""),
            (vec![("BIFROST_RUNTIME_THREADS", "-1")], LOCAL.to_vec(), "threads"),
            (vec![("BIFROST_RUNTIME_THREADS", "5000")], LOCAL.to_vec(), "threads is 5000, allowed is 0 to 1024"),
            (vec![("BIFROST_RUNTIME_MODEL_WEIGHTS", "w4")], LOCAL.to_vec(), "weights"),
            (vec![("BIFROST_RUNTIME_ENGINE_MAX_RUNNING", "0")], LOCAL.to_vec(), "max_running"),
            (vec![("BIFROST_RUNTIME_LISTEN", "here")], LOCAL.to_vec(), "listen is \"here\""),
            (vec![], vec![("model.source", "m.gguf")], "evaluator.endpoint is not set"),
            (vec![], direct.to_vec(), "evaluator.ca is not set"),
            (vec![("BIFROST_RUNTIME_POOL_MEMORY", "much")], LOCAL.to_vec(), "pool.memory is \"much\""),
            (vec![("BIFROST_RUNTIME_POOL_THREADS", "5000")], LOCAL.to_vec(), "pool.threads is 5000"),
            (
                vec![("BIFROST_RUNTIME_ENGINE_PROTOCOL", "masked"), ("BIFROST_RUNTIME_EVALUATOR_RESIDENCY", "pinned")],
                direct.to_vec(),
                "evaluator.residency is pinned, but engine.protocol masked needs int8 weights",
            ),
            (vec![], vec![("model.source", "m"), (url, "http://127.0.0.1:1")], "is plaintext"),
            (vec![], vec![("model.source", "m"), (url, "ftp://h")], "expected https://host:port"),
            (
                vec![("BIFROST_RUNTIME_EVALUATOR_DANGER_PLAINTEXT", "true")],
                vec![("model.source", "m"), (url, "http://192.0.2.1:1")],
                "needs a loopback address",
            ),
        ] {
            let err = load(&env, &flags).expect_err(says).to_string();
            assert!(err.contains(says) && !err.contains('\n'), "{says:?} is not in {err:?}");
        }
    }

    #[test]
    fn files_are_refused_by_name_and_field() {
        let dir = tempfile::tempdir().expect("temp dir");
        let file = dir.path().join("c.toml");
        for (text, says) in [
            ("threads = [", "c.toml"),
            ("colour = 1", "colour names no setting"),
            ("[engine]\nmax_queue = \"x\"", "engine.max_queue"),
            ("engine = 3", "engine"),
        ] {
            std::fs::write(&file, text).expect("write");
            let err = Config::load(Some(&file), [], &[]).expect_err(text).to_string();
            assert!(err.contains(says) && !err.contains('\n'), "{says:?} is not in {err:?}");
        }
        let err = Config::load(Some(&dir.path().join("none.toml")), [], &[]).expect_err("absent").to_string();
        assert!(err.contains("none.toml"), "{err}");
    }
}
