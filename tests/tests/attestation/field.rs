//! Three hosts and what a person does on them: daemons, commands, captures, requests.

use super::PROMPT;
use anyhow::{Context, ensure};
use client::{
    certificates::{Certificates, Role},
    daemon::{Daemon, Launch},
};
use e2e::{
    binaries::binary,
    hosts::{EVALUATOR, Host, Hosts, RUNTIME},
    stage::LIMIT,
    world::{Ended, World},
};
use serde_json::Value;
use std::{
    ffi::OsString,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

pub(super) type Log = Arc<Mutex<Vec<String>>>;

/// Three hosts, or one where namespaces cannot be had.
pub(super) struct Field {
    pub(super) hosts: Option<Hosts>,
    pub(super) certificates: Certificates,
    pub(super) world: World,
    pub(super) logs: Log,
    pub(super) started: u32,
}

impl Field {
    /// All on loopback, where the test itself can be a peer.
    pub(super) fn alone() -> anyhow::Result<Self> {
        let certificates = Certificates::issue()?;
        let world = World::new(certificates.dir())?;
        Ok(Self { hosts: None, certificates, world, logs: Log::default(), started: 0 })
    }

    pub(super) fn new() -> anyhow::Result<Self> {
        let hosts = Hosts::new().map_err(|reason| {
            let line = format!("SKIPPED network namespaces of the attestation test, on loopback instead: {reason}\n");
            // Past the capture of passed tests' output: a skip must be seen.
            let _ = std::io::stderr().write_all(line.as_bytes());
        });
        let certificates = Certificates::issue_for(&["localhost", "127.0.0.1", EVALUATOR, RUNTIME])?;
        let world = World::new(certificates.dir())?;
        Ok(Self { hosts: hosts.ok(), certificates, world, logs: Log::default(), started: 0 })
    }

    pub(super) fn address(&self, of: Host) -> &'static str {
        match (&self.hosts, of) {
            (None, _) | (_, Host::Client) => "127.0.0.1",
            (Some(_), Host::Runtime) => RUNTIME,
            (Some(_), Host::Evaluator) => EVALUATOR,
        }
    }

    /// Starts a daemon on a host; everything that it logs, at the finest level, is kept.
    pub(super) fn start(&mut self, host: Host, name: &'static str, args: Vec<OsString>) -> anyhow::Result<Daemon> {
        self.started += 1;
        let port_file = self.certificates.dir().join(format!("{name}.{}.port", self.started));
        let (program, mut all) = match &self.hosts {
            Some(hosts) => hosts.on(host, &binary(name)),
            None => (binary(name), Vec::new()),
        };
        all.extend(args);
        let logs = self.logs.clone();
        let watch: client::daemon::Watch = Box::new(move |line| {
            println!("{name}: {}", line.chars().take(400).collect::<String>());
            logs.lock().unwrap_or_else(PoisonError::into_inner).push(line.to_owned());
        });
        let envs = vec![
            ("BIFROST_LOG".into(), "trace".into()),
            ("XDG_STATE_HOME".into(), self.world.file("state").into()),
            ("XDG_CACHE_HOME".into(), self.world.file("cache").into()),
        ];
        Ok(Daemon::start(Launch { program, args: all, port_file, envs, watch: Some(watch), local: false })?)
    }

    pub(super) async fn evaluator(&mut self, port: u16) -> anyhow::Result<(Daemon, u16)> {
        let c = &self.certificates;
        let mut args: Vec<OsString> =
            vec!["--listen".into(), format!("{}:{port}", self.address(Host::Evaluator)).into()];
        args.extend(["--tls-cert".into(), c.cert(Role::Evaluator).into()]);
        args.extend(["--tls-key".into(), c.key(Role::Evaluator).into()]);
        args.extend(["--tls-client-ca".into(), c.ca().into(), "--threads".into(), "2".into()]);
        let mut daemon = self.start(Host::Evaluator, "gpu-evaluator", args)?;
        let port = daemon.port(LIMIT).await?;
        Ok((daemon, port))
    }

    pub(super) async fn runtime(&mut self, model: &Path, evaluator: u16, port: u16) -> anyhow::Result<(Daemon, u16)> {
        let c = &self.certificates;
        let config = c.dir().join("runtime.toml");
        fs::write(&config, "[attestation]\ndanger_listen_anywhere = true\ntenants = \"acme, globex, brief\"\n")?;
        let at = |host| self.address(host);
        let mut args: Vec<OsString> = vec!["serve".into(), "--config".into(), config.into()];
        args.extend(["--listen".into(), format!("{}:{port}", at(Host::Runtime)).into()]);
        args.extend(["--model".into(), model.into(), "--protocol".into(), "direct".into()]);
        args.extend(["--policy".into(), "hybrid_unified".into(), "--threads".into(), "2".into()]);
        args.extend(["--evaluator".into(), format!("https://{}:{evaluator}", at(Host::Evaluator)).into()]);
        args.extend(["--evaluator-ca".into(), c.ca().into()]);
        args.extend(["--evaluator-cert".into(), c.cert(Role::Runtime).into()]);
        args.extend(["--evaluator-key".into(), c.key(Role::Runtime).into()]);
        let mut daemon = self.start(Host::Runtime, "trusted-runtime-sim", args)?;
        let port = daemon.port(LIMIT).await?;
        Ok((daemon, port))
    }

    pub(super) async fn proxy(&mut self, url: &str, key: &Path) -> anyhow::Result<(Daemon, u16)> {
        let config = self.certificates.dir().join("proxy.toml");
        fs::write(&config, "model = \"tiny\"\nreattest_seconds = 1\n")?;
        let mut args: Vec<OsString> = ["proxy", "--listen", "127.0.0.1:0", "--config"].map(Into::into).to_vec();
        args.extend([config.into(), "--runtime".into(), url.into(), "--tenant-key".into(), key.into()]);
        args.extend(self.world.judged("--attestation-policy"));
        let mut daemon = self.start(Host::Client, "bifrost-sim", args)?;
        let port = daemon.port(LIMIT).await?;
        Ok((daemon, port))
    }

    /// Runs `bifrost-sim` on the client's host.
    pub(super) fn client(&self, args: &[&str], more: &[OsString]) -> Ended {
        let all: Vec<OsString> = args.iter().map(Into::into).chain(more.iter().cloned()).collect();
        let Some(hosts) = &self.hosts else { return self.world.run(&all) };
        let mut command = hosts.command(Host::Client, binary("bifrost-sim"));
        command.args(all).env("XDG_STATE_HOME", self.world.file("state"));
        command.env("XDG_CACHE_HOME", self.world.file("cache"));
        e2e::world::ended(command.output().expect("bifrost-sim starts"))
    }

    /// The same against a runtime, with policy and collateral.
    pub(super) fn attested(&self, args: &[&str]) -> Ended {
        self.client(args, &self.world.judged("--policy"))
    }

    pub(super) fn release(&self, url: &str, key: &Path, more: &[&str]) -> Ended {
        let key = key.display().to_string();
        let mut args = vec!["release-key", "--runtime", url, "--tenant-key", &key, "--yes", "--json"];
        args.extend(more);
        self.attested(&args)
    }

    pub(super) fn generate(&self, url: &str, key: &Path, prompt: &str) -> Ended {
        let key = key.display().to_string();
        let asked = ["--prompt", prompt, "--max-tokens", "24", "--json"];
        let args = [&["generate", "--endpoint", url, "--tenant-key", &key][..], &asked].concat();
        self.client(&args, &self.world.judged("--attestation-policy"))
    }

    /// Generates until the model is loaded.
    pub(super) fn generate_soon(&self, url: &str, key: &Path, prompt: &str) -> anyhow::Result<Value> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let ended = self.generate(url, key, prompt);
            if ended.code == Some(0) {
                return Ok(serde_json::from_str(&ended.out)?);
            }
            ensure!(ended.err.contains("being loaded") || ended.err.contains("evaluator"), "{}", ended.err);
            ensure!(Instant::now() < deadline, "never loaded: {}", ended.err);
        }
    }

    pub(super) fn logged(&self, what: &str) -> bool {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|line| line.contains(what))
    }

    pub(super) fn field_of_log(&self, name: &str) -> Option<String> {
        let lines = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |line: &String| {
            let rest = line.split_once(&format!("{name}="))?.1.trim_start_matches('"');
            Some(rest.split(['"', ' ']).next()?.to_owned())
        };
        lines.iter().rev().filter(|line| line.contains("attesting")).find_map(at)
    }
}

