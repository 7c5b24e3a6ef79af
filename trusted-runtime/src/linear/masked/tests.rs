//! Against an evaluator in this process, honest and merely broken.

mod late;
mod lies;
mod once;
mod random;

use super::*;
use crate::{
    linear::testing::{Fake, Pair, Reply, Setup, failure, unpacked, until},
    model::quantize::Weights,
    pool::Settings,
};
use proto::v1::{BulkAnswer, FailureKind, bulk_answer};
use std::thread;

fn pair(lanes: usize) -> Pair {
    Setup { lanes, ..Setup::default() }.start()
}

/// An answer that is a failure message.
fn refusal(job_id: u64, kind: FailureKind) -> Vec<OnlineAnswer> {
    vec![OnlineAnswer { job_id, body: Some(online_answer::Body::Failure(failure(kind))), timing: None }]
}

/// Instead of an answer to a bulk job.
fn bulk_refusal(answer: &BulkAnswer, kind: FailureKind) -> Vec<BulkAnswer> {
    vec![BulkAnswer { job_id: answer.job_id, body: Some(bulk_answer::Body::Failure(failure(kind))) }]
}

/// It makes no masks.
fn busy(fake: &Fake) {
    fake.bulk(|_, answers| bulk_refusal(&answers[0], FailureKind::Unavailable).into());
}

#[test]
fn masked_equals_local_to_the_bit() {
    for (weights, threads, lanes) in
        [(Weights::W8, 1, 64), (Weights::W8, 2, 32), (Weights::W16, 1, 32), (Weights::W16, 2, 64)]
    {
        let pair = Setup { weights, threads, lanes, ..Setup::default() }.start();
        let (masked, call) = (pair.masked(), Call::default());
        // 70 vectors are more than any pool here has lanes.
        for (layer, vectors) in [(0, 1), (1, 1), (2, 3), (1, 70), (0, 40)] {
            pair.apply(&masked, &call, layer, vectors).unwrap();
        }
        let cost = call.meter.snapshot();
        let jobs = 3 + 70usize.div_ceil(lanes) + 40usize.div_ceil(lanes);
        assert_eq!((cost.masked, cost.direct, cost.retries), (jobs as u64, 0, 0));
        assert_eq!(pair.fake.0.seen.lock().unwrap().online.len(), jobs);
        assert!(pair.fake.0.seen.lock().unwrap().blocks.is_empty(), "nothing was encrypted");
    }
}

#[test]
fn the_meter_counts_words_checks_and_round_trips() {
    let pair = pair(32);
    let (masked, call) = (pair.masked(), Call::default());
    pair.apply(&masked, &call, 0, 2).unwrap();
    let cost = call.meter.snapshot();
    let of = |count| 2 * kernels::words::packed_len(pair.plan.matrices[0].log2_t, count) as u64;
    assert_eq!((cost.bytes_up, cost.bytes_down, cost.round_trips), (of(130), of(70), 1));
    assert!(cost.verify_ns > 0 && cost.verify_ns <= cost.crypto_ns && cost.evaluator_ns <= 1001, "{cost:?}");
    let stats = pair.pool().stats();
    assert_eq!((stats.used, stats.capacity, stats.trouble), (2, 32, None));
    // Whatever times it claims, they are not longer than we have waited.
    pair.fake.online(|_, mut answers| {
        answers[0].timing = Some(JobTiming { queued_ns: u64::MAX, compute_ns: u64::MAX });
        answers.into()
    });
    let (call, start) = (Call::default(), Instant::now());
    pair.apply(&masked, &call, 0, 2).unwrap();
    assert!(u128::from(call.meter.snapshot().evaluator_ns) <= start.elapsed().as_nanos());
}

#[test]
fn auto_is_direct_without_lanes_and_masked_with_them() {
    let pair = Setup { lanes: 32, ..Setup::default() }.start_with(busy);
    let (auto, call) = (pair.auto(), Call::default());
    for layer in 0..3 {
        pair.apply(&auto, &call, layer, 2).unwrap();
    }
    let cost = call.meter.snapshot();
    assert_eq!((cost.masked, cost.direct, cost.round_trips), (0, 3, 3));
    assert!(pair.fake.0.seen.lock().unwrap().online.is_empty());
    assert_eq!(pair.counted("bifrost_runtime_lanes_starved_total "), 3);
    pair.fake.reform();
    pair.filled(8);
    for layer in 0..3 {
        pair.apply(&auto, &call, layer, 2).unwrap();
    }
    let cost = call.meter.snapshot();
    assert_eq!((cost.masked, cost.direct, cost.round_trips, cost.retries), (3, 3, 6, 0));
    assert_eq!(pair.fake.0.seen.lock().unwrap().online.len(), 3);
}

