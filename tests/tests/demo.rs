//! `bifrost`, as a visitor runs it.

use e2e::{
    binaries,
    fixtures::{self, tiny},
    stage::LIMIT,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    process::Stdio,
    time::{Duration, Instant},
};

/// The keys that `--json` promises, nested ones with a dot.
const KEYS: [&str; 37] = [
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
    "lanes.ready",
    "lanes.refill_ms_per_lane",
    "lanes.used",
    "local_ms_per_token",
    "offline.bytes_down",
    "offline.bytes_up",
    "offline.enclave_ms",
    "offline.evaluator_ms",
    "offline_ms_per_token",
    "params.log2_q",
    "params.n",
    "params.security_bits",
    "policy",
    "prompt_tokens",
    "protocol",
    "round_trips_per_token",
    "text",
    "token_ids",
    "tokens.direct",
    "tokens.masked",
    "ttft_ms",
    "verify_ms_per_token",
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
    assert!(log.contains("LOCAL"), "local mode did not announce itself:\n{log}");
    let text = String::from_utf8(out.stdout).expect("UTF-8");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("stdout is not one object: {e}\n{text}"))
}

#[test]
fn json_has_the_promised_keys_and_the_tokens_are_identical() {
    // The first names neither protocol nor lanes: it is what a visitor gets.
    for (name, weights, protocol, flags) in [
        ("gpt2", "w8", "masked", &[][..]),
        ("llama", "w16", "masked", &["--protocol", "masked", "--lanes", "64"]),
        ("llama", "w8", "auto", &["--protocol", "auto", "--lanes", "64"]),
        ("gpt2", "w16", "direct", &["--protocol", "direct"]),
    ] {
        let model = tiny(name);
        let path = model.path.to_string_lossy();
        let prompt = model.prompts[0].text.as_str();
        let args = ["demo", "--json", "--model", &path, "--prompt", prompt, "--max-tokens", "8", "--weights", weights];
        let found = object(&[&args[..], flags].concat());
        let promised = KEYS.iter().map(|k| (*k).to_owned()).collect();
        assert_eq!(keys(&found, ""), promised);
        assert_eq!(found["identical_to_local"], true, "{found}");
        assert_eq!((found["protocol"].as_str(), found["weights"].as_str()), (Some(protocol), Some(weights)));
        assert_eq!(found["prompt_tokens"], model.prompts[0].prompt_ids.len());
        let count = found["token_ids"].as_array().map_or(0, Vec::len);
        let whole = if found["finish_reason"] == "length" { count == 8 } else { count < 8 };
        assert!(count > 0 && whole, "{found}");
        assert_eq!((found["params"]["n"].as_u64(), found["params"]["security_bits"].as_u64()), (Some(2048), Some(128)));
        assert!(found["bytes_per_token"]["up"].as_u64().is_some_and(|b| b > 0), "{found}");
        for key in ["round_trips_per_token", "verify_ms_per_token"] {
            assert!(found[key].as_f64().is_some_and(|x| x > 0.0), "{key}: {found}");
        }
        let steps = found["tokens"]["masked"].as_u64().zip(found["tokens"]["direct"].as_u64());
        let (masked, direct) = steps.expect("two numbers");
        assert_eq!(masked + direct, count as u64 - 1, "{found}");
        assert!((protocol != "masked" || direct == 0) && (protocol != "direct" || masked == 0), "{found}");
        let offline = ["/offline_ms_per_token", "/offline/enclave_ms", "/offline/evaluator_ms", "/offline/bytes_up"];
        for at in offline.into_iter().chain(["/lanes/used", "/lanes/refill_ms_per_lane"]) {
            let figure = found.pointer(at).and_then(Value::as_f64);
            match protocol {
                "masked" => assert!(figure.is_some_and(|x| x > 0.0), "{at}: {found}"),
                "direct" => assert!(figure.is_none_or(|x| x == 0.0), "{at}: {found}"),
                // Auto may be done before the first lane.
                _ => assert!(figure.is_some(), "{at}: {found}"),
            }
        }
    }
}

#[test]
fn keys_stay_and_values_are_null_where_nothing_is_known() {
    let model = tiny("gpt2");
    let path = model.path.to_string_lossy();
    let args = ["demo", "--json", "--model", &path, "--prompt", &model.prompts[0].text, "--max-tokens"];
    let promised: BTreeSet<_> = KEYS.iter().map(|k| (*k).to_owned()).collect();
    let local = object(&[&args[..], &["4", "--protocol", "local"]].concat());
    assert_eq!(keys(&local, ""), promised);
    for at in KEYS.iter().filter(|k| ["evaluator.", "params.", "lanes."].iter().any(|of| k.starts_with(of))) {
        assert!(local.pointer(&format!("/{}", at.replace('.', "/"))).is_some_and(Value::is_null), "{at}: {local}");
    }
    assert!(local["decode_ms_per_token"].as_f64().is_some_and(|ms| ms > 0.0), "{local}");
    let one = object(&[&args[..], &["1", "--lanes", "64", "--policy", "hybrid_unified"]].concat());
    assert_eq!(keys(&one, ""), promised);
    let per_token = |k: &&&str| k.contains("per_token") || k.starts_with("breakdown.") || k.starts_with("offline.");
    for at in KEYS.iter().filter(per_token) {
        assert!(one.pointer(&format!("/{}", at.replace('.', "/"))).is_some_and(Value::is_null), "{at}: {one}");
    }
    assert!(one["ttft_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{one}");
    assert!(one["lanes"]["used"].as_u64().is_some_and(|lanes| lanes > 0), "{one}");
}

/// The children of `parent` that still run, by name.
fn children(parent: u32) -> BTreeMap<String, u32> {
    let processes = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: u32| {
        let (name, _, of) = process(id)?;
        (of == parent).then_some((name, id))
    })
    .collect()
}

