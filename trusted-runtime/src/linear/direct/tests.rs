//! Against an evaluator in this process, honest and not.

use super::*;
use crate::{
    linear::testing::{Fake, Mode, Pair, SHAPES, Setup, config, id, plan_of, ring, runtime, until},
    metrics::Metrics,
    model::quantize::Weights,
    planner::residency::Wish,
};
use proto::v1::FailureKind;
use std::{thread, time::Duration};

impl Pair {
    fn call(&self, call: &Call, layer: u32, vectors: usize) -> Result<(), Error> {
        self.apply(self.direct.as_ref(), call, layer, vectors)
    }
}

fn pair(mode: Mode, retry_for: u64) -> Pair {
    Setup { mode, retry_for: Duration::from_secs(retry_for), ..Setup::default() }.start()
}

#[test]
fn direct_equals_local_to_the_bit() {
    for weights in [Weights::W8, Weights::W16] {
        for threads in [1, 2] {
            let pair = Setup { weights, threads, ..Setup::default() }.start();
            for (layer, vectors) in [(0, 1), (1, 1), (2, 3), (1, 70)] {
                pair.call(&Call::default(), layer, vectors).unwrap();
            }
            assert_eq!(pair.uploads(), 3);
        }
    }
}

#[test]
fn the_meter_and_the_description_are_filled() {
    let pair = pair(Mode::Honest, 20);
    let call = Call::default();
    pair.call(&call, 0, 2).unwrap();
    let cost = call.meter.snapshot();
    let blocks = pair.plan.matrices[0].tiling.blocks() as u64;
    assert_eq!((cost.round_trips, cost.retries), (1, 0));
    let bits = u64::from(ring().params().bits());
    assert!(cost.bytes_up >= 2 * blocks * 2048 * bits / 8 && cost.bytes_up < 2 * blocks * (2048 * bits / 8 + 17));
    assert!(cost.bytes_down >= 2 * 70 * bits / 8 && cost.crypto_ns > 0 && cost.evaluator_ns <= 1001);
    let info = pair.delegate.describe().unwrap();
    assert_eq!((info.backend.as_str(), info.pinned_layers, info.fallback_layers), ("fake", 0, 3));
    assert!(info.bytes_per_weight > 0.0 && info.endpoint.starts_with("http://127.0.0.1:"));
}

#[test]
fn several_calls_share_the_stream() {
    let pair = Setup { threads: 2, ..Setup::default() }.start();
    thread::scope(|s| {
        for t in 0..4 {
            let pair = &pair;
            s.spawn(move || {
                for k in 0..6 {
                    pair.call(&Call::default(), (t + k) % 3, 1 + k as usize).unwrap();
                }
            });
        }
    });
}

#[test]
fn hostile_answers_never_become_numbers() {
    for (mode, says) in [
        (Mode::WrongSize, "expected"),
        (Mode::WrongTile, "there are"),
        (Mode::DuplicateTile, "twice"),
        (Mode::ResidueTooLarge, "is not below q"),
        (Mode::GarbageBytes, "magic is"),
        (Mode::Malformed, "as malformed: as the testwishes"),
    ] {
        let pair = pair(mode, 20);
        let err = pair.call(&Call::default(), 0, 1).expect_err("refused").to_string();
        assert!(err.starts_with("evaluator at http://127.0.0.1:") && err.contains(says), "{mode:?}: {err}");
        assert!(err.contains("(blk.0.down)"), "{mode:?}: {err}");
        // The next call starts over, with an evaluator that behaves by now.
        pair.fake.reform();
        pair.call(&Call::default(), 0, 1).unwrap();
    }
}

#[test]
fn a_lie_is_an_alarm_and_a_quarantine_and_then_all_is_well() {
    let pair = pair(Mode::Lie, 20);
    let err = pair.call(&Call::default(), 0, 2).expect_err("refused").to_string();
    let what = "answers wrongly: the direct check of blk.0.down failed";
    assert!(err.starts_with("evaluator at http://127.0.0.1:") && err.ends_with(what), "{err}");
    assert_eq!((pair.alarms("direct"), pair.alarms("online"), pair.alarms("bulk")), (1, 0, 0));
    pair.fake.reform();
    // Nobody speaks to it for a while, about no matrix, and callers hear why at once.
    let err = pair.call(&Call::default(), 1, 1).expect_err("in quarantine").to_string();
    assert!(err.ends_with(&format!("refused: it is in quarantine: {what}")), "{err}");
    pair.connected();
    pair.call(&Call::default(), 0, 2).unwrap();
    assert_eq!(pair.alarms("direct"), 1);
    let labels = format!("check=\"direct\",evaluator=\"http://{}\",matrix=\"blk.0.down\"", pair.address);
    assert_eq!(pair.counted(&format!("bifrost_runtime_alarms_total{{{labels}}} ")), 1, "{}", pair.metrics.render());
}

