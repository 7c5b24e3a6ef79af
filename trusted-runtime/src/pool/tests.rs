//! The pool against an evaluator in this process.

mod lies;

use super::*;
use crate::{
    linear::testing::{Fake, Pair, Reply, Setup, failure, plan_of, ring, until},
    model::quantize::Weights,
};
use proto::v1::{BulkAnswer, BulkHeader, FailureKind, bulk_answer};

/// One matrix is enough, of so few columns that a batch is one message.
const SHAPES: [(usize, usize); 1] = [(9, 8)];

/// Lanes of the companion's job.
const ALL: u32 = 2048;

impl Pair {
    fn ready(&self, index: usize) -> usize {
        self.pool().queues().lanes[index].len()
    }

    /// The lanes asked for in each bulk job, companions apart.
    fn batches(&self) -> Vec<u32> {
        let seen = self.fake.0.seen.lock().unwrap();
        seen.bulk.iter().map(|(header, _)| header.lanes).filter(|&lanes| lanes < ALL).collect()
    }

    /// How often a companion was asked for.
    fn companions(&self) -> usize {
        self.fake.0.seen.lock().unwrap().bulk.iter().filter(|(header, _)| header.lanes == ALL).count()
    }
}

#[test]
fn settings_become_lanes_and_bytes() {
    let (ring, plan) = (ring(), plan_of(Weights::W16, &[(70, 130), (5, 3)]));
    let fit = |lanes, memory, threads| Settings { lanes, memory, threads }.fit(&ring, &plan);
    // Two planes of rows; A_j and A'_i are 2048 words of 8 bytes.
    let fixed = (2 * 70 + 2 * 5 + 130) * 2048 * 8;
    let lane = (Lane::bytes_for(140) + Lane::bytes_for(10)) as u64;
    assert!(lane >= 4 * (140 + 10) + 2 * 32);
    // A word of 8 bytes and one of 3 more for every column, 12 and 4 for every row, of the largest matrix.
    let refill = |lanes: u64, threads: u64| threads * lanes * (130 * 11 + 140 * 16);
    let needs = |lanes, threads| fixed + lanes * lane + refill(lanes, threads);

    let full = fit(0, 1 << 40, 1).unwrap();
    assert_eq!(full, Memory { lanes: 2048, low: 512, fixed, lane, refill: refill(2048, 1) });
    assert_eq!(full.bytes(), needs(2048, 1));
    for (lanes, memory, threads, get) in [
        (0, needs(64, 1), 1, 64),
        (0, needs(64, 1) - 1, 1, 32),
        (0, needs(64, 3), 3, 64),
        (0, needs(32, 2), 2, 32),
        (33, needs(64, 2), 2, 64),
        (5000, 1 << 40, 1, 5024),
    ] {
        let memory_of = fit(lanes, memory, threads).unwrap();
        assert_eq!((memory_of.lanes, memory_of.low), (get, get / 4), "{lanes} lanes in {memory} bytes");
        assert!(memory_of.bytes() <= memory);
    }
    for (lanes, memory, asked) in [(0, needs(32, 1) - 1, 32), (64, needs(64, 1) - 1, 64), (1, 0, 32)] {
        let err = fit(lanes, memory, 1).expect_err("too little").to_string();
        let says = format!(
            "configuration: pool.memory is {memory} bytes, {asked} lanes need {} (A and its products take {fixed} bytes, \
             a lane {lane}, refilling 32 lanes {})",
            needs(asked, 1),
            refill(32, 1)
        );
        assert_eq!(err, says);
    }
}

#[test]
fn the_pool_is_refilled_at_the_low_mark_and_not_before() {
    let pair = Setup { lanes: 64, shapes: &SHAPES, ..Setup::default() }.start();
    pair.filled(64);
    let pool = pair.pool();
    assert_eq!((pair.batches(), pool.memory.low), (vec![64], 16));
    drop(pool.take(0, 47).unwrap());
    assert!(!pool.scarce(&pool.queues(), 0) && pair.ready(0) == 17);
    drop(pool.take(0, 1).unwrap());
    // 16 are left: room for 48, of which batches take a multiple of 32.
    pair.filled(48);
    assert_eq!((pair.batches(), pair.companions(), pair.ready(0)), (vec![64, 32], 1, 48));
    assert!(pool.take(0, 49).is_none() && pair.ready(0) == 48, "a call gets all of its lanes or none");
    let stats = pool.stats();
    assert_eq!((stats.used, stats.capacity, stats.memory), (48, 64, pool.memory.bytes()));
    assert!((stats.made - 96.0).abs() < 1e-9 && stats.per_lane(stats.wall) >= stats.per_lane(stats.crypto));
    // Eight columns of 45 bits up, nine rows down, and headers.
    assert_eq!((stats.bytes_per_lane(stats.up), stats.bytes_per_lane(stats.down)), (45, 51));
    assert_eq!(pair.counted("bifrost_runtime_lanes_ready "), 48);
    assert_eq!(pair.counted("bifrost_runtime_lanes_refill_seconds_count "), 2);
    assert_eq!(pair.counted("bifrost_runtime_lanes_starved_total "), 1);
}

