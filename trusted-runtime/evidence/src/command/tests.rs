use super::*;
use crate::testing::{milan, tdx_v4};
use rustix::fs::{OFlags, fcntl_setfl};
use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::Read as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::PathBuf,
};

const ASKED: [u8; 64] = [0x5a; 64];

/// A script in a directory of its own, and the file `quote` beside it.
struct Script {
    dir: tempfile::TempDir,
}

impl Script {
    fn new(body: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        fs::write(&path, format!("#!/bin/sh\nhere={}\n{body}\n", dir.path().display())).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        Self { dir }
    }

    fn with_quote(self, quote: &[u8]) -> Self {
        fs::write(self.dir.path().join("quote"), quote).unwrap();
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, arguments: &[&str], platform: &str) -> ExternalCommand {
        let mut argv = vec![self.path("tool").display().to_string()];
        argv.extend(arguments.iter().map(|a| (*a).to_owned()));
        ExternalCommand::new(argv, platform).unwrap()
    }

    fn error(&self) -> String {
        match self.command(&[], "tdx").collect(&ASKED).unwrap_err() {
            SourceError::Quote(text) => text,
            other @ SourceError::NoTee(_) => panic!("{other}"),
        }
    }
}

fn quote_over(report_data: &[u8; 64]) -> Vec<u8> {
    let mut quote = tdx_v4();
    quote[568..632].copy_from_slice(report_data);
    quote
}

#[test]
fn report_data_goes_in_raw_and_the_quote_comes_back() {
    let script = Script::new("cat > $here/input; cat $here/quote").with_quote(&quote_over(&ASKED));
    let collected = script.command(&[], "tdx").collect(&ASKED).unwrap();
    assert_eq!((collected.platform, collected.quote), (Platform::Tdx, quote_over(&ASKED)));
    assert_eq!(fs::read(script.path("input")).unwrap(), ASKED);
}

#[test]
fn report_data_goes_into_arguments_which_no_shell_reads() {
    let script =
        Script::new("printf '%s\\n' \"$@\" > $here/arguments; cat $here/quote").with_quote(&quote_over(&ASKED));
    script.command(&["--hex={report_data}", "$(touch /tmp/x); *"], "tdx").collect(&ASKED).unwrap();
    let arguments = fs::read_to_string(script.path("arguments")).unwrap();
    assert_eq!(arguments, format!("--hex={}\n$(touch /tmp/x); *\n", "5a".repeat(64)));
}

#[test]
fn the_environment_is_path_alone() {
    let script = Script::new("/usr/bin/env > $here/env; cat $here/quote").with_quote(&quote_over(&ASKED));
    script.command(&[], "tdx").collect(&ASKED).unwrap();
    let env = fs::read_to_string(script.path("env")).unwrap();
    let names: Vec<_> = env.lines().filter_map(|l| l.split_once('=')).map(|(name, _)| name).collect();
    assert!(names.iter().all(|n| ["PATH", "PWD", "SHLVL", "OLDPWD", "_"].contains(n)), "{names:?}");
}

#[test]
fn an_old_answer_is_not_handed_out() {
    let script = Script::new("cat $here/quote").with_quote(&quote_over(&[1; 64]));
    assert!(script.error().contains("report data in the quote is not what was asked for"));
}

#[test]
fn the_exit_status_and_the_last_line_of_stderr_are_told() {
    let script =
        Script::new("echo first >&2; echo 'cannot open /dev/tdx_guest' >&2; echo >&2; cat $here/quote; exit 7")
            .with_quote(&quote_over(&ASKED));
    let error = script.error();
    assert!(error.contains("exit status: 7; last line of standard error: cannot open /dev/tdx_guest"), "{error}");
    assert!(Script::new("kill -9 $$").error().contains("signal: 9"));
}

#[test]
fn silence_is_not_a_quote() {
    assert!(Script::new("exit 0").error().contains("quote is empty"));
    assert!(Script::new("echo no").error().contains("quote has 3 bytes, expected at least 636"));
}

#[test]
fn a_program_that_never_ends_is_killed_with_what_it_started() {
    // Both hold the writing end of `alive`, and wait for `never`, which nobody writes.
    let body = "exec 4>$here/alive; (read line <$here/never) & read line <$here/never";
    let script = Script::new(body);
    for fifo in ["alive", "never"] {
        assert!(std::process::Command::new("mkfifo").arg(script.path(fifo)).status().unwrap().success());
    }
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap();
    let mut alive = fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(script.path("alive")).unwrap();
    let mut command = script.command(&[], "tdx");
    command.limits.time = Duration::from_millis(500);
    let error = command.collect(&ASKED).unwrap_err().to_string();
    assert!(error.ends_with("no answer within 0.5 s"), "{error}");
    // Ends when nobody holds the other end any more.
    fcntl_setfl(&alive, OFlags::empty()).unwrap();
    assert_eq!(alive.read(&mut [0]).unwrap(), 0);
}

