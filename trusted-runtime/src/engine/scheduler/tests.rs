use super::*;
use std::{cell::Cell, rc::Rc};

/// A sequence of `known` tokens; a page holds one token.
struct Item {
    name: &'static str,
    tenant: u8,
    gone: Rc<Cell<bool>>,
    known: usize,
    prompt: usize,
    done: usize,
    pages: Rc<Cell<usize>>,
}

impl Scheduled for Item {
    fn abandoned(&self) -> bool {
        self.gone.get()
    }
    fn tenant(&self) -> &Tenant {
        const TENANTS: [Tenant; 3] = [[0; 32], [1; 32], [2; 32]];
        &TENANTS[usize::from(self.tenant)]
    }
    fn seat(&mut self) {}
    fn remaining(&self) -> usize {
        self.known - self.done
    }
    fn decoding(&self) -> bool {
        self.remaining() == 1 && self.known > self.prompt
    }
    fn missing(&self, tokens: usize) -> usize {
        tokens
    }
    fn release(&mut self) {
        self.pages.set(self.pages.get() + self.done);
        self.done = 0;
    }
}

/// A scheduler with `free` pages.
struct Bench {
    scheduler: Scheduler<Item>,
    free: Rc<Cell<usize>>,
}

impl Bench {
    fn new(waiting: usize, running: usize, prefill: usize, pages: usize) -> Self {
        let bounds = Bounds { waiting, waiting_of_one: usize::MAX, running, prefill };
        Self { scheduler: Scheduler::new(bounds), free: Rc::new(Cell::new(pages)) }
    }

    fn item(&self, name: &'static str, tenant: u8, prompt: usize) -> Item {
        Item { name, tenant, gone: Rc::default(), known: prompt, prompt, done: 0, pages: self.free.clone() }
    }

    fn admit(&mut self, name: &'static str, tenant: u8, prompt: usize) -> bool {
        let item = self.item(name, tenant, prompt);
        self.scheduler.admit(item).is_ok()
    }

    /// Runs a step; those in `over` end with it.
    fn step(&mut self, over: &[&str]) -> Vec<(&'static str, usize)> {
        let turns = self.scheduler.schedule(|| self.free.get());
        let told = turns.iter().map(|t| (t.sequence.name, t.tokens)).collect();
        for mut turn in turns {
            self.free.set(self.free.get() - turn.tokens);
            turn.sequence.done += turn.tokens;
            turn.sequence.known += usize::from(turn.sequence.remaining() == 0);
            let over = over.contains(&turn.sequence.name);
            if let Some(mut ended) = self.scheduler.commit(turn, over) {
                ended.release();
            }
        }
        told
    }
}

#[test]
fn all_that_run_share_a_step_and_prompts_share_its_positions() {
    let mut b = Bench::new(8, 3, 10, 999);
    for (name, prompt) in [("a", 4), ("b", 13), ("c", 2), ("d", 1)] {
        assert!(b.admit(name, 0, prompt));
    }
    assert_eq!(b.step(&[]), [("a", 4), ("b", 6)]);
    assert_eq!((b.scheduler.running(), b.scheduler.waiting()), (2, 2));
    assert_eq!(b.step(&[]), [("a", 1), ("b", 7), ("c", 2)]);
    assert_eq!(b.step(&["b"]), [("a", 1), ("b", 1), ("c", 1)]);
    assert_eq!(b.step(&[]), [("a", 1), ("c", 1), ("d", 1)], "a free seat is taken at once");
}

#[test]
fn a_full_queue_gives_the_sequence_back_and_takes_it_once_there_is_room() {
    let mut b = Bench::new(1, 1, 4, 999);
    assert!(b.admit("a", 0, 1) && b.admit("b", 0, 1) && !b.admit("c", 0, 1));
    b.step(&["a"]);
    assert!(b.admit("c", 0, 1));
    let gone = b.item("x", 0, 1);
    gone.gone.set(true);
    assert!(b.scheduler.admit(gone).is_err(), "who has left has no place, and there is none");
    let mut none = Bench::new(0, 0, 0, 999);
    assert!(none.admit("a", 0, 1) && !none.admit("b", 0, 1));
    assert_eq!(none.step(&["a"]), [("a", 1)]);
}

#[test]
fn an_abandoned_sequence_leaves_the_queue_at_once() {
    let mut b = Bench::new(1, 1, 4, 999);
    let item = b.item("b", 0, 1);
    let gone = item.gone.clone();
    assert!(b.admit("a", 0, 1) && b.scheduler.admit(item).is_ok() && !b.admit("c", 0, 1));
    gone.set(true);
    assert!(b.admit("c", 0, 1));
    b.step(&["a"]);
    assert_eq!(b.step(&[]), [("c", 1)]);
}

#[test]
fn a_free_seat_goes_to_the_tenant_with_fewest() {
    let mut b = Bench::new(9, 2, 9, 999);
    for (name, tenant) in [("a1", 0), ("a2", 0), ("a3", 0), ("b1", 1), ("c1", 2)] {
        assert!(b.admit(name, tenant, 1));
    }
    assert_eq!(b.step(&["a1"]), [("a1", 1), ("b1", 1)]);
    assert_eq!(b.step(&["b1"]), [("b1", 1), ("a2", 1)], "nobody but b has a seat: the longest waiting");
    assert_eq!(b.step(&["a2"]), [("a2", 1), ("c1", 1)]);
    let bounds = Bounds { waiting: 9, waiting_of_one: 1, running: 1, prefill: 1 };
    b.scheduler = Scheduler::new(bounds);
    assert!(b.admit("a1", 0, 1) && b.admit("a2", 0, 1) && !b.admit("a3", 0, 1) && b.admit("b1", 1, 1));
}

#[test]
fn without_pages_the_youngest_starts_again_later() {
    let mut b = Bench::new(9, 3, 99, 12);
    assert!(b.admit("a", 0, 4) && b.admit("b", 0, 4) && b.admit("c", 0, 5));
    assert_eq!(b.step(&[]), [("a", 4), ("b", 4)], "c would need five pages, four are left");
    assert_eq!(b.step(&[]), [("a", 1), ("b", 1)]);
    assert_eq!(b.step(&[]), [("a", 1), ("b", 1)]);
    assert_eq!(b.step(&[]), [("a", 1)], "b has given its pages back");
    assert_eq!(b.scheduler.preemptions(), 1);
    assert_eq!(b.step(&["a"]), [("a", 1)], "b waits until there is room for all of its 7 tokens");
    assert_eq!(b.step(&[]), [("b", 7), ("c", 5)], "and comes first then");
    assert_eq!(b.step(&["b"]), [("b", 1)]);
}
