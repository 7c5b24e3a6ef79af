use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use identity::{Caller, Door, Files, Pins, Usage, files::Named};

use super::*;

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_788_264_000)
}

fn authority(dir: &Path) -> Result<String, Error> {
    init(&InitArgs { dir: dir.to_owned(), days: 100 }, noon())
}

fn order(dir: &Path, role: LinkRole) -> IssueArgs {
    let name = vec!["gpu-7.example".into(), "10.0.0.7".into(), "localhost".into()];
    IssueArgs { dir: dir.to_owned(), role, name, days: 30, out: None, csr: None, replace: false }
}

fn pin(report: &str) -> &str {
    report.lines().find_map(|l| l.strip_prefix("pin")).unwrap().trim()
}

fn leaf(path: &Path) -> Leaf {
    Leaf::parse(&CertificateDer::from_pem_file(path).unwrap()).unwrap()
}

#[test]
fn an_authority_is_made_once_and_is_private() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("new/authority");
    let report = authority(&at).unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().permissions().mode() & 0o777;
    let (cert, key) = paths(&at);
    assert_eq!((mode(&at), mode(&key)), (0o700, 0o600));
    let made = leaf(&cert);
    assert!(made.authority && report.contains(&made.pin.to_string()), "{report}");
    assert_eq!(made.not_after, noon() + days(100));
    let error = authority(&at).unwrap_err().to_string();
    assert!(error.contains("there is an authority already"), "{error}");
    std::fs::remove_file(&cert).unwrap();
    assert!(authority(&at).is_err(), "its key would be lost");
}

#[test]
fn leaves_have_one_role_and_fit_the_files_of_daemons() {
    let dir = tempfile::tempdir().unwrap();
    authority(dir.path()).unwrap();
    for (role, usage, other) in
        [(LinkRole::Runtime, Usage::Client, Usage::Server), (LinkRole::Evaluator, Usage::Server, Usage::Client)]
    {
        let report = issue(&order(dir.path(), role), noon()).unwrap();
        let file = |end: &str| dir.path().join(format!("{}.{end}", role.name()));
        let made = leaf(&file("pem"));
        assert_eq!(made.usages, Some(vec![usage]));
        assert_eq!(made.names, ["gpu-7.example", "10.0.0.7", "localhost"]);
        assert_eq!((pin(&report), made.not_after), (&*made.pin.to_string(), noon() + days(30)));
        let named = |path| Named { setting: "x", path };
        let ca = named(dir.path().join("ca.pem"));
        let files = Files { cert: named(file("pem")), key: named(file("key")), ca, pins: None };
        files.read(usage, noon()).unwrap();
        assert!(files.read(other, noon()).unwrap_err().to_string().contains("expected"));
        let shown = show(&ShowArgs { file: file("pem") }, noon()).unwrap();
        for says in ["CN=bifrost ", "gpu-7.example, 10.0.0.7, localhost", pin(&report), &usage.to_string(), "2026-"] {
            assert!(shown.contains(says) && !shown.contains("EXPIRED"), "{says:?} is not in {shown}");
        }
        assert!(show(&ShowArgs { file: file("pem") }, noon() + days(31)).unwrap().contains("EXPIRED"));
    }
}

#[test]
fn files_are_replaced_on_demand_only_and_leaves_end_with_their_authority() {
    let dir = tempfile::tempdir().unwrap();
    authority(dir.path()).unwrap();
    let args = order(dir.path(), LinkRole::Evaluator);
    let first = issue(&args, noon()).unwrap();
    let error = issue(&args, noon()).unwrap_err().to_string();
    assert!(error.contains("evaluator.pem: exists already"), "{error}");
    let again = issue(&IssueArgs { replace: true, days: 300, ..args }, noon()).unwrap();
    assert_ne!(pin(&first), pin(&again));
    assert!(again.contains("ends with its authority"), "{again}");
    assert_eq!(leaf(&dir.path().join("evaluator.pem")).not_after, noon() + days(100));
}

