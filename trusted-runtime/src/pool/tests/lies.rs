//! An evaluator that lies about masks. Not one lie may become a lane.

use super::*;
use crate::linear::testing::reword;
use bytes::Bytes;

const FORGED: &str = "answers wrongly: the bulk check of blk.0.down failed";

/// What becomes of the honest answers to a job of 9 rows, in two parts.
type Lie = Box<dyn FnMut(&BulkHeader, Vec<BulkAnswer>) -> Reply<BulkAnswer> + Send>;

/// Changes the words of the first part, [rows][lanes].
fn edit(f: impl Fn(&mut Vec<u64>, usize) + Send + 'static) -> Lie {
    let ring = ring();
    Box::new(move |header, mut answers| {
        reword(&ring, header.lanes, &mut answers[0], |words| f(words, header.lanes as usize));
        answers.into()
    })
}

fn other(f: impl FnMut(&BulkHeader, Vec<BulkAnswer>) -> Reply<BulkAnswer> + Send + 'static) -> Lie {
    Box::new(f)
}

fn part(answer: &mut BulkAnswer) -> &mut proto::v1::BulkPart {
    let Some(bulk_answer::Body::Part(part)) = &mut answer.body else { panic!("a failure has no rows") };
    part
}

/// An evaluator that does this to the first `times` companions' or batches' jobs: what the pool says then, and that all
/// is well when it has stopped.
fn caught(name: &str, mut lie: Lie, companion: bool, times: u32, says: &str) {
    let (forged, mut lies) = (says == FORGED, 0);
    let hook = move |header: &BulkHeader, answers: Vec<BulkAnswer>| {
        if (header.lanes == ALL) != companion || lies == times {
            return answers.into();
        }
        lies += 1;
        lie(header, answers)
    };
    let pair = Setup { lanes: 32, shapes: &SHAPES, quarantine: Duration::from_millis(50), ..Setup::default() }
        .start_with(|fake| fake.bulk(hook));
    let challenge = pair.pool().challenge(0);
    let mut trouble = Vec::new();
    until(name, || {
        let stats = pair.pool().stats();
        trouble.extend(stats.trouble.filter(|t| t.contains(says)));
        !trouble.is_empty() || stats.ready > 0 && pair.alarms("bulk") == 0
    });
    let trouble = trouble.pop().unwrap_or_else(|| panic!("{name}: nothing that says {says:?}"));
    assert!(trouble.contains("at http://127.0.0.1:"), "{name}: {trouble}");
    assert!(trouble.contains("blk.0.down"), "{name}: {trouble}");
    pair.filled(32);
    assert_eq!(pair.alarms("bulk") > 0, forged, "{name}");
    assert_eq!(Arc::ptr_eq(&challenge, &pair.pool().challenge(0)), !forged, "{name}");
    if forged {
        assert!(pair.companions() >= 2, "{name}: the companion is the old one");
    }
    pair.apply(&pair.masked(), &Call::default(), 0, 3).unwrap_or_else(|e| panic!("after {name}: {e}"));
    assert_eq!(pair.alarms("online"), 0, "{name}: a lie became a lane");
}

fn wrong_products(companion: bool) {
    let q = ring().q();
    let double = move |words: &mut Vec<u64>, _| words.iter_mut().for_each(|w| *w = kernels::modulus::add(*w, *w, q));
    let lies = [
        ("one coefficient of one lane", edit(move |words, _| words[7] = (words[7] + 1) % q)),
        ("one bit", edit(|words, lanes| words[2 * lanes - 1] ^= 1)),
        ("rows in other places", edit(|words, lanes| words.rotate_left(lanes))),
        ("two lanes swapped", edit(|words, _| words.swap(0, 1))),
        ("zeros", edit(|words, _| words.fill(0))),
        ("twice as much", edit(double)),
    ];
    for (name, lie) in lies {
        caught(name, lie, companion, 1, FORGED);
    }
}

#[test]
fn wrong_products_with_the_public_polynomials_are_found() {
    wrong_products(true);
}

#[test]
fn wrong_products_with_masks_are_found() {
    wrong_products(false);
}

#[test]
fn the_answer_for_another_batch_is_found() {
    let mut old: Option<Vec<BulkAnswer>> = None;
    let replay = other(move |_, mut answers| {
        let Some(old) = &old else {
            old = Some(answers);
            // The first one fails, so that there is a second.
            return Reply::hang_up();
        };
        for (answer, old) in answers.iter_mut().zip(old) {
            answer.body.clone_from(&old.body);
        }
        answers.into()
    });
    caught("another batch's answer", replay, false, 2, FORGED);
}