/// Everything that passes on one link of the runtime's host.
pub(super) struct Capture {
    pub(super) child: Child,
    pub(super) file: PathBuf,
}

impl Capture {
    pub(super) fn of(hosts: &Hosts, link: &str, dir: &Path) -> anyhow::Result<Self> {
        let (file, script) =
            (dir.join(format!("{link}.frames")), Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/capture.py"));
        let mut command = hosts.command(Host::Runtime, "python3");
        let mut child =
            command.arg(script).arg(link).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut ready = [0; 9];
        child.stdout.as_mut().context("piped")?.read_exact(&mut ready).context("no raw sockets here")?;
        Ok(Self { child, file })
    }

    pub(super) fn frames(mut self) -> anyhow::Result<Vec<u8>> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the capture failed");
        Ok(fs::read(&self.file)?)
    }
}

pub(super) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    assert!(!needle.is_empty(), "everything holds nothing");
    memchr::memmem::find(haystack, needle).is_some()
}

pub(super) async fn http(hosts: Option<&Hosts>, port: u16, request: &str) -> anyhow::Result<(u16, String)> {
    let script = "import sys,http.client,json\n\
        c=http.client.HTTPConnection('127.0.0.1',int(sys.argv[1]),timeout=200)\n\
        m,p,b=sys.argv[2].split(' ',2)\n\
        c.request(m,p,b or None,{'content-type':'application/json'})\n\
        r=c.getresponse()\nprint(r.status)\nprint(r.getheader('x-bifrost-attestation'))\nprint(r.read().decode())";
    let mut command = match hosts {
        Some(hosts) => hosts.command(Host::Client, "python3"),
        None => std::process::Command::new("python3"),
    };
    command.args(["-c", script, &port.to_string(), request]);
    let out = tokio::task::spawn_blocking(move || command.output()).await??;
    let text = String::from_utf8(out.stdout)?;
    let (status, rest) = text.split_once('\n').with_context(|| String::from_utf8_lossy(&out.stderr).into_owned())?;
    Ok((status.parse()?, rest.to_owned()))
}

