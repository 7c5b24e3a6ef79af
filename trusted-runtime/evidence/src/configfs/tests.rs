//! Each row of what kernel and hosts are known to do, against an imitated kernel.

use super::*;
use crate::testing::{Machine, milan, td15ex, tdx_v4};

const ASKED: [u8; 64] = [0xa5; 64];

fn open(machine: &Machine) -> Result<ConfigfsTsm<Machine>, Fault> {
    ConfigfsTsm::open(machine.clone())
}

/// Asks once; whatever happened, no entry is left and there never were two.
fn collect(machine: &Machine) -> Result<Collected, SourceError> {
    let source = open(machine).unwrap();
    let collected = source.collect(&ASKED);
    let state = machine.state();
    assert!(state.entries.is_empty(), "an entry is left");
    assert_eq!((state.most_entries, state.made), (1, 2));
    collected
}

/// The error, of a TEE that is there.
fn quote_error(machine: &Machine) -> String {
    match collect(machine).unwrap_err() {
        SourceError::Quote(text) => text,
        other @ SourceError::NoTee(_) => panic!("{other}"),
    }
}

/// The error, of a TEE that is not there.
fn no_tee(machine: &Machine) -> String {
    let text = match open(machine).map(|_| ()).unwrap_err().into() {
        SourceError::NoTee(text) => text,
        other @ SourceError::Quote(_) => panic!("{other}"),
    };
    assert!(machine.state().entries.is_empty());
    text
}

#[test]
fn tdx_answers_with_quote_and_event_log() {
    let machine = Machine::tdx().with_event_log(b"log of the boot");
    let collected = collect(&machine).unwrap();
    assert_eq!(collected.platform, Platform::Tdx);
    assert_eq!(collected.quote.len(), tdx_v4().len());
    assert_eq!(collected.quote[568..632], ASKED);
    assert_eq!(collected.event_log, b"log of the boot");
    assert!(collected.certificates.is_empty());
    assert_eq!(machine.state().quotes, 1);
}

#[test]
fn version_5_is_read_at_its_own_offset() {
    let machine = Machine::tdx();
    machine.state().quote = td15ex();
    assert_eq!(collect(&machine).unwrap().quote[574..638], ASKED);
}

#[test]
fn a_quote_padded_with_zeros_is_a_quote() {
    let machine = Machine::tdx();
    machine.state().quote.resize(8000, 0);
    assert_eq!(collect(&machine).unwrap().quote.len(), 8000);
}

#[test]
fn snp_answers_with_report_and_certificates() {
    let machine = Machine::snp().with_event_log(b"not for SEV-SNP");
    let collected = collect(&machine).unwrap();
    assert_eq!((collected.platform, collected.quote.len()), (Platform::SevSnp, 1184));
    assert_eq!(collected.certificates, b"a table");
    assert!(collected.event_log.is_empty());
}

#[test]
fn snp_without_certificates_is_fine_and_with_unreadable_ones_is_not() {
    let machine = Machine::snp();
    machine.state().auxblob = None;
    assert!(collect(&machine).unwrap().certificates.is_empty());
    let machine = Machine::snp();
    machine.fail("auxblob", &[Errno::INVAL]);
    assert!(quote_error(&machine).starts_with("auxblob of the report entry: "));
}

#[test]
fn snp_report_of_another_size_is_refused() {
    let machine = Machine::snp();
    machine.state().quote = milan()[..1183].to_vec();
    assert!(quote_error(&machine).starts_with("quote has 1183 bytes, expected at least 1184"));
}

#[test]
fn no_provider_is_enxio_on_mkdir() {
    let machine = Machine::tdx();
    machine.state().provider = None;
    assert!(no_tee(&machine).contains("has no provider: not a TDX or SEV-SNP guest"));
}

#[test]
fn no_configfs_group_is_no_tee() {
    let machine = Machine::tdx();
    machine.state().reports = false;
    assert!(no_tee(&machine).contains("does not exist: the kernel is older than 6.7"));
}

#[test]
fn another_user_is_told_of_the_helper() {
    for errno in [Errno::ACCESS, Errno::PERM] {
        let machine = Machine::tdx();
        machine.state().mkdir_fault = Some(errno);
        assert!(no_tee(&machine).contains("run bifrost-quote-helper"));
    }
}

#[test]
fn an_unknown_provider_is_no_tee() {
    let machine = Machine::tdx();
    machine.state().provider = Some("arm_cca_guest\n");
    assert_eq!(no_tee(&machine), "provider is arm_cca_guest, expected tdx_guest or sev_guest");
}

#[test]
fn a_provider_that_goes_away_is_enxio_or_enotty_on_read() {
    for errno in [Errno::NXIO, Errno::NOTTY] {
        let machine = Machine::tdx();
        machine.fail("outblob", &[errno]);
        assert_eq!(quote_error(&machine), "provider went away while outblob was read");
    }
}

#[test]
fn a_provider_that_changed_is_refused() {
    let machine = Machine::tdx();
    let source = open(&machine).unwrap();
    machine.state().provider = Some("sev_guest\n");
    assert!(source.collect(&ASKED).unwrap_err().to_string().ends_with("not the one that was found at start"));
    assert!(machine.state().entries.is_empty());
}

#[test]
fn an_inblob_that_is_too_large_is_efbig_on_write() {
    // Only 64 bytes can be asked for; the imitation still refuses 65 as the kernel does.
    let machine = Machine::tdx();
    let entry = Entry::create(&machine).unwrap();
    let inblob = Path::new(REPORTS).join(machine.state().entries.keys().next().unwrap()).join("inblob");
    assert_eq!(Errno::from_io_error(&machine.write(&inblob, &[0; 65]).unwrap_err()), Some(Errno::FBIG));
    drop(entry);
    let machine = Machine::tdx();
    machine.state().write_fault = Some(Errno::FBIG);
    assert!(quote_error(&machine).starts_with("inblob of the report entry: "));
}

