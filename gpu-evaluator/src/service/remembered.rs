//! The job ids that a stream has seen last.

use std::collections::{HashSet, VecDeque};

/// How many.
const REMEMBERED: usize = 4096;

/// Ids, the oldest of which are forgotten.
#[derive(Default)]
pub(super) struct Remembered {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Remembered {
    /// Whether the id is remembered.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    /// Remembers an id; whether it was new.
    pub(super) fn insert(&mut self, id: u64) -> bool {
        let new = self.ids.insert(id);
        if new {
            self.order.push_back(id);
            if self.order.len() > REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.ids.remove(&oldest);
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ids_are_remembered_and_no_more() {
        let mut remembered = Remembered::default();
        let last = REMEMBERED as u64;
        assert!((0..=last).all(|id| remembered.insert(id)));
        assert!(!remembered.insert(last) && !remembered.contains(0) && remembered.contains(1));
        assert_eq!(remembered.ids.len(), REMEMBERED);
    }
}