#[test]
fn output_beyond_the_cap_is_not_taken() {
    let script = Script::new("while :; do echo 0123456789; done");
    let mut command = script.command(&[], "tdx");
    command.limits.bytes = 1000;
    let error = command.collect(&ASKED).unwrap_err().to_string();
    assert!(error.ends_with("standard output has more than 1000 bytes"), "{error}");
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let command = ExternalCommand::new(vec!["/nowhere/tool".into()], "tdx").unwrap();
    assert!(command.collect(&ASKED).unwrap_err().to_string().contains("/nowhere/tool: cannot be started"));
}

#[test]
fn the_configuration_is_checked() {
    let error = |argv: &[&str], platform| {
        let argv = argv.iter().map(|a| (*a).to_owned()).collect();
        ExternalCommand::new(argv, platform).unwrap_err().to_string()
    };
    assert!(error(&[], "tdx").starts_with("attestation.command is empty"));
    assert!(error(&["tool"], "tdx").starts_with("attestation.command is tool, expected an absolute path"));
    for platform in ["", "TDX", "sample", "simulated"] {
        assert!(
            error(&["/tool"], platform).starts_with(&format!("attestation.platform is \"{platform}\", expected tdx"))
        );
    }
}

fn azure_lines() -> Vec<String> {
    let mut attest = vec![0xff, b'T', b'C', b'G', 0x80, 0x18, 0, 1, 7, 0, 32];
    attest.extend_from_slice(&Sha256::digest(ASKED));
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    vec![
        answer::HEADER.to_owned(),
        format!("quote {}", hex(&tdx_v4())),
        format!("hcl_report {}", hex(b"hcl")),
        format!("tpm_quote {}", hex(&attest)),
        format!("tpm_signature {}", hex(b"signature").to_uppercase()),
        format!("pcrs {}", hex(&[3; 768])),
    ]
}

#[test]
fn azure_answers_in_lines() {
    let script = Script::new("cat $here/quote").with_quote(azure_lines().join("\n").as_bytes());
    let collected = script.command(&[], "azure_tdx").collect(&ASKED).unwrap();
    let azure = collected.azure.unwrap();
    assert_eq!(collected.platform, Platform::AzureTdx);
    assert_eq!((azure.hcl_report.as_ref(), azure.tpm_signature.as_ref()), (b"hcl".as_slice(), b"signature".as_slice()));
    assert_eq!(azure.pcrs.len(), 768);
    let other = script.command(&[], "azure_tdx").collect(&[0; 64]).unwrap_err().to_string();
    assert!(other.contains("report data in the TPM quote is not what was asked for"), "{other}");
}

#[test]
fn each_missing_or_wrong_field_is_named() {
    let parse = |lines: &[String]| answer::parse(Platform::AzureTdx, lines.join("\n").into_bytes());
    let lines = azure_lines();
    for (index, name) in ["quote", "hcl_report", "tpm_quote", "tpm_signature", "pcrs"].into_iter().enumerate() {
        let mut lines = lines.clone();
        lines.remove(index + 1);
        assert_eq!(parse(&lines), Err(AnswerError::Missing(name)));
    }
    let changed = |index: usize, line: &str| {
        let mut lines = lines.clone();
        lines[index] = line.to_owned();
        parse(&lines)
    };
    assert_eq!(changed(0, "bifrost-evidence/2"), Err(AnswerError::NoHeader));
    assert_eq!(changed(2, "report 00"), Err(AnswerError::Unknown(3)));
    assert_eq!(changed(2, "quote 00"), Err(AnswerError::Twice("quote")));
    for line in ["", "hcl_report", "hcl_report 0", "hcl_report 0g", "hcl_report  00"] {
        assert_eq!(changed(2, line), Err(AnswerError::Line(3)), "{line}");
    }
    assert_eq!(changed(5, "pcrs 00"), Err(AnswerError::Size { field: "pcrs", found: 1, expected: "768" }));
    assert_eq!(answer::parse(Platform::AzureTdx, tdx_v4()), Err(AnswerError::NoHeader));
    let foreign = answer::parse(Platform::Tdx, lines.join("\n").into_bytes());
    assert_eq!(foreign, Err(AnswerError::Foreign("hcl_report")));
}

#[test]
fn snp_may_bring_certificates() {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let text = format!("{}\nquote {}\ncertificates 0102\n", answer::HEADER, hex(&milan()));
    let collected = answer::parse(Platform::SevSnp, text.into_bytes()).unwrap();
    assert_eq!((collected.quote, collected.certificates), (milan(), vec![1, 2]));
}
