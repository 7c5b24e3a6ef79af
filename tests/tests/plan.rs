//! `bifrost model plan`, with the real daemons.

use e2e::{binaries, fixtures::tiny};
use serde_json::Value;
use std::{path::Path, process::Output};

/// Costs are kept in `cache`, not where the user's are.
fn plan(cache: &Path, args: &[&str]) -> Output {
    let path = tiny("llama").path;
    let mut command = binaries::command("bifrost");
    command.args(["model", "plan"]).arg(path).args(args).env("XDG_CACHE_HOME", cache);
    command.output().expect("bifrost starts")
}

fn object(cache: &Path, args: &[&str]) -> Value {
    let out = plan(cache, &[args, &["--json", "--positions", "8"]].concat());
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {}\n{log}", out.status);
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("stdout is not one object: {e}\n{log}"))
}

fn groups(plan: &Value) -> &[Value] {
    plan["groups"].as_array().expect("groups")
}

/// Matrices at a place.
fn at(plan: &Value, place: &str) -> u64 {
    groups(plan).iter().filter(|g| g["place"] == place).filter_map(|g| g["matrices"].as_u64()).sum()
}

#[test]
fn predicted_bytes_are_the_measured_ones() {
    let cache = tempfile::tempdir().expect("a directory");
    for (protocol, place) in [("direct", "pinned"), ("masked", "masked")] {
        let found = object(cache.path(), &["--protocol", protocol, "--run"]);
        for key in ["model", "policy", "ring", "budget_bytes", "resident_bytes", "windows", "total", "prompt"] {
            assert!(found.get(key).is_some_and(|v| !v.is_null()), "{key}: {found}");
        }
        assert_eq!(
            (found["protocol"].as_str(), found["calibration"]["cached"].as_bool()),
            (Some(protocol), Some(false))
        );
        assert_eq!(at(&found, place), 13, "{found}");
        for row in groups(&found).iter().chain([&found["total"]]) {
            let bytes = |of: &str| (row[of]["bytes_up"].as_u64(), row[of]["bytes_down"].as_u64());
            assert_eq!(bytes("predicted"), bytes("measured"), "{row}");
            assert!(row["measured"]["total_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{row}");
        }
        for group in groups(&found) {
            assert!(group["noise_headroom_bits"].as_f64().is_some_and(|bits| bits >= 0.0), "{group}");
            assert_eq!(group["level"], 1, "{group}");
        }
        assert!(found["median_error"].as_f64().is_some(), "{found}");
        assert_eq!(found["windows"]["refreshes"]["at_windows"], 12, "{found}");
        // The second time it knows.
        assert_eq!(object(cache.path(), &["--protocol", protocol])["calibration"]["cached"], true);
    }
    let table = plan(cache.path(), &["--protocol", "masked"]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(["gate_up", "0-2", "a token"].iter().all(|s| text.contains(s)), "{text}");
}

#[test]
fn a_budget_pins_what_fits_and_too_little_is_refused_with_the_figures() {
    let cache = tempfile::tempdir().expect("a directory");
    let whole = object(cache.path(), &["--protocol", "direct"]);
    assert_eq!((at(&whole, "pinned"), whole["layers_pinned"].as_u64()), (13, Some(3)));
    let int8: u64 = groups(&whole)
        .iter()
        .map(|g| ["matrices", "rows", "cols"].iter().map(|k| g[k].as_u64().expect("a size")).product::<u64>())
        .sum();
    let pinned = whole["resident_bytes"].as_u64().expect("bytes");
    let budget = (int8 + (pinned - int8) / 2).to_string();
    let half = object(cache.path(), &["--protocol", "direct", "--budget", &budget, "--run"]);
    assert!(at(&half, "pinned") > 0 && at(&half, "fallback") > 0, "{half}");
    let budget: u64 = budget.parse().expect("it was a number");
    assert!(half["resident_bytes"].as_u64().is_some_and(|bytes| bytes <= budget), "{half}");
    let refused = plan(cache.path(), &["--protocol", "direct", "--budget", "1000"]);
    let says = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && says.contains(&format!("budget is 1000 bytes, needed are {int8}")), "{says}");
    // Without an evaluator everything is inside, and nothing is sent.
    let inside = object(cache.path(), &["--policy", "cpu_tee", "--run"]);
    assert_eq!((at(&inside, "enclave"), inside["total"]["measured"]["bytes_up"].as_u64()), (13, Some(0)));
}
