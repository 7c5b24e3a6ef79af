//! Products with masked activations, and with encrypted masks.

use super::{Fake, failure};
use bytes::Bytes;
use kernels::{Digits, Isa, Ring, gemv, matmul, wire, words};
use proto::v1::{
    BulkAnswer, BulkHeader, BulkJob, BulkPart, BulkRows, FailureKind, JobTiming, OnlineAnswer, OnlineJob, bulk_answer,
    bulk_job, online_answer,
};
use std::collections::HashMap;

/// What is sent, and whether the stream ends after it.
pub(crate) struct Reply<A> {
    pub(crate) answers: Vec<A>,
    pub(crate) hang_up: bool,
}

impl<A> From<Vec<A>> for Reply<A> {
    fn from(answers: Vec<A>) -> Self {
        Self { answers, hang_up: false }
    }
}

impl<A> Reply<A> {
    pub(crate) fn nothing() -> Self {
        Vec::new().into()
    }

    pub(crate) fn hang_up() -> Self {
        Self { answers: Vec::new(), hang_up: true }
    }
}

const TIMING: Option<JobTiming> = Some(JobTiming { queued_ns: 1, compute_ns: 1000 });

impl Fake {
    pub(super) fn multiply_online(&self, job: &OnlineJob) -> Reply<OnlineAnswer> {
        self.0.seen.lock().unwrap().online.push(job.clone());
        let answer = |body| vec![OnlineAnswer { job_id: job.job_id, body: Some(body), timing: TIMING }];
        let honest = match self.matrix(&job.matrix_id) {
            Some((_, w)) => {
                let xs = unpacked(job.word_bits, &job.words, job.vectors);
                let vectors = job.vectors as usize;
                let mut ys = vec![0; vectors * w.rows()];
                gemv::gemv_words(Isa::SCALAR, &w, &xs, vectors, 0..w.rows(), &mut ys).unwrap();
                answer(online_answer::Body::Words(packed(job.word_bits, &ys, job.vectors)))
            }
            None => answer(online_answer::Body::Failure(failure(FailureKind::MatrixAbsent))),
        };
        match &mut *self.0.online.lock().unwrap() {
            Some(hook) => hook(job, honest),
            None => honest.into(),
        }
    }

    /// The answer to a complete job, second half first: order must not matter.
    fn multiply_bulk(&self, job_id: u64, header: &BulkHeader, parts: &[BulkRows]) -> Reply<BulkAnswer> {
        let answer = |body| BulkAnswer { job_id, body: Some(body) };
        let mut honest = Vec::new();
        if let Some((_, w)) = self.matrix(&header.matrix_id) {
            let (ring, lanes) = (&self.0.ring, header.lanes as usize);
            let mut digits = Digits::new(ring, w.cols(), lanes).unwrap();
            for p in parts {
                digits.set_from_wire(ring, p.first_col as usize, p.cols as usize, &p.words).unwrap();
            }
            let first = header.first_row as usize;
            let (middle, end) = (first + header.rows as usize / 2, first + header.rows as usize);
            for rows in [middle..end, first..middle].into_iter().filter(|r| !r.is_empty()) {
                let mut out = vec![0; rows.len() * lanes];
                matmul::matmul(ring, &w, rows.clone(), &digits, 0..lanes, &mut out).unwrap();
                let mut words = Vec::new();
                wire::encode(ring.params(), wire::Kind::Lanes, &out, &mut words);
                let [first_row, rows] = [rows.start, rows.len()].map(|x| u32::try_from(x).unwrap());
                let part = BulkPart { first_row, rows, words: words.into(), timing: TIMING };
                honest.push(answer(bulk_answer::Body::Part(part)));
            }
        } else {
            honest.push(answer(bulk_answer::Body::Failure(failure(FailureKind::MatrixAbsent))));
        }
        match &mut *self.0.bulk.lock().unwrap() {
            Some(hook) => hook(header, honest),
            None => honest.into(),
        }
    }
}

/// The bulk jobs of one stream that are not complete.
pub(super) struct Desk {
    fake: Fake,
    /// Of every job, answered or not.
    headers: HashMap<u64, BulkHeader>,
    open: HashMap<u64, Vec<BulkRows>>,
}

impl Desk {
    pub(super) fn new(fake: Fake) -> Self {
        Self { fake, headers: HashMap::new(), open: HashMap::new() }
    }

    pub(super) fn take(&mut self, BulkJob { job_id, body }: BulkJob) -> Reply<BulkAnswer> {
        let rows = match body {
            Some(bulk_job::Body::Header(header)) => {
                self.headers.insert(job_id, header);
                self.open.insert(job_id, Vec::new());
                return Reply::nothing();
            }
            Some(bulk_job::Body::Rows(rows)) => rows,
            _ => {
                self.open.remove(&job_id);
                return Reply::nothing();
            }
        };
        let header = &self.headers[&job_id];
        self.fake.0.seen.lock().unwrap().bulk.push((header.clone(), rows.clone()));
        // It may have been answered already: that the matrix is not there.
        let Some(parts) = self.open.get_mut(&job_id) else { return Reply::nothing() };
        parts.push(rows);
        let come: usize = parts.iter().map(|p| p.cols as usize).sum();
        if self.fake.matrix(&header.matrix_id).is_some_and(|(_, w)| w.cols() != come) {
            return Reply::nothing();
        }
        let parts = self.open.remove(&job_id).unwrap_or_default();
        self.fake.multiply_bulk(job_id, header, &parts)
    }
}

/// The words of so many vectors.
pub(crate) fn unpacked(bits: u32, bytes: &[u8], vectors: u32) -> Vec<u32> {
    let each = bytes.len() / vectors as usize;
    let vector = |bytes: &[u8]| {
        let mut words = vec![0; 8 * each / bits as usize];
        words::unpack(bits, bytes, &mut words).unwrap();
        words
    };
    bytes.chunks(each).flat_map(vector).collect()
}

/// The inverse of [`unpacked`].
pub(crate) fn packed(bits: u32, words: &[u32], vectors: u32) -> Bytes {
    let mut bytes = Vec::new();
    words.chunks(words.len() / vectors as usize).for_each(|vector| words::pack(bits, vector, &mut bytes));
    bytes.into()
}

/// Changes the words of an answer, [rows][lanes], which may become more or fewer.
pub(crate) fn reword(ring: &Ring, lanes: u32, answer: &mut BulkAnswer, change: impl FnOnce(&mut Vec<u64>)) {
    let Some(bulk_answer::Body::Part(part)) = &mut answer.body else { panic!("a failure has no words") };
    let mut words = vec![0; (part.rows * lanes) as usize];
    wire::decode(ring.params(), wire::Kind::Lanes, &part.words, &mut words).unwrap();
    change(&mut words);
    let mut bytes = Vec::new();
    wire::encode(ring.params(), wire::Kind::Lanes, &words, &mut bytes);
    part.words = bytes.into();
}
