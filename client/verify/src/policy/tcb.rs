//! Section `[tcb]`: which of Intel's verdicts on a platform are good enough.

use super::PolicyError;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fmt};

/// Section `[tcb]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tcb {
    /// Statuses that are accepted.
    pub accept: Vec<Status>,
    /// Days after the date of the matched TCB level during which a status is still accepted. Statuses that are out of
    /// date are accepted only with an entry here.
    #[serde(default)]
    pub grace_days: BTreeMap<Status, u32>,
    /// Lowest `tcbEvaluationDataNumber` of the collateral.
    pub min_eval_data_number: u32,
    /// Hours since Intel issued the collateral, at most, whatever its `nextUpdate` says.
    pub max_collateral_age_hours: u32,
    /// Advisories, such as `INTEL-SA-00837`, none of which may apply to the platform.
    #[serde(default)]
    pub reject_advisories: Vec<String>,
    /// Properties of the platform that are refused unless allowed here.
    #[serde(default)]
    pub allow: Allow,
}

/// What a PCK certificate may say of its platform. Every public cloud's says `dynamic_platform` and `smt`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Allow {
    /// A platform of several packages, which may change.
    pub dynamic_platform: bool,
    /// Platform keys that Intel's registration service keeps.
    pub cached_keys: bool,
    /// Simultaneous multithreading.
    pub smt: bool,
}

/// Intel's verdict, PCS API version 4, `tcbStatus`, and the two of Intel's verification library for a module that was
/// updated below a running TD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub enum Status {
    /// Nothing is known against it.
    UpToDate,
    /// Software in the guest has to work around a vulnerability.
    SWHardeningNeeded,
    /// The platform's configuration leaves a vulnerability open.
    ConfigurationNeeded,
    /// Both of these.
    ConfigurationAndSWHardeningNeeded,
    /// An update is missing.
    OutOfDate,
    /// An update is missing, and configuration beside it.
    OutOfDateConfigurationNeeded,
    /// The TDX module was updated below a running TD, which has to be started anew to profit.
    TDRelaunchAdvised,
    /// The same, and configuration beside it.
    TDRelaunchAdvisedConfigurationNeeded,
    /// The platform's keys are worth nothing.
    Revoked,
}

impl Tcb {
    pub(super) fn check(&self) -> Result<(), PolicyError> {
        if self.accept.contains(&Status::Revoked) || self.grace_days.contains_key(&Status::Revoked) {
            return Err(PolicyError::Status("Revoked is never accepted".to_owned()));
        }
        for status in &self.accept {
            if status.is_out_of_date() && !self.grace_days.contains_key(status) {
                return Err(PolicyError::Status(format!(
                    "{status} is accepted for a grace period alone: expected an entry {status} = days in tcb.grace_days"
                )));
            }
        }
        for status in self.grace_days.keys() {
            if !self.accept.contains(status) {
                return Err(PolicyError::Status(format!("tcb.grace_days names {status}, which tcb.accept does not")));
            }
        }
        Ok(())
    }

    /// Whether a status is good enough for a TCB level of this date; both times are seconds since 1970.
    #[must_use]
    pub fn accepts(&self, status: Status, level_date: u64, now: u64) -> bool {
        let graced = match self.grace_days.get(&status) {
            Some(&days) => level_date.saturating_add(u64::from(days) * DAY) >= now,
            None => !status.is_out_of_date(),
        };
        status != Status::Revoked && self.accept.contains(&status) && graced
    }

    /// The accepted statuses for a report.
    #[must_use]
    pub fn accepted(&self) -> String {
        crate::hex::one_of(self.accept.iter().map(|status| match self.grace_days.get(status) {
            Some(days) => format!("{status} for {days} days"),
            None => status.to_string(),
        }))
    }
}

const DAY: u64 = 86_400;

impl Status {
    /// Every status, the best first.
    pub const ALL: [Self; 9] = [
        Self::UpToDate,
        Self::SWHardeningNeeded,
        Self::ConfigurationNeeded,
        Self::ConfigurationAndSWHardeningNeeded,
        Self::OutOfDate,
        Self::OutOfDateConfigurationNeeded,
        Self::TDRelaunchAdvised,
        Self::TDRelaunchAdvisedConfigurationNeeded,
        Self::Revoked,
    ];

    /// Whether the status is accepted for a grace period alone.
    #[must_use]
    pub fn is_out_of_date(self) -> bool {
        matches!(self, Self::OutOfDate | Self::OutOfDateConfigurationNeeded)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
