//! How long a job waited and was computed.

use crate::metrics::{self, Stream};
use proto::v1::JobTiming;
use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The clock of one job, started by whichever thread is first.
pub struct Clock {
    arrived: Instant,
    started: OnceLock<Instant>,
    unpacking: Duration,
}

impl Clock {
    /// A job whose inputs are all there now; to unpack them took `unpacking`.
    pub fn new(unpacking: Duration) -> Self {
        Self { arrived: Instant::now(), started: OnceLock::new(), unpacking }
    }

    /// The first instruction of the product is now, unless it has been.
    pub fn start(&self) {
        self.started.get_or_init(Instant::now);
    }

    /// What to tell the peer now that the job is complete; the metrics of its kind of stream are told, too.
    pub fn timing(&self, stream: Stream) -> JobTiming {
        let started = *self.started.get_or_init(Instant::now);
        timing(stream, started - self.arrived, started.elapsed() + self.unpacking)
    }
}

/// The timing of a job, told to the metrics.
pub fn timing(stream: Stream, queued: Duration, compute: Duration) -> JobTiming {
    metrics::job_time(stream, queued, compute);
    let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    JobTiming { queued_ns: ns(queued), compute_ns: ns(compute) }
}
