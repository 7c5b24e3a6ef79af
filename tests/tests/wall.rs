//! The two walls in the dependency graph, and what may be written behind them.
//!
//! The lock file is the graph: it holds every edge of every feature, target and kind (normal, build,
//! dev), so what is unreachable there is unreachable in any build. `cargo tree` is asked as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

type Names = BTreeSet<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_path_buf()
}

fn names(of: &[&str]) -> Names {
    of.iter().map(|n| (*n).to_owned()).collect()
}

fn toml(path: &Path) -> toml::Table {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).parse().expect("TOML")
}

/// Package name to the names it depends on; versions of a package are merged.
struct Graph(BTreeMap<String, Names>);

impl Graph {
    fn read() -> Self {
        let lock = toml(&root().join("Cargo.lock"));
        let mut edges: BTreeMap<String, Names> = BTreeMap::new();
        for package in lock["package"].as_array().expect("packages") {
            let to = edges.entry(package["name"].as_str().expect("a name").to_owned()).or_default();
            for d in package.get("dependencies").and_then(|d| d.as_array()).into_iter().flatten() {
                to.insert(d.as_str().expect("a name").split(' ').next().expect("split yields something").to_owned());
            }
        }
        Self(edges)
    }

    /// Everything reached from `start`, which is included.
    fn closure(&self, start: Names) -> Names {
        let (mut seen, mut open) = (Names::new(), start.into_iter().collect::<Vec<_>>());
        while let Some(name) = open.pop() {
            if seen.insert(name.clone()) {
                open.extend(self.0.get(&name).into_iter().flatten().cloned());
            }
        }
        seen
    }

    fn reached_by(&self, package: &str) -> Names {
        assert!(self.0.contains_key(package), "Cargo.lock has no package {package}");
        self.closure(names(&[package]))
    }

    /// Every package that reaches `package`, which is included.
    fn reaching(&self, package: &str) -> Names {
        self.0.keys().filter(|p| self.closure(names(&[p])).contains(package)).cloned().collect()
    }

    fn assert_apart(&self, from: &str, forbidden: &[&str]) {
        let reached = self.reached_by(from);
        let bad: Vec<_> = forbidden.iter().filter(|f| reached.contains(**f)).collect();
        assert!(bad.is_empty(), "{from} reaches {bad:?}, which lies behind a wall");
    }
}

#[test]
fn secret_keys_are_reached_by_the_runtime_alone() {
    // `simulated` is the runtime on simulated hardware, for tests.
    assert_eq!(Graph::read().reaching("trusted-he"), names(&["simulated", "trusted-he", "trusted-runtime"]));
}

#[test]
fn cargo_tree_agrees_about_secret_keys() {
    let args = ["--workspace", "--all-features", "--edges=normal,build,dev", "--invert", "trusted-he"];
    assert_eq!(cargo_tree(&args), names(&["simulated", "trusted-he", "trusted-runtime"]));
}

#[test]
fn the_cuda_driver_is_reached_by_the_evaluator_alone() {
    let graph = Graph::read();
    for outside in ["trusted-runtime", "trusted-he", "client", "proto", "kernels"] {
        graph.assert_apart(outside, &["cudarc", "kernels-cuda"]);
    }
    if graph.0.contains_key("kernels-cuda") {
        assert_eq!(graph.reaching("kernels-cuda"), names(&["gpu-evaluator", "kernels-cuda"]));
    }
}

/// Instructions that are Rust functions are for tests: nothing that runs may have them, and what is tested is `kernels`.
#[test]
fn emulated_instructions_are_reached_by_nobody() {
    assert_eq!(Graph::read().reaching("kernels-emulated"), names(&["kernels-emulated"]));
    let [real, emulated] = ["kernels", "kernels/emulated"].map(|dir| toml(&root().join(dir).join("Cargo.toml")));
    assert_eq!(emulated["lib"]["path"].as_str(), Some("../src/lib.rs"));
    assert_eq!(emulated["dependencies"], real["dependencies"]);
    assert!(!root().join("kernels/build.rs").exists(), "a build script could set the emulation's cfg in kernels");
}

