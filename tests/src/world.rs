//! What a client of a simulated runtime needs: a policy, collateral, and the commands of `bifrost-sim`.

use crate::binaries::command;
use attest_verify::{
    collateral::{Bundle, Ca, Entry},
    hex::Hex,
};
use simulator::{Authority, CollateralSpec, Platform, TdReport};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{SystemTime, UNIX_EPOCH},
};

/// Files of one client.
pub struct World {
    dir: PathBuf,
}

/// How a command ended.
pub struct Ended {
    /// Exit status.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl World {
    /// Writes current collateral of the simulated platform into `dir`.
    ///
    /// # Errors
    /// If that fails.
    pub fn new(dir: &Path) -> anyhow::Result<Self> {
        let world = Self { dir: dir.to_owned() };
        world.collateral(|spec| spec)?;
        Ok(world)
    }

    /// Replaces the collateral by what `change` makes of the current one.
    ///
    /// # Errors
    /// If that fails.
    pub fn collateral(&self, change: impl FnOnce(CollateralSpec) -> CollateralSpec) -> anyhow::Result<()> {
        let platform = Authority::fixed().and_then(Platform::new)?;
        let now = now();
        let collateral = platform.collateral(&change(CollateralSpec::at(now)))?;
        let entry = Entry { fmspc: Hex(platform.spec().fmspc), ca: Ca::Platform, collateral, fetched_at: now };
        let mut bundle = Bundle::default();
        bundle.put(entry);
        fs::write(self.file("collateral.json"), bundle.to_json()?)?;
        Ok(())
    }

    /// Writes a policy that takes the simulated TD with a runtime of these digests, as it is or changed by `change`.
    ///
    /// # Errors
    /// If that fails.
    pub fn policy(&self, params: &str, model: &str, change: impl FnOnce(String) -> String) -> anyhow::Result<()> {
        let td = TdReport::default();
        let [rtmr0, rtmr1, rtmr2, _] = td.rtmrs.map(|r| hex(&r));
        let (mr_td, attributes, xfam) = (hex(&td.mr_td), hex(&td.attributes), hex(&td.xfam));
        let text = format!(
            r#"version = 1
platforms = ["tdx"]
[tcb]
accept = ["UpToDate"]
grace_days = {{}}
min_eval_data_number = 1
max_collateral_age_hours = 168
reject_advisories = []
allow = {{ dynamic_platform = true, cached_keys = true, smt = true }}
[td]
attributes = "{attributes}"
xfam = ["{xfam}"]
[[platform]]
name = "simulated machine"
mr_td = "{mr_td}"
rtmr0 = ["{rtmr0}"]
[[image]]
name = "simulated image"
rtmr1 = "{rtmr1}"
rtmr2 = "{rtmr2}"
rtmr3 = "replay"
[[image.event]]
name = "model"
payload = "model_digest"
[[image.event]]
name = "config"
payload = "config_digest"
[runtime]
params_digest = ["{params}"]
model_digest = ["{model}"]
config_digest = "any"
"#
        );
        fs::write(self.file("policy.toml"), change(text))?;
        Ok(())
    }

    /// A file of this client.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The flags with which an attested runtime is judged; `policy` is the name of the first one, which differs where
    /// policies of another kind exist.
    #[must_use]
    pub fn judged(&self, policy: &str) -> Vec<std::ffi::OsString> {
        let mut args = Vec::new();
        for (flag, name) in
            [(policy, "policy.toml"), ("--collateral", "collateral.json"), ("--attestation-log", "log.jsonl")]
        {
            args.extend([flag.into(), self.file(name).into()]);
        }
        args
    }

    /// A command of this client, ready to run: `bifrost-sim` or another program.
    #[must_use]
    pub fn command<S: AsRef<OsStr>>(&self, program: &str, args: &[S]) -> Command {
        let mut command = command(program);
        command.args(args).env("XDG_STATE_HOME", self.file("state")).env("XDG_CACHE_HOME", self.file("cache"));
        command
    }

    /// Runs `bifrost-sim`.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Ended {
        ended(self.command("bifrost-sim", args).output().expect("bifrost-sim starts"))
    }

    /// Makes a tenant's key file; test keys only.
    ///
    /// # Panics
    /// If that fails.
    pub fn keygen(&self, tenant: &str, id: &str) -> PathBuf {
        let file = self.file(&format!("{tenant}.{id}.key"));
        let path = file.display().to_string();
        let made = self.run(&["keygen", "--tenant", tenant, "--key-id", id, "--test", "--out", &path]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        file
    }
}

/// From what a process left behind.
#[must_use]
pub fn ended(out: Output) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: out.status.code(), out: text(out.stdout), err: text(out.stderr) }
}

/// Seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}

/// Lower case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
