//! The engine over a model that needs no weights: token t is followed by t + 1.

use super::*;
use crate::{
    engine::{
        runner::{Cache, Work},
        sampler::SamplingLiteral,
    },
    metrics::Metrics,
};
use std::sync::{
    Barrier,
    atomic::{AtomicUsize, Ordering},
};

const VOCAB: usize = 64;
const END: u32 = 60;

/// Counts its pages; `gate` lets a test hold a step; token 50 panics, token 51 loses its evaluator, token 52 has a
/// fault of its own. A page holds one token.
struct Successor {
    gate: Option<Arc<Barrier>>,
    pages: usize,
    used: Arc<AtomicUsize>,
    /// Sequences and positions of every pass.
    passes: Passes,
    hold: Arc<Mutex<()>>,
}

type Passes = Arc<Mutex<Vec<(Site, Vec<usize>)>>>;

struct Counted {
    used: Arc<AtomicUsize>,
    len: usize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Cache for Counted {
    fn reuse(&mut self, _: &[u32]) -> usize {
        0
    }

    fn missing(&self, positions: usize) -> usize {
        positions
    }

    fn clear(&mut self) {
        self.used.fetch_sub(self.len, Ordering::SeqCst);
        self.len = 0;
    }
}

impl Runner for Successor {
    type Cache = Counted;

    fn vocab(&self) -> usize {
        VOCAB
    }

    fn is_end(&self, token: u32) -> bool {
        token == END
    }

    fn new_cache(&self, _: Salt) -> Counted {
        Counted { used: self.used.clone(), len: 0 }
    }

    fn pages(&self) -> (usize, usize) {
        (self.pages, self.pages - self.used.load(Ordering::SeqCst))
    }

    fn reused(&self) -> (u64, u64) {
        (0, 0)
    }

    fn is_uniform(&self) -> bool {
        false
    }

