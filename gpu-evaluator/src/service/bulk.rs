//! A job of lane products while its rows arrive: every column of the matrix exactly once, unpacked on arrival.

use super::{
    Parts, Refusal,
    jobs::{Asked, Body, Receiving},
};
use crate::{
    bulk::{Bulk, Progress},
    ticket::Ticket,
    timing::Clock,
};
use kernels::{Digits, Int8Matrix, Ring};
use proto::v1::{BulkAnswer, BulkHeader, BulkJob, BulkRows, FailureKind, bulk_job};
use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;

/// A half-received job.
pub(super) struct Columns {
    ticket: Arc<Ticket<BulkAnswer>>,
    request: Request,
    digits: Digits,
    memory: OwnedSemaphorePermit,
    /// Columns seen.
    seen: Vec<bool>,
    missing: usize,
    unpacking: Duration,
}

/// Rows of W times a B of so many lanes.
pub(super) struct Request {
    ring: Ring,
    weights: Arc<Int8Matrix>,
    rows: Range<usize>,
    lanes: usize,
}

impl Receiving for Columns {
    type Message = BulkJob;
    type Header = BulkHeader;
    type Part = BulkRows;
    type Answer = BulkAnswer;
    type Request = Request;

    fn open(message: BulkJob) -> (u64, Option<Body<Self>>) {
        let body = message.body.map(|body| match body {
            bulk_job::Body::Header(header) => Body::Header(header),
            bulk_job::Body::Rows(rows) => Body::Part(rows),
            bulk_job::Body::Cancel(_) => Body::Cancel,
        });
        (message.job_id, body)
    }

    fn check(parts: &Parts, header: &BulkHeader) -> Result<Asked<Request>, Refusal> {
        let malformed = |what: String| Err((FailureKind::Malformed, what));
        let (ring, weights) = parts.weights(&header.matrix_id)?;
        let (lanes, n) = (header.lanes as usize, ring.n());
        if lanes == 0 || !lanes.is_multiple_of(Digits::LANES) || lanes > n {
            return malformed(format!("{lanes} lanes, allowed are multiples of {} up to {n}", Digits::LANES));
        }
        let (first, count) = (header.first_row as usize, header.rows as usize);
        if count == 0 || count > weights.rows() || first > weights.rows() - count {
            return malformed(format!(
                "rows {first}..{}, the matrix has {}",
                first.saturating_add(count),
                weights.rows()
            ));
        }
        let bytes = Digits::bytes_for(&ring, weights.cols(), lanes);
        let request = Request { ring, weights, rows: first..first + count, lanes };
        Ok(Asked { request, bytes, deadline_ms: header.deadline_ms })
    }

    fn begin(
        _parts: &Parts,
        request: Request,
        ticket: Arc<Ticket<BulkAnswer>>,
        memory: OwnedSemaphorePermit,
    ) -> Result<Self, Refusal> {
        let missing = request.weights.cols();
        let digits =
            Digits::new(&request.ring, missing, request.lanes).map_err(|e| (FailureKind::Malformed, e.to_string()))?;
        Ok(Self { ticket, request, digits, memory, seen: vec![false; missing], missing, unpacking: Duration::ZERO })
    }

    fn ticket(&self) -> &Arc<Ticket<BulkAnswer>> {
        &self.ticket
    }

    fn part(&mut self, _parts: &Parts, part: &BulkRows) -> Result<(), String> {
        let started = Instant::now();
        let (first, count, cols) = (part.first_col as usize, part.cols as usize, self.seen.len());
        if count == 0 || count > cols || first > cols - count {
            return Err(format!("columns {first}..{}, the matrix has {cols}", first.saturating_add(count)));
        }
        let seen = &mut self.seen[first..first + count];
        if let Some(twice) = seen.iter().position(|&s| s) {
            return Err(format!("column {} came twice", first + twice));
        }
        let (digits, ring) = (&mut self.digits, &self.request.ring);
        let set = || digits.set_from_wire(ring, first, count, &part.words);
        super::unpack(part.words.len(), set).map_err(|e| e.to_string())?;
        seen.fill(true);
        self.missing -= count;
        self.unpacking += started.elapsed();
        Ok(())
    }

    fn bytes(part: &BulkRows) -> usize {
        part.words.len()
    }

    fn complete(&self) -> bool {
        self.missing == 0
    }

    fn submit(self, parts: &Parts) {
        parts.bulk.submit(Bulk {
            ring: self.request.ring,
            weights: self.request.weights,
            rows: self.request.rows,
            digits: self.digits,
            memory: self.memory,
            ticket: self.ticket,
            clock: Clock::new(self.unpacking),
            precedence: Arc::clone(&parts.precedence),
            progress: Progress::default(),
        });
    }
}
