//! `bifrost verify`: every finding about a runtime's evidence, expected against found.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use attest_verify::hex::Hex;
use attest_verify::{Recorded, Report};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use prost::Message;
use proto::v1::Evidence;
use serde_json::{Value, json};

use crate::Error;
use crate::attested::{Attempt, Attested, Endpoint, Failure, Seen, Terms, read_policy};
use crate::cli::VerifyArgs;
use crate::collateral::{Collateral, Freshness};
use crate::file::{bounded, create};
use crate::progress::Progress;
use crate::report::print;
use crate::trust::{Clock, Trust};

/// Largest file with evidence, in bytes: as much as one frame of the exchange takes.
const MAX_EVIDENCE: usize = 1 << 20;

/// What is shown of one check.
struct Shown<'a> {
    report: &'a Report,
    /// Where it was, or the file.
    of: String,
    /// The process, where there was one.
    instance: Option<[u8; 32]>,
    /// What saved evidence is to be compared with later.
    report_data: Option<[u8; 64]>,
}

/// Verifies and prints. The exit status is 0 for accepted, 1 for rejected, 3 for what could not be checked.
///
/// # Errors
/// Bad arguments and files, and a runtime from which no evidence came.
pub async fn run<W: Trust>(args: &VerifyArgs, progress: &Arc<Progress>, clock: &Clock) -> Result<ExitCode, Error> {
    match (&args.runtime, &args.evidence) {
        (Some(url), None) => live::<W>(args, url, progress, clock).await,
        (None, Some(path)) => recorded::<W>(args, path, clock).await,
        _ => Err(Error::Usage("one of URL and --evidence FILE is needed".into())),
    }
}

async fn live<W: Trust>(
    args: &VerifyArgs,
    url: &str,
    progress: &Arc<Progress>,
    clock: &Clock,
) -> Result<ExitCode, Error> {
    let endpoint = Endpoint::parse(url)?;
    let terms = Terms::load(&args.policy, &args.trust, clock)?;
    let attested = Attested::<W>::new(endpoint, terms, None);
    progress.busy(format!("asking {} for evidence", attested.endpoint()));
    let Attempt { seen, outcome } = attested.attempt().await;
    progress.idle();
    let Some(seen) = seen else {
        let failure = outcome.err().ok_or_else(|| Error::Platform("a connection without evidence".into()))?;
        return unseen::<W>(args, url, failure);
    };
    if let Some(path) = &args.save {
        create(path, &seen.evidence.encode_to_vec())?;
        progress.say(&format!("evidence in {}, about {}", path.display(), Hex(seen.report_data)));
    }
    let Seen { report, report_data, instance, .. } = &seen;
    let shown = Shown {
        report,
        of: attested.endpoint().to_string(),
        instance: Some(*instance),
        report_data: Some(*report_data),
    };
    show::<W>(&shown, args.json)
}

async fn recorded<W: Trust>(args: &VerifyArgs, path: &Path, clock: &Clock) -> Result<ExitCode, Error> {
    let policy = read_policy(&args.policy)?;
    let evidence = read_evidence(path)?;
    let collateral = Collateral::of(&args.trust)?;
    let (report_data, now) = (args.report_data.map(|data| data.0), args.time.unwrap_or_else(|| clock.now()));
    let judged = move || {
        let source = collateral.at(Freshness::of(&policy, &attest_verify::Floor::default()), now);
        Recorded { report_data, policy: &policy, collateral: &source, now }.report::<W>(&evidence)
    };
    let report = tokio::task::spawn_blocking(judged).await;
    let report = report.map_err(|error| Error::Platform(format!("a thread of this process: {error}")))?;
    let shown = Shown { report: &report, of: path.display().to_string(), instance: None, report_data };
    show::<W>(&shown, args.json)
}

