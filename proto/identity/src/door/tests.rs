use super::*;
use crate::{
    Caller, Pin,
    testing::{Authority, DAY, Made, Standing, files, noon},
};
use std::path::Path;
use tokio::net::TcpListener;

/// Both ends of one meeting: what the door says, and what the caller hears.
type Meeting = (Result<(), Refused>, Result<String, String>);

fn clock(at: SystemTime) -> Arc<dyn TimeProvider> {
    Arc::new(Standing(at))
}

fn door(dir: &Path, own: &Made, ca: &Authority, pins: &[Pin]) -> Door {
    Door::open(files(dir, "door", own, &ca.pem), pins.to_vec().into(), clock(noon())).unwrap()
}

fn caller(dir: &Path, own: &Made, ca: &Authority, pins: &[Pin]) -> Caller {
    Caller::open(files(dir, "caller", own, &ca.pem), pins.to_vec().into(), clock(noon())).unwrap()
}

/// The door greets whom it lets in.
async fn meet(door: &Door, caller: &Caller) -> Meeting {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let accept = async {
        let (tcp, _) = listener.accept().await.unwrap();
        let mut stream = door.accept(tcp).await?;
        let connection = stream.get_ref().1;
        assert_eq!(connection.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(connection.alpn_protocol(), Some(ALPN));
        stream.write_all(b"hello").await.unwrap();
        stream.shutdown().await.unwrap();
        Ok(())
    };
    let call = async {
        let mut line = caller.connect("localhost", port).await.map_err(|e| e.to_string())?;
        let mut greeting = String::new();
        line.write_all(b"something that is on its way when the door refuses").await.map_err(|e| e.to_string())?;
        line.read_to_string(&mut greeting).await.map_err(|e| e.to_string())?;
        Ok(greeting)
    };
    tokio::join!(accept, call)
}

fn pin(made: &Made) -> Pin {
    Pin::of(&made.der).unwrap()
}

struct Scene {
    dir: tempfile::TempDir,
    ca: Authority,
    evaluator: Made,
    runtime: Made,
}

impl Scene {
    fn new() -> Self {
        let ca = Authority::new();
        let (evaluator, runtime) = (ca.good(Usage::Server), ca.good(Usage::Client));
        Self { dir: tempfile::tempdir().unwrap(), ca, evaluator, runtime }
    }

    fn door(&self, pins: &[Pin]) -> Door {
        door(self.dir.path(), &self.evaluator, &self.ca, pins)
    }

    fn caller(&self, pins: &[Pin]) -> Caller {
        caller(self.dir.path(), &self.runtime, &self.ca, pins)
    }
}

fn refused(meeting: Meeting, evaluator_says: &str, runtime_says: &str) {
    let (accepted, called) = meeting;
    let accepted = accepted.expect_err(evaluator_says);
    assert!(accepted.identity && accepted.reason.contains(evaluator_says), "{evaluator_says:?}: {accepted:?}");
    let called = called.expect_err(runtime_says);
    assert!(called.contains(runtime_says), "{runtime_says:?} is not in {called:?}");
}

#[tokio::test]
async fn the_pinned_are_let_in_and_so_is_everybody_without_pins() {
    let s = Scene::new();
    let other = pin(&s.ca.good(Usage::Client));
    for (door_pins, caller_pins) in [
        (vec![], vec![]),
        (vec![pin(&s.runtime)], vec![pin(&s.evaluator)]),
        (vec![other, pin(&s.runtime)], vec![other, pin(&s.evaluator)]),
    ] {
        let (accepted, called) = meet(&s.door(&door_pins), &s.caller(&caller_pins)).await;
        assert_eq!((accepted, called), (Ok(()), Ok("hello".into())));
    }
}

#[tokio::test]
async fn a_wrong_pin_is_named_at_both_ends() {
    let s = Scene::new();
    let other = pin(&s.ca.good(Usage::Client));
    let own = pin(&s.runtime).to_string();
    let met = meet(&s.door(&[other]), &s.caller(&[])).await;
    refused(met, &format!("the pin {own}, which is none of the 1"), &format!("refuses our certificate, pin {own}"));
    let own = pin(&s.evaluator).to_string();
    let met = meet(&s.door(&[]), &s.caller(&[other, other])).await;
    refused(met, &format!("refuses our certificate, pin {own}"), &format!("the pin {own}, which is none of the 2"));
}

#[tokio::test]
async fn another_authority_is_refused_even_with_the_right_pin() {
    let s = Scene::new();
    let stranger = Authority::new();
    let runtime = stranger.good(Usage::Client);
    let caller = caller(s.dir.path(), &runtime, &s.ca, &[]);
    let met = meet(&s.door(&[pin(&runtime)]), &caller).await;
    refused(met, "authority", "refuses our certificate");
    let evaluator = stranger.good(Usage::Server);
    let door = door(s.dir.path(), &evaluator, &s.ca, &[]);
    refused(meet(&door, &s.caller(&[pin(&evaluator)])).await, "refuses our certificate", "authority");
}

/// The own files are read with a clock at which they are good; the other end has another one.
#[tokio::test]
async fn expired_and_not_yet_valid_are_told_apart() {
    let s = Scene::new();
    for (at, says) in [(noon() + 2 * DAY, "has expired on"), (noon() - 2 * DAY, "not valid before")] {
        let late = s.ca.leaf(&[Usage::Server], at - DAY / 2, at + DAY / 2, &["localhost"]);
        let door = Door::open(files(s.dir.path(), "late", &late, &s.ca.pem), Pins::default(), clock(at)).unwrap();
        let (accepted, called) = meet(&door, &s.caller(&[])).await;
        let called = called.expect_err("another time");
        // The runtime, whose clock is right, judges first.
        let says_there = if says == "has expired on" { "not valid before" } else { "has expired on" };
        assert!(called.contains(says_there) && called.contains("check the clock"), "{called}");
        assert!(accepted.expect_err("refused").identity);

        let late = s.ca.leaf(&[Usage::Client], at - DAY / 2, at + DAY / 2, &["localhost"]);
        let files = files(s.dir.path(), "later", &late, &s.ca.pem);
        // Its clock accepts the evaluator's certificate, which is as wide as it takes.
        let wide = s.ca.leaf(&[Usage::Server], noon() - 9 * DAY, noon() + 9 * DAY, &["localhost"]);
        let caller = Caller::open(files, Pins::default(), clock(at)).unwrap();
        let met = meet(&super::tests::door(s.dir.path(), &wide, &s.ca, &[]), &caller).await;
        refused(met, says_there, "refuses our certificate");
    }
}

/// Files of the wrong role are not even loaded, so the wrong role is shown here by whoever does not check itself.
#[tokio::test]
async fn swapped_roles_are_refused() {
    let s = Scene::new();
    let swapped = files(s.dir.path(), "swapped", &s.evaluator, &s.ca.pem);
    let error = Caller::open(swapped, Pins::default(), clock(noon())).err().unwrap().to_string();
    assert!(error.contains("is for serverAuth, expected clientAuth"), "{error}");
    let swapped = files(s.dir.path(), "swapped", &s.runtime, &s.ca.pem);
    let error = Door::open(swapped, Pins::default(), clock(noon())).err().unwrap().to_string();
    assert!(error.contains("is for clientAuth, expected serverAuth"), "{error}");

    let mut caller = s.caller(&[]);
    let shown = Arc::new(
        rustls::sign::CertifiedKey::from_der(
            vec![s.evaluator.der.clone()],
            rustls::pki_types::pem::PemObject::from_pem_slice(s.evaluator.key.as_bytes()).unwrap(),
            &crypto(),
        )
        .unwrap(),
    );
    caller.show(shown);
    refused(meet(&s.door(&[]), &caller).await, "it is for another role", "it is for another role");
}

#[tokio::test]
async fn a_name_that_the_certificate_lacks_is_refused() {
    let s = Scene::new();
    let elsewhere = s.ca.leaf(&[Usage::Server], noon() - DAY, noon() + DAY, &["elsewhere.example"]);
    let met = meet(&door(s.dir.path(), &elsewhere, &s.ca, &[]), &s.caller(&[])).await;
    refused(met, "refuses our certificate", "localhost");
}

#[tokio::test]
async fn new_files_count_for_new_connections_and_bad_ones_never() {
    let s = Scene::new();
    let (door, caller) = (s.door(&[]), s.caller(&[]));
    let first = door.summary();
    assert!(!door.is_stale() && first.contains(&pin(&s.evaluator).to_string()), "{first}");
    // Half of a rotation: the new certificate with the old key.
    let next = s.ca.good(Usage::Server);
    let half = Made { key: s.evaluator.key.clone(), ..next.clone() };
    let mixed = files(s.dir.path(), "door", &half, &s.ca.pem);
    assert!(door.is_stale());
    let error = door.renew(mixed, Pins::default()).unwrap_err().to_string();
    assert!(error.contains("not the key of the certificate"), "{error}");
    assert_eq!(door.summary(), first);
    assert_eq!(meet(&door, &caller).await.1, Ok("hello".into()));
    // The other half, and pins.
    let whole = files(s.dir.path(), "door", &next, &s.ca.pem);
    door.renew(whole, vec![pin(&s.runtime)].into()).unwrap();
    assert!(!door.is_stale() && door.summary().contains(&pin(&next).to_string()), "{}", door.summary());
    assert_eq!(meet(&door, &caller).await.1, Ok("hello".into()));
    // The runtime's own, which is another key now: read without being told, and no longer pinned.
    let renewed = s.ca.good(Usage::Client);
    files(s.dir.path(), "caller", &renewed, &s.ca.pem);
    refused(meet(&door, &caller).await, &pin(&renewed).to_string(), &pin(&renewed).to_string());
    // Broken files: the last good ones stay.
    files(s.dir.path(), "caller", &Made { cert: "-----BEGIN".into(), ..renewed }, &s.ca.pem);
    refused(meet(&door, &caller).await, "which is none of the 1", "refuses our certificate");
}

/// A file of pins is read anew for the next connection; one that cannot be used leaves the last good one in place.
#[tokio::test]
async fn pins_in_a_file_rotate_without_a_restart() {
    let s = Scene::new();
    let (door, path, other) = (s.door(&[]), s.dir.path().join("pins"), s.ca.good(Usage::Server));
    let mut own = files(s.dir.path(), "caller", &s.runtime, &s.ca.pem);
    own.pins = Some(crate::files::Named { setting: "pins_file", path: path.clone() });
    let write = |text: String| std::fs::write(&path, text).unwrap();
    let heard = async |caller: &Caller| meet(&door, caller).await.1;

    write(format!("{}\n", pin(&other)));
    let caller = Caller::open(own, Pins::default(), clock(noon())).unwrap();
    let refusal = heard(&caller).await.unwrap_err();
    assert!(refusal.contains(&pin(&s.evaluator).to_string()), "{refusal}");
    write(format!("{} # old\n{} # new\n", pin(&other), pin(&s.evaluator)));
    assert_eq!(heard(&caller).await, Ok("hello".into()));
    write("# nobody is let in by leaving all of them out\n".into());
    assert_eq!(heard(&caller).await, Ok("hello".into()));
    write(format!("{}\n", pin(&other)));
    assert!(heard(&caller).await.is_err());
}

#[tokio::test]
async fn passers_by_are_not_about_identity() {
    let s = Scene::new();
    let door = s.door(&[]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let (accepted, _) = listener.accept().await.unwrap();
    let answer = async {
        let mut rest = Vec::new();
        let _ = tcp.read_to_end(&mut rest).await;
        drop(tcp);
    };
    let (refusal, ()) = tokio::join!(door.accept(accepted), answer);
    assert!(!refusal.err().unwrap().identity);
}