#[test]
fn an_inblob_of_another_length_is_einval_on_read() {
    let machine = Machine::tdx();
    machine.fail("outblob", &[Errno::INVAL]);
    assert!(quote_error(&machine).starts_with("outblob of the report entry: "));
}

#[test]
fn an_inblob_that_was_never_written_is_einval_on_read() {
    let machine = Machine::tdx();
    machine.state().lost_write = true;
    assert!(quote_error(&machine).starts_with("outblob of the report entry: "));
    assert_eq!(machine.state().quotes, 0);
}

#[test]
fn a_write_refused_as_busy_is_an_error() {
    let machine = Machine::tdx();
    machine.state().write_fault = Some(Errno::BUSY);
    assert!(quote_error(&machine).starts_with("inblob of the report entry: "));
}

#[test]
fn busy_is_tried_again_with_longer_pauses() {
    let machine = Machine::tdx();
    machine.fail("outblob", &[Errno::BUSY; 7]);
    assert_eq!(collect(&machine).unwrap().quote[568..632], ASKED);
    let slept: Vec<_> = machine.state().slept.iter().map(Duration::as_millis).collect();
    assert_eq!(slept, [100, 200, 400, 800, 1600, 2000, 2000]);
}

#[test]
fn busy_for_ever_ends_at_the_deadline() {
    let machine = Machine::tdx();
    machine.fail("outblob", &[Errno::BUSY; 1000]);
    assert!(quote_error(&machine).starts_with("still busy or interrupted after 4"));
    assert!(machine.state().clock <= PATIENCE);
    assert!(machine.state().clock > PATIENCE - Duration::from_secs(3));
}

#[test]
fn a_signal_is_eintr_and_tried_again() {
    let machine = Machine::tdx();
    machine.fail("outblob", &[Errno::INTR, Errno::BUSY, Errno::INTR]);
    assert_eq!(collect(&machine).unwrap().quote[568..632], ASKED);
    assert_eq!(machine.state().slept.len(), 3);
}

#[test]
fn another_writer_shows_in_the_generation() {
    let machine = Machine::tdx();
    machine.state().intruder = true;
    assert_eq!(quote_error(&machine), "generation is 2, expected 1: another process wrote to the entry");
}

#[test]
fn no_answer_in_30_seconds_is_etimedout() {
    let machine = Machine::tdx();
    machine.fail("outblob", &[Errno::TIMEDOUT]);
    assert!(quote_error(&machine).starts_with("the host's quoting service did not answer within 30 s"));
    assert!(machine.state().slept.is_empty());
}

#[test]
fn a_refused_hypercall_is_eio() {
    let machine = Machine::tdx();
    machine.fail("outblob", &[Errno::IO]);
    assert!(quote_error(&machine).starts_with("the hypervisor refused to quote (EIO)"));
}

#[test]
fn bug_16_an_empty_outblob_names_the_hosts_quoting_service() {
    let machine = Machine::tdx();
    machine.state().quote.clear();
    assert!(quote_error(&machine).starts_with("quote is empty: the host's quoting service answered with nothing"));
}

#[test]
fn a_short_outblob_names_the_hosts_quoting_service() {
    let machine = Machine::tdx();
    machine.state().quote.truncate(635);
    let text = quote_error(&machine);
    assert!(text.starts_with("quote has 635 bytes, expected at least 636") && text.contains("qgsd"), "{text}");
}

#[test]
fn an_outblob_beyond_the_cap_is_not_taken() {
    let machine = Machine::tdx();
    machine.state().quote.resize(MAX_BLOB + 1, 0);
    assert_eq!(quote_error(&machine), "outblob of the report entry: more than 1048576 bytes");
}

#[test]
fn a_quote_about_something_else_is_not_handed_out() {
    for machine in [Machine::tdx(), Machine::snp()] {
        machine.state().tampered = true;
        assert!(quote_error(&machine).starts_with("report data in the quote is not what was asked for"));
    }
}

#[test]
fn an_unreadable_event_log_is_left_out_and_a_huge_one_too() {
    let machine = Machine::tdx().with_event_log(b"log");
    machine.fail("CCEL", &[Errno::ACCESS]);
    assert!(collect(&machine).unwrap().event_log.is_empty());
    let machine = Machine::tdx().with_event_log(&vec![0; MAX_BLOB + 1]);
    assert!(collect(&machine).unwrap().event_log.is_empty());
}

#[test]
fn two_entries_never_coexist() {
    let machine = Machine::tdx();
    let source = open(&machine).unwrap();
    std::thread::scope(|scope| {
        for i in 0..8 {
            let source = &source;
            scope.spawn(move || {
                for _ in 0..20 {
                    assert_eq!(source.collect(&[i; 64]).unwrap().quote[568..632], [i; 64]);
                }
            });
        }
    });
    let state = machine.state();
    assert_eq!((state.most_entries, state.made, state.entries.len()), (1, 161, 0));
}

#[test]
fn every_read_may_fail_and_the_entry_goes_anyway() {
    for file in ["outblob", "generation", "provider"] {
        for errno in [Errno::NXIO, Errno::INVAL, Errno::NOMEM, Errno::STALE] {
            let machine = Machine::tdx();
            let source = open(&machine).unwrap();
            machine.fail(file, &[errno]);
            source.collect(&ASKED).unwrap_err();
            assert!(machine.state().entries.is_empty(), "{file} {errno}");
        }
    }
}
