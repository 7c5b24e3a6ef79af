use super::*;
use crate::{
    helper::serve::{Service, Tee},
    rtmr::replay,
    testing::{Machine, tdx_v4},
};
use proto::v1::Platform;
use std::os::unix::net::UnixListener;

fn event(payload: &'static [u8]) -> RuntimeEvent {
    RuntimeEvent { name: "model".into(), payload: payload.into() }
}

/// Settings whose helper is not there.
fn settings(source: Choice) -> Settings {
    Settings { source, helper_socket: "/nowhere/socket".into(), ..Settings::default() }
}

fn error(machine: &Machine, settings: &Settings) -> SourceError {
    open_on(machine.clone(), settings, &[]).err().unwrap()
}

#[test]
fn the_kernels_interface_is_found_and_tried() {
    for choice in [Choice::Auto, Choice::ConfigfsTsm] {
        let machine = Machine::tdx().with_rtmr3();
        let source = open_on(machine.clone(), &settings(choice), &[event(b"abc")]).unwrap();
        assert_eq!(source.name(), "configfs_tsm (tdx_guest)");
        assert_eq!(machine.state().quotes, 1);
        let collected = source.collect(&[1; 64]).unwrap();
        assert_eq!(collected.runtime_log, [event(b"abc")]);
        assert_eq!(machine.file(rtmr::REGISTER).unwrap(), replay(&collected.runtime_log));
    }
}

#[test]
fn a_runtime_that_starts_again_extends_nothing() {
    let machine = Machine::tdx().with_rtmr3();
    for _ in 0..2 {
        let source = open_on(machine.clone(), &settings(Choice::Auto), &[event(b"abc")]).unwrap();
        assert_eq!(source.collect(&[1; 64]).unwrap().runtime_log, [event(b"abc")]);
    }
    assert_eq!(machine.file(rtmr::REGISTER).unwrap(), replay(&[event(b"abc")]));
}

#[test]
fn no_tee_lists_what_was_looked_at() {
    let text = error(&Machine::default(), &settings(Choice::Auto)).to_string();
    assert!(
        text.starts_with("no TEE: helper: /nowhere/socket does not exist; /sys/kernel/config/tsm/report"),
        "{text}"
    );
    let machine = Machine::tdx();
    machine.state().provider = None;
    let text = error(&machine, &settings(Choice::Auto)).to_string();
    assert!(text.contains("/nowhere/socket does not exist") && text.contains("has no provider"), "{text}");
    assert_eq!(text.contains("; azure_vtpm: "), cfg!(feature = "azure_vtpm"), "{text}");
}

#[test]
fn a_dead_helper_is_listed_with_its_error() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    drop(UnixListener::bind(&socket).unwrap());
    let settings = Settings { helper_socket: socket.clone(), ..settings(Choice::Auto) };
    let text = error(&Machine::default(), &settings).to_string();
    assert!(text.contains(&format!("{}: Connection refused", socket.display())), "{text}");
    assert!(text.contains("/sys/kernel/config/tsm/report does not exist"), "{text}");
}

#[test]
fn the_helper_comes_before_the_kernels_interface() {
    let machine = Machine::tdx();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    let uid = rustix::process::geteuid().as_raw();
    let guest = machine.clone();
    let find = move || Ok(Tee { source: Box::new(ConfigfsTsm::open(guest.clone())?), rtmr3: None });
    let mut service = Service::<Machine>::new(find, uid);
    std::thread::spawn(move || service.run(&listener));
    let settings = Settings { helper_socket: socket, ..settings(Choice::Auto) };
    let source = open_on(machine, &settings, &[]).unwrap();
    assert_eq!((source.name(), source.collect(&[1; 64]).unwrap().platform), ("helper", Platform::Tdx));
}

#[test]
fn a_tee_that_does_not_work_is_an_error_and_not_a_reason_to_look_on() {
    let machine = Machine::tdx();
    machine.state().quote.clear();
    let error = error(&machine, &settings(Choice::Auto));
    assert!(matches!(&error, SourceError::Quote(text) if text.starts_with("quote is empty")), "{error}");
}

#[test]
fn a_chosen_source_is_the_only_one_looked_at() {
    let text = error(&Machine::tdx(), &settings(Choice::Helper)).to_string();
    assert!(text.starts_with("no TEE: /nowhere/socket: "), "{text}");
    let text = error(&Machine::tdx(), &settings(Choice::ExternalCommand)).to_string();
    assert!(text.starts_with("no TEE: attestation.platform is \"\", expected tdx"), "{text}");
    let text = error(&Machine::tdx(), &settings(Choice::AzureVtpm)).to_string();
    let says = if cfg!(feature = "azure_vtpm") { "virtual TPM of Azure: /dev/tpm0: " } else { "was built without it" };
    assert!(text.starts_with("no TEE: azure_vtpm: ") && text.contains(says), "{text}");
}

#[test]
fn a_command_is_tried_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("quote"), tdx_v4()).unwrap();
    let command = vec!["/bin/cat".to_owned(), dir.path().join("quote").display().to_string()];
    let settings = Settings { command, platform: "tdx".into(), ..settings(Choice::ExternalCommand) };
    let text = error(&Machine::default(), &settings).to_string();
    assert!(text.contains("answer of /bin/cat: report data in the quote is not what was asked for"), "{text}");
}

#[test]
fn settings_are_read_as_documented_and_typos_are_errors() {
    let read = |text: &str| toml::from_str::<Settings>(text);
    assert_eq!(read("").unwrap(), Settings::default());
    let all = "source = \"external_command\"\ncommand = [\"/a\", \"b\"]\nplatform = \"tdx\"\nhelper_socket = \"/s\"";
    let all = read(all).unwrap();
    assert_eq!((all.source, all.command.len(), all.helper_socket), (Choice::ExternalCommand, 2, "/s".into()));
    for (text, choice) in [
        ("auto", Choice::Auto),
        ("configfs_tsm", Choice::ConfigfsTsm),
        ("helper", Choice::Helper),
        ("azure_vtpm", Choice::AzureVtpm),
    ] {
        assert_eq!(read(&format!("source = \"{text}\"")).unwrap().source, choice);
    }
    for wrong in ["source = \"sample\"", "source = \"none\"", "sorce = \"auto\"", "source = \"\""] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
