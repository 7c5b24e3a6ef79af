//! The engine over a model that needs no weights: token t is followed by t + 1.

use super::*;
use crate::{engine::sampler::SamplingLiteral, metrics::Metrics};
use std::sync::{
    Barrier,
    atomic::{AtomicUsize, Ordering},
};

const VOCAB: usize = 64;
const END: u32 = 60;

/// Counts its live caches; `gate` lets a test hold a step; token 50 panics, token 51 loses its evaluator.
struct Successor {
    caches: Arc<AtomicUsize>,
    gate: Option<Arc<Barrier>>,
}

struct Counted(Arc<AtomicUsize>, Vec<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
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

    fn new_cache(&self) -> Counted {
        self.caches.fetch_add(1, Ordering::SeqCst);
        Counted(self.caches.clone(), Vec::new())
    }

    fn forward(&self, call: &Call, tokens: &[u32], cache: &mut Counted, logits: &mut Vec<f32>) -> Result<(), Error> {
        self.prefill(call, tokens, cache)?;
        let last = *tokens.last().expect("never empty");
        assert!(last != 50, "the token that panics");
        if last == 51 {
            return Err(Error::Evaluator("at nowhere is gone for 5 s: connection refused".into()));
        }
        logits.clear();
        logits.resize(VOCAB, 0.0);
        logits[(last as usize + 1) % VOCAB] = 1.0;
        Ok(())
    }

    fn prefill(&self, call: &Call, tokens: &[u32], cache: &mut Counted) -> Result<(), Error> {
        if let Some(gate) = &self.gate {
            gate.wait();
            gate.wait();
        }
        if call.is_cancelled() {
            return Err(Error::Cancelled);
        }
        cache.1.push(tokens.len());
        assert!(tokens.len() <= 4, "chunks of {:?}", cache.1);
        Ok(())
    }
}

struct Fixture {
    engine: Engine<Successor>,
    caches: Arc<AtomicUsize>,
}

fn engine(max_queue: usize, max_running: usize, gate: Option<Arc<Barrier>>) -> Fixture {
    let caches = Arc::new(AtomicUsize::new(0));
    let limits = Limits { max_queue, max_running, prefill_chunk: 4 };
    let runner = Successor { caches: caches.clone(), gate };
    let metrics = Metrics::new().expect("metrics");
    let engine = Engine::start(limits, &metrics, vec![(Protocol::Local, runner)]).expect("threads");
    Fixture { engine, caches }
}

fn request(prompt: &[u32], max_tokens: usize) -> Request {
    let sampling = SamplingLiteral::default().check().expect("valid");
    Request { prompt: Zeroizing::new(prompt.to_vec()), max_tokens, sampling, ignore_eos: false }
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
    let f = engine(4, 2, None);
    let long: Vec<u32> = (0..11).collect();
    let tickets = [request(&long, 3), request(&[57], 9)].map(|r| f.engine.submit(Protocol::Local, r).expect("room"));
    let [a, b] = tickets.map(drain);
    assert!(matches!(a, (t, Ok(Finish::Length)) if t == [11, 12, 13]));
    assert!(matches!(b, (t, Ok(Finish::Stop)) if t == [58, 59, 60]));
    let ignoring = Request { ignore_eos: true, ..request(&[57], 5) };
    let (tokens, end) = drain(f.engine.submit(Protocol::Local, ignoring).expect("room"));
    assert!(matches!(end, Ok(Finish::Length)) && tokens == [58, 59, 60, 61, 62]);
    assert_eq!(f.caches.load(Ordering::SeqCst), 0, "caches are freed before the client hears the end");
}

#[test]
fn a_failure_or_a_panic_ends_one_sequence_only() {
    let f = engine(4, 2, None);
    let submit = |p: u32| drain(f.engine.submit(Protocol::Local, request(&[p], 9)).expect("room"));
    assert!(matches!(submit(49), (t, Err(Error::Bug(_))) if t == [50]));
    assert!(matches!(submit(51), (t, Err(Error::Evaluator(e))) if t.is_empty() && e.contains("5 s")));
    assert!(matches!(submit(57), (_, Ok(Finish::Stop))));
    assert_eq!(f.caches.load(Ordering::SeqCst), 0);
}

#[test]
fn full_queues_refuse_with_figures_and_a_dropped_ticket_makes_room() {
    let gate = Arc::new(Barrier::new(2));
    let f = engine(1, 1, Some(gate.clone()));
    let submit = |p: u32, n| f.engine.submit(Protocol::Local, request(&[p], n));
    let running = submit(0, 9).expect("a seat");
    gate.wait(); // the step of `running` has begun
    let waiting = submit(10, 1).expect("a place in the queue");
    let err = submit(20, 1).err().expect("full").to_string();
    assert_eq!(err, "the local queue is full: 1 requests run and 1 wait (max_running, max_queue)");
    assert!(matches!(f.engine.check_room(Protocol::Local), Err(Error::Busy(_))));
    drop(waiting);
    let next = submit(30, 1).expect("the abandoned one has left");
    drop(running);
    gate.wait(); // the step sees that it was cancelled
    gate.wait();
    gate.wait(); // the step of `next`
    let (tokens, end) = drain(next);
    assert!(matches!(end, Ok(Finish::Length)) && tokens == [31]);
    assert_eq!(f.caches.load(Ordering::SeqCst), 0);
}

#[test]
fn a_stopped_sequence_finishes_instead_of_being_cancelled() {
    let f = engine(4, 2, None);
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
    assert_eq!(f.caches.load(Ordering::SeqCst), 0);
}

#[test]
fn a_protocol_that_nothing_serves_is_refused() {
    let limits = Limits { max_queue: 1, max_running: 1, prefill_chunk: 4 };
    for (served, asked, says) in [
        (Protocol::Local, Protocol::Direct, "has no evaluator configured"),
        (Protocol::Local, Protocol::Masked, "has no evaluator configured"),
        (Protocol::Direct, Protocol::Auto, "makes no masks: its engine.protocol is neither masked nor auto"),
    ] {
        let runner = Successor { caches: Arc::default(), gate: None };
        let metrics = Metrics::new().expect("metrics");
        let engine = Engine::start(limits, &metrics, vec![(served, runner)]).expect("threads");
        let err = engine.submit(asked, request(&[1], 1)).err().expect("refused").to_string();
        assert!(
            err.starts_with(&format!("configuration: protocol {asked} is asked for")) && err.ends_with(says),
            "{err}"
        );
    }
}
