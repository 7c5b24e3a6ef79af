//! No randomness meets two messages: whatever fails, nothing that the evaluator was sent is ever sent again.

use super::*;
use crate::linear::testing::{Fake, Mode, Seen};
use kernels::wire;
use proto::v1::BulkRows;
use std::{
    collections::{HashMap, HashSet},
    thread::Scope,
};

/// Narrow, so that it is quick; 24 masked words still do not repeat by chance.
const SHAPES: [(usize, usize); 2] = [(40, 24), (30, 33)];

/// How many pieces there are, and how many of them were there before.
fn count<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (usize, usize) {
    let (mut known, mut total, mut repeated) = (HashSet::new(), 0, 0);
    for piece in pieces {
        total += 1;
        repeated += usize::from(!known.insert(piece));
    }
    (total, repeated)
}

/// [`count`] of vectors of online jobs, rows of batches, and blocks of direct jobs.
///
/// A is public, the same for every matrix, and sent as often as it takes: nothing secret is in its rows, and they do not
/// count. They have N lanes, as those of a full batch have; the first row of N lanes that comes for a column is A's.
fn counts(seen: &Seen) -> [(usize, usize); 3] {
    let bits = crate::linear::testing::ring().params().bits() as usize;
    let vectors = seen.online.iter().flat_map(|job| job.words.chunks(job.words.len() / job.vectors as usize));
    // Bits times lanes, and bits times N, are whole bytes: rows and blocks can be told apart in a message.
    let (mut public, mut rows) = (HashMap::new(), Vec::new());
    for (header, message) in &seen.bulk {
        let chunks = message.words[wire::HEADER..].chunks(header.lanes as usize * bits / 8);
        let masks = (message.first_col..)
            .zip(chunks)
            .filter(|&(col, row)| header.lanes != 2048 || *public.entry(col).or_insert(row) != row);
        rows.extend(masks.map(|(_, row)| row));
    }
    let blocks = seen.blocks.iter().flat_map(|part| part[wire::HEADER..].chunks(2048 * bits / 8));
    [count(vectors), count(rows.into_iter()), count(blocks)]
}

/// From now on one job in three goes wrong, in every way that there is.
fn unreliable(fake: &Fake) {
    let mut n = 0;
    fake.online(move |job, mut honest| {
        n += 1;
        match n % 18 {
            2 => Reply::hang_up(),
            5 => refusal(job.job_id, FailureKind::Unavailable).into(),
            8 => Reply::nothing(),
            11 => refusal(job.job_id, FailureKind::Deadline).into(),
            14 => {
                honest[0].body = Some(online_answer::Body::Words(Bytes::from(vec![1; 160])));
                honest.into()
            }
            17 => [honest.clone(), honest].concat().into(),
            _ => honest.into(),
        }
    });
    let mut n = 0;
    fake.bulk(move |_, mut honest| {
        n += 1;
        match n % 12 {
            3 => Reply::hang_up(),
            6 => Reply::nothing(),
            9 => bulk_refusal(&honest[0], FailureKind::Internal).into(),
            // The first half of an answer, and no more.
            11 => {
                honest.truncate(1);
                Reply { answers: honest, hang_up: true }
            }
            _ => honest.into(),
        }
    });
}

/// Numbers, if there are any, are right; that there are some is not asked for.
fn storm<'scope, 'env>(
    s: &'scope Scope<'scope, 'env>,
    pair: &'env Pair,
    linears: &'env [&'env dyn Linear],
    calls: u32,
) {
    for (t, &linear) in (0..).zip(linears) {
        s.spawn(move || {
            for k in 0..calls {
                let _ = pair.apply(linear, &Call::default(), (t + k) % 2, 1 + k as usize % 3);
            }
        });
    }
}

#[test]
fn nothing_is_ever_sent_twice() {
    a_storm_repeats_nothing(32, 100);
}

/// Batches of N lanes, which is what a pool of the default size draws.
#[test]
fn nothing_of_full_batches_is_ever_sent_twice() {
    a_storm_repeats_nothing(2048, 60);
}

/// With a pool of so many lanes, and at least so many rows of masks.
fn a_storm_repeats_nothing(lanes: usize, least_rows: usize) {
    let (deadline, quarantine) = (Duration::from_millis(250), Duration::from_millis(20));
    let retry_for = Duration::from_secs(3);
    let setup = Setup { lanes, threads: 2, shapes: &SHAPES, deadline, quarantine, retry_for, ..Setup::default() };
    let mut pair = setup.start_with(unreliable);
    let modes = [
        Mode::DropStreamOnce,
        Mode::FailOnce(FailureKind::Unavailable),
        Mode::ForgetOnce,
        Mode::FailOnce(FailureKind::Deadline),
    ];
    for mode in modes {
        let (masked, auto) = (pair.masked(), pair.auto());
        let linears: [&dyn Linear; 3] = [&masked, &auto, pair.direct.as_ref()];
        thread::scope(|s| {
            storm(s, &pair, &linears, 8);
            // Meanwhile a direct job fails, and calls are cancelled while their job is in flight.
            *pair.fake.0.mode.lock().unwrap() = mode;
            for linear in linears {
                let call = Call::default();
                let before = pair.fake.0.seen.lock().unwrap().online.len();
                thread::scope(|s| {
                    let cancelled = s.spawn(|| pair.apply(linear, &call, 0, 2));
                    until("a job", || {
                        pair.fake.0.seen.lock().unwrap().online.len() > before || cancelled.is_finished()
                    });
                    call.cancel();
                });
            }
        });
        pair.restart();
    }
    pair.fake.reform();
    let (masked, auto) = (pair.masked(), pair.auto());
    let linears: [&dyn Linear; 3] = [&masked, &auto, pair.direct.as_ref()];
    for linear in linears {
        until("numbers", || pair.apply(linear, &Call::default(), 1, 2).is_ok());
    }
    let mut seen = pair.fake.0.seen.lock().unwrap();
    let found = counts(&seen);
    assert!(found.iter().all(|&(_, repeated)| repeated == 0), "{found:?}");
    assert!(
        found.iter().zip([40, least_rows, 40]).all(|(&(total, _), least)| total >= least),
        "a storm of {found:?} only"
    );
    // The recorder would notice.
    let job = seen.online[0].clone();
    let first_row = |row: &(_, BulkRows)| row.1.words.slice(wire::HEADER..wire::HEADER + 64);
    let public = first_row(&seen.bulk[0]);
    let row = seen.bulk.iter().find(|row| row.1.first_col == 0 && first_row(row) != public).unwrap().clone();
    let block = seen.blocks[0].clone();
    seen.online.push(job);
    seen.bulk.push(row);
    seen.blocks.push(block);
    assert!(counts(&seen).iter().all(|&(_, repeated)| repeated > 0));
}
