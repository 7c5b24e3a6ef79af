use super::{
    serve::{Service, Tee},
    *,
};
use crate::{
    configfs::ConfigfsTsm,
    fs::Files as _,
    rtmr::{self, Rtmr3, replay},
    testing::{Machine, tdx_v4},
};
use proptest::prelude::*;
use std::{io::Write as _, os::unix::net::UnixListener, thread::JoinHandle};

const ASKED: [u8; 64] = [0x33; 64];

fn event(name: &str, payload: &'static [u8]) -> RuntimeEvent {
    RuntimeEvent { name: name.into(), payload: payload.into() }
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn service(machine: &Machine, allowed: u32) -> Service<Machine> {
    let machine = machine.clone();
    let find = move || {
        let source = Box::new(ConfigfsTsm::open(machine.clone())?);
        Ok(Tee { source, rtmr3: Rtmr3::open(machine.clone(), rtmr::LOG.into())? })
    };
    Service::new(find, allowed)
}

/// A helper that serves so many connections, and what it says of each.
fn helper(machine: &Machine, allowed: u32, connections: usize) -> (tempfile::TempDir, JoinHandle<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
    let mut service = service(machine, allowed);
    let thread = std::thread::spawn(move || {
        let serve = |_| match service.serve(listener.accept().unwrap().0) {
            Ok(()) => "served".to_owned(),
            Err(error) => error.to_string(),
        };
        (0..connections).map(serve).collect()
    });
    (dir, thread)
}

#[test]
fn a_runtime_gets_its_quote_with_the_registers_log() {
    let machine = Machine::tdx().with_rtmr3().with_event_log(b"boot");
    // One connection to see that it is there, two events, two quotes.
    let (dir, thread) = helper(&machine, me(), 5);
    let events = [event("model", b"abc"), event("config", b"1")];
    let source = Helper::open(&dir.path().join("socket"), &events).unwrap();
    for asked in [ASKED, [0; 64]] {
        let collected = source.collect(&asked).unwrap();
        assert_eq!((collected.platform, &collected.quote[568..632]), (Platform::Tdx, asked.as_slice()));
        assert_eq!(
            (collected.event_log.as_slice(), collected.runtime_log.as_slice()),
            (b"boot".as_slice(), events.as_slice())
        );
    }
    assert_eq!(machine.file(rtmr::REGISTER).unwrap(), replay(&events));
    assert_eq!(thread.join().unwrap()[1..], ["served"; 4]);
}

#[test]
fn after_the_first_quote_only_the_same_events_are_taken() {
    let machine = Machine::tdx().with_rtmr3();
    let (dir, thread) = helper(&machine, me(), 7);
    let socket = dir.path().join("socket");
    Helper::open(&socket, &[event("config", b"1")]).unwrap().collect(&ASKED).unwrap();
    // The runtime starts again.
    Helper::open(&socket, &[event("config", b"1")]).unwrap();
    let error = Helper::open(&socket, &[event("config", b"2")]).unwrap_err().to_string();
    assert!(error.starts_with("helper: event config of rtmr3 differs"), "{error}");
    assert_eq!(machine.file(rtmr::REGISTER).unwrap(), replay(&[event("config", b"1")]));
    drop(thread);
}

#[test]
fn without_a_register_events_are_passed_over() {
    let (dir, thread) = helper(&Machine::snp(), me(), 3);
    let source = Helper::open(&dir.path().join("socket"), &[event("a", b""), event("b", b"")]).unwrap();
    let collected = source.collect(&ASKED).unwrap();
    assert_eq!((collected.platform, collected.certificates.as_slice()), (Platform::SevSnp, b"a table".as_slice()));
    assert!(collected.runtime_log.is_empty());
    thread.join().unwrap();
}

#[test]
fn another_user_gets_nothing() {
    let machine = Machine::tdx();
    let (dir, thread) = helper(&machine, me() + 1, 2);
    let source = Helper::open(&dir.path().join("socket"), &[]).unwrap();
    assert!(matches!(source.collect(&ASKED), Err(SourceError::Quote(_))));
    let expected = format!("peer has uid {}, expected {}", me(), me() + 1);
    assert_eq!(thread.join().unwrap(), [expected.clone(), expected]);
    assert_eq!(machine.state().quotes, 0);
}

#[test]
fn the_hosts_fault_reaches_the_runtime_in_words() {
    let machine = Machine::tdx();
    let (dir, _thread) = helper(&machine, me(), 3);
    let source = Helper::open(&dir.path().join("socket"), &[]).unwrap();
    machine.state().quote.clear();
    let error = source.collect(&ASKED).unwrap_err().to_string();
    assert!(error.starts_with("no quote: helper: quote is empty"), "{error}");
    machine.state().provider = None;
    assert!(source.collect(&ASKED).unwrap_err().to_string().starts_with("no TEE: helper: "));
}

#[test]
fn a_helper_without_a_tee_says_so_and_finds_one_later() {
    let machine = Machine::tdx().with_rtmr3();
    machine.state().provider = None;
    let (dir, _thread) = helper(&machine, me(), 6);
    let socket = dir.path().join("socket");
    let error = SourceError::from(Helper::open(&socket, &[event("config", b"1")]).unwrap_err());
    assert!(matches!(&error, SourceError::NoTee(text) if text.contains("has no provider")), "{error}");
    machine.state().provider = Some("tdx_guest\n");
    let source = Helper::open(&socket, &[event("config", b"1")]).unwrap();
    assert_eq!(source.collect(&ASKED).unwrap().runtime_log, [event("config", b"1")]);
}

#[test]
fn a_register_that_the_log_does_not_explain_is_told_to_the_runtime() {
    let machine = Machine::tdx().with_rtmr3();
    machine.write(Path::new(rtmr::REGISTER), &[1; 48]).unwrap();
    let (dir, _thread) = helper(&machine, me(), 2);
    let source = Helper::open(&dir.path().join("socket"), &[]).unwrap();
    let error = source.collect(&ASKED).unwrap_err().to_string();
    assert!(error.contains("something else extended it"), "{error}");
    assert_eq!(machine.state().quotes, 0);
}

#[test]
fn nothing_but_64_bytes_is_a_request() {
    let machine = Machine::tdx();
    let requests: [&[u8]; 6] = [b"", &[1; 64], &[1; 66], &[0; 65], &[2, 0, 1, 0, 0], &[2, 0, 0, 0, 3, 1]];
    let (dir, thread) = helper(&machine, me(), requests.len());
    for request in requests {
        let mut stream = UnixStream::connect(dir.path().join("socket")).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(Answer::read(&mut stream).is_err());
    }
    let said = thread.join().unwrap();
    assert_eq!(
        said[2..5],
        ["bytes after the end", "kind is 0, which is none", "length is 65536, expected at most 1104"]
    );
    assert!(said.iter().all(|s| s != "served"));
    assert_eq!(machine.state().quotes, 0);
}

#[test]
fn an_answer_about_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let thread = std::thread::spawn(move || {
        for (platform, quote) in [(Platform::Tdx, tdx_v4()), (Platform::AzureTdx, tdx_v4())] {
            let mut stream = listener.accept().unwrap().0;
            Request::read(&mut stream).unwrap();
            let collected = Collected { platform, quote, ..Collected::default() };
            Answer::Quoted(Box::new(collected)).write(&mut stream).unwrap();
        }
    });
    let source = Helper { socket };
    let error = source.collect(&ASKED).unwrap_err().to_string();
    assert!(error.contains("report data in the quote is not what was asked for"), "{error}");
    assert!(source.collect(&ASKED).unwrap_err().to_string().contains("answer of another kind"));
    thread.join().unwrap();
}

