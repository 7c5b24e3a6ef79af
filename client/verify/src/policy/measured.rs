//! Sections `[[platform]]` and `[[image]]`: measurements that are accepted.
//!
//! Firmware with virtual hardware and the image above it are apart, so that a new shape of machine needs no new approval
//! of an image.

use super::PolicyError;
use crate::hex::{HexBytes, Sha384};
use serde::Deserialize;

/// Section `[[platform]]`: firmware and virtual hardware.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Platform {
    /// What people call it.
    pub name: String,
    /// MRTD, the firmware.
    pub mr_td: Sha384,
    /// RTMR0, which changes with the number of CPUs, the memory and the ACPI tables: one for each shape.
    pub rtmr0: Vec<Sha384>,
}

/// Section `[[image]]`: kernel, command line, initrd, and what the runtime measures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// What people call it.
    pub name: String,
    /// RTMR1.
    pub rtmr1: Sha384,
    /// RTMR2.
    pub rtmr2: Sha384,
    /// What RTMR3 must be.
    pub rtmr3: Rtmr3,
    /// With `rtmr3 = "replay"`: the runtime's own extensions, all of them, in this order.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
}

/// What RTMR3 must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rtmr3 {
    /// Never extended.
    Zero,
    /// What follows from the events of the policy.
    Replay,
}

/// One extension of RTMR3 that the policy expects.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Name of the event, exactly.
    pub name: String,
    /// What it may carry.
    pub payload: Payload,
}

/// What an event may carry.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Payload {
    /// The value of the runtime by this name, which section `[runtime]` judges.
    Value(Value),
    /// One of these.
    Listed(Vec<HexBytes>),
}

/// A value of the runtime that an event repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    /// `params_digest`
    ParamsDigest,
    /// `model_digest`
    ModelDigest,
    /// `config_digest`
    ConfigDigest,
}

impl Image {
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        if self.rtmr3 == Rtmr3::Zero && !self.events.is_empty() {
            return Err(PolicyError::Contradiction(format!(
                "image {:?} lists events and says rtmr3 = \"zero\", expected \"replay\"",
                self.name
            )));
        }
        Ok(())
    }
}