/// Bug reports 17 and 31: what pretends to be hardware is a crate that no production binary has, not a setting.
#[test]
fn bug_17_31_simulated_hardware_is_reached_by_tests_alone() {
    assert_eq!(Graph::read().reaching("simulator"), names(&["e2e", "simulated", "simulator"]));
    assert_eq!(Graph::read().reaching("simulated"), names(&["simulated"]));
    let test = std::env::current_exe().expect("a test knows its own file");
    let built = test.ancestors().nth(2).expect("target/PROFILE/deps/FILE");
    let holds = |program: &str| {
        let bytes = fs::read(built.join(program)).expect("cargo test --workspace builds every binary");
        MARKS.map(|mark| bytes.windows(mark.len()).any(|w| w == mark.as_bytes()))
    };
    for program in ["bifrost", "trusted-runtime", "gpu-evaluator", "bifrost-quote-helper"] {
        assert_eq!(holds(program), [false; 2], "{program} contains the simulator");
    }
    assert_eq!(holds("trusted-runtime-sim"), [true; 2], "the search finds what is there");
}

/// In every binary that has the simulator: its ALPN and its root.
const MARKS: [&str; 2] = ["bifrost-simulated-attest/1", "bifrost-simulated/attest/v1"];

/// Bug report 32, and what else has no place: withdrawn crates, and a switch of the verifier that is off.
#[test]
fn bug_32_no_crate_that_was_withdrawn() {
    let graph = Graph::read();
    for banned in ["bincode", "openssl-sys", "tdx-quote", "configfs-tsm", "mosaik"] {
        assert!(!graph.0.contains_key(banned), "Cargo.lock has {banned}");
    }
    let verifier = toml(&root().join("Cargo.toml"))["workspace"]["dependencies"]["dcap-qvl"].clone();
    assert_eq!(verifier["version"].as_str(), Some("=0.7.1"), "pinned: its API is young");
    let lines = cargo_tree_lines(&["--package=attest-verify", "--all-features", "--edges=features"]);
    assert!(lines.contains("dcap-qvl feature \"rustcrypto\""), "{lines}");
    assert!(!lines.contains("danger-allow-tcb-override"), "the verifier may be overridden");
}

#[test]
fn every_package_stays_on_its_side() {
    let graph = Graph::read();
    graph.assert_apart("gpu-evaluator", &["trusted-he", "trusted-runtime", "client"]);
    graph.assert_apart("client", &["trusted-he", "trusted-runtime", "gpu-evaluator", "kernels"]);
    graph.assert_apart("trusted-runtime", &["gpu-evaluator", "client"]);
    graph.assert_apart("trusted-he", &["proto", "tokio", "tonic", "prost", "hyper"]);
    graph.assert_apart("proto", &["kernels", "trusted-he", "trusted-runtime", "gpu-evaluator", "client"]);
    // Verifying is the client's, evidence the enclave's; the accelerator has to do with neither.
    graph.assert_apart("trusted-runtime", &["attest-verify"]);
    graph.assert_apart("client", &["evidence"]);
    graph.assert_apart("gpu-evaluator", &["attest", "attest-verify", "evidence"]);
    graph.assert_apart("identity", &["proto", "attest", "kernels", "trusted-he"]);
}

/// Without a sampler nobody can make a key in `kernels`. Its tests may have one, and so may a build
/// script, so this looks at the packages that are linked.
#[test]
fn kernels_cannot_draw_a_random_number() {
    let linked = cargo_tree(&["--package=kernels", "--all-features", "--edges=normal"]);
    assert!(linked.contains("blake3"), "{linked:?}");
    let random = |n: &&String| {
        n.starts_with("rand") || n.contains("getrandom") || n.contains("chacha") || *n == "ctr" || *n == "fastrand"
    };
    let bad: Vec<_> = linked.iter().filter(random).collect();
    assert!(bad.is_empty(), "kernels links {bad:?}");
    assert!(!linked.contains("proto"), "kernels knows the contract");
}

