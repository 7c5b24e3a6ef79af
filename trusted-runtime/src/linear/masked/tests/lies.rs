//! An evaluator that lies online. Not one lie may become a number.

use super::*;
use crate::{linear::testing::packed, planner::Plan};
use kernels::{Isa, gemv};

/// The first two matrices have one shape.
const TWINS: [(usize, usize); 3] = [(70, 130), (70, 130), (5, 3)];

/// What becomes of the words of an honest answer to two vectors, [2][70].
type Lie = Box<dyn FnMut(&OnlineJob, Vec<u32>) -> Vec<u32> + Send>;

fn lie(f: impl FnMut(&OnlineJob, Vec<u32>) -> Vec<u32> + Send + 'static) -> Lie {
    Box::new(f)
}

/// A lie that changes words in place.
fn edit(f: impl Fn(&mut [u32]) + Send + 'static) -> Lie {
    lie(move |_, mut words| {
        f(&mut words);
        words
    })
}

fn words_of(job: &OnlineJob) -> Vec<u32> {
    unpacked(job.word_bits, &job.words, job.vectors)
}

/// The answer with other words.
fn reworded(job: &OnlineJob, answers: &[OnlineAnswer], change: impl FnOnce(Vec<u32>) -> Vec<u32>) -> Vec<OnlineAnswer> {
    let Some(online_answer::Body::Words(bytes)) = &answers[0].body else { panic!("a failure has no words") };
    let words = change(unpacked(job.word_bits, bytes, job.vectors));
    let bytes = packed(job.word_bits, &words, job.vectors);
    vec![OnlineAnswer { body: Some(online_answer::Body::Words(bytes)), ..answers[0].clone() }]
}

