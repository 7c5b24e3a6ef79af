//! The proxy's settings: compiled-in defaults, a file over them, flags over that.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::Error;
use crate::cli::ProxyArgs;

/// The commented defaults.
const DEFAULTS: &str = include_str!("../../../deploy/proxy.toml");

/// Everything that can be set.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    listen: String,
    pub(super) model: String,
    pub(super) max_body_bytes: usize,
    pub(super) max_concurrent: usize,
    request_seconds: u64,
    drain_seconds: u64,
    keep_alive_seconds: u64,
    long_run_seconds: u64,
    reattest_seconds: u64,
    pub(super) obfuscation: bool,
    tls: Tls,
    #[serde(default)]
    pub(super) keys: Vec<KeyConfig>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Tls {
    cert: PathBuf,
    key: PathBuf,
}

/// One API key and its limits.
#[derive(Deserialize, Debug, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct KeyConfig {
    pub(super) name: String,
    pub(super) sha256: String,
    pub(super) max_concurrent: Option<usize>,
    pub(super) requests_per_minute: Option<u32>,
    pub(super) tokens_per_minute: Option<u32>,
}

/// Where HTTP is served, and how.
pub(super) struct Door {
    pub(super) address: SocketAddr,
    /// Certificate and key.
    pub(super) tls: Option<(PathBuf, PathBuf)>,
}

impl Config {
    /// The settings of `args`.
    ///
    /// # Errors
    /// [`Error::File`] naming file and field, [`Error::Usage`].
    pub(super) fn load(args: &ProxyArgs) -> Result<Self, Error> {
        let mut config = match &args.config {
            None => Self::parse("", Path::new("defaults"))?,
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?;
                Self::parse(&text, path)?
            }
        };
        if let Some(listen) = &args.listen {
            config.listen.clone_from(listen);
        }
        Ok(config)
    }

    fn parse(text: &str, path: &Path) -> Result<Self, Error> {
        let table =
            |text: &str| toml::from_str::<toml::Table>(text).map_err(|error| Error::file(path, one_line(&error)));
        let mut all = table(DEFAULTS)?;
        overlay(&mut all, table(text)?);
        let config: Self = all.try_into().map_err(|error| Error::file(path, one_line(&error)))?;
        config.check().map_err(|reason| Error::file(path, reason))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        for (name, value, least) in [
            ("max_body_bytes", self.max_body_bytes as u64, 1),
            ("max_concurrent", self.max_concurrent as u64, 1),
            ("request_seconds", self.request_seconds, 1),
            ("keep_alive_seconds", self.keep_alive_seconds, 1),
            ("reattest_seconds", self.reattest_seconds, 1),
        ] {
            if value < least {
                return Err(format!("{name} is {value}, allowed is {least} and up"));
            }
        }
        for (at, key) in self.keys.iter().enumerate() {
            if key.digest().is_none() {
                return Err(format!("keys[{at}].sha256 of `{}` is not 64 hexadecimal digits", key.name));
            }
            let limits = [
                ("max_concurrent", key.max_concurrent),
                ("requests_per_minute", key.requests_per_minute.map(|n| n as usize)),
                ("tokens_per_minute", key.tokens_per_minute.map(|n| n as usize)),
            ];
            if let Some((name, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
                return Err(format!("keys[{at}].{name} is 0, allowed is 1 and up, or absent"));
            }
        }
        Ok(())
    }

    /// Where to serve. Beyond loopback that takes TLS, or an explicit wish to do without, and an API key.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub(super) fn door(&self, danger_plaintext: bool) -> Result<Door, Error> {
        let listen = &self.listen;
        let address: SocketAddr =
            listen.parse().map_err(|_| Error::Usage(format!("listen is `{listen}`, expected ADDRESS:PORT")))?;
        let (cert, key) = (&self.tls.cert, &self.tls.key);
        let tls = match (cert.as_os_str().is_empty(), key.as_os_str().is_empty()) {
            (true, true) => None,
            (false, false) => Some((cert.clone(), key.clone())),
            _ => return Err(Error::Usage("tls.cert and tls.key belong together, one of them is not set".into())),
        };
        if !address.ip().is_loopback() {
            if tls.is_none() && !danger_plaintext {
                return Err(Error::Usage(format!(
                    "listen is {address}, which other machines reach: prompts, answers and keys would cross the network \
                     readable; set tls.cert and tls.key in --config, or --danger-plaintext"
                )));
            }
            if self.keys.is_empty() {
                return Err(Error::Usage(format!(
                    "listen is {address}, which other machines reach: that needs at least one of [[keys]] in --config"
                )));
            }
        }
        Ok(Door { address, tls })
    }

    pub(super) fn request_time(&self) -> Duration {
        Duration::from_secs(self.request_seconds)
    }

    pub(super) fn drain_time(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }

    pub(super) fn keep_alive(&self) -> Duration {
        Duration::from_secs(self.keep_alive_seconds)
    }

    pub(super) fn reattest_time(&self) -> Duration {
        Duration::from_secs(self.reattest_seconds)
    }

    pub(super) fn long_run(&self) -> Duration {
        Duration::from_secs(self.long_run_seconds)
    }
}