#[test]
fn untrusted_code_has_no_word_for_secrets() {
    let banned = ["secret", "decrypt", "sample_"];
    let mut found = Vec::new();
    for dir in ["kernels/src", "kernels/cuda/src", "gpu-evaluator/src"] {
        for file in sources(&root().join(dir)) {
            for (line, word) in identifiers(&fs::read_to_string(&file).expect("source is readable")) {
                if banned.iter().any(|b| word.to_lowercase().contains(b)) {
                    found.push(format!("{}:{line}: {word}", file.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "banned identifiers:\n{}", found.join("\n"));
}

#[test]
fn unsafe_lives_in_named_files() {
    let named = [
        "kernels/src/cpu/avx2.rs",
        "kernels/src/cpu/avx512.rs",
        "kernels/benches/support/peak.rs",
        "kernels/cuda/src/device.rs",
    ];
    let mut found = Vec::new();
    for dir in ["proto", "kernels", "trusted-runtime", "gpu-evaluator", "client", "tests"] {
        for file in sources(&root().join(dir)) {
            let name = file.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
            if named.iter().any(|n| *n == name || name.starts_with(&format!("{}/", n.trim_end_matches(".rs")))) {
                continue;
            }
            let words = identifiers(&fs::read_to_string(&file).expect("source is readable"));
            found.extend(words.iter().filter(|(_, w)| w == "unsafe").map(|(line, _)| format!("{name}:{line}")));
        }
    }
    assert!(found.is_empty(), "unsafe outside the named files:\n{}", found.join("\n"));
}

/// What is written for people is shown to people.
#[test]
fn the_readme_hides_nothing() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    let hidden: Vec<_> = text.lines().enumerate().filter(|(_, line)| line.contains("<!--")).collect();
    assert!(hidden.is_empty(), "README.md has comments: {hidden:?}");
}

#[test]
fn the_lexer_sees_code_and_nothing_else() {
    let source = "// secret\n/* unsafe /* nested */ */ let a = \"decrypt \\\" x\"; let b = r#\"unsafe \"\"#;\nfn f<'a>(c: char) { if c == '\"' { g('\\'') } }";
    let words: Vec<_> = identifiers(source).into_iter().map(|(_, w)| w).collect();
    assert_eq!(words, ["let", "a", "let", "b", "fn", "f", "a", "c", "char", "if", "c", "g"]);
}

/// The package names that `cargo tree` prints.
fn cargo_tree(args: &[&str]) -> Names {
    let text = cargo_tree_lines(args);
    let names = text.lines().filter_map(|l| l.split(' ').next());
    names.filter(|n| !n.is_empty()).map(str::to_owned).collect()
}

/// What `cargo tree` prints.
fn cargo_tree_lines(args: &[&str]) -> String {
    let run = |how: &[&str]| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command
            .current_dir(root())
            .args(["tree", "--locked", "--prefix=none"])
            .args(how)
            .args(args)
            .output()
            .expect("cargo runs")
    };
    // A clone that was built for this machine alone lacks the packages of other targets: fetch them,
    // or else look at this machine's graph (the lock file is checked for all targets anyhow).
    let ways: [&[&str]; 3] = [&["--offline", "--target=all"], &["--target=all"], &["--offline"]];
    let mut complaint = String::new();
    for how in ways {
        let out = run(how);
        if out.status.success() {
            return String::from_utf8(out.stdout).expect("UTF-8");
        }
        complaint = String::from_utf8_lossy(&out.stderr).into_owned();
    }
    panic!("cargo tree: {complaint}");
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                files.extend(sources(&path));
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

/// The identifiers and keywords of Rust source with their lines; comments and literals are left out.
fn identifiers(source: &str) -> Vec<(usize, String)> {
    let (mut rest, mut line, mut words) = (source, 1, Vec::new());
    while let Some(c) = rest.chars().next() {
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let raw = rest
            .trim_start_matches(['b', 'c'])
            .strip_prefix('r')
            .map(|r| (r, r.len() - r.trim_start_matches('#').len()));
        let len = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            block_comment(rest)
        } else if let Some((r, hashes)) = raw.filter(|(r, h)| r[*h..].starts_with('"')) {
            let close = format!("\"{}", "#".repeat(hashes));
            let body = &r[hashes + 1..];
            rest.len() - body.len() + body.find(&close).map_or(body.len(), |at| at + close.len())
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && (rest[1..].starts_with('\\') || rest.chars().nth(2) == Some('\'')) {
            quoted(rest, '\'')
        } else if word(c) {
            let len = rest.find(|c| !word(c)).unwrap_or(rest.len());
            words.push((line, rest[..len].to_owned()));
            len
        } else {
            c.len_utf8()
        };
        line += rest[..len].matches('\n').count();
        rest = &rest[len..];
    }
    words
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn quoted(text: &str, quote: char) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if c == quote {
            return at + quote.len_utf8();
        }
    }
    text.len()
}

#[test]
fn the_dashboard_shows_only_figures_that_exist() {
    let dashboard = fs::read_to_string(root().join("deploy/grafana/bifrost.json")).expect("the dashboard");
    let mut sources = String::new();
    for crates in ["trusted-runtime/src", "gpu-evaluator/src", "client/src"] {
        for file in self::sources(&root().join(crates)) {
            sources.push_str(&fs::read_to_string(file).expect("source is readable"));
        }
    }
    let names: Names = dashboard
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("bifrost_"))
        .map(|word| word.trim_end_matches("_bucket").to_owned())
        .collect();
    assert!(names.len() > 20, "{names:?}");
    let missing: Vec<_> = names.iter().filter(|name| !sources.contains(&format!("\"{name}\""))).collect();
    assert!(missing.is_empty(), "nothing counts {missing:?}");
}
