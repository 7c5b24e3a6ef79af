use super::*;
use crate::testing::Machine;
use rustix::io::Errno;

fn event(name: &str, payload: &'static [u8]) -> RuntimeEvent {
    RuntimeEvent { name: name.into(), payload: payload.into() }
}

fn open(machine: &Machine) -> Rtmr3<Machine> {
    Rtmr3::open(machine.clone(), LOG.into()).unwrap().unwrap()
}

#[test]
fn the_encoding_is_pinned() {
    // hashlib.sha384(b"\0\0\0\x05model\0\0\0\x03abc"), and of 48 zeros and that.
    assert_eq!(hex(&event_digest(&event("model", b"abc"))), DIGEST);
    assert_eq!(hex(&replay(&[event("model", b"abc")])), REPLAYED);
    assert_eq!(replay(&[]), [0; 48]);
    assert_ne!(event_digest(&event("ab", b"c")), event_digest(&event("a", b"bc")));
}

#[test]
fn without_the_register_there_is_no_log() {
    assert!(Rtmr3::open(Machine::tdx(), LOG.into()).unwrap().is_none());
}

#[test]
fn a_register_that_cannot_be_written_is_none() {
    let machine = Machine::tdx().with_rtmr3();
    machine.state().read_only = true;
    assert!(Rtmr3::open(machine, LOG.into()).unwrap().is_none());
}

#[test]
fn the_log_explains_the_register() {
    let machine = Machine::tdx().with_rtmr3();
    let mut rtmr3 = open(&machine);
    rtmr3.extend(event("model", b"abc")).unwrap();
    assert_eq!(hex(&machine.file(REGISTER).unwrap()), REPLAYED);
    rtmr3.extend(event("config", b"")).unwrap();
    assert_eq!(machine.file(REGISTER).unwrap(), replay(rtmr3.log()));
    assert_eq!(rtmr3.log().len(), 2);
}

#[test]
fn a_process_that_starts_again_goes_on_with_the_log() {
    let machine = Machine::tdx().with_rtmr3();
    let events = [event("model", b"abc"), event("config", b"1")];
    for _ in 0..3 {
        let mut rtmr3 = open(&machine);
        events.iter().for_each(|e| rtmr3.extend(e.clone()).unwrap());
        assert_eq!(rtmr3.log(), events);
    }
    let mut rtmr3 = open(&machine);
    // Another configuration is a new event, and so is the way back.
    rtmr3.extend(event("config", b"2")).unwrap();
    rtmr3.extend(event("config", b"1")).unwrap();
    assert_eq!(rtmr3.log().len(), 4);
    assert_eq!(machine.file(REGISTER).unwrap(), replay(open(&machine).log()));
}

#[test]
fn after_sealing_only_what_is_there_is_accepted() {
    let machine = Machine::tdx().with_rtmr3();
    let mut rtmr3 = open(&machine);
    rtmr3.extend(event("config", b"1")).unwrap();
    rtmr3.seal().unwrap();
    rtmr3.seal().unwrap();
    rtmr3.extend(event("config", b"1")).unwrap();
    let error = open(&machine).extend(event("config", b"2")).unwrap_err().to_string();
    assert_eq!(error, "event config of rtmr3 differs from the one before the first quote: restart the guest");
    assert_eq!(machine.file(REGISTER).unwrap(), replay(&[event("config", b"1")]));
}

#[test]
fn a_register_that_something_else_extended_is_an_error() {
    let machine = Machine::tdx().with_rtmr3();
    machine.write(Path::new(REGISTER), &[1; 48]).unwrap();
    let error = Rtmr3::open(machine, LOG.into()).unwrap_err().to_string();
    assert!(error.contains("expected 000000") && error.contains("by the log of 0 events"), "{error}");
}

#[test]
fn a_log_that_is_one_ahead_is_mended_and_one_behind_is_not() {
    let machine = Machine::tdx().with_rtmr3();
    let mut rtmr3 = open(&machine);
    rtmr3.extend(event("model", b"abc")).unwrap();
    let (log, register) = (machine.file(LOG).unwrap(), machine.file(REGISTER).unwrap());
    rtmr3.extend(event("config", b"1")).unwrap();
    machine.replace(Path::new(REGISTER), &register).unwrap();
    assert_eq!(open(&machine).log(), [event("model", b"abc")]);

    open(&machine).extend(event("config", b"1")).unwrap();
    machine.replace(Path::new(LOG), &log).unwrap();
    assert!(matches!(Rtmr3::open(machine, LOG.into()), Err(RegisterError::Unexplained { events: 1, .. })));
}

#[test]
fn an_event_that_could_not_be_written_is_not_in_the_log() {
    let machine = Machine::tdx().with_rtmr3();
    let mut rtmr3 = open(&machine);
    machine.state().files.remove(Path::new(REGISTER));
    assert!(matches!(rtmr3.extend(event("model", b"abc")), Err(RegisterError::Io { .. })));
    assert!(rtmr3.log().is_empty());
}

#[test]
fn sizes_are_limited() {
    let machine = Machine::tdx().with_rtmr3();
    let mut rtmr3 = open(&machine);
    let long = event(&"n".repeat(MAX_NAME + 1), b"");
    assert!(rtmr3.extend(long).unwrap_err().to_string().ends_with("has 65 bytes of name, expected at most 64"));
    assert!(rtmr3.extend(event("p", &[0; MAX_PAYLOAD + 1])).is_err());
    for i in 0..MAX_EVENTS {
        rtmr3.extend(event(&i.to_string(), &[0; MAX_PAYLOAD])).unwrap();
    }
    assert!(rtmr3.extend(event("more", b"")).unwrap_err().to_string().contains("32 events before it"));
    assert_eq!(open(&machine).log().len(), MAX_EVENTS);
}

#[test]
fn a_damaged_or_unreadable_log_is_an_error() {
    let machine = Machine::tdx().with_rtmr3();
    machine.replace(Path::new(LOG), &[0xff; 9]).unwrap();
    assert!(matches!(Rtmr3::open(machine.clone(), LOG.into()), Err(RegisterError::Damaged(_))));
    machine.fail("rtmr3.log", &[Errno::ACCESS]);
    assert!(matches!(Rtmr3::open(machine, LOG.into()), Err(RegisterError::Io { .. })));
}

const DIGEST: &str = "e3dc5786edb5180022fa6ab0b956bbd325bce5ddfe9a3dc2c2d8858a8a20b6d12a883de6f0ddeb5e5b13a003c0633061";
const REPLAYED: &str =
    "c40f4f27bd2ddcd8fa70b8c3c95a451f70eb6f38bc92f0b795e7ec7c60b1561cf25d8d8502b46483a1c0818c5cf99185";
