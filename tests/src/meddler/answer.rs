//! What the answers of the three streams have in common.

use super::Path;
use bytes::Bytes;
use proto::v1::{
    AnswerPart, BulkAnswer, BulkPart, JobFailure, OnlineAnswer, TileAnswer, bulk_answer, online_answer, tile_answer,
};

/// One message of an evaluator.
pub(super) trait Answer: Clone + Send + 'static {
    /// The stream it comes on.
    const PATH: Path;

    /// The job it is for.
    fn job(&self) -> u64;
    /// Its numbers; none if it is a failure.
    fn numbers(&self) -> Option<&Bytes>;
    /// The same with other numbers.
    fn with_numbers(&self, numbers: Bytes) -> Self;
    /// The same for another job.
    fn with_job(&self, job_id: u64) -> Self;
    /// The same with what `change` makes of the first tile or row and the count of them.
    fn with_span(&self, change: impl Fn(u32, u32) -> (u32, u32)) -> Self;
    /// An answer that says nothing.
    fn bodyless(job_id: u64) -> Self;
    /// A failure.
    fn failed(job_id: u64, failure: JobFailure) -> Self;
}

impl Answer for TileAnswer {
    const PATH: Path = Path::Direct;

    fn job(&self) -> u64 {
        self.job_id
    }

    fn numbers(&self) -> Option<&Bytes> {
        match &self.body {
            Some(tile_answer::Body::Part(part)) => Some(&part.coefficients),
            _ => None,
        }
    }

    fn with_numbers(&self, numbers: Bytes) -> Self {
        self.change(|part| part.coefficients = numbers)
    }

    fn with_job(&self, job_id: u64) -> Self {
        Self { job_id, ..self.clone() }
    }

    fn with_span(&self, change: impl Fn(u32, u32) -> (u32, u32)) -> Self {
        self.change(|part| (part.first_tile, part.tiles) = change(part.first_tile, part.tiles))
    }

    fn bodyless(job_id: u64) -> Self {
        Self { job_id, body: None }
    }

    fn failed(job_id: u64, failure: JobFailure) -> Self {
        Self { job_id, body: Some(tile_answer::Body::Failure(failure)) }
    }
}

trait Change<P> {
    /// The same with its part changed.
    fn change(&self, change: impl FnOnce(&mut P)) -> Self;
}

impl Change<AnswerPart> for TileAnswer {
    fn change(&self, change: impl FnOnce(&mut AnswerPart)) -> Self {
        let mut changed = self.clone();
        if let Some(tile_answer::Body::Part(part)) = &mut changed.body {
            change(part);
        }
        changed
    }
}

impl Answer for OnlineAnswer {
    const PATH: Path = Path::Online;

    fn job(&self) -> u64 {
        self.job_id
    }

    fn numbers(&self) -> Option<&Bytes> {
        match &self.body {
            Some(online_answer::Body::Words(words)) => Some(words),
            _ => None,
        }
    }

    fn with_numbers(&self, numbers: Bytes) -> Self {
        Self { body: Some(online_answer::Body::Words(numbers)), ..self.clone() }
    }

    fn with_job(&self, job_id: u64) -> Self {
        Self { job_id, ..self.clone() }
    }

    fn with_span(&self, _: impl Fn(u32, u32) -> (u32, u32)) -> Self {
        self.clone()
    }

    fn bodyless(job_id: u64) -> Self {
        Self { job_id, body: None, timing: None }
    }

    fn failed(job_id: u64, failure: JobFailure) -> Self {
        Self { job_id, body: Some(online_answer::Body::Failure(failure)), timing: None }
    }
}

impl Answer for BulkAnswer {
    const PATH: Path = Path::Bulk;

    fn job(&self) -> u64 {
        self.job_id
    }

    fn numbers(&self) -> Option<&Bytes> {
        match &self.body {
            Some(bulk_answer::Body::Part(part)) => Some(&part.words),
            _ => None,
        }
    }

    fn with_numbers(&self, numbers: Bytes) -> Self {
        self.change(|part| part.words = numbers)
    }

    fn with_job(&self, job_id: u64) -> Self {
        Self { job_id, ..self.clone() }
    }

    fn with_span(&self, change: impl Fn(u32, u32) -> (u32, u32)) -> Self {
        self.change(|part| (part.first_row, part.rows) = change(part.first_row, part.rows))
    }

    fn bodyless(job_id: u64) -> Self {
        Self { job_id, body: None }
    }

    fn failed(job_id: u64, failure: JobFailure) -> Self {
        Self { job_id, body: Some(bulk_answer::Body::Failure(failure)) }
    }
}

impl Change<BulkPart> for BulkAnswer {
    fn change(&self, change: impl FnOnce(&mut BulkPart)) -> Self {
        let mut changed = self.clone();
        if let Some(bulk_answer::Body::Part(part)) = &mut changed.body {
            change(part);
        }
        changed
    }
}
