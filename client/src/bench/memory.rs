//! Resident memory of processes over time, from `/proc/ID/status` (proc_pid_status(5)).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::figures::slope;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// A slope of fewer samples than this is the daemon's waking up.
const ENOUGH: usize = 10;

/// Seconds since the begin, and MiB.
pub(super) type Samples = Vec<(f64, f64)>;

/// Looks at processes every second. Dropping this ends that.
pub(super) struct Sampler {
    watched: Arc<Mutex<Watched>>,
    task: tokio::task::JoinHandle<()>,
}

struct Watched {
    begin: Instant,
    /// Name, id, and what was seen.
    processes: Vec<(&'static str, u32, Samples)>,
}

/// One process over time.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Resident {
    pub(super) process: &'static str,
    pub(super) first_mib: Option<f64>,
    pub(super) last_mib: Option<f64>,
    pub(super) max_mib: Option<f64>,
    /// Least squares over all samples; null when there are too few to mean anything.
    pub(super) slope_mib_per_minute: Option<f64>,
    /// The same over the second half, where caches have filled.
    pub(super) slope_of_second_half: Option<f64>,
    /// `[seconds, MiB]`.
    pub(super) samples: Samples,
}

impl Sampler {
    /// Begins to look at `processes`, names and ids.
    pub(super) fn start(processes: &[(&'static str, u32)]) -> Self {
        let processes = processes.iter().map(|(name, id)| (*name, *id, Samples::new())).collect();
        let watched = Arc::new(Mutex::new(Watched { begin: Instant::now(), processes }));
        let looked_at = watched.clone();
        let task = tokio::spawn(async move {
            loop {
                looked_at.lock().unwrap_or_else(PoisonError::into_inner).look();
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { watched, task }
    }

    /// Looks once more, and tells what was seen.
    pub(super) fn seen(&self) -> Vec<Resident> {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.look();
        watched.processes.iter().map(|(name, _, samples)| Resident::of(name, samples.clone())).collect()
    }
}

impl Watched {
    fn look(&mut self) {
        for (_, id, samples) in &mut self.processes {
            samples.extend(resident(*id).map(|mib| (self.begin.elapsed().as_secs_f64(), mib)));
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Resident {
    fn of(process: &'static str, samples: Samples) -> Self {
        let mib = || samples.iter().map(|(_, mib)| *mib);
        let minutes: Vec<_> = samples.iter().map(|(seconds, mib)| (seconds / 60.0, *mib)).collect();
        let enough = Some(&minutes[..]).filter(|all| all.len() >= ENOUGH);
        Self {
            process,
            first_mib: mib().next(),
            last_mib: mib().next_back(),
            max_mib: mib().max_by(f64::total_cmp),
            slope_mib_per_minute: enough.and_then(slope),
            slope_of_second_half: enough.and_then(|all| slope(&all[all.len() / 2..])),
            samples,
        }
    }
}

fn resident(id: u32) -> Option<f64> {
    parse(&std::fs::read_to_string(format!("/proc/{id}/status")).ok()?)
}

/// MiB of the line `VmRSS:   1234 kB`, whose unit is KiB.
fn parse(status: &str) -> Option<f64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    value.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kib| kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read() {
        assert_eq!(parse("Name:\tx\nVmRSS:\t   2048 kB\nThreads:\t3\n"), Some(2.0));
        assert_eq!(parse("Name:\tx\n"), None);
        assert!(resident(std::process::id()).is_some_and(|mib| mib > 0.0));
    }

    #[test]
    fn a_leak_shows_as_a_slope() {
        let leaks = Resident::of("x", (0..120).map(|s| (f64::from(s), 50.0 + f64::from(s) / 30.0)).collect());
        assert!(leaks.slope_mib_per_minute.is_some_and(|slope| (slope - 2.0).abs() < 1e-9), "{leaks:?}");
        let settles = (0..120).map(|s| (f64::from(s), f64::from(s.min(60)))).collect();
        let settles = Resident::of("x", settles);
        assert!(settles.slope_of_second_half.is_some_and(|slope| slope.abs() < 1e-9), "{settles:?}");
        assert_eq!((settles.first_mib, settles.max_mib), (Some(0.0), Some(60.0)));
        let short = Resident::of("x", vec![(0.0, 1.0), (1.0, 9.0)]);
        assert!(short.slope_mib_per_minute.is_none() && short.last_mib == Some(9.0));
        let nothing = Resident::of("x", Samples::new());
        assert!(nothing.last_mib.is_none() && nothing.slope_of_second_half.is_none());
    }
}