#[test]
fn several_calls_share_the_stream_and_the_pool() {
    let pair = Setup { lanes: 64, threads: 2, ..Setup::default() }.start();
    let masked = pair.masked();
    thread::scope(|s| {
        for t in 0..4 {
            let (pair, masked) = (&pair, &masked);
            s.spawn(move || {
                for k in 0..20 {
                    pair.apply(masked, &Call::default(), (t + k) % 3, 1 + k as usize % 5).unwrap();
                }
            });
        }
    });
}

#[test]
fn failures_that_pass_are_repeated_with_fresh_lanes() {
    type Failing = fn(&OnlineJob) -> Reply<OnlineAnswer>;
    let failing: [(&str, Failing); 11] = [
        ("hangs up", |_| Reply::hang_up()),
        ("unavailable", |job| refusal(job.job_id, FailureKind::Unavailable).into()),
        ("deadline", |job| refusal(job.job_id, FailureKind::Deadline).into()),
        ("cancelled", |job| refusal(job.job_id, FailureKind::Cancelled).into()),
        ("internal", |job| refusal(job.job_id, FailureKind::Internal).into()),
        ("has lost the matrix", |job| refusal(job.job_id, FailureKind::MatrixAbsent).into()),
        ("says nothing", |_| Reply::nothing()),
        ("says nothing about the job", |job| {
            vec![OnlineAnswer { job_id: job.job_id, body: None, timing: None }].into()
        }),
        ("answers a job that was never sent", |job| {
            let body = Some(online_answer::Body::Words(Bytes::from(vec![0; 280])));
            vec![OnlineAnswer { job_id: job.job_id + 1000, body, timing: None }].into()
        }),
        ("answers more than was asked for", |job| {
            let body = Some(online_answer::Body::Words(Bytes::from(vec![0; 284])));
            vec![OnlineAnswer { job_id: job.job_id, body, timing: None }].into()
        }),
        ("answers megabytes", |job| {
            let body = Some(online_answer::Body::Words(Bytes::from(vec![7; 20 << 20])));
            vec![OnlineAnswer { job_id: job.job_id, body, timing: None }].into()
        }),
    ];
    let pair = Setup { lanes: 64, deadline: Duration::from_millis(700), ..Setup::default() }.start();
    let masked = pair.masked();
    pair.filled(64);
    for (name, fails) in failing {
        let (mut first, call) = (true, Call::default());
        pair.fake.0.seen.lock().unwrap().online.clear();
        pair.fake.online(move |job, honest| {
            let now = std::mem::take(&mut first);
            if now { fails(job) } else { honest.into() }
        });
        pair.apply(&masked, &call, 0, 1).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(call.meter.snapshot().retries, 1, "{name}");
        let online = &pair.fake.0.seen.lock().unwrap().online;
        assert_eq!(online.len(), 2, "{name}");
        // The same vector behind two masks: words agree by chance, one in a million.
        let [a, b] = [&online[0], &online[1]].map(|job| unpacked(job.word_bits, &job.words, 1));
        assert!(a.iter().zip(&b).filter(|(a, b)| a == b).count() < 3, "{name}: a mask was used twice");
    }
    assert_eq!(pair.alarms("online") + pair.alarms("bulk"), 0);
}

#[test]
fn what_no_repetition_helps_against_ends_the_call_by_name() {
    let pair = pair(64);
    let masked = pair.masked();
    let words = |answers: Vec<OnlineAnswer>, len: usize| -> Reply<OnlineAnswer> {
        let body = Some(online_answer::Body::Words(Bytes::from(vec![0; len])));
        vec![OnlineAnswer { body, ..answers[0] }].into()
    };
    let whole = 2 * kernels::words::packed_len(pair.plan.matrices[0].log2_t, 70);
    for len in [0, whole / 2, whole - 1] {
        let says = format!("answers {len} bytes, expected {whole}");
        pair.fake.online(move |_, answers| words(answers, len));
        let err = pair.apply(&masked, &Call::default(), 0, 2).expect_err(&says).to_string();
        assert!(err.starts_with("evaluator at http://127.0.0.1:") && err.contains(&says), "{err}");
        assert!(err.ends_with("(blk.0.down)"), "{err}");
    }
    pair.fake.online(|job, _| refusal(job.job_id, FailureKind::Malformed).into());
    let err = pair.apply(&masked, &Call::default(), 0, 2).expect_err("malformed").to_string();
    assert!(err.ends_with("refuses a job as malformed: as the testwishes (blk.0.down)"), "{err}");
    pair.fake.reform();
    pair.apply(&masked, &Call::default(), 0, 2).unwrap();
}

