//! Whose turn it is: a bounded queue and a bounded ring of running sequences. No I/O and no clock.

use std::collections::VecDeque;

/// What the scheduler needs to know of a sequence.
pub trait Scheduled {
    /// Whether nobody wants the sequence any more.
    fn abandoned(&self) -> bool;
}

/// First come, first admitted; running sequences take turns, one step each.
pub struct Scheduler<S> {
    waiting: VecDeque<S>,
    running: VecDeque<S>,
    /// Sequences taken by [`Scheduler::schedule`] and not yet committed.
    out: usize,
    max_waiting: usize,
    max_running: usize,
}

impl<S: Scheduled> Scheduler<S> {
    /// Room for `max_running` sequences at a time (at least one) and `max_waiting` behind them.
    pub fn new(max_waiting: usize, max_running: usize) -> Self {
        let (waiting, running) = (VecDeque::new(), VecDeque::new());
        Self { waiting, running, out: 0, max_waiting, max_running: max_running.max(1) }
    }

    /// Whether [`Scheduler::admit`] would take one more. Drops abandoned sequences first.
    pub fn has_room(&mut self) -> bool {
        self.waiting.retain(|s| !s.abandoned());
        self.promote();
        self.seats_free() || self.waiting.len() < self.max_waiting
    }

    /// Puts a sequence in the queue, or gives it back when the queue is full.
    pub fn admit(&mut self, sequence: S) -> Result<(), S> {
        if !self.has_room() {
            return Err(sequence);
        }
        self.waiting.push_back(sequence);
        self.promote();
        Ok(())
    }

    /// Takes the sequence whose turn it is; it must come back through [`Scheduler::commit`].
    pub fn schedule(&mut self) -> Option<S> {
        self.waiting.retain(|s| !s.abandoned());
        self.promote();
        let next = self.running.pop_front()?;
        self.out += 1;
        Some(next)
    }

    /// Ends a turn: `Some` goes to the end of the ring, `None` (it finished) frees its seat.
    pub fn commit(&mut self, sequence: Option<S>) {
        self.out = self.out.saturating_sub(1);
        self.running.extend(sequence);
        self.promote();
    }

    /// Sequences waiting for a seat.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that hold a seat.
    pub fn running(&self) -> usize {
        self.running.len() + self.out
    }

    fn seats_free(&self) -> bool {
        self.running() < self.max_running
    }

    fn promote(&mut self) {
        while self.seats_free() {
            let Some(s) = self.waiting.pop_front() else { return };
            self.running.push_back(s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::Cell, rc::Rc};

    #[derive(Clone)]
    struct Item(&'static str, Rc<Cell<bool>>);

    impl Scheduled for Item {
        fn abandoned(&self) -> bool {
            self.1.get()
        }
    }

    fn item(name: &'static str) -> Item {
        Item(name, Rc::default())
    }

    fn take(s: &mut Scheduler<Item>) -> Item {
        s.schedule().expect("something to run")
    }

    #[test]
    fn running_sequences_take_turns_and_others_wait_for_a_seat() {
        let mut s = Scheduler::new(8, 2);
        for name in ["a", "b", "c"] {
            assert!(s.admit(item(name)).is_ok());
        }
        assert_eq!((s.running(), s.waiting()), (2, 1));
        let mut turns = Vec::new();
        for _ in 0..4 {
            let x = take(&mut s);
            turns.push(x.0);
            s.commit(Some(x));
        }
        assert_eq!(turns, ["a", "b", "a", "b"]);
        let a = take(&mut s);
        drop(a);
        s.commit(None);
        assert_eq!((s.running(), s.waiting()), (2, 0));
        let b = take(&mut s);
        s.commit(Some(b));
        assert_eq!(take(&mut s).0, "c");
    }

    #[test]
    fn a_full_queue_gives_the_sequence_back_and_takes_it_once_there_is_room() {
        let mut s = Scheduler::new(1, 1);
        assert!(s.admit(item("a")).is_ok());
        assert!(s.admit(item("b")).is_ok());
        assert_eq!(s.admit(item("c")).err().map(|i| i.0), Some("c"));
        let _a = take(&mut s);
        assert!(!s.has_room(), "a sequence in its step still holds its seat");
        s.commit(None);
        assert!(s.admit(item("c")).is_ok());
    }

    #[test]
    fn an_abandoned_sequence_leaves_the_queue_at_once() {
        let mut s = Scheduler::new(1, 1);
        let b = item("b");
        assert!(s.admit(item("a")).is_ok() && s.admit(b.clone()).is_ok());
        assert!(!s.has_room());
        b.1.set(true);
        assert!(s.admit(item("c")).is_ok());
        let _a = take(&mut s);
        s.commit(None);
        assert_eq!(take(&mut s).0, "c");
    }

    #[test]
    fn no_waiting_room_still_serves_one() {
        let mut s = Scheduler::new(0, 0);
        assert!(s.admit(item("a")).is_ok());
        assert!(s.admit(item("b")).is_err());
        assert!(s.schedule().is_some() && s.schedule().is_none());
    }
}