#[test]
fn a_request_is_signed_for_its_key_and_what_the_signer_says() {
    let (dir, away) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    authority(dir.path()).unwrap();
    // It asks for another role and another name than it gets.
    let out = away.path().to_owned();
    let args = RequestArgs { role: LinkRole::Evaluator, name: vec!["td.example".into()], out, replace: false };
    let asked = request(&args).unwrap();
    assert!(request(&args).is_err(), "the key would be lost");
    let csr = away.path().join("evaluator.csr");
    let order = IssueArgs { csr: Some(csr.clone()), ..order(dir.path(), LinkRole::Runtime) };
    let got = issue(&order, noon()).unwrap();
    assert_eq!(pin(&asked), pin(&got));
    let made = leaf(&dir.path().join("runtime.pem"));
    assert_eq!((made.usages, made.names[0].as_str()), (Some(vec![Usage::Client]), "gpu-7.example"));
    assert!(!dir.path().join("runtime.key").exists());
    // One whose signature is of another key, and one that is none.
    let text = std::fs::read_to_string(&csr).unwrap();
    let mut body: Vec<String> = text.lines().map(str::to_owned).collect();
    let line = body.len() - 3;
    body[line] = body[line].chars().rev().collect();
    for bad in [body.join("\n"), "nothing".into()] {
        std::fs::write(&csr, bad).unwrap();
        let error = issue(
            &IssueArgs { replace: true, csr: Some(csr.clone()), ..self::order(dir.path(), LinkRole::Runtime) },
            noon(),
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains("not a signed certificate request"), "{error}");
    }
}

#[test]
fn an_authority_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let args = || order(dir.path(), LinkRole::Runtime);
    let refused = |at, says: &str| {
        let error = issue(&args(), at).expect_err(says).to_string();
        assert!(error.contains(says), "{says:?} is not in {error:?}");
    };
    refused(noon(), "ca.pem: No such file");
    authority(dir.path()).unwrap();
    refused(noon() + days(101), "has expired");
    refused(noon() - days(1), "check the clock");
    let (cert, key) = paths(dir.path());
    std::fs::set_permissions(&key, Permissions::from_mode(0o640)).unwrap();
    refused(noon(), "mode 640 lets others at the key");
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let good = std::fs::read_to_string(&key).unwrap();
    std::fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    refused(noon(), "not the key of");
    std::fs::write(&key, &good[..good.len() / 2]).unwrap();
    refused(noon(), "not a private key");
    std::fs::write(&key, good).unwrap();
    issue(&args(), noon()).unwrap();
    std::fs::copy(dir.path().join("runtime.pem"), cert).unwrap();
    refused(noon(), "not an authority");
    for bad in ["gpu 7", "host:443", "", "https://host"] {
        let error = params(LinkRole::Runtime, &[bad.into()]).expect_err(bad);
        assert!(matches!(error, Error::Usage(_)), "{error}");
    }
}

/// The two ends meet with what `issue` makes, by the clock that made it.
#[tokio::test]
async fn what_is_issued_connects() {
    #[derive(Debug)]
    struct Noon;
    impl rustls::time_provider::TimeProvider for Noon {
        fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
            Some(rustls::pki_types::UnixTime::since_unix_epoch(noon().duration_since(SystemTime::UNIX_EPOCH).ok()?))
        }
    }
    let dir = tempfile::tempdir().unwrap();
    authority(dir.path()).unwrap();
    let reports = [LinkRole::Runtime, LinkRole::Evaluator].map(|role| issue(&order(dir.path(), role), noon()).unwrap());
    let files = |role: &str| {
        let named = |name: String| Named { setting: "x", path: dir.path().join(name) };
        let (cert, key) = (named(format!("{role}.pem")), named(format!("{role}.key")));
        Files { cert, key, ca: named("ca.pem".into()), pins: None }
    };
    let pins = |i: usize| Pins::parse("x", pin(&reports[i])).unwrap();
    let door = Door::open(files("evaluator"), pins(0), std::sync::Arc::new(Noon)).unwrap();
    let caller = Caller::open(files("runtime"), pins(1), std::sync::Arc::new(Noon)).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accept = async { door.accept(listener.accept().await.unwrap().0).await };
    let (accepted, called) = tokio::join!(accept, caller.connect("localhost", port));
    assert!(accepted.is_ok() && called.is_ok());
}