/// The `openai` package, if this machine has it or can get it; `openai_sdk.rs` tests it at length.
pub(super) fn sdk(field: &Field, port: u16, dir: &Path) -> anyhow::Result<()> {
    let venv = dir.join("venv");
    let quiet = |command: &mut std::process::Command| command.output().is_ok_and(|o| o.status.success());
    let installed = quiet(std::process::Command::new("python3").args(["-m", "venv"]).arg(&venv))
        && quiet(std::process::Command::new(venv.join("bin/python")).args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--retries",
            "1",
            "openai==3.57.0",
        ]));
    if !installed {
        let line = "SKIPPED the openai package in the attestation test: it cannot be had here\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return Ok(());
    }
    let mut command = match &field.hosts {
        Some(hosts) => hosts.command(Host::Client, venv.join("bin/python")),
        None => std::process::Command::new(venv.join("bin/python")),
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/chat.py");
    let out = command.arg(script).args([&format!("http://127.0.0.1:{port}/v1"), "none", PROMPT]).output()?;
    ensure!(out.status.success() && !out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

/// The secret of a key file, in hexadecimal.
pub(super) fn root(file: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find(|l| l.starts_with("root")).context("a root")?;
    Ok(line.split('"').nth(1).context("quoted")?.to_owned())
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).filter_map(|d| u8::try_from(d).ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Pieces of the tensors of a model, as f32, embeddings among them: the first activations there are.
pub(super) fn embeddings(model: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let bytes = fs::read(model)?;
    // The last two thirds of the file are weights.
    let from = bytes.len() / 3;
    let pieces = bytes[from..].chunks_exact(4096).map(|chunk| chunk[..32].to_vec());
    Ok(pieces.filter(|piece| piece.iter().any(|b| *b != piece[0])).collect())
}
