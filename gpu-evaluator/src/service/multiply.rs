//! A job of tile products while its parts arrive: every block of every vector exactly once, unpacked on arrival.

use super::{
    Parts, Refusal,
    jobs::{Asked, Body, Receiving},
};
use crate::{backend::Matrix, pool::Loan, ticket::Ticket, tiles::Tiles};
use bytes::Bytes;
use kernels::{Inputs, Ring, wire};
use proto::v1::{JobHeader, JobPart, TileAnswer, TileJob, tile_job};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::OwnedSemaphorePermit;

/// A half-received job.
pub(super) struct Blocks {
    ticket: Arc<Ticket<TileAnswer>>,
    matrix: Arc<Matrix>,
    inputs: Loan,
    /// Blocks seen, [vectors][blocks].
    seen: Vec<bool>,
    missing: usize,
    unpacking: Duration,
}

impl Receiving for Blocks {
    type Message = TileJob;
    type Header = JobHeader;
    type Part = JobPart;
    type Answer = TileAnswer;
    /// The matrix and the number of vectors.
    type Request = (Arc<Matrix>, usize);

    fn open(message: TileJob) -> (u64, Option<Body<Self>>) {
        let body = message.body.map(|body| match body {
            tile_job::Body::Header(header) => Body::Header(header),
            tile_job::Body::Part(part) => Body::Part(part),
            tile_job::Body::Cancel(_) => Body::Cancel,
        });
        (message.job_id, body)
    }

    fn check(parts: &Parts, header: &JobHeader) -> Result<Asked<Self::Request>, Refusal> {
        let vectors = super::vectors(header.vectors)?;
        let matrix = parts.matrix(&header.matrix_id)?;
        let bytes = Inputs::bytes_for(matrix.ring(), matrix.tiling(), vectors);
        Ok(Asked { request: (matrix, vectors), bytes, deadline_ms: header.deadline_ms })
    }

    fn begin(
        parts: &Parts,
        (matrix, vectors): Self::Request,
        ticket: Arc<Ticket<TileAnswer>>,
        memory: OwnedSemaphorePermit,
    ) -> Result<Self, Refusal> {
        let inputs = parts.pool.take(vectors, &matrix, memory);
        let missing = inputs.vectors() * inputs.blocks();
        Ok(Self { ticket, matrix, inputs, seen: vec![false; missing], missing, unpacking: Duration::ZERO })
    }

    fn ticket(&self) -> &Arc<Ticket<TileAnswer>> {
        &self.ticket
    }

    fn part(&mut self, _parts: &Parts, part: &JobPart) -> Result<(), String> {
        let started = Instant::now();
        let (vectors, blocks) = (self.inputs.vectors(), self.inputs.blocks());
        let (vector, first) = (part.vector as usize, part.first_block as usize);
        if vector >= vectors {
            return Err(format!("part for vector {vector}, the job has {vectors}"));
        }
        let count = polynomials(self.matrix.ring(), &part.blocks)?;
        if count == 0 || count > blocks || first > blocks - count {
            return Err(format!(
                "blocks {first}..{} of vector {vector}, the matrix has {blocks}",
                first.saturating_add(count)
            ));
        }
        let seen = &mut self.seen[vector * blocks + first..][..count];
        if let Some(twice) = seen.iter().position(|&s| s) {
            return Err(format!("block {} of vector {vector} came twice", first + twice));
        }
        let inputs = &mut self.inputs;
        let set = || inputs.set_from_wire(vector, first, count, &part.blocks);
        super::unpack(part.blocks.len(), set).map_err(|e| e.to_string())?;
        seen.fill(true);
        self.missing -= count;
        self.unpacking += started.elapsed();
        Ok(())
    }

    fn bytes(part: &JobPart) -> usize {
        part.blocks.len()
    }

    fn complete(&self) -> bool {
        self.missing == 0
    }

    fn submit(self, parts: &Parts) {
        let urgent = parts.precedence.urgent();
        let job = Tiles::new(self.matrix, self.inputs, self.ticket, self.unpacking, urgent);
        parts.executor.submit(job);
    }
}

/// How many whole polynomials a message of this size holds.
fn polynomials(ring: &Ring, message: &Bytes) -> Result<usize, String> {
    // N is a multiple of 8, so a polynomial is a whole number of bytes.
    let each = wire::encoded_len(ring.params(), ring.n()) - wire::HEADER;
    match message.len().checked_sub(wire::HEADER) {
        Some(body) if body.is_multiple_of(each) => Ok(body / each),
        _ => Err(format!("{} bytes are not {} and whole polynomials of {each}", message.len(), wire::HEADER)),
    }
}
