//! Who goes first: bulk work stands back while online products or tile products wait or run.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How often those who stand back look again.
const LOOK: Duration = Duration::from_micros(200);

/// The work in sight that goes before bulk work.
#[derive(Default)]
pub struct Precedence(AtomicUsize);

/// A piece of such work, from its arrival to its end.
pub struct Urgent(Arc<Precedence>);

impl Precedence {
    /// Announces a piece of urgent work, until the value is dropped.
    pub fn urgent(self: &Arc<Self>) -> Urgent {
        self.0.fetch_add(1, Ordering::Relaxed);
        Urgent(Arc::clone(self))
    }

    /// Stands back until no urgent work is in sight, but not longer than `most`: bulk work never starves for good.
    ///
    /// Looking costs those who are in a hurry nothing, a wake-up would.
    pub fn stand_back(&self, most: Duration) {
        let since = Instant::now();
        while self.0.load(Ordering::Relaxed) > 0 && since.elapsed() < most {
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urgent_work_holds_bulk_work_back_for_a_bounded_time() {
        let precedence = Arc::new(Precedence::default());
        let first = precedence.urgent();
        let second = precedence.urgent();
        drop(first);
        let (since, most) = (Instant::now(), Duration::from_millis(5));
        precedence.stand_back(most);
        assert!(since.elapsed() >= most, "one piece is still in sight");
        drop(second);
        // Would not end in the life of this test.
        precedence.stand_back(Duration::from_secs(86_400));
    }
}
