//! By what evidence is judged: a policy, collateral, the log of what was accepted, a clock.

use std::path::{Path, PathBuf};

use attest::Binding;
use attest_verify::policy::MAX_POLICY;
use attest_verify::{Floor, Log, Outcome, Policy, verify};
use proto::v1::Evidence;

use crate::Error;
use crate::cli::TrustArgs;
use crate::collateral::{Collateral, Freshness};
use crate::file::{bounded, private_dir, state_dir};
use crate::trust::{Clock, Trust};

/// Name of the log in the state directory.
const LOG: &str = "attestations.jsonl";

/// By what evidence is judged.
pub struct Terms {
    policy: Policy,
    collateral: Collateral,
    log: Log,
    accept_rollback: bool,
    clock: Clock,
}

impl Terms {
    /// Reads the policy and whatever else the arguments name, and makes the folder of the log.
    ///
    /// # Errors
    /// [`Error::File`] naming the file and what is wrong in it, [`Error::Platform`] without a home.
    pub fn load(policy: &Path, args: &TrustArgs, clock: &Clock) -> Result<Self, Error> {
        Ok(Self {
            policy: read_policy(policy)?,
            collateral: Collateral::of(args)?,
            log: Log::at(log_path(args)?),
            accept_rollback: args.accept_rollback,
            clock: clock.clone(),
        })
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Judges evidence of `endpoint`. What is accepted is on the disk, in the log, before this returns. Blocks on files
    /// and, where collateral is fetched, on the network.
    ///
    /// # Errors
    /// A sentence about the log.
    pub(super) fn examine<W: Trust>(
        &self,
        endpoint: &str,
        evidence: &Evidence,
        binding: &Binding,
    ) -> Result<Outcome<W>, String> {
        let floor = self.log.floor(endpoint).map_err(|error| error.to_string())?;
        let floor = Floor { accept_rollback: self.accept_rollback, ..floor };
        let now = self.clock.now();
        let source = self.collateral.at(Freshness::of(&self.policy, &floor), now);
        let outcome = verify::<W>(evidence, binding, &self.policy, &source, &floor, now);
        if outcome.verified.is_some() {
            self.log.append(endpoint, &outcome.report).map_err(|error| error.to_string())?;
        }
        Ok(outcome)
    }
}

/// Reads a policy.
///
/// # Errors
/// [`Error::File`].
pub fn read_policy(path: &Path) -> Result<Policy, Error> {
    let bytes = bounded(path, MAX_POLICY)?;
    let text = str::from_utf8(&bytes).map_err(|_| Error::file(path, "the policy is not UTF-8"))?;
    Policy::parse(text).map_err(|error| Error::file(path, one_line(&error.to_string())))
}

/// Toml's errors have a picture of the place; the lines of it become one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn log_path(args: &TrustArgs) -> Result<PathBuf, Error> {
    if let Some(path) = &args.attestation_log {
        return Ok(path.clone());
    }
    let dir = state_dir()?;
    private_dir(&dir)?;
    Ok(dir.join(LOG))
}
