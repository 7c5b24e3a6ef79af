//! What the user sees while waiting, on standard error only.
//!
//! On a terminal a line is redrawn in place; elsewhere (a pipe, CI) progress is a few whole lines, so that logs
//! stay readable. Messages never contain prompts or generated text.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};

/// Pause between two lines about the same transfer where nothing can be redrawn.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Where progress goes. Shared by reference between threads.
pub struct Progress {
    bar: Mutex<Option<ProgressBar>>,
    said: Mutex<Instant>,
    waiting: AtomicBool,
    terminal: bool,
}

impl Default for Progress {
    fn default() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { bar: Mutex::new(None), said: Mutex::new(Instant::now()), waiting: AtomicBool::new(false), terminal }
    }
}

impl Progress {
    /// A finished fact: one whole line that stays.
    pub fn say(&self, line: &str) {
        match &*self.lock() {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    /// What is going on now: the redrawn line on a terminal, elsewhere a whole line every few seconds.
    pub fn busy(&self, what: impl Into<String>) {
        self.waiting.store(true, Ordering::Relaxed);
        if !self.terminal {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.elapsed() > LINE_EVERY {
                *said = Instant::now();
                eprintln!("{}", what.into());
            }
            return;
        }
        let mut slot = self.lock();
        let bar = slot.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner().with_style(style("{spinner} {msg} [{elapsed}]"));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        bar.set_message(what.into());
    }

    /// Says in more detail what is going on, if anything is.
    pub fn refine(&self, detail: &str) {
        if self.waiting.load(Ordering::Relaxed) {
            self.busy(detail);
        }
    }

    /// `done` of `total` are there: a bar on a terminal, elsewhere a whole line every few seconds.
    pub fn count(&self, what: &str, done: u64, total: u64) {
        if !self.terminal {
            self.busy(format!("{what}: {done} of {total}"));
            return;
        }
        self.waiting.store(true, Ordering::Relaxed);
        let mut slot = self.lock();
        if slot.as_ref().is_none_or(|bar| bar.length() != Some(total))
            && let Some(other) = slot.take()
        {
            other.finish_and_clear();
        }
        let bar = slot.get_or_insert_with(|| {
            let bar = ProgressBar::new(total).with_style(style("{msg} [{wide_bar}] {pos}/{len} [{elapsed}]"));
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        bar.set_position(done);
    }

    /// Removes the redrawn line.
    pub fn idle(&self) {
        self.waiting.store(false, Ordering::Relaxed);
        if let Some(bar) = self.lock().take() {
            bar.finish_and_clear();
        }
    }

    /// A transfer of `total` bytes (0 when unknown); ends when the returned value is dropped.
    #[must_use]
    pub fn transfer<'a>(&'a self, what: &str, total: u64) -> Transfer<'a> {
        self.idle();
        if self.terminal {
            let bar = if total == 0 {
                ProgressBar::new_spinner().with_style(style("{spinner} {msg} {bytes} [{elapsed}]"))
            } else {
                ProgressBar::new(total)
                    .with_style(style("{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"))
            };
            bar.set_message(what.to_owned());
            bar.enable_steady_tick(Duration::from_millis(120));
            *self.lock() = Some(bar);
        }
        Transfer { progress: self, what: what.to_owned(), total, done: 0, said: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<ProgressBar>> {
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.idle();
    }
}

/// A running transfer. Without a terminal it prints a line every few seconds.
pub struct Transfer<'a> {
    progress: &'a Progress,
    what: String,
    total: u64,
    done: u64,
    said: Instant,
}

impl Transfer<'_> {
    /// `bytes` more have arrived.
    pub fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(bar) = &*self.progress.lock() {
            bar.set_position(self.done);
            return;
        }
        if self.said.elapsed() > LINE_EVERY {
            self.said = Instant::now();
            eprintln!("{} {} of {}", self.what, HumanBytes(self.done), HumanBytes(self.total));
        }
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        self.progress.idle();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates of this file are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_terminal_a_count_takes_the_line_over_and_keeps_what_refines_it() {
        let mut progress = Progress::default();
        progress.terminal = true;
        let shown = |progress: &Progress| {
            let slot = progress.lock();
            let bar = slot.as_ref().unwrap();
            (bar.message(), bar.position(), bar.length())
        };
        progress.busy("loading");
        assert_eq!(shown(&progress), ("loading".into(), 0, None));
        progress.count("lanes", 3, 96);
        assert_eq!(shown(&progress), ("lanes".into(), 3, Some(96)));
        progress.refine("encrypting masks: 40 %");
        progress.count("lanes", 40, 96);
        assert_eq!(shown(&progress), ("encrypting masks: 40 %".into(), 40, Some(96)));
        progress.count("lanes", 40, 64);
        assert_eq!(shown(&progress), ("lanes".into(), 40, Some(64)), "another total is another bar");
        progress.idle();
        assert!(progress.lock().is_none());
    }
}
