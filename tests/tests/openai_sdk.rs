//! The `openai` Python package, unmodified, against `bifrost proxy`; see `tests/sdk/openai_sdk.py`.

use e2e::{fixtures::chatty, stage::Stage};
use std::{io::Write, path::Path, process::Command};

const PACKAGE: &str = "openai==3.57.0";
/// SHA-256 of "hello".
const KEY: &str = "model = \"tiny\"\n[[keys]]\nname = \"sdk\"\nsha256 = \"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_openai_package_works_unmodified() -> anyhow::Result<()> {
    let stage = Stage::new()?;
    let dir = stage.dir().join("venv");
    if let Err(reason) = installed(&dir) {
        assert!(
            std::env::var_os("BIFROST_REQUIRE_OPENAI").is_none_or(|v| v != "1"),
            "{PACKAGE} is required here (BIFROST_REQUIRE_OPENAI=1) and cannot be had: {reason}"
        );
        // Past the capture of passed tests' output: a skip must be seen.
        let line = format!("SKIPPED the_openai_package_works_unmodified: {PACKAGE} cannot be had here: {reason}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        return Ok(());
    }
    let model = chatty("llama", &stage.dir());
    let enclave = stage.enclave(&model.to_string_lossy(), None, &[]).await?;
    let proxy = stage.proxy(&enclave, KEY, &[]).await?;
    let slow = stage.enclave("synthetic:gpt2-124m", None, &[]).await?;
    let limited = stage.proxy(&slow, &format!("{KEY}max_concurrent = 1\n"), &[]).await?;
    let urls = [proxy.port, limited.port].map(|port| format!("http://127.0.0.1:{port}"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/openai_sdk.py");
    let work =
        move || Command::new(dir.join("bin/python")).arg(script).args(urls).env_remove("OPENAI_API_KEY").output();
    let out = tokio::task::spawn_blocking(work).await??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&out.stdout));
    assert!(out.status.success(), "{}\n{}", text(&out.stdout), text(&out.stderr));
    Ok(())
}

/// Puts the package into a virtual environment of its own.
fn installed(dir: &Path) -> Result<(), String> {
    let run = |command: &mut Command| {
        let out = command.output().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let text = String::from_utf8_lossy(&out.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
        if out.status.success() { Ok(()) } else { Err(last.to_owned()) }
    };
    run(Command::new("python3").args(["-m", "venv"]).arg(dir))?;
    let quiet = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", PACKAGE];
    run(Command::new(dir.join("bin/python")).args(quiet))
}
