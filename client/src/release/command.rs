//! `bifrost release-key`.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use attest_verify::Policy;
use attest_verify::hex::{Hex, Sha256, encode};
use attest_verify::policy::Rules;
use attest_verify::report::Measured;
use attest_verify::tdx::Measurements;
use serde_json::json;

use super::{Extras, held, release, revoke, revoked::Revoked};
use crate::Error;
use crate::attested::{Attested, Endpoint, Failure, Kind, Terms, VerifiedRuntime};
use crate::cli::ReleaseKeyArgs;
use crate::file::{secret, state_dir};
use crate::key::TenantKey;
use crate::progress::Progress;
use crate::report::print;
use crate::trust::{Clock, Trust, time_of};

/// Largest key of a model, in bytes. An age identity has 75.
const MAX_MODEL_KEY: usize = 64 << 10;

/// Verifies and releases, revokes or lists, on one connection.
///
/// # Errors
/// Files that are not as they must be, a runtime that is not what the policy accepts or another process than the one that
/// was named, its refusals.
pub async fn run<W: Trust>(args: &ReleaseKeyArgs, progress: &Arc<Progress>, clock: &Clock) -> Result<ExitCode, Error> {
    let key = TenantKey::<W>::load(&args.tenant_key, clock.now())?;
    let endpoint = Endpoint::parse(&args.runtime)?;
    let terms = Terms::load(&args.policy, &args.trust, clock)?;
    let revocations = Revoked::at(state_dir()?.join("revoked"));
    if let Some(key_id) = &args.revoke {
        revocations.note::<W>(key.tenant(), key_id, "revoked", clock.now())?;
    }
    if args.revoke.is_some() || args.held {
        let runtime = connect(args, endpoint, terms, Some(key), progress).await?;
        return match &args.revoke {
            Some(key_id) => revoked(&runtime, key_id, args.json).await,
            None => listed(&runtime, args.json).await,
        };
    }
    if !args.yes && !std::io::stdin().is_terminal() {
        return Err(Error::Usage("no terminal to ask on; --yes releases without asking".into()));
    }
    revocations.allows::<W>(key.tenant(), key.key_id())?;
    let model_key = args.model_key.as_ref().map(|path| secret(path, MAX_MODEL_KEY)).transpose()?;
    if let (Some(path), Some(true)) = (&args.model_key, model_key.as_ref().map(|key| key.is_empty())) {
        return Err(Error::file(path, "is empty, expected the key of a model"));
    }
    let receipts = match &args.receipts {
        Some(dir) => dir.clone(),
        None => state_dir()?.join("receipts"),
    };
    let old = args.as_key.as_ref().map(|path| TenantKey::<W>::load(path, clock.now())).transpose()?;
    if let Some(old) = old.as_ref().filter(|old| old.tenant() != key.tenant()) {
        let (found, expected) = (old.tenant(), key.tenant());
        return Err(Error::Usage(format!("tenant of the key in --as is {found:?}, expected {expected:?}")));
    }
    let policy = terms.policy().clone();
    let runtime = connect(args, endpoint, terms, old, progress).await?;
    progress.say(&shown(&runtime, &policy, &key, (model_key.is_some(), args.replaces.as_deref())));
    if !args.yes && !agreed().await? {
        progress.say("nothing was released");
        return Ok(ExitCode::FAILURE);
    }
    let extras = Extras { model_key, replaces: args.replaces.clone().unwrap_or_default() };
    let tenant = key.tenant().to_owned();
    let kept = release(runtime, key, extras).await?;
    if let Some(old) = &args.replaces {
        revocations.note::<W>(&tenant, old, "replaced", clock.now())?;
    }
    let path = store(&kept, &receipts)?;
    if args.json {
        print(&format!("{}\n", kept.to_json()?))?;
    } else {
        print(&format!("released, until {}; receipt in {}\n", time_of(kept.expires_at()), path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A key that was released without a receipt on the disk is still released; the error says so.
fn store(kept: &super::Kept, dir: &std::path::Path) -> Result<PathBuf, Error> {
    kept.store(dir).map_err(|error| Error::Platform(format!("the key is released, its receipt is not kept: {error}")))
}

async fn connect<W: Trust>(
    args: &ReleaseKeyArgs,
    endpoint: Endpoint,
    terms: Terms,
    key: Option<TenantKey<W>>,
    progress: &Progress,
) -> Result<VerifiedRuntime<W>, Error> {
    let attested = Attested::new(endpoint, terms, key);
    progress.busy(format!("asking {} for evidence", attested.endpoint()));
    let runtime = attested.verified().await;
    progress.idle();
    let runtime = runtime?;
    same_process(args.instance, runtime.instance(), runtime.endpoint())?;
    Ok(runtime)
}

fn same_process(expected: Option<Sha256>, found: &[u8; 32], endpoint: &Endpoint) -> Result<(), Error> {
    match expected {
        Some(expected) if expected.0 != *found => {
            let found = Hex(*found);
            let text =
                format!("{endpoint}: instance is {found}, expected {expected}: the runtime restarted in between");
            Err(Failure::new(Kind::Rejected, text).into())
        }
        _ => Ok(()),
    }
}

/// What is to be released, and to whom.
fn shown<W: Trust>(
    runtime: &VerifiedRuntime<W>,
    policy: &Policy,
    key: &TenantKey<W>,
    (model_key, replaces): (bool, Option<&str>),
) -> String {
    let (report, values) = (runtime.verified().report(), runtime.values());
    let mut lines = vec![
        ("world", report.domain.clone()),
        ("runtime", runtime.endpoint().to_string()),
        ("instance", Hex(*runtime.instance()).to_string()),
        ("policy", format!("version {}, {}", report.policy_version, report.policy_digest)),
    ];
    if let Some(Measured::Tdx(measured)) = &report.measured {
        lines.push(("MRTD", measured.mr_td.to_string()));
        lines.extend(names(policy.rules(), measured));
    }
    lines.extend([
        ("model", encode(&values.model_digest)),
        ("parameters", encode(&values.params_digest)),
        ("key", format!("{} of tenant {}, until {}", key.key_id(), key.tenant(), time_of(key.expires_at()))),
    ]);
    if model_key {
        lines.push(("model key", "released with it".into()));
    }
    if let Some(replaces) = replaces {
        lines.push(("replaces", format!("{replaces}, which is revoked")));
    }
    lines.iter().map(|(name, value)| format!("{name:<11} {value}")).collect::<Vec<_>>().join("\n")
}

/// The names that the policy has for what was measured.
fn names(rules: &Rules, measured: &Measurements) -> [(&'static str, String); 2] {
    let [_, rtmr1, rtmr2, _] = measured.rtmr;
    let platforms = rules.platform.iter().filter(|platform| platform.mr_td == measured.mr_td);
    let images = rules.image.iter().filter(|image| (image.rtmr1, image.rtmr2) == (rtmr1, rtmr2));
    let joined = |names: Vec<&str>| names.join(" or ");
    [
        ("firmware", joined(platforms.map(|platform| platform.name.as_str()).collect())),
        ("image", joined(images.map(|image| image.name.as_str()).collect())),
    ]
}

/// Asks on the terminal.
async fn agreed() -> Result<bool, Error> {
    let ask = || {
        let mut out = std::io::stderr();
        write!(out, "release? [yes/no] ").and_then(|()| out.flush())?;
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line)?;
        Ok::<_, std::io::Error>(line.trim() == "yes")
    };
    let asked = tokio::task::spawn_blocking(ask).await;
    let asked = asked.map_err(|error| Error::Platform(format!("a thread of this process: {error}")))?;
    asked.map_err(|error| Error::Platform(format!("standard input: {error}")))
}

async fn revoked<W: Trust>(runtime: &VerifiedRuntime<W>, key_id: &str, as_json: bool) -> Result<ExitCode, Error> {
    let ended = revoke(runtime, key_id).await?;
    if as_json {
        print(&format!("{}\n", json!({"world": W::LABEL, "revoked": key_id, "ended": ended})))?;
    } else {
        print(&format!("revoked {key_id}; {ended} requests under it were ended\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn listed<W: Trust>(runtime: &VerifiedRuntime<W>, as_json: bool) -> Result<ExitCode, Error> {
    let keys = held(runtime).await?;
    if as_json {
        let keys = keys.iter().map(|k| json!({"key_id": k.key_id, "held_at": k.held_at, "expires_at": k.expires_at}));
        print(&format!("{}\n", json!({"world": W::LABEL, "held": keys.collect::<Vec<_>>()})))?;
        return Ok(ExitCode::SUCCESS);
    }
    let line = |k: &proto::v1::HeldKey| {
        let id: String = k.key_id.chars().filter(|c| !c.is_control()).collect();
        format!("{id}  held since {}, until {}\n", time_of(k.held_at), time_of(k.expires_at))
    };
    print(&keys.iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_turned_away() {
        let endpoint = Endpoint::parse("attested://h:1").unwrap();
        same_process(None, &[1; 32], &endpoint).unwrap();
        same_process(Some(Hex([1; 32])), &[1; 32], &endpoint).unwrap();
        let error = same_process(Some(Hex([2; 32])), &[1; 32], &endpoint).unwrap_err();
        assert_eq!(error.verdict_code(), 1);
        assert!(error.to_string().contains("restarted in between"), "{error}");
    }
}