#[test]
fn a_quarantine_holds_for_a_session_that_began_before_the_check_failed() {
    let pair = Setup { quarantine: Duration::from_secs(600), ..Setup::default() }.start();
    pair.call(&Call::default(), 1, 1).unwrap();
    let liar = pair.delegate.link.current().unwrap();
    liar.close("as the test wishes");
    pair.connected();
    pair.delegate.link.ban(&liar, "it was caught".into());
    assert!(pair.delegate.describe().is_none());
    until("quarantine", || {
        let err = pair.call(&Call::default(), 1, 1).expect_err("in quarantine").to_string();
        err.ends_with("refused: it is in quarantine: it was caught")
    });
}

#[test]
fn a_stream_that_breaks_the_contract_is_dropped() {
    for (mode, says) in [
        (Mode::UnknownJob, "which was never sent"),
        (Mode::TooManyParts, "answers more than job"),
        (Mode::EmptyAnswer, "with nothing"),
    ] {
        let pair = pair(mode, 1);
        let err = pair.call(&Call::default(), 0, 1).expect_err("refused").to_string();
        // An honest part may arrive before the flood is noticed; then the flood ends the next call.
        assert!(err.contains(says) || err.contains("twice"), "{mode:?}: {err}");
        pair.fake.reform();
        pair.call(&Call::default(), 0, 1).unwrap();
    }
}

#[test]
fn failures_that_pass_are_retried_with_fresh_ciphertexts() {
    for (mode, uploads) in [
        (Mode::DropStreamOnce, 3),
        (Mode::ForgetOnce, 6),
        (Mode::FailOnce(FailureKind::Deadline), 3),
        (Mode::FailOnce(FailureKind::Unavailable), 3),
        (Mode::FailOnce(FailureKind::Cancelled), 3),
        (Mode::FailOnce(FailureKind::Internal), 3),
    ] {
        let pair = pair(mode, 20);
        let call = Call::default();
        pair.call(&call, 0, 1).unwrap();
        assert_eq!(call.meter.snapshot().retries, 1, "{mode:?}");
        assert_eq!(pair.uploads(), uploads, "{mode:?}");
        let blocks = &pair.fake.0.seen.lock().unwrap().blocks;
        let parts = blocks.len() / 2;
        for (first, second) in blocks[..parts].iter().zip(&blocks[parts..]) {
            // Same vector, same A: independent secrets and errors agree on a byte in 256.
            let same = first.iter().zip(second.iter()).skip(16).filter(|(a, b)| a == b).count();
            assert!(same < first.len() / 64, "{mode:?}: {same} of {}", first.len());
        }
    }
}

#[test]
fn patience_ends_with_a_reason() {
    let unavailable = pair(Mode::AlwaysUnavailable, 1);
    let call = Call::default();
    let err = unavailable.call(&call, 0, 1).expect_err("gives up").to_string();
    assert!(err.contains("times in") && err.contains("FAILURE_KIND_UNAVAILABLE"), "{err}");
    assert!(call.meter.snapshot().retries > 1);

    let runtime = runtime();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = config(format!("http://{free}"), Duration::from_secs(1));
    let (ring, plan, metrics) = (ring(), plan_of(Weights::W8, &[(5, 3)]), Metrics::new().unwrap());
    let delegate = Delegate::open(&config, (&ring, plan), runtime.handle().clone(), 1, false, &metrics).unwrap();
    let err = delegate.connect().expect_err("nobody is there").to_string();
    assert!(err.contains("is gone for ") && err.to_lowercase().contains("refused"), "{err}");
}

#[test]
fn mismatches_are_refused_at_once_with_both_sides() {
    for (mode, says) in [
        (Mode::Version, "it has version 9.9.9, this runtime has"),
        (Mode::Protocol, "it has protocol 77, this runtime has 3"),
        (Mode::Params, "it has ring parameters abababab"),
        (Mode::SmallMessages, "messages of 5000 bytes"),
        (Mode::LookupOther, "it describes matrix"),
        (Mode::BrokenPromise, "upload of blk.0.down: OutOfRange: "),
        (Mode::BrokenPromise, "(sent were 1048576 bytes of weights a message, it announced 16777216 a message)"),
        (Mode::NoBudget, "upload of blk.0.down: ResourceExhausted: budget 5 bytes, used 0, needed 9"),
    ] {
        let pair = pair(mode, 600);
        let err = pair.call(&Call::default(), 0, 1).expect_err("refused").to_string();
        assert!(err.contains(says) && err.contains(" refused: "), "{mode:?}: {err}");
        assert!(pair.delegate.describe().is_none());
    }
}

#[test]
fn messages_keep_to_the_limit_that_the_evaluator_announces() {
    // The first matrix, 140 x 130 int8, does not fit one message of 15,000 bytes.
    let pair = Setup { mode: Mode::TightMessages, weights: Weights::W16, ..Setup::default() }.start();
    pair.call(&Call::default(), 0, 3).unwrap();
    assert_eq!(pair.uploads(), 3);
}

