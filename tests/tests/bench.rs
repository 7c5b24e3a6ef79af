//! `bifrost bench`, as a person runs it. What it measures is not asserted, only that it measures and compares.

use e2e::{binaries, fixtures::tiny, stage::Stage};
use serde_json::Value;
use std::process::Output;

/// SHA-256 of "hello".
const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

fn bench(args: &[&str]) -> Output {
    binaries::run("bifrost", &[&["bench"], args].concat())
}

/// The one object on stdout.
fn object(args: &[&str]) -> Value {
    let out = bench(args);
    let (text, log) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{args:?}: {}\n{log}", out.status);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("stdout is not one object: {e}\n{text}"))
}

fn has(value: &Value, keys: &[&str]) {
    for key in keys {
        assert!(value.pointer(key).is_some_and(|v| !v.is_null()), "{key} is missing in {value}");
    }
}

#[test]
fn serving_is_measured_and_every_stream_is_as_alone() {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("serve.svg");
    let plot = plot.to_string_lossy();
    let load = ["--concurrency", "4", "--requests", "12", "--prompt-tokens", "8", "--max-tokens", "12"];
    let common = ["serve", "--model", &path, "--verify", "--json", "--plot", &plot];
    let found = object(&[&common[..], &load, &["--protocol", "local"]].concat());
    has(&found, &["/bench", "/model", "/protocol", "/policy", "/seed", "/verified"]);
    let run = &found["runs"][0];
    has(
        run,
        &["/seconds", "/output_tokens_per_second", "/requests_per_second", "/per_token_ms/p50", "/each/11/tokens"],
    );
    for of in ["ttft_ms", "inter_token_ms", "end_to_end_ms"] {
        for figure in ["count", "mean", "p50", "p90", "p95", "p99", "max"] {
            has(run, &[&format!("/{of}/{figure}")]);
        }
    }
    assert_eq!((&run["requests"], &run["answered"], &run["output_tokens"]), (&12.into(), &12.into(), &144.into()));
    assert_eq!((&run["errors"], &run["lanes"]), (&serde_json::json!({}), &Value::Null), "{run}");
    assert_eq!((run["load"]["kind"].as_str(), run["load"]["concurrency"].as_u64()), (Some("closed"), Some(4)));
    assert_eq!(run["memory"][0]["process"], "trusted-runtime");
    assert!(std::fs::read_to_string(&*plot).expect("a drawing").contains("Time to first token"));
}

#[test]
fn a_sweep_waits_for_lanes_and_counts_them() {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let load = ["--sweep", "1,2,4", "--requests", "6", "--warmup", "2", "--prompt-tokens", "4", "--max-tokens", "8"];
    let found = object(&[&["serve", "--model", &path, "--verify", "--json"][..], &load].concat());
    let runs = found["runs"].as_array().expect("runs");
    assert_eq!((runs.len(), found["protocol"].as_str()), (3, Some("masked")), "{found}");
    for run in runs {
        assert_eq!((&run["answered"], &run["errors"]), (&6.into(), &serde_json::json!({})), "{run}");
        let lanes = ["used", "ready_before"].map(|key| run["lanes"][key].as_u64().expect("a count"));
        // All tokens but the first of each answer, and no more than were ready.
        assert!(lanes[0] >= 6 * 7 && lanes[0] <= lanes[1], "{run}");
        has(run, &["/throughput_ratio", "/memory/1/process"]);
    }
    let text = bench(&[&["serve", "--model", &path][..], &load].concat());
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(["at a time", "tokens masked", "ratio"].iter().all(|part| text.contains(part)), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_endpoint_is_measured_from_outside() -> anyhow::Result<()> {
    let stage = Stage::new()?;
    let enclave = stage.enclave(&tiny("llama").path.to_string_lossy(), None, &[]).await?;
    let proxy = stage.proxy(&enclave, &format!("[[keys]]\nname = \"a\"\nsha256 = \"{HELLO}\""), &[]).await?;
    let url = format!("http://127.0.0.1:{}", proxy.port);
    let load = "--rate 200 --requests 9 --verify --prompt-tokens 5 --max-tokens 6 --json";
    let args: Vec<_> = ["serve", "--url", &url, "--api-key"].into_iter().map(str::to_owned).collect();
    let ask = |key: &str| {
        let words = args.iter().map(String::as_str).chain([key]).chain(load.split(' '));
        bench(&words.collect::<Vec<_>>())
    };
    let (good, bad) = tokio::task::block_in_place(|| (ask("hello"), ask("goodbye")));
    let found: Value = serde_json::from_slice(&good.stdout)?;
    let run = &found["runs"][0];
    assert_eq!((&run["answered"], &run["load"]["kind"]), (&9.into(), &"open".into()), "{found}");
    assert_eq!((&found["protocol"], &run["memory"]), (&Value::Null, &Value::Null), "{found}");
    let log = String::from_utf8_lossy(&bad.stderr);
    assert_eq!((bad.status.code(), bad.stdout.is_empty()), (Some(1), true), "{log}");
    assert!(log.contains("status 401"), "{log}");
    Ok(())
}

#[test]
fn policies_and_protocols_give_the_same_tokens() {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let args = ["decode", "--model", &path, "--prompt-tokens", "1,9", "--max-tokens", "6", "--repeat", "1", "--json"];
    let found = object(&args);
    assert_eq!((&found["bench"], &found["identical"]), (&"decode".into(), &true.into()), "{found}");
    let (rows, splits) = (found["rows"].as_array().expect("rows"), found["splits"].as_array().expect("splits"));
    assert_eq!((rows.len(), splits.len()), (2 * 2 * 3, 2 * 2), "{found}");
    for row in rows {
        has(row, &["/ttft_ms", "/ms_per_token", "/ratio_to_cpu_tee", "/total_ms"]);
        let (masked, direct, up) = (&row["masked_steps"], &row["direct_steps"], row["bytes_up_per_token"].as_u64());
        let expected = match (row["protocol"].as_str(), row["policy"].as_str()) {
            (_, Some("cpu_tee")) => (0, 0),
            (Some("masked"), _) => (5, 0),
            _ => (0, 5),
        };
        assert_eq!((masked, direct), (&expected.0.into(), &expected.1.into()), "{row}");
        assert_eq!(up.is_some_and(|bytes| bytes > 0), expected != (0, 0), "{row}");
    }
    for split in splits {
        has(split, &["/ttft_ratio", "/target", "/ttft_gain_over_unified", "/total_gain_over_unified"]);
    }
}

#[test]
fn operations_are_timed_at_the_sizes_of_a_model() {
    let dir = tempfile::tempdir().expect("a directory");
    let plot = dir.path().join("ops.svg");
    let found = object(&["ops", "--synthetic", "llama-tiny", "--json", "--plot", &plot.to_string_lossy()]);
    assert_eq!((&found["bench"], &found["architecture"]), (&"ops".into(), &"llama".into()), "{found}");
    let operations = found["operations"].as_array().expect("operations");
    for name in ["layer_norm", "rms_norm", "residual_add", "gelu", "silu", "rotary", "softmax", "attention"] {
        let operation = operations.iter().find(|o| o["operation"] == name);
        assert!(operation.is_some_and(|o| o["microseconds"].as_f64() > Some(0.0)), "{name} in {found}");
    }
    assert!(plot.is_file());
    let refused = bench(&["ops", "--model", "/dev/null", "--json"]);
    let log = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && refused.stdout.is_empty() && log.contains("trusted-runtime"), "{log}");
}
