//! Progress of long work in the log: a line when a stage begins, and every two seconds after.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

/// Remembers what was shown when.
#[derive(Default)]
pub struct Progress(RefCell<Option<(String, Instant)>>);

impl Progress {
    /// What the model loader calls with (stage, done, total).
    pub fn callback(&self) -> impl Fn(&str, u64, u64) + '_ {
        |stage, done, total| self.show(stage, done, total)
    }

    fn show(&self, stage: &str, done: u64, total: u64) {
        let mut last = self.0.borrow_mut();
        if last.as_ref().is_some_and(|(s, at)| s == stage && at.elapsed() < EVERY) {
            return;
        }
        *last = Some((stage.to_owned(), Instant::now()));
        tracing::info!("{stage}: {} %", (100 * done).checked_div(total).unwrap_or(100));
    }
}

const EVERY: Duration = Duration::from_secs(2);