#[test]
fn nobody_there_is_no_tee() {
    let error = Helper::open(Path::new("/nowhere/socket"), &[]).unwrap_err();
    assert!(matches!(SourceError::from(error), SourceError::NoTee(text) if text.starts_with("/nowhere/socket: ")));
}

proptest! {
    #[test]
    fn requests_and_answers_come_back(name in ".{0,16}", payload in prop::collection::vec(any::<u8>(), 0..1024)) {
        let event = RuntimeEvent { name, payload: payload.into() };
        for request in [Request::Quote(ASKED), Request::Extend(event.clone())] {
            let mut bytes = Vec::new();
            request.write(&mut bytes).unwrap();
            prop_assert_eq!(Request::read(&mut bytes.as_slice()).unwrap(), request);
        }
        let collected = Collected { platform: Platform::Tdx, quote: tdx_v4(), runtime_log: vec![event], ..Collected::default() };
        for answer in [Answer::Quoted(Box::new(collected)), Answer::Extended, Answer::NoRegister, Answer::Failed("why".into())] {
            let mut bytes = Vec::new();
            answer.clone().write(&mut bytes).unwrap();
            prop_assert_eq!(Answer::read(&mut bytes.as_slice()).unwrap(), answer);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::read(&mut bytes.as_slice());
        let _ = Answer::read(&mut bytes.as_slice());
    }
}
