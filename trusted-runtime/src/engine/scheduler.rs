//! Who takes part in the next step: a bounded queue, a bounded set of running sequences, a bounded number of prompt
//! positions a step, and a bounded number of pages. No I/O and no clock.
//!
//! Everybody who is past the prompt makes one token a step. The prompt positions of a step go to the sequences in the
//! order in which they got their seats. A free seat goes to the tenant that has fewest, among those to who waits
//! longest. Without pages for all, the youngest give theirs back and start again later from their tokens.

use std::collections::VecDeque;

/// Who a sequence belongs to, for fairness only.
pub type Tenant = [u8; 32];

/// What the scheduler needs to know of a sequence.
pub trait Scheduled {
    /// Whether nobody wants the sequence any more.
    fn abandoned(&self) -> bool;

    /// Who it belongs to.
    fn tenant(&self) -> &Tenant;

    /// Takes its seat: may find part of its work done.
    fn seat(&mut self);

    /// Tokens known and not yet processed, at least one.
    fn remaining(&self) -> usize;

    /// Whether it is past its prompt.
    fn decoding(&self) -> bool;

    /// Pages that the next `tokens` tokens need.
    fn missing(&self, tokens: usize) -> usize;

    /// Gives all pages back; all its tokens remain to be processed again.
    fn release(&mut self);
}

/// Bounds of a [`Scheduler`].
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Sequences that may wait.
    pub waiting: usize,
    /// Sequences of one tenant that may wait.
    pub waiting_of_one: usize,
    /// Sequences that run at a time, at least one.
    pub running: usize,
    /// Prompt positions in one step, at least one.
    pub prefill: usize,
}

/// A sequence in a step, with how many tokens it processes there.
pub struct Turn<S> {
    /// The sequence, which must come back through [`Scheduler::commit`].
    pub sequence: S,
    /// Tokens.
    pub tokens: usize,
    seat: u64,
}

/// Sequences that wait and run.
pub struct Scheduler<S> {
    bounds: Bounds,
    waiting: VecDeque<S>,
    /// In the order of their seats.
    running: Vec<(u64, S)>,
    /// Tenants of the sequences taken by [`Scheduler::schedule`] and not yet committed.
    out: Vec<(u64, Tenant)>,
    next_seat: u64,
    preemptions: u64,
}

impl<S: Scheduled> Scheduler<S> {
    /// An empty one.
    pub fn new(bounds: Bounds) -> Self {
        let bounds = Bounds { running: bounds.running.max(1), prefill: bounds.prefill.max(1), ..bounds };
        Self { bounds, waiting: VecDeque::new(), running: Vec::new(), out: Vec::new(), next_seat: 0, preemptions: 0 }
    }

    /// Whether [`Scheduler::admit`] would take one more of this tenant. Drops abandoned sequences first.
    pub fn has_room(&mut self, tenant: &Tenant) -> bool {
        self.waiting.retain(|s| !s.abandoned());
        let free = self.bounds.running.saturating_sub(self.running());
        let of_one = self.waiting.iter().filter(|s| s.tenant() == tenant).count();
        self.waiting.len() < free.saturating_add(self.bounds.waiting)
            && of_one < free.saturating_add(self.bounds.waiting_of_one)
    }

    /// Puts a sequence in the queue, or gives it back when the queue is full.
    ///
    /// # Errors
    /// The sequence.
    pub fn admit(&mut self, sequence: S) -> Result<(), S> {
        if !self.has_room(sequence.tenant()) {
            return Err(sequence);
        }
        self.waiting.push_back(sequence);
        Ok(())
    }

    /// Takes the sequences of the next step; none if there is nothing to do. `available` says how many pages can be had.
    pub fn schedule(&mut self, available: impl Fn() -> usize) -> Vec<Turn<S>> {
        self.waiting.retain(|s| !s.abandoned());
        let (mut reserved, mut prefill) = (0, self.bounds.prefill);
        let mut takes = Vec::new();
        let mut i = 0;
        while i < self.running.len() {
            let s = &self.running[i].1;
            let tokens = if s.decoding() { 1 } else { s.remaining().min(prefill) };
            let pages = s.missing(tokens);
            let decoding = s.decoding();
            // Who sits behind gives way; everybody in front has what they need.
            while reserved + pages > available() && self.running.len() > i + 1 {
                self.preempt();
            }
            if tokens > 0 && reserved + pages <= available() {
                reserved += pages;
                prefill -= if decoding { 0 } else { tokens };
                takes.push((i, tokens));
            }
            i += 1;
        }
        while prefill > 0 && self.running() < self.bounds.running {
            let Some(mut s) = self.next_waiting() else { break };
            s.seat();
            // Only with pages for all that it has: else it would be the next to give them back.
            if reserved + s.missing(s.remaining()) > available() {
                s.release();
                self.waiting.push_front(s);
                break;
            }
            let tokens = s.remaining().min(prefill);
            reserved += s.missing(tokens);
            prefill -= tokens;
            takes.push((self.running.len(), tokens));
            self.running.push((self.next_seat, s));
            self.next_seat += 1;
        }
        let mut turns = Vec::with_capacity(takes.len());
        for (i, tokens) in takes.into_iter().rev() {
            let (seat, sequence) = self.running.remove(i);
            self.out.push((seat, *sequence.tenant()));
            turns.push(Turn { sequence, tokens, seat });
        }
        turns.reverse();
        turns
    }

    /// Ends a turn; `over` frees the seat.
    pub fn commit(&mut self, turn: Turn<S>, over: bool) -> Option<S> {
        self.out.retain(|(seat, _)| *seat != turn.seat);
        if over {
            return Some(turn.sequence);
        }
        let at = self.running.partition_point(|(seat, _)| *seat < turn.seat);
        self.running.insert(at, (turn.seat, turn.sequence));
        None
    }

    /// Sequences waiting for a seat.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that hold a seat.
    pub fn running(&self) -> usize {
        self.running.len() + self.out.len()
    }

    /// How often a sequence had to give its pages back.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// The youngest seat is given up; its sequence is the first to get one again.
    fn preempt(&mut self) {
        if let Some((_, mut s)) = self.running.pop() {
            s.release();
            self.preemptions += 1;
            self.waiting.push_front(s);
        }
    }

    /// Whoever waits longest of the tenant with fewest seats.
    fn next_waiting(&mut self) -> Option<S> {
        let seats = |tenant: &Tenant| {
            self.running.iter().filter(|(_, s)| s.tenant() == tenant).count()
                + self.out.iter().filter(|(_, t)| t == tenant).count()
        };
        let best = self.waiting.iter().enumerate().min_by_key(|(i, s)| (seats(s.tenant()), *i)).map(|(i, _)| i)?;
        self.waiting.remove(best)
    }
}

#[cfg(test)]
mod tests;