/// Reads what [`VerifyArgs::save`] wrote.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn read_evidence(path: &Path) -> Result<Evidence, Error> {
    let bytes = bounded(path, MAX_EVIDENCE)?;
    Evidence::decode(bytes.as_slice()).map_err(|error| Error::file(path, format!("no saved evidence: {error}")))
}

/// No evidence to speak of. With `--json` there still is an object.
fn unseen<W: Trust>(args: &VerifyArgs, url: &str, failure: Failure) -> Result<ExitCode, Error> {
    if args.json {
        let (verdict, code) = ("unchecked", failure.kind().exit_code());
        let object = json!({"verdict": verdict, "world": W::LABEL, "endpoint": url, "error": failure.to_string()});
        print(&format!("{object}\n"))?;
        return Ok(ExitCode::from(code));
    }
    Err(failure.into())
}

fn show<W: Trust>(shown: &Shown<'_>, as_json: bool) -> Result<ExitCode, Error> {
    let text = if as_json { object::<W>(shown).to_string() } else { table(shown) };
    print(&format!("{text}\n"))?;
    Ok(ExitCode::from(shown.report.verdict.exit_code()))
}

fn object<W: Trust>(shown: &Shown<'_>) -> Value {
    let Shown { report, of, instance, report_data } = shown;
    json!({
        "verdict": report.verdict,
        "world": W::LABEL,
        "domain": report.domain,
        "platform": report.platform,
        "endpoint": of,
        "instance": instance.map(|instance| Hex(instance).to_string()),
        "transcript": report.transcript,
        "report_data": report_data.map(|data| Hex(data).to_string()),
        "checked_at": report.checked_at,
        "policy": {"version": report.policy_version, "digest": report.policy_digest},
        "measurements": report.measured,
        "tcb": report.intel,
        "runtime": report.runtime,
        "factors": report.factors,
    })
}

fn table(shown: &Shown<'_>) -> String {
    let Shown { report, of, instance, .. } = shown;
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["factor", "outcome", "expected", "found"]);
    for row in report.rows() {
        table.add_row([row.code, row.outcome, row.expected, row.found]);
    }
    let instance = instance.map_or_else(|| "none, this was recorded".to_owned(), |instance| Hex(instance).to_string());
    format!(
        "{}\n{of}: {}\n{table}\ninstance    {instance}\ntranscript  {}\nverdict     {}",
        report.domain, report.platform, report.transcript, report.verdict
    )
}

#[cfg(test)]
mod tests {
    use attest_verify::factor::Factor;
    use attest_verify::report::Verdict;

    use super::*;

    fn report(verdict: Verdict) -> Report {
        Report {
            domain: "HARDWARE (Intel root)".into(),
            platform: "tdx".into(),
            verdict,
            checked_at: 7,
            transcript: Hex([1; 32]),
            policy_version: 3,
            policy_digest: Hex([2; 32]),
            measured: None,
            intel: None,
            runtime: None,
            factors: vec![
                Factor::judged("td.debug_off", false, "off", "on"),
                Factor::skipped("tcb.status", "UpToDate", "no collateral"),
            ],
        }
    }

    #[test]
    fn people_read_expected_against_found_and_programs_one_object() {
        let report = report(Verdict::Rejected);
        let shown = Shown { report: &report, of: "attested://h:1".into(), instance: Some([3; 32]), report_data: None };
        let text = table(&shown);
        for part in
            ["HARDWARE (Intel root)", "td.debug_off", "fail", "no collateral", "verdict     rejected", &"03".repeat(32)]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let object = object::<attest::Hardware>(&shown);
        assert_eq!((object["verdict"].as_str(), object["world"].as_str()), (Some("rejected"), Some("hardware")));
        assert_eq!(object["factors"][0]["code"], "td.debug_off");
        assert_eq!(object["instance"].as_str().map(str::len), Some(64));
        for key in ["transcript", "tcb", "measurements", "policy", "checked_at"] {
            assert!(object.get(key).is_some(), "{key}");
        }
    }
}