/// Each lie is found in one of the calls that follow; then the evaluator is reformed, and after its quarantine all is
/// well, with another challenge, another companion and other lanes.
fn every_lie_is_found(lies: impl FnOnce(&Plan) -> Vec<(&'static str, Lie)>) {
    let pair = Setup { lanes: 32, shapes: &TWINS, ..Setup::default() }.start();
    let masked = pair.masked();
    let id = Bytes::copy_from_slice(&pair.delegate.ids[0]);
    // Messages of the companion's jobs and of batches' jobs, so far.
    let made = || {
        let seen = pair.fake.0.seen.lock().unwrap();
        let of = |companion: bool| {
            seen.bulk.iter().filter(|(h, _)| h.matrix_id == id && (h.lanes == 2048) == companion).count()
        };
        (of(true), of(false))
    };
    for (n, (name, mut lie)) in (1..).zip(lies(&pair.plan)) {
        pair.apply(&masked, &Call::default(), 0, 2).unwrap_or_else(|e| panic!("before {name}: {e}"));
        pair.fake.online(move |job, answers| reworded(job, &answers, |words| lie(job, words)).into());
        let (challenge, before) = (pair.pool().challenge(0), made());
        let calls = |_| pair.apply(&masked, &Call::default(), 0, 2).err();
        let err = (0..3).find_map(calls).unwrap_or_else(|| panic!("{name} was believed")).to_string();
        assert!(err.starts_with("evaluator at http://127.0.0.1:"), "{name}: {err}");
        assert!(err.ends_with(" answers wrongly: the online check of blk.0.down failed"), "{name}: {err}");
        assert_eq!(pair.alarms("online"), n, "{name}");
        pair.fake.reform();
        pair.connected();
        pair.apply(&masked, &Call::default(), 0, 2).unwrap_or_else(|e| panic!("after {name}: {e}"));
        assert!(!Arc::ptr_eq(&challenge, &pair.pool().challenge(0)), "{name}: the challenge is the old one");
        let after = made();
        assert!(after.0 > before.0 && after.1 > before.1, "{name}: {before:?} {after:?}");
    }
    assert_eq!((pair.alarms("bulk"), pair.alarms("direct")), (0, 0));
}

#[test]
fn wrong_words_are_found() {
    every_lie_is_found(|plan| {
        let top = 1 << (plan.matrices[0].log2_t - 1);
        vec![
            ("the lowest bit of the first word", edit(|words| words[0] ^= 1)),
            ("the highest bit of the last word", edit(move |words| words[139] ^= top)),
            ("everything thrice", edit(|words| words.iter_mut().for_each(|y| *y = y.wrapping_mul(3)))),
            ("everything negated", edit(|words| words.iter_mut().for_each(|y| *y = y.wrapping_neg()))),
            ("zeros", edit(|words| words.fill(0))),
        ]
    });
}

#[test]
fn words_in_other_places_are_found() {
    every_lie_is_found(|_| {
        vec![
            ("rows rotated", edit(|words| words[..70].rotate_left(1))),
            ("two rows swapped", edit(|words| words.swap(3, 60))),
            ("the answers of two lanes swapped", edit(|words| words.rotate_left(70))),
            ("one lane's answer twice", edit(|words| words.copy_within(0..70, 70))),
        ]
    });
}

#[test]
fn true_answers_to_other_questions_are_found() {
    every_lie_is_found(|plan| {
        let [this, twin] = [0, 1].map(|i| plan.matrices[i].matrix.int8.clone());
        let (mut old, mut word) = (None, None);
        let another_matrix = lie(move |job, mut words| {
            gemv::gemv_words(Isa::SCALAR, &twin, &words_of(job), 2, 0..70, &mut words).unwrap();
            words
        });
        let another_vector = lie(move |job, mut words| {
            let mut xs = words_of(job);
            xs[129] = xs[129].wrapping_add(1);
            gemv::gemv_words(Isa::SCALAR, &this, &xs, 2, 0..70, &mut words).unwrap();
            words
        });
        let old_word = lie(move |_, mut words| {
            words[69] = *word.get_or_insert(words[69]);
            words
        });
        vec![
            ("another matrix", another_matrix),
            ("another vector", another_vector),
            ("an old answer", lie(move |_, words| old.get_or_insert(words).clone())),
            ("a word of an old answer", old_word),
        ]
    });
}

#[test]
fn callers_take_turns_on_the_line_and_an_exchanged_answer_is_a_lie() {
    for exchanged in [false, true] {
        let pair = Setup { lanes: 64, quarantine: Duration::from_secs(600), ..Setup::default() }.start();
        let masked = pair.masked();
        pair.filled(16);
        let mut before: Option<Vec<OnlineAnswer>> = None;
        pair.fake.online(move |_, mut answers| {
            if exchanged && let Some(old) = before.replace(answers.clone()) {
                answers[0].body = old[0].body.clone();
            }
            answers.into()
        });
        let results = thread::scope(|s| {
            let call = || (0..4).map(|_| pair.apply(&masked, &Call::default(), 0, 1)).collect::<Vec<_>>();
            [s.spawn(call), s.spawn(call)].map(|t| t.join().unwrap()).concat()
        });
        let failed = results.iter().filter_map(|r| r.as_ref().err()).map(ToString::to_string).collect::<Vec<_>>();
        if !exchanged {
            assert_eq!(failed, Vec::<String>::new());
            continue;
        }
        // The first answer of all is honest; the next one is a lie, and then there is the quarantine.
        assert!(failed.len() >= 7 - 1, "{failed:?}");
        let known = |e: &String| e.contains("the online check of blk.0.down failed") || e.contains("quarantine");
        assert!(failed.iter().all(known), "{failed:?}");
        assert!(pair.alarms("online") > 0);
    }
}

#[test]
fn an_answer_that_comes_twice_counts_once() {
    let pair = pair(64);
    let masked = pair.masked();
    pair.fake.online(|_, answers| [answers.clone(), answers].concat().into());
    for layer in [0, 1, 2, 0, 1, 2] {
        // The second one may end the session while the next job is in flight; that one is repeated then.
        pair.apply(&masked, &Call::default(), layer, 1).unwrap();
    }
    // The truth after a lie does not mend it.
    pair.fake.online(|job, answers| {
        let lie = reworded(job, &answers, |words| words.iter().map(|w| w ^ 1).collect());
        [lie, answers].concat().into()
    });
    let err = pair.apply(&masked, &Call::default(), 0, 1).expect_err("the first answer counts").to_string();
    assert!(err.ends_with("the online check of blk.0.down failed"), "{err}");
}

#[test]
fn the_thousandth_job_is_checked_like_the_first() {
    let pair = Setup { lanes: 256, shapes: &[(5, 3)], ..Setup::default() }.start();
    let masked = pair.masked();
    let mut jobs = 0;
    pair.fake.online(move |job, answers| {
        jobs += 1;
        if jobs < 1000 {
            return answers.into();
        }
        reworded(job, &answers, |words| words.iter().map(|w| w ^ 2).collect()).into()
    });
    for n in 1..1000 {
        pair.apply(&masked, &Call::default(), 0, 1).unwrap_or_else(|e| panic!("job {n}: {e}"));
    }
    let err = pair.apply(&masked, &Call::default(), 0, 1).expect_err("the lie").to_string();
    assert!(err.ends_with("answers wrongly: the online check of blk.0.down failed"), "{err}");
    assert_eq!((pair.alarms("online"), pair.fake.0.seen.lock().unwrap().online.len()), (1, 1000));
}

#[test]
fn a_liar_is_in_quarantine_for_every_matrix_and_every_protocol() {
    let pair = Setup { lanes: 32, quarantine: Duration::from_secs(600), ..Setup::default() }.start();
    let (masked, auto) = (pair.masked(), pair.auto());
    pair.filled(8);
    pair.fake.online(|job, answers| reworded(job, &answers, |words| vec![0; words.len()]).into());
    pair.apply(&masked, &Call::default(), 2, 1).expect_err("the lie");
    pair.fake.reform();
    let linears: [&dyn Linear; 3] = [&masked, &auto, pair.direct.as_ref()];
    for linear in linears {
        let err = pair.apply(linear, &Call::default(), 1, 1).expect_err("in quarantine").to_string();
        assert!(err.starts_with("evaluator at http://127.0.0.1:"), "{err}");
        assert!(err.ends_with("is in quarantine: answers wrongly: the online check of blk.2.down failed"), "{err}");
    }
    until("trouble", || pair.pool().stats().trouble.is_some_and(|t| t.contains("quarantine")));
    // What is left of the lanes of the matrix it lied about was thrown away; the others keep theirs.
    assert!(pair.pool().take(2, 1).is_none() && pair.pool().take(1, 1).is_some());
}
