//! Section `[runtime]`: what a runtime may be and on which machine.

use crate::hex::{HexBytes, Sha256};
use serde::{Deserialize, Deserializer, de::Error as _};

/// Section `[runtime]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Runtime {
    /// Accepted digests of the parameter sets.
    pub params_digest: Vec<Sha256>,
    /// Accepted digests of the model.
    pub model_digest: Vec<Sha256>,
    /// Accepted digests of the configuration.
    pub config_digest: ConfigDigest,
    /// TDX: the machines that are accepted, by platform provisioning id (16 bytes); any if absent.
    pub ppid: Option<Vec<HexBytes>>,
}

/// Accepted digests of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigDigest {
    /// Whatever it is. Written as `config_digest = "any"`.
    Any,
    /// One of these.
    Listed(Vec<Sha256>),
}

impl<'de> Deserialize<'de> for ConfigDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            List(Vec<String>),
        }
        match Written::deserialize(deserializer)? {
            Written::Word(word) if word == "any" => Ok(Self::Any),
            Written::Word(word) => Err(D::Error::custom(format!(
                "config_digest is {word:?}, expected a list of digests or the word \"any\""
            ))),
            Written::List(list) => list
                .iter()
                .map(|text| Sha256::parse(text).map_err(D::Error::custom))
                .collect::<Result<_, _>>()
                .map(Self::Listed),
        }
    }
}
