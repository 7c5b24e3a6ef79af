//! `bifrost collateral fetch`, `show` and `check`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use attest_verify::collateral::{Bundle, CollateralKey, Entry, INTEL_PCS, MAX_BUNDLE, Standing};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};

use super::{endpoints, fetch};
use crate::Error;
use crate::attested::{Failure, Kind};
use crate::cli::{CollateralCommand, CollateralFetchArgs, CollateralFileArgs};
use crate::file::{bounded, replace};
use crate::progress::Progress;
use crate::report::print;
use crate::trust::{Clock, Trust, time_of};

/// Runs one of the three.
///
/// # Errors
/// Files that are no bundles, and every endpoint that did not deliver with its reason.
pub async fn run<W: Trust>(
    command: &CollateralCommand,
    progress: &Arc<Progress>,
    clock: &Clock,
) -> Result<ExitCode, Error> {
    let root = W::intel_root();
    let root = root.as_deref();
    match command {
        CollateralCommand::Fetch(args) => run_fetch(args, progress, root, clock.now()).await,
        CollateralCommand::Show(args) => show(args, root, clock.now()),
        CollateralCommand::Check(args) => check(args, root, clock.now()),
    }
}

async fn run_fetch(
    args: &CollateralFetchArgs,
    progress: &Arc<Progress>,
    root: Option<&[u8]>,
    now: u64,
) -> Result<ExitCode, Error> {
    let key = CollateralKey { fmspc: args.fmspc, ca: args.ca };
    let endpoints = endpoints(&args.endpoint, INTEL_PCS)?;
    // Before the network is asked, so that a file that is none of ours costs nothing.
    let mut bundle = if args.out.exists() { read(&args.out)? } else { Bundle::default() };
    progress.busy(format!("asking {} for collateral", endpoints.join(", ")));
    let fetched = tokio::task::spawn_blocking(move || fetch(&key, &endpoints, |_| true)).await;
    progress.idle();
    let fetched = fetched.map_err(|error| Error::Platform(format!("a thread of this process: {error}")))?;
    let collateral = fetched.map_err(|error| Failure::new(Kind::Unchecked, error.to_string()))?;
    bundle.put(Entry { fmspc: key.fmspc, ca: key.ca, collateral, fetched_at: now });
    let text = bundle.to_json().map_err(|error| Error::file(&args.out, error))?;
    replace(&args.out, text.as_bytes())?;
    let standing = bundle.check_below(root, now).into_iter().find(|standing| standing.key == key);
    let standing = standing.ok_or_else(|| Error::file(&args.out, format!("no entry for {key}")))?;
    let Standing { eval_number, next_update, state, .. } = standing;
    let file = args.out.display();
    print(&format!("{key}: round {eval_number}, to be replaced by {next_update}, {state}, in {file}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &CollateralFileArgs, root: Option<&[u8]>, now: u64) -> Result<ExitCode, Error> {
    let standings = read(&args.file)?.check_below(root, now);
    shown(&standings, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// 0 if everything in it is valid, 1 if not or if there is nothing.
fn check(args: &CollateralFileArgs, root: Option<&[u8]>, now: u64) -> Result<ExitCode, Error> {
    let standings = read(&args.file)?.check_below(root, now);
    shown(&standings, args.json)?;
    let good = !standings.is_empty() && standings.iter().all(|standing| standing.state == VALID);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// State of an entry that nothing is known against.
const VALID: &str = "valid";

fn read(path: &Path) -> Result<Bundle, Error> {
    Bundle::parse(&bounded(path, MAX_BUNDLE)?).map_err(|error| Error::file(path, error))
}

fn shown(standings: &[Standing], json: bool) -> Result<(), Error> {
    if json {
        let text = serde_json::to_string(standings).map_err(|error| Error::Platform(format!("JSON: {error}")))?;
        return print(&format!("{text}\n"));
    }
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["platform", "round", "issued", "to be replaced by", "fetched", "state"]);
    for Standing { key, age_hours, next_update, eval_number, fetched_at, state } in standings {
        let age = age_hours.map_or_else(|| "-".to_owned(), |hours| format!("{hours} h ago"));
        let cells =
            [key.to_string(), eval_number.to_string(), age, next_update.clone(), time_of(*fetched_at), state.clone()];
        table.add_row(cells);
    }
    print(&format!("{table}\n"))
}
