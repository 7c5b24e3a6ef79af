//! `bifrost`, as a visitor runs it.

use e2e::{
    binaries,
    fixtures::{self, tiny},
};
use serde_json::Value;
use std::collections::BTreeSet;

/// The keys that `--json` promises, nested ones with a dot.
const KEYS: [&str; 24] = [
    "breakdown.enclave_crypto_ms",
    "breakdown.enclave_other_ms",
    "breakdown.evaluator_ms",
    "breakdown.wire_ms",
    "bytes_per_token.down",
    "bytes_per_token.up",
    "decode_ms_per_token",
    "evaluator.backend",
    "evaluator.bytes_per_weight",
    "evaluator.fallback_layers",
    "evaluator.isa",
    "evaluator.pinned_layers",
    "finish_reason",
    "identical_to_local",
    "local_ms_per_token",
    "params.log2_q",
    "params.n",
    "params.security_bits",
    "prompt_tokens",
    "protocol",
    "text",
    "token_ids",
    "ttft_ms",
    "weights",
];

fn keys(value: &Value, at: &str) -> BTreeSet<String> {
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(k, v)| keys(v, &if at.is_empty() { k.clone() } else { format!("{at}.{k}") }))
            .collect(),
        _ => BTreeSet::from([at.to_owned()]),
    }
}

/// The one object on stdout.
fn object(args: &[&str]) -> Value {
    let out = binaries::run("bifrost", args);
    let log = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{args:?}: {}\n{log}", out.status);
    assert!(log.contains("DEVELOPMENT"), "development attestation did not announce itself:\n{log}");
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("stdout is not one object: {e}\n{text}"))
}

#[test]
fn json_has_the_promised_keys_and_the_tokens_are_identical() {
    for (name, weights) in [("gpt2", "w8"), ("llama", "w16")] {
        let model = tiny(name);
        let path = model.path.to_string_lossy();
        let prompt = model.prompts[0].text.as_str();
        let args = ["demo", "--json", "--model", &path, "--prompt", prompt, "--max-tokens", "8", "--weights", weights];
        let found = object(&args);
        let promised = KEYS.iter().map(|k| (*k).to_owned()).collect();
        assert_eq!(keys(&found, ""), promised);
        assert_eq!(found["identical_to_local"], true, "{found}");
        assert_eq!((found["protocol"].as_str(), found["weights"].as_str()), (Some("direct"), Some(weights)));
        assert_eq!(found["prompt_tokens"], model.prompts[0].prompt_ids.len());
        let count = found["token_ids"].as_array().map_or(0, Vec::len);
        let whole = if found["finish_reason"] == "length" { count == 8 } else { count < 8 };
        assert!(count > 0 && whole, "{found}");
        assert_eq!((found["params"]["n"].as_u64(), found["params"]["security_bits"].as_u64()), (Some(2048), Some(128)));
        assert!(found["bytes_per_token"]["up"].as_u64().is_some_and(|b| b > 0), "{found}");
    }
}

#[test]
fn people_are_told_whether_the_tokens_are_identical() {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let out = binaries::run("bifrost", &["demo", "--model", &path, "--prompt", "Hello", "--max-tokens", "6"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    for part in ["identical", "time to first token", "enclave crypto", "evaluator bytes per weight", "ratio to local"] {
        assert!(text.contains(part), "the screen lacks {part:?}:\n{text}");
    }
}

#[test]
fn nothing_is_left_behind() {
    let model = tiny("gpt2");
    let scratch = tempfile::tempdir().expect("a directory");
    for args in [&["--prompt", "Hi", "--max-tokens", "2"][..], &["--prompt", "Hi", "--max-tokens", "100000"][..]] {
        let mut command = binaries::command("bifrost");
        command.args(["demo", "--json", "--model"]).arg(&model.path).args(args).env("TMPDIR", scratch.path());
        let out = command.output().expect("bifrost runs");
        let log = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.success(), args.contains(&"2"), "{args:?}: {log}");
        if !out.status.success() {
            assert!(log.contains("100000"), "the bad value is not named: {log}");
            assert!(out.stdout.is_empty(), "an error wrote to stdout");
        }
        let left: Vec<_> = std::fs::read_dir(scratch.path()).expect("readable").collect();
        assert!(left.is_empty(), "{args:?} left {left:?}");
    }
}

#[test]
fn generate_and_inspect_work_on_a_file() {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let ask = |protocol: &str| {
        object(&[
            "generate",
            "--json",
            "--model",
            &path,
            "--prompt",
            "Hello",
            "--max-tokens",
            "8",
            "--temperature",
            "0.8",
            "--seed",
            "3",
            "--protocol",
            protocol,
        ])
    };
    let (direct, local) = (ask("direct"), ask("local"));
    assert_eq!(direct["token_ids"], local["token_ids"]);
    assert_eq!((direct["protocol"].as_str(), local["protocol"].as_str()), (Some("direct"), Some("local")));
    let out = binaries::run("bifrost", &["model", "inspect", &path, "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let summary: Value = serde_json::from_slice(&out.stdout).expect("one object");
    assert_eq!(summary["architecture"], "llama", "{summary}");
}

#[test]
fn smollm2_names_the_capital() {
    if let Err(reason) = fixtures::smollm2() {
        println!("skipped: SmolLM2 cannot be had here: {reason}");
        return;
    }
    let found = object(&["demo", "--json", "--max-tokens", "7"]);
    assert!(found["text"].as_str().is_some_and(|t| t.contains("Paris")), "{found}");
    assert_eq!(found["identical_to_local"], true, "{found}");
    println!("{found:#}");
}