/// Name, state and parent of a process, from `/proc/ID/stat` (proc_pid_stat(5)).
fn process(id: u32) -> Option<(String, char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    let (head, tail) = stat.rsplit_once(") ")?;
    let mut fields = tail.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((head.split_once('(')?.1.to_owned(), state, fields.next()?.parse().ok()?))
}

/// `bifrost generate` in the midst of its answer, and its daemons.
fn answering() -> (std::process::Child, BTreeMap<String, u32>) {
    let mut command = binaries::command("bifrost");
    command.args(["generate", "--synthetic", "llama-tiny", "--max-tokens", "200", "--lanes", "64"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("bifrost starts");
    let mut first = [0];
    child.stdout.as_mut().expect("piped").read_exact(&mut first).expect("a first piece of text");
    let daemons = children(child.id());
    assert!(daemons.keys().eq(["gpu-evaluator", "trusted-runtime"]), "{daemons:?}");
    (child, daemons)
}

fn kill(id: u32) {
    let killed = std::process::Command::new("kill").args(["-9", &id.to_string()]).status();
    assert!(killed.expect("kill runs").success());
}

#[test]
fn an_evaluator_that_is_killed_ends_the_answer_with_one_line() {
    let (child, daemons) = answering();
    kill(daemons["gpu-evaluator"]);
    let out = child.wait_with_output().expect("an end");
    let log = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{log}");
    assert_eq!(log.lines().last(), Some("bifrost: gpu-evaluator ended early (signal: 9 (SIGKILL))"), "{log}");
    assert_eq!(log.lines().filter(|line| line.starts_with("bifrost: ")).count(), 1, "{log}");
    assert!(out.stdout.ends_with(b"\n"), "the line of the answer is not finished");
}

#[test]
fn daemons_do_not_outlive_a_bifrost_that_is_killed() {
    let (mut child, daemons) = answering();
    kill(child.id());
    child.wait().expect("an end");
    let deadline = Instant::now() + LIMIT;
    for (name, id) in daemons {
        while process(id).is_some_and(|(now, state, _)| now == name && state != 'Z') {
            assert!(Instant::now() < deadline, "{name} outlives bifrost");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn people_are_told_whether_the_tokens_are_identical() {
    let model = tiny("llama");
    let path = model.path.to_string_lossy();
    let args = ["demo", "--model", &path, "--prompt", "Hello", "--max-tokens", "6", "--lanes", "64"];
    let out = binaries::run("bifrost", &args);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    let always = ["identical", "time to first token", "enclave crypto", "evaluator bytes per weight", "ratio to local"];
    let masked = ["verification", "round trips per token", "tokens, masked / direct", "offline work per masked token"];
    for part in always.into_iter().chain(masked) {
        assert!(text.contains(part), "the screen lacks {part:?}:\n{text}");
    }
}

#[test]
fn nothing_is_left_behind() {
    let model = tiny("gpt2");
    let scratch = tempfile::tempdir().expect("a directory");
    for args in [&["--prompt", "Hi", "--max-tokens", "2"][..], &["--prompt", "Hi", "--max-tokens", "100000"][..]] {
        let mut command = binaries::command("bifrost");
        command.args(["demo", "--json", "--lanes", "64", "--model"]).arg(&model.path);
        command.args(args).env("TMPDIR", scratch.path());
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
            "--lanes",
            "64",
            "--protocol",
            protocol,
        ])
    };
    let local = ask("local");
    assert_eq!(local["protocol"], "local");
    for protocol in ["direct", "masked", "auto"] {
        let found = ask(protocol);
        assert_eq!((&found["token_ids"], found["protocol"].as_str()), (&local["token_ids"], Some(protocol)));
    }
    let out = binaries::run("bifrost", &["model", "inspect", &path, "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let summary: Value = serde_json::from_slice(&out.stdout).expect("one object");
    assert_eq!(summary["architecture"], "llama", "{summary}");
}

#[test]
fn smollm2_names_the_capital() {
    if fixtures::smollm2().is_none() {
        return;
    }
    // Masked, it is a test of its own: making masks for a model of this size takes its time.
    let found = object(&["demo", "--json", "--max-tokens", "7", "--protocol", "direct"]);
    assert!(found["text"].as_str().is_some_and(|t| t.contains("Paris")), "{found}");
    assert_eq!(found["identical_to_local"], true, "{found}");
    println!("{found:#}");
}