    fn run(
        &self,
        site: Site,
        call: &Call,
        works: &mut [Work<'_, Counted>],
        logits: &mut Vec<f32>,
    ) -> Result<(), Error> {
        if let Some(gate) = &self.gate {
            gate.wait();
            gate.wait();
        }
        drop(self.hold.lock().expect("no panic inside"));
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.passes.lock().expect("no panic inside").push((site, works.iter().map(|w| w.tokens.len()).collect()));
        logits.clear();
        for work in works.iter() {
            let last = *work.tokens.last().expect("never empty");
            assert!(last != 50, "the token that panics");
            if last == 51 {
                return Err(Error::Evaluator("at nowhere is gone for 5 s: connection refused".into()));
            }
            if last == 52 {
                return Err(Error::Model("an activation is not finite".into()));
            }
            if work.logits {
                let at = logits.len();
                logits.resize(at + VOCAB, 0.0);
                logits[at + (last as usize + 1) % VOCAB] = 1.0;
            }
        }
        for work in works {
            work.cache.len += work.tokens.len();
            let used = self.used.fetch_add(work.tokens.len(), Ordering::SeqCst);
            assert!(used + work.tokens.len() <= self.pages, "more pages than there are");
        }
        Ok(())
    }
}

struct Fixture {
    engine: Engine<Successor>,
    used: Arc<AtomicUsize>,
    passes: Passes,
    hold: Arc<Mutex<()>>,
}

fn engine(max_queue: usize, max_running: usize, pages: usize, gate: Option<Arc<Barrier>>) -> Fixture {
    engine_of(
        Limits { max_queue, max_queue_per_tenant: usize::MAX, max_running, prefill_chunk: 4, answer_multiple: 1 },
        pages,
        gate,
    )
}

fn engine_of(limits: Limits, pages: usize, gate: Option<Arc<Barrier>>) -> Fixture {
    let (used, passes, hold) = (Arc::new(AtomicUsize::new(0)), Passes::default(), Arc::new(Mutex::new(())));
    let runner = Successor { gate, pages, used: used.clone(), passes: passes.clone(), hold: hold.clone() };
    let metrics = Metrics::new().expect("metrics");
    let engine = Engine::start(limits, &metrics, vec![(Protocol::Local, runner)]).expect("threads");
    Fixture { engine, used, passes, hold }
}

const TENANT: Tenant = [7; 32];

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    let sampling = SamplingLiteral::default().check().expect("valid");
    Request {
        prompt: Zeroizing::new(prompt.to_vec()),
        max_tokens,
        sampling,
        ignore_eos: false,
        prefill: Site::Enclave,
        tenant: TENANT,
        salt: Salt::default(),
    }
}

fn drain(mut ticket: Ticket) -> (Vec<u32>, Result<Finish, Error>) {
    let mut tokens = Vec::new();
    loop {
        match ticket.events.blocking_recv().expect("an end") {
            Event::Token(t) => tokens.push(t.id),
            Event::Finished { finish, tokens: n, .. } => {
                assert_eq!(n, tokens.len());
                return (tokens, Ok(finish));
            }
            Event::Failed(e) => return (tokens, Err(e)),
        }
    }
}

#[test]
fn tokens_follow_and_end_by_length_or_by_the_model() {
    let f = engine(4, 2, 99, None);
    let long: Vec<u32> = (0..11).collect();
    let tickets = [request(&long, 3), request(&[57], 9)].map(|r| f.engine.submit(Protocol::Local, r).expect("room"));
    let [a, b] = tickets.map(drain);
    assert!(matches!(a, (t, Ok(Finish::Length)) if t == [11, 12, 13]));
    assert!(matches!(b, (t, Ok(Finish::Stop)) if t == [58, 59, 60]));
    let ignoring = Request { ignore_eos: true, ..request(&[57], 5) };
    let (tokens, end) = drain(f.engine.submit(Protocol::Local, ignoring).expect("room"));
    assert!(matches!(end, Ok(Finish::Length)) && tokens == [58, 59, 60, 61, 62]);
    assert_eq!(f.used.load(Ordering::SeqCst), 0, "pages are freed before the client hears the end");
}

#[test]
fn a_failure_or_a_panic_ends_one_sequence_only() {
    let f = engine(4, 2, 99, None);
    let submit = |p: u32| drain(f.engine.submit(Protocol::Local, request(&[p], 9)).expect("room"));
    assert!(matches!(submit(49), (t, Err(Error::Bug(_))) if t == [50]));
    assert!(matches!(submit(51), (t, Err(Error::Evaluator(e))) if t.is_empty() && e.contains("5 s")));
    assert!(matches!(submit(57), (_, Ok(Finish::Stop))));
    assert_eq!(f.used.load(Ordering::SeqCst), 0);
}

#[test]
fn sequences_share_passes_and_a_fault_of_one_stays_its_own() {
    let f = engine(8, 8, 999, None);
    let held = f.hold.lock().expect("free");
    let submit = |p: u32, n| f.engine.submit(Protocol::Local, request(&[p], n)).expect("room");
    let tickets = [submit(0, 3), submit(48, 9), submit(52, 9), submit(20, 4)];
    drop(held);
    let [a, b, c, d] = tickets.map(drain);
    assert!(matches!(a, (t, Ok(Finish::Length)) if t == [1, 2, 3]));
    assert!(matches!(b, (t, Err(Error::Bug(_))) if t == [49, 50]), "the one that panics");
    assert!(matches!(c, (t, Err(Error::Model(_))) if t.is_empty()));
    assert!(matches!(d, (t, Ok(Finish::Length)) if t == [21, 22, 23, 24]));
    let passes = f.passes.lock().expect("passes");
    let widest = passes.iter().filter(|(site, _)| *site == Site::Evaluator).map(|(_, p)| p.len()).max();
    assert!(widest >= Some(2), "answers share passes: {passes:?}");
    assert!(passes.iter().all(|(site, p)| *site == Site::Enclave || p.iter().all(|n| *n == 1)));
}

#[test]
fn a_lost_evaluator_ends_all_that_share_the_pass() {
    let f = engine(8, 8, 999, None);
    let held = f.hold.lock().expect("free");
    // Both reach 51 in the same step, whether or not they began in the same one.
    let tickets = [50, 51].map(|p| f.engine.submit(Protocol::Local, request(&[p, 51], 9)).expect("room"));
    drop(held);
    for (_, end) in tickets.map(drain) {
        assert!(matches!(end, Err(Error::Evaluator(_))));
    }
    assert_eq!(f.used.load(Ordering::SeqCst), 0);
}

#[test]
fn an_answer_goes_on_unseen_to_an_agreed_length() {
    let limits = Limits { max_queue: 4, max_queue_per_tenant: 4, max_running: 4, prefill_chunk: 4, answer_multiple: 8 };
    let f = engine_of(limits, 99, None);
    let (tokens, end) = drain(f.engine.submit(Protocol::Local, request(&[57], 9)).expect("room"));
    assert!(matches!(end, Ok(Finish::Stop)) && tokens == [58, 59, 60], "the client sees its own end");
    let mut stopped = f.engine.submit(Protocol::Local, request(&[0], 9)).expect("room");
    assert!(matches!(stopped.events.blocking_recv(), Some(Event::Token(_))));
    stopped.stop();
    while !matches!(stopped.events.blocking_recv().expect("an end"), Event::Finished { .. }) {}
    // The engine's end waits for nobody, so its thread must have come to the end of both by itself.
    while f.used.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
    let passes = f.passes.lock().expect("passes");
    let steps: usize = passes.iter().map(|(_, p)| p.len()).sum();
    assert_eq!(steps % 8, 0, "{passes:?}");
}

#[test]
fn a_pool_that_is_too_small_costs_time_but_no_token() {
    let f = engine(8, 4, 12, None);
    let tickets = [0, 10, 20, 30].map(|p| f.engine.submit(Protocol::Local, request(&[p, p + 1], 8)).expect("room"));
    for (ticket, first) in tickets.into_iter().zip([2, 12, 22, 32]) {
        let (tokens, end) = drain(ticket);
        assert!(matches!(end, Ok(Finish::Length)));
        assert_eq!(tokens, (first..first + 8).collect::<Vec<u32>>());
    }
    assert_eq!(f.used.load(Ordering::SeqCst), 0);
    let refused = f.engine.submit(Protocol::Local, request(&[1; 5], 197)).err().map(|e| e.to_string());
    let says = "prompt and max_tokens need 13 pages of keys and values, there are 12 (engine.kv_memory)";
    assert_eq!(refused.as_deref(), Some(says));
}

#[test]
fn full_queues_refuse_with_figures_and_a_dropped_ticket_makes_room() {
    let gate = Arc::new(Barrier::new(2));
    let f = engine(1, 1, 99, Some(gate.clone()));
    let submit = |p: u32, n| f.engine.submit(Protocol::Local, request(&[p], n));
    let running = submit(0, 9).expect("a seat");
    gate.wait(); // the step of `running` has begun
    let waiting = submit(10, 1).expect("a place in the queue");
    let err = submit(20, 1).err().expect("full").to_string();
    assert_eq!(err, "the local queue is full: 1 requests run and 1 wait (max_running, max_queue)");
    assert!(matches!(f.engine.check_room(Protocol::Local, &TENANT), Err(Error::Busy(_))));
    drop(waiting);
    let next = submit(30, 1).expect("the abandoned one has left");
    drop(running);
    gate.wait(); // the step sees that it was cancelled
    gate.wait();
    gate.wait(); // the step of `next`
    let (tokens, end) = drain(next);
    assert!(matches!(end, Ok(Finish::Length)) && tokens == [31]);
    assert_eq!(f.used.load(Ordering::SeqCst), 0);
}

#[test]
fn a_stopped_sequence_finishes_instead_of_being_cancelled() {
    let f = engine(4, 2, 99, None);
    let endless = Request { ignore_eos: true, ..request(&[0], 40) };
    let mut ticket = f.engine.submit(Protocol::Local, endless).expect("room");
    assert!(matches!(ticket.events.blocking_recv(), Some(Event::Token(t)) if t.id == 1));
    ticket.stop();
    let end = loop {
        match ticket.events.blocking_recv().expect("an end") {
            Event::Token(_) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Event::Finished { .. }));
    assert_eq!(f.used.load(Ordering::SeqCst), 0);
}

#[test]
fn a_protocol_that_nothing_serves_is_refused() {
    let limits = Limits { max_queue: 1, max_queue_per_tenant: 1, max_running: 1, prefill_chunk: 4, answer_multiple: 1 };
    for (served, asked, says) in [
        (Protocol::Local, Protocol::Direct, "has no evaluator configured"),
        (Protocol::Local, Protocol::Masked, "has no evaluator configured"),
        (Protocol::Direct, Protocol::Auto, "makes no masks: its engine.protocol is neither masked nor auto"),
    ] {
        let runner =
            Successor { gate: None, pages: 9, used: Arc::default(), passes: Arc::default(), hold: Arc::default() };
        let metrics = Metrics::new().expect("metrics");
        let engine = Engine::start(limits, &metrics, vec![(served, runner)]).expect("threads");
        let err = engine.submit(asked, request(&[1], 1)).err().expect("refused").to_string();
        assert!(
            err.starts_with(&format!("configuration: protocol {asked} is asked for")) && err.ends_with(says),
            "{err}"
        );
    }
}
