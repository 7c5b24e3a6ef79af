//! Three hosts in network namespaces: one of the client, one of the runtime, one of the evaluator.
//!
//! The client and the evaluator have no way to each other. Where namespaces cannot be made (no root, no `ip`), the reason is
//! returned, and a test says that it was skipped.

use std::{
    ffi::OsString,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The user's side.
    Client,
    /// The enclave's.
    Runtime,
    /// The accelerator's.
    Evaluator,
}

/// The runtime as the client sees it.
pub const RUNTIME: &str = "10.77.1.2";
/// The evaluator as the runtime sees it.
pub const EVALUATOR: &str = "10.77.2.2";

/// The namespaces; removed on drop.
pub struct Hosts {
    prefix: String,
}

impl Hosts {
    /// Makes them and their two links.
    ///
    /// # Errors
    /// Why that is not possible here.
    pub fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let hosts = Self { prefix: format!("bf{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)) };
        for host in [Host::Client, Host::Runtime, Host::Evaluator] {
            ip(&["netns", "add", &hosts.name(host)])?;
            ip(&["-n", &hosts.name(host), "link", "set", "lo", "up"])?;
        }
        hosts.link((Host::Client, "10.77.1.1/24"), (Host::Runtime, "10.77.1.2/24"), "front")?;
        hosts.link((Host::Runtime, "10.77.2.1/24"), (Host::Evaluator, "10.77.2.2/24"), "back")?;
        // Making one and running something in it are two permissions.
        ip(&["netns", "exec", &hosts.name(Host::Client), "true"])?;
        Ok(hosts)
    }

    /// The program that runs `program` on a host, and its first arguments.
    #[must_use]
    pub fn on(&self, host: Host, program: &std::path::Path) -> (PathBuf, Vec<OsString>) {
        let args = ["netns", "exec", &self.name(host)].map(OsString::from);
        (program_ip(), args.into_iter().chain([program.into()]).collect())
    }

    /// A command on a host.
    #[must_use]
    pub fn command(&self, host: Host, program: impl Into<PathBuf>) -> Command {
        let (ip, args) = self.on(host, &program.into());
        let mut command = Command::new(ip);
        command.args(args).stdin(Stdio::null());
        command
    }

    fn name(&self, host: Host) -> String {
        format!("{}-{host:?}", self.prefix).to_lowercase()
    }

    /// Both ends are called `name`.
    fn link(&self, a: (Host, &str), b: (Host, &str), name: &str) -> Result<(), String> {
        let (from, to) = (self.name(a.0), self.name(b.0));
        ip(&["link", "add", name, "netns", &from, "type", "veth", "peer", "name", name, "netns", &to])?;
        for (host, address) in [a, b] {
            ip(&["-n", &self.name(host), "addr", "add", address, "dev", name])?;
            ip(&["-n", &self.name(host), "link", "set", name, "up"])?;
        }
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in [Host::Client, Host::Runtime, Host::Evaluator] {
            let _ = ip(&["netns", "delete", &self.name(host)]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let out = Command::new(program_ip()).args(args).output().map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim()))
}

/// Where `ip` is; it need not be in the path of a user.
fn program_ip() -> PathBuf {
    let at = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"].map(PathBuf::from);
    at.into_iter().find(|path| path.is_file()).unwrap_or_else(|| "ip".into())
}