#[test]
fn a_call_that_waits_for_masks_hears_of_the_lie() {
    let (quarantine, retry_for) = (Duration::from_secs(600), Duration::from_secs(1));
    let lie = edit(|words, _| words.swap(0, 1));
    let pair = Setup { lanes: 32, shapes: &SHAPES, quarantine, retry_for, ..Setup::default() }.start_with(|fake| {
        let mut lie = lie;
        fake.bulk(move |header, answers| lie(header, answers));
    });
    let err = pair.apply(&pair.masked(), &Call::default(), 0, 1).expect_err("no masks").to_string();
    assert!(err.starts_with("evaluator at http://127.0.0.1:") && err.ends_with(FORGED), "{err}");
    assert_eq!((pair.alarms("bulk"), pair.ready(0)), (1, 0));
}

#[test]
fn malformed_answers_are_refused_by_name() {
    let q = ring().q();
    let lies: [(&str, Lie, &str); 7] = [
        ("a word that is q", edit(move |words, _| words[3] = q), "is not below q"),
        ("a row too few in the words", edit(|words, lanes| words.truncate(words.len() - lanes)), "residues, expected"),
        (
            "garbage",
            other(|_, mut answers| {
                part(&mut answers[0]).words = Bytes::from_static(b"not at all what was asked for");
                answers.into()
            }),
            "magic is",
        ),
        (
            "rows that are not there",
            other(|_, mut answers| {
                part(&mut answers[0]).first_row += 1;
                answers.into()
            }),
            "asked were 0..9",
        ),
        (
            "no rows",
            other(|_, mut answers| {
                part(&mut answers[0]).rows = 0;
                answers.into()
            }),
            "answers 0 rows",
        ),
        (
            "rows twice",
            other(|_, mut answers| {
                let twice = answers[1].body.clone();
                answers[0].body = twice;
                answers.into()
            }),
            "answers row 0 twice",
        ),
        (
            "that the job is malformed",
            other(|_, mut answers| {
                answers.truncate(1);
                answers[0].body = Some(bulk_answer::Body::Failure(failure(FailureKind::Malformed)));
                answers.into()
            }),
            "refuses a job as malformed: as the testwishes",
        ),
    ];
    for (name, lie, says) in lies {
        caught(name, lie, false, 1, says);
    }
}

#[test]
fn answers_that_are_too_long_end_the_session_and_impossible_times_are_no_matter() {
    type Lying = fn(Vec<BulkAnswer>) -> Vec<BulkAnswer>;
    let lies: [(&str, Lying); 4] = [
        ("every part twenty times", |answers| vec![answers[0].clone(); 20]),
        ("megabytes", |mut answers| {
            part(&mut answers[0]).words = Bytes::from(vec![0; 2 << 20]);
            answers
        }),
        ("a job that was never sent", |mut answers| {
            answers[0].job_id += 1000;
            answers
        }),
        ("nothing", |mut answers| {
            answers[0].body = None;
            answers
        }),
    ];
    for (name, lying) in lies {
        let mut first = true;
        let hook = move |header: &BulkHeader, answers: Vec<BulkAnswer>| {
            let now = header.lanes < ALL && std::mem::take(&mut first);
            if now { lying(answers).into() } else { answers.into() }
        };
        let pair = Setup { lanes: 32, shapes: &SHAPES, ..Setup::default() }.start_with(|fake| fake.bulk(hook));
        pair.filled(32);
        pair.apply(&pair.masked(), &Call::default(), 0, 3).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!((pair.batches().len(), pair.companions(), pair.alarms("bulk")), (2, 1, 0), "{name}");
    }
    let timeless = |_: &BulkHeader, mut answers: Vec<BulkAnswer>| {
        let times = proto::v1::JobTiming { queued_ns: u64::MAX, compute_ns: u64::MAX };
        answers.iter_mut().for_each(|a| part(a).timing = Some(times));
        answers.into()
    };
    let pair = Setup { lanes: 32, shapes: &SHAPES, ..Setup::default() }.start_with(|fake| fake.bulk(timeless));
    pair.filled(32);
    pair.apply(&pair.masked(), &Call::default(), 0, 30).unwrap();
    pair.filled(32);
    assert!(pair.pool().stats().evaluator >= Duration::from_nanos(u64::MAX));
}
