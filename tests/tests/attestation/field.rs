//! Three hosts and what a person does on them: daemons, commands, captures, requests.

use super::{PROMPT, search::Search};
use anyhow::{Context, ensure};
use client::{
    certificates::{Certificates, Role},
    daemon::{Daemon, Launch},
};
use e2e::{
    binaries::{binary, command},
    hosts::{EVALUATOR, Host, Hosts, RUNTIME},
    stage::LIMIT,
    world::{Ended, World},
};
use serde_json::Value;
use simulator::Simulated;
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
    /// What commands said, but for answers.
    pub(super) told: Log,
    pub(super) started: u32,
}

impl Field {
    /// All on loopback, where the test itself can be a peer.
    pub(super) fn alone() -> anyhow::Result<Self> {
        let certificates = Certificates::issue()?;
        let world = World::new(certificates.dir())?;
        Ok(Self { hosts: None, certificates, world, logs: Log::default(), told: Log::default(), started: 0 })
    }

    pub(super) fn new() -> anyhow::Result<Self> {
        let hosts = Hosts::new().map_err(|reason| {
            let line = format!("SKIPPED network namespaces of the attestation test, on loopback instead: {reason}\n");
            // Past the capture of passed tests' output: a skip must be seen.
            let _ = std::io::stderr().write_all(line.as_bytes());
        });
        let certificates = Certificates::issue_for(&["localhost", "127.0.0.1", EVALUATOR, RUNTIME])?;
        let world = World::new(certificates.dir())?;
        Ok(Self { hosts: hosts.ok(), certificates, world, logs: Log::default(), told: Log::default(), started: 0 })
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
            let line = format!("{name}: {line}");
            println!("{}", line.chars().take(400).collect::<String>());
            logs.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        });
        let envs = vec![
            ("BIFROST_LOG".into(), "trace".into()),
            ("BIFROST_EVALUATOR_LOG".into(), "trace".into()),
            ("RUST_LOG".into(), "trace".into()),
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
        args.extend(["--model".into(), model.into(), "--protocol".into(), "masked".into()]);
        args.extend(["--lanes".into(), "256".into()]);
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
        let mut run = match &self.hosts {
            Some(hosts) => hosts.command(Host::Client, binary("bifrost-sim")),
            None => command("bifrost-sim"),
        };
        run.args(all).env("BIFROST_LOG", "trace").env("RUST_LOG", "trace");
        run.env("XDG_STATE_HOME", self.world.file("state")).env("XDG_CACHE_HOME", self.world.file("cache"));
        let ended = e2e::world::ended(run.output().expect("bifrost-sim starts"));
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.push(format!("{}: {}", args[0], ended.err));
        if args[0] != "generate" {
            told.push(ended.out.clone());
        }
        ended
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
        self.generate_by("masked", url, key, prompt)
    }

    pub(super) fn generate_by(&self, protocol: &str, url: &str, key: &Path, prompt: &str) -> Ended {
        let key = key.display().to_string();
        let asked = ["--protocol", protocol, "--prompt", prompt, "--max-tokens", "24", "--json"];
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

    /// Everything that daemons and commands have said, which is complete.
    pub(super) fn said(&self) -> anyhow::Result<String> {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for daemon in ["trusted-runtime-sim", "gpu-evaluator"] {
            let traces = logs.iter().any(|line| line.starts_with(daemon) && line.contains("TRACE"));
            ensure!(traces, "{daemon} logs at the finest level");
        }
        for command in ["release-key", "generate"] {
            ensure!(told.iter().any(|said| said.starts_with(command)), "{command} was run");
        }
        Ok([logs, told].concat().join("\n"))
    }

    /// Looks for `needles` on all wires, where the search finds what is sent in the clear.
    pub(super) fn searched(&self, captures: Vec<Capture>, needles: Vec<Vec<u8>>) -> anyhow::Result<()> {
        let search = Search::of(needles)?;
        for (capture, alpn) in captures.into_iter().zip([<Simulated as attest::Domain>::ALPN, b"\0\x03\x02h2"]) {
            let frames = capture.frames(self.hosts.as_ref().context("a capture has hosts")?)?;
            ensure!(frames.len() > 20_000, "{} bytes captured", frames.len());
            let found = search.find(&frames);
            assert_eq!(found, None, "on a wire");
            assert!(Search::of(vec![BAIT.to_vec()])?.find(&frames).is_some(), "the bait is found");
            assert!(memchr::memmem::find(&frames, alpn).is_some(), "the beginning of TLS");
        }
        Ok(())
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
    child: Child,
    file: PathBuf,
    from: Host,
    to: &'static str,
}

/// Passes every link in the clear, to be found.
const BAIT: &[u8] = b"bait: thirty-two bytes to find..";

impl Capture {
    /// Of both links, where that can be had.
    pub(super) fn both(field: &Field, dir: &Path) -> Vec<Self> {
        let Some(hosts) = &field.hosts else { return Vec::new() };
        let links = [("front", Host::Client, RUNTIME), ("back", Host::Runtime, EVALUATOR)];
        let captures: anyhow::Result<Vec<_>> =
            links.into_iter().map(|(link, from, to)| Self::of(hosts, (link, from, to), dir)).collect();
        captures.unwrap_or_else(|reason: anyhow::Error| {
            let line = format!("SKIPPED the captures of the attestation test: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            Vec::new()
        })
    }

    fn of(hosts: &Hosts, (link, from, to): (&str, Host, &'static str), dir: &Path) -> anyhow::Result<Self> {
        let (file, script) =
            (dir.join(format!("{link}.frames")), Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/capture.py"));
        let mut command = hosts.command(Host::Runtime, "python3");
        let mut child =
            command.arg(script).arg(link).arg(&file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut ready = [0; 9];
        child.stdout.as_mut().context("piped")?.read_exact(&mut ready).context("no raw sockets here")?;
        Ok(Self { child, file, from, to })
    }

    /// All frames; the last has the bait.
    pub(super) fn frames(mut self, hosts: &Hosts) -> anyhow::Result<Vec<u8>> {
        let script = "import socket,sys\n\
            socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(sys.argv[2].encode(),(sys.argv[1],9))";
        let mut bait = hosts.command(self.from, "python3");
        ensure!(bait.args(["-c", script, self.to]).arg(std::str::from_utf8(BAIT)?).status()?.success(), "no bait");
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the capture failed");
        Ok(fs::read(&self.file)?)
    }
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

/// What an age identity is behind its letters: BIP 173's alphabet, without the checksum.
pub(super) fn scalar(identity: &str) -> Vec<u8> {
    let data = identity.to_lowercase().rsplit('1').next().map(str::to_owned).unwrap_or_default();
    let value = |c: char| "qpzry9x8gf2tvdw0s3jn54khce6mua7l".find(c).expect("a letter of BIP 173");
    let bits: Vec<usize> = data.chars().flat_map(|c| (0..5).rev().map(move |at| value(c) >> at & 1)).collect();
    let byte = |bits: &[usize]| u8::try_from(bits.iter().fold(0, |byte, bit| byte << 1 | bit)).expect("eight bits");
    bits.chunks_exact(8).take(32).map(byte).collect()
}
