//! A job while its parts arrive: every block of every vector exactly once, unpacked on arrival.

use crate::{backend::Matrix, executor::Work, pool::Loan, ticket::Ticket};
use bytes::Bytes;
use kernels::{Ring, wire};
use proto::v1::JobPart;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// A half-received job.
pub(super) struct Receiving {
    ticket: Arc<Ticket>,
    matrix: Arc<Matrix>,
    inputs: Loan,
    /// Blocks seen, [vectors][blocks].
    seen: Vec<bool>,
    missing: usize,
    unpacking: Duration,
}

impl Receiving {
    pub(super) fn new(ticket: Arc<Ticket>, matrix: Arc<Matrix>, inputs: Loan) -> Self {
        let missing = inputs.vectors() * inputs.blocks();
        Self { ticket, matrix, inputs, seen: vec![false; missing], missing, unpacking: Duration::ZERO }
    }

    pub(super) fn ticket(&self) -> &Arc<Ticket> {
        &self.ticket
    }

    /// Whether every block has arrived.
    pub(super) fn complete(&self) -> bool {
        self.missing == 0
    }

    /// The job, ready to be computed.
    pub(super) fn into_work(self) -> Work {
        Work::new(self.matrix, self.inputs, self.ticket, self.unpacking)
    }

    /// Takes one part.
    ///
    /// # Errors
    /// What is wrong with it: the job is malformed then.
    pub(super) fn part(&mut self, ring: &Ring, part: &JobPart) -> Result<(), String> {
        let started = Instant::now();
        let (vectors, blocks) = (self.inputs.vectors(), self.inputs.blocks());
        let (vector, first) = (part.vector as usize, part.first_block as usize);
        if vector >= vectors {
            return Err(format!("part for vector {vector}, the job has {vectors}"));
        }
        let count = polynomials(ring, &part.blocks)?;
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
        self.inputs.set_from_wire(vector, first, count, &part.blocks).map_err(|e| e.to_string())?;
        seen.fill(true);
        self.missing -= count;
        self.unpacking += started.elapsed();
        Ok(())
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