#[test]
fn patience_and_deadlines_end_with_a_reason_and_cancelling_ends_at_once() {
    let (retry_for, deadline) = (Duration::from_millis(600), Duration::from_millis(500));
    let pair = Setup { lanes: 64, retry_for, deadline, ..Setup::default() }.start();
    let masked = pair.masked();
    pair.filled(64);
    pair.fake.online(|_, _| Reply::nothing());
    let call = Call::default();
    let err = pair.apply(&masked, &call, 0, 1).expect_err("nothing comes").to_string();
    assert!(err.contains("times in") && err.ends_with("last: no answer within 0.5 s"), "{err}");
    assert!(call.meter.snapshot().retries > 0);

    let patient = Setup { lanes: 32, ..Setup::default() }.start();
    let masked = patient.masked();
    patient.filled(8);
    patient.fake.online(|_, _| Reply::nothing());
    let call = Call::default();
    thread::scope(|s| {
        let waiting = s.spawn(|| patient.apply(&masked, &call, 0, 1));
        until("a job", || !patient.fake.0.seen.lock().unwrap().online.is_empty());
        call.cancel();
        assert!(matches!(waiting.join().unwrap(), Err(Error::Cancelled)));
    });
    assert!(matches!(patient.apply(&masked, &call, 0, 1), Err(Error::Cancelled)));
    patient.fake.reform();
    patient.apply(&masked, &Call::default(), 0, 1).unwrap();
}

#[test]
fn a_call_for_more_lanes_than_the_low_mark_leaves_gets_them() {
    let pair = Setup { lanes: 64, retry_for: Duration::from_secs(5), ..Setup::default() }.start();
    pair.filled(64);
    // 44 are left: too few for the call, and more than the low mark of 16.
    drop(pair.pool().take(1, 20).unwrap());
    pair.apply(&pair.masked(), &Call::default(), 1, 64).unwrap();
}

#[test]
fn masked_says_why_there_are_no_masks() {
    let retry_for = Duration::from_millis(300);
    let setup = Setup { lanes: 32, retry_for, ..Setup::default() };
    let mut pair = setup.start_with(busy);
    let masked = pair.masked();
    until("trouble", || pair.pool().stats().trouble.is_some_and(|t| t.contains("UNAVAILABLE")));
    let err = pair.apply(&masked, &Call::default(), 1, 3).expect_err("no masks").to_string();
    assert!(err.starts_with("evaluator at http://127.0.0.1:"), "{err}");
    assert!(err.contains(": 0 of 3 masks for blk.1.down are ready after "), "{err}");
    assert!(err.ends_with(" s: FAILURE_KIND_UNAVAILABLE: as the testwishes"), "{err}");
    // It is no reason to wait that the pool is closed.
    pair.pool().close();
    let err = pair.apply(&masked, &Call::default(), 1, 1).expect_err("closed").to_string();
    assert!(err.ends_with(" s: the pool is closed"), "{err}");
    drop(masked);
    pair.kill();
    until("the end of the session", || pair.delegate.describe().is_none());
    let err = pair.apply(&pair.masked(), &Call::default(), 1, 1).expect_err("nobody is there").to_string();
    assert!(err.contains(" is gone for "), "{err}");
}

#[test]
fn a_pool_that_does_not_fit_is_refused_before_anything_is_drawn() {
    let pair = Setup::default().start();
    let settings = Settings { lanes: 64, memory: 1000, threads: 1 };
    let err = MaskPool::start(pair.delegate.clone(), &settings, 1).err().unwrap().to_string();
    assert!(err.starts_with("configuration: pool.memory is 1000 bytes, 64 lanes need "), "{err}");
}