#[test]
fn a_budget_that_cannot_do_is_refused_before_any_upload() {
    let int8 = (70 * 130 + 5 * 3 + 129 * 64) as u64;
    for (wish, budget, says) in [
        (
            Wish::Pinned,
            int8 * 2,
            " bytes for pinned weights; raise its memory budget, or set evaluator.residency to auto",
        ),
        (Wish::Fallback, int8 - 1, " bytes for int8 (fallback) weights; raise its memory budget"),
        (Wish::Auto, int8 - 1, " bytes for int8 (fallback) weights; raise its memory budget"),
    ] {
        let pair = Setup { residency: wish, mode: Mode::Budget(budget), ..Setup::default() }.start();
        let err = pair.call(&Call::default(), 0, 1).expect_err("refused").to_string();
        let figures = format!(" refused: its memory budget is {budget} bytes, needed are ");
        assert!(err.contains(&figures) && err.ends_with(&says[" bytes".len()..]), "{wish:?}: {err}");
        assert_eq!(err.contains(&format!(" {int8} ")), wish != Wish::Pinned, "{err}");
        assert_eq!(pair.uploads(), 0);
    }
    let pair = Setup { residency: Wish::Fallback, mode: Mode::Budget(int8), ..Setup::default() }.start();
    pair.call(&Call::default(), 0, 1).unwrap();
}

#[test]
fn waiting_for_room_to_send_is_the_wire() {
    for threads in [1, 2] {
        let shapes = &[(3, 1200)];
        let (retry_for, deadline) = (Duration::ZERO, Duration::from_millis(1500));
        let pair = Setup { mode: Mode::Deaf, shapes, threads, retry_for, deadline, ..Setup::default() }.start();
        pair.connected();
        let call = Call::default();
        let err = pair.call(&call, 0, 64).expect_err("deadline").to_string();
        assert!(err.contains("no answer within 1.5 s"), "{err}");
        let cost = call.meter.snapshot();
        assert!(cost.wire_ns > 0 && cost.crypto_ns > 0 && cost.evaluator_ns == 0, "{cost:?}");
    }
}

#[test]
fn an_evaluator_that_appears_late_is_found_and_keeps_its_matrices() {
    let (ours, theirs, again) = (runtime(), runtime(), runtime());
    let fake = Fake::new(ring(), Mode::Honest);
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = config(format!("http://{address}"), Duration::from_secs(60));
    let (ring, plan, metrics) = (ring(), plan_of(Weights::W8, &SHAPES), Metrics::new().unwrap());
    let delegate = Delegate::open(&config, (&ring, plan), ours.handle().clone(), 1, false, &metrics).unwrap();
    let direct = DirectLinear::new(delegate.clone()).unwrap();
    assert!(delegate.describe().is_none());
    let mut ys = vec![0.0; 5];
    fake.serve_at(&theirs, address);
    direct.apply(&Call::default(), id(1), &[1.0; 3], 1, &mut ys).unwrap();
    theirs.shutdown_background();
    fake.serve_at(&again, address);
    direct.apply(&Call::default(), id(1), &[1.0; 3], 1, &mut ys).unwrap();
    assert_eq!(*fake.0.uploads.lock().unwrap(), 3);
}

#[test]
fn cancellation_ends_a_waiting_call_and_tells_the_evaluator() {
    let pair = pair(Mode::Silent, 600);
    let call = Call::default();
    thread::scope(|s| {
        let waiting = s.spawn(|| pair.call(&call, 0, 1));
        while pair.fake.0.seen.lock().unwrap().blocks.is_empty() {
            thread::yield_now();
        }
        call.cancel();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
    });
    while *pair.fake.0.cancels.lock().unwrap() == 0 {
        thread::yield_now();
    }
    assert!(matches!(pair.call(&call, 0, 1), Err(Error::Cancelled)));
}

#[test]
fn a_silent_evaluator_meets_the_deadline() {
    let (retry_for, deadline) = (Duration::ZERO, Duration::from_millis(100));
    let pair = Setup { mode: Mode::Silent, retry_for, deadline, ..Setup::default() }.start();
    pair.connected();
    let err = pair.call(&Call::default(), 0, 1).expect_err("deadline").to_string();
    assert!(err.contains("failed 1 times") && err.contains("no answer within 0.1 s"), "{err}");
}

#[test]
fn endpoints_are_checked() {
    let refused = |endpoint: &str, danger: bool| {
        let mut config = config(endpoint.into(), Duration::ZERO);
        config.danger_plaintext = danger;
        config.endpoints().err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(refused("http://127.0.0.1:5", false).contains("needs danger_plaintext"));
    assert!(refused("http://10.0.0.1:5", true).contains("needs a loopback address"));
    assert!(refused("ftp://127.0.0.1:5", true).contains("expected https://host:port"));
    assert!(refused("no endpoint", true).starts_with("configuration: evaluator endpoint no endpoint"));
    for good in ["http://127.0.0.1:5", "http://[::1]:5", "http://localhost:5"] {
        assert_eq!(refused(good, true), "");
    }
}