#[test]
fn the_matrix_with_fewest_lanes_comes_first_and_several_shards_are_one_batch() {
    // The second has two shards of rows.
    let pair = Setup { lanes: 32, shapes: &[(9, 8), (4100, 4)], ..Setup::default() }.start();
    pair.filled(32);
    pair.apply(&pair.masked(), &Call::default(), 1, 2).unwrap();
    let seen = pair.fake.0.seen.lock().unwrap();
    let ids = &pair.delegate.ids;
    let jobs = |index: usize| {
        let of = seen.bulk.iter().filter(|(h, _)| h.matrix_id[..] == ids[index] && h.lanes == 32);
        of.map(|(h, rows)| ((h.first_row, h.rows), rows.words.clone())).collect::<Vec<_>>()
    };
    assert_eq!(jobs(0).iter().map(|j| j.0).collect::<Vec<_>>(), [(0, 9)]);
    // All rows by one job: the ciphertexts travel once.
    assert_eq!(jobs(1).iter().map(|j| j.0).collect::<Vec<_>>(), [(0, 4100)]);
}

#[test]
fn a_refill_during_which_the_matrix_is_distrusted_is_thrown_away() {
    let (arrived, arrives) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel::<()>();
    let hold = |fake: &Fake| {
        fake.bulk(move |header, answers| {
            if header.lanes < ALL {
                let _ = arrived.send(());
                let _ = goes.recv_timeout(Duration::from_secs(20));
            }
            answers.into()
        });
    };
    let pair = Setup { lanes: 32, shapes: &SHAPES, ..Setup::default() }.start_with(hold);
    arrives.recv_timeout(Duration::from_secs(20)).unwrap();
    let challenge = pair.pool().challenge(0);
    pair.pool().distrust(0);
    assert!(!Arc::ptr_eq(&challenge, &pair.pool().challenge(0)));
    go.send(()).unwrap();
    // The next batch comes with another companion; what was made before it is not there.
    arrives.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!((pair.ready(0), pair.companions(), pair.batches().len()), (0, 2, 2));
    let trouble = pair.pool().stats().trouble.unwrap();
    assert_eq!(trouble, "an answer about the matrix failed its check while masks were being made");
    drop(go);
    pair.filled(32);
    assert_eq!(pair.pool().stats().trouble, None);
}

#[test]
fn new_challenges_leave_lanes_and_companions_as_they_are() {
    let pair = Setup { lanes: 32, shapes: &SHAPES, ..Setup::default() }.start();
    pair.filled(32);
    let challenge = pair.pool().challenge(0);
    pair.pool().refresh().unwrap();
    assert!(!Arc::ptr_eq(&challenge, &pair.pool().challenge(0)));
    let masked = pair.masked();
    for vectors in [20, 20, 20] {
        pair.apply(&masked, &Call::default(), 0, vectors).unwrap();
    }
    assert_eq!((pair.companions(), pair.alarms("online"), pair.alarms("bulk")), (1, 0, 0));
}

#[test]
fn failures_that_pass_are_repeated_with_a_fresh_batch() {
    let pair = Setup { lanes: 32, shapes: &SHAPES, deadline: Duration::from_millis(500), ..Setup::default() };
    let mut n = 0;
    let failing = move |_: &BulkHeader, mut honest: Vec<BulkAnswer>| {
        n += 1;
        let kinds = [FailureKind::Unavailable, FailureKind::Deadline, FailureKind::Cancelled, FailureKind::Internal];
        match n {
            1..=4 => {
                honest.truncate(1);
                honest[0].body = Some(bulk_answer::Body::Failure(failure(kinds[n - 1])));
                honest.into()
            }
            5 => Reply::hang_up(),
            6 => Reply::nothing(),
            7 => Reply { answers: vec![honest.remove(0)], hang_up: true },
            // The companion is made by now, and the batch fails.
            9 => Reply::hang_up(),
            10 => Reply { answers: vec![honest.remove(0)], hang_up: true },
            _ => honest.into(),
        }
    };
    let pair = pair.start_with(|fake| fake.bulk(failing));
    pair.filled(32);
    assert_eq!((pair.companions(), pair.batches().len()), (8, 3));
    pair.apply(&pair.masked(), &Call::default(), 0, 2).unwrap();
    assert_eq!(pair.alarms("bulk"), 0);
}

#[test]
fn a_closed_pool_ends_its_threads() {
    let pair = Setup { lanes: 32, shapes: &SHAPES, threads: 2, ..Setup::default() }
        .start_with(|fake| fake.bulk(|_, _| Reply::nothing()));
    until("a job", || pair.companions() > 0);
    pair.pool().close();
    let threads = std::mem::take(&mut *pair.pool().threads.lock().unwrap());
    assert_eq!(threads.len(), 2);
    threads.into_iter().for_each(|t| t.join().unwrap());
}
