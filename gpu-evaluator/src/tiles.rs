//! A job of encrypted tile products, cut into groups of tiles.

use crate::{
    backend::Matrix,
    executor::{Next, Work},
    metrics::{self, Stream},
    pool::Loan,
    precedence::Urgent,
    ticket::{Answer, Ticket},
    timing::Clock,
};
use bytes::Bytes;
use kernels::wire;
use proto::v1::{AnswerPart, FailureKind, JobFailure, JobTiming, TileAnswer, tile_answer::Body};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Tiles are handed to the kernels in multiples of this where it matters.
const QUANTUM: usize = kernels::PinnedTiles::GROUP;
/// A job is cut into about this many groups.
const GROUPS: usize = 8;
/// Tiles in a group at most.
const MAX_GROUP: usize = 64;
/// Coefficients in one answer message at most, unless a single tile has more: 209 KB.
const MAX_COEFFICIENTS: usize = 1 << 15;

/// A complete job.
pub struct Tiles {
    matrix: Arc<Matrix>,
    inputs: Loan,
    ticket: Arc<Ticket<TileAnswer>>,
    /// Tiles per group.
    group: usize,
    /// The next group to take, and how many are still to be delivered.
    next: AtomicUsize,
    left: AtomicUsize,
    clock: Clock,
    _urgent: Urgent,
}

impl Tiles {
    /// A job whose inputs are all there. `unpacking` is the time that took.
    pub fn new(
        matrix: Arc<Matrix>,
        inputs: Loan,
        ticket: Arc<Ticket<TileAnswer>>,
        unpacking: Duration,
        urgent: Urgent,
    ) -> Self {
        let tiling = matrix.tiling();
        let fair = tiling.tiles().div_ceil(GROUPS).next_multiple_of(QUANTUM);
        let sendable = MAX_COEFFICIENTS / (tiling.tile_rows() * inputs.vectors());
        let group = match fair.min(MAX_GROUP).min(sendable) {
            few @ 0..QUANTUM => few.max(1),
            many => many / QUANTUM * QUANTUM,
        };
        let groups = tiling.tiles().div_ceil(group);
        Self {
            matrix,
            inputs,
            ticket,
            group,
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(groups),
            clock: Clock::new(unpacking),
            _urgent: urgent,
        }
    }

    /// The useful coefficients of `tiles` for every vector, packed for the wire.
    fn coefficients(&self, tiles: Range<usize>, words: &mut Vec<u64>) -> Result<Bytes, kernels::Error> {
        let (tiling, vectors) = (self.matrix.tiling(), self.inputs.vectors());
        let rows = tiling.tile_row_range(tiles.end - 1).end - tiling.tile_row_range(tiles.start).start;
        words.resize(vectors * rows, 0);
        self.matrix.answers(&self.inputs, tiles, words)?;
        let params = self.matrix.ring().params();
        let mut message = Vec::with_capacity(wire::encoded_len(params, words.len()));
        wire::encode(params, wire::Kind::Coefficients, words, &mut message);
        Ok(message.into())
    }
}

impl Work for Tiles {
    type Unit = Range<usize>;
    /// [vectors][rows of one group].
    type Scratch = Vec<u64>;

    fn take(&self) -> Next<Self::Unit> {
        let tiles = self.matrix.tiling().tiles();
        let first = self.next.fetch_add(1, Ordering::Relaxed).saturating_mul(self.group);
        if first >= tiles || self.ticket.ended() {
            return Next::Nothing;
        }
        Next::Unit(first..(first + self.group).min(tiles))
    }

    fn run(&self, tiles: Self::Unit, words: &mut Vec<u64>) {
        self.clock.start();
        match self.coefficients(tiles.clone(), words) {
            Err(e) => self.ticket.fail(FailureKind::Internal, e.to_string()),
            Ok(coefficients) => {
                let [first_tile, tiles] = [tiles.start, tiles.len()].map(|x| u32::try_from(x).unwrap_or(u32::MAX));
                let part = AnswerPart { first_tile, tiles, coefficients, timing: None };
                self.ticket.deliver(part, None, || {
                    (self.left.fetch_sub(1, Ordering::Relaxed) == 1).then(|| self.clock.timing(Stream::Multiply))
                });
            }
        }
    }

    fn fail(&self, kind: FailureKind, message: String) {
        self.ticket.fail(kind, message);
    }

    fn queued(jobs: usize) {
        metrics::queue_depth(Stream::Multiply, jobs);
    }
}

impl Answer for TileAnswer {
    type Part = AnswerPart;
    const STREAM: Stream = Stream::Multiply;

    fn part(job_id: u64, part: AnswerPart, timing: Option<JobTiming>) -> Self {
        Self { job_id, body: Some(Body::Part(AnswerPart { timing, ..part })) }
    }

    fn failure(job_id: u64, failure: JobFailure) -> Self {
        Self { job_id, body: Some(Body::Failure(failure)) }
    }

    fn bytes(part: &AnswerPart) -> usize {
        part.coefficients.len()
    }
}
