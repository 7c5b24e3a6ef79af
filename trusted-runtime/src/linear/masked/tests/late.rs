//! Answers that come late, and in another order than the jobs: to what was given up they are nothing at all.

use super::*;
use std::collections::VecDeque;

/// Holds back each answer until so many jobs later; what is held back by then is no longer wanted.
fn late<A: Clone + Send + 'static>(
    by: usize,
    change: impl Fn(&mut A) + Send + 'static,
) -> impl FnMut(Vec<A>) -> Vec<A> + Send {
    let mut held: VecDeque<Vec<A>> = VecDeque::new();
    move |answers| {
        held.push_back(answers.clone());
        if held.len() <= by {
            return Vec::new();
        }
        let mut now = held.pop_front().unwrap_or_default();
        now.iter_mut().for_each(&change);
        held.clear();
        [now, answers].concat()
    }
}

fn setup() -> Setup<'static> {
    Setup { lanes: 32, deadline: Duration::from_millis(300), ..Setup::default() }
}

#[test]
fn a_late_online_answer_is_passed_over_true_or_not() {
    for wrong in [false, true] {
        let pair = setup().start();
        let masked = pair.masked();
        pair.filled(32);
        let mut hold = late(1, move |answer: &mut OnlineAnswer| {
            if wrong && let Some(online_answer::Body::Words(words)) = &mut answer.body {
                *words = vec![0x5a; words.len()].into();
            }
        });
        pair.fake.online(move |_, answers| hold(answers).into());
        let call = Call::default();
        pair.apply(&masked, &call, 0, 1).unwrap();
        // Given up once, sent again behind a fresh mask, and answered behind the late answer.
        assert_eq!(call.meter.snapshot().retries, 1);
        let jobs: Vec<_> = pair.fake.0.seen.lock().unwrap().online.iter().map(|job| job.words.clone()).collect();
        assert!(jobs.len() == 2 && jobs[0] != jobs[1], "{} jobs", jobs.len());
        assert_eq!(pair.alarms("online"), 0);
    }
}

#[test]
fn a_late_direct_answer_is_passed_over() {
    let pair = setup().start();
    let mut hold = late(1, |_| {});
    pair.fake.direct(move |answers| hold(answers).into());
    let call = Call::default();
    pair.apply(pair.direct.as_ref(), &call, 0, 1).unwrap();
    assert!(call.meter.snapshot().retries > 0);
    assert_eq!(pair.alarms("direct"), 0);
}

#[test]
fn a_late_bulk_answer_is_passed_over() {
    let mut hold = late(1, |_| {});
    let pair = setup().start_with(|fake| fake.bulk(move |_, answers| hold(answers).into()));
    pair.filled(8);
    pair.apply(&pair.masked(), &Call::default(), 0, 3).unwrap();
    assert_eq!((pair.alarms("bulk"), pair.alarms("online")), (0, 0));
}