impl KeyConfig {
    /// The digest that `sha256` spells.
    pub(super) fn digest(&self) -> Option<[u8; 32]> {
        let mut digest = [0; 32];
        let digits = self.sha256.as_bytes();
        if digits.len() != 64 {
            return None;
        }
        for (byte, pair) in digest.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).ok().filter(|p| p.bytes().all(|b| b.is_ascii_hexdigit()))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(digest)
    }
}

/// Replaces single values of `base` by those of `over`.
fn overlay(base: &mut toml::Table, over: toml::Table) {
    for (name, value) in over {
        match (base.get_mut(&name), value) {
            (Some(toml::Value::Table(base)), toml::Value::Table(over)) => overlay(base, over),
            (_, value) => {
                base.insert(name, value);
            }
        }
    }
}

fn one_line(error: &toml::de::Error) -> String {
    error.message().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, Path::new("proxy.toml")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_replaces_single_values() {
        let config = parse("max_concurrent = 3\n[tls]\ncert = \"a.pem\"").unwrap();
        assert_eq!((config.max_concurrent, config.max_body_bytes), (3, 4 << 20));
        assert!(config.door(false).is_err_and(|e| e.to_string().contains("belong together")));
    }

    #[test]
    fn mistakes_are_named() {
        let digest = "a".repeat(64);
        for (text, says) in [
            ("max_concurent = 3", "unknown field `max_concurent`"),
            ("reattest_seconds = 0", "reattest_seconds is 0, allowed is 1 and up"),
            ("max_concurrent = 0", "max_concurrent is 0, allowed is 1 and up"),
            ("obfuscation = 1", "invalid type"),
            ("[[keys]]\nname = \"a\"\nsha256 = \"abc\"", "keys[0].sha256 of `a` is not 64 hexadecimal digits"),
            (&format!("[[keys]]\nname = \"a\"\nsha256 = \"{digest}\"\nplain = \"b\""), "unknown field `plain`"),
            (
                &format!("[[keys]]\nname = \"a\"\nsha256 = \"{digest}\"\ntokens_per_minute = 0"),
                "keys[0].tokens_per_minute is 0",
            ),
        ] {
            let error = parse(text).map(|_| ()).unwrap_err();
            assert!(error.starts_with("proxy.toml: ") && error.contains(says), "{error}");
        }
    }

    #[test]
    fn plaintext_stays_on_loopback_and_strangers_need_a_key() {
        let digest = "0f".repeat(32);
        let key = format!("[[keys]]\nname = \"a\"\nsha256 = \"{digest}\"");
        let door = |text: &str, danger| parse(text).unwrap().door(danger).map(|d| d.address.to_string());
        assert_eq!(door("", false).unwrap(), "127.0.0.1:8000");
        let open = "listen = \"0.0.0.0:80\"\n";
        assert!(door(open, false).unwrap_err().to_string().contains("--danger-plaintext"));
        assert!(door(open, true).unwrap_err().to_string().contains("[[keys]]"));
        assert!(door(&format!("{open}{key}"), true).is_ok());
        assert!(door(&format!("{open}{key}\n[tls]\ncert = \"c\"\nkey = \"k\""), false).is_ok());
        assert_eq!(parse(&key).unwrap().keys[0].digest(), Some([15; 32]));
    }
}
