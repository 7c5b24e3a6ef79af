//! Products with encrypted activations.

use super::{Fake, Mode, Reply, failure};
use bytes::Bytes;
use kernels::{Inputs, product::product_on_the_fly, wire};
use proto::v1::{AnswerPart, FailureKind, JobHeader, JobTiming, TileAnswer, TileJob, tile_answer, tile_job};
use std::collections::HashMap;

/// Vector, first block and the blocks of each part.
type Parts = Vec<(usize, usize, Bytes)>;

/// The jobs of one stream that are not complete.
pub(super) struct Desk {
    fake: Fake,
    open: HashMap<u64, (JobHeader, Parts, usize)>,
}

impl Desk {
    pub(super) fn new(fake: Fake) -> Self {
        Self { fake, open: HashMap::new() }
    }

    pub(super) fn take(&mut self, TileJob { job_id, body }: TileJob) -> Reply<TileAnswer> {
        let fake = &self.fake;
        match body {
            Some(tile_job::Body::Header(h)) => {
                self.open.insert(job_id, (h, Vec::new(), 0));
                return Reply::nothing();
            }
            Some(tile_job::Body::Part(p)) => {
                fake.0.seen.lock().unwrap().blocks.push(p.blocks.clone());
                // It may have been answered already: that the matrix is not there.
                let Some(job) = self.open.get_mut(&job_id) else { return Reply::nothing() };
                let bits = fake.0.ring.params().bits() as usize * fake.0.ring.n();
                job.2 += (p.blocks.len() - wire::HEADER) * 8 / bits;
                job.1.push((p.vector as usize, p.first_block as usize, p.blocks));
            }
            _ => {
                *fake.0.cancels.lock().unwrap() += 1;
                self.open.remove(&job_id);
                return Reply::nothing();
            }
        }
        let (header, parts, blocks) = &self.open[&job_id];
        let expected = fake.matrix(&header.matrix_id).map(|m| m.0.blocks() * header.vectors as usize);
        if expected.is_some_and(|e| e != *blocks) {
            return Reply::nothing();
        }
        let reply = fake.multiply_tiles(job_id, header, parts);
        self.open.remove(&job_id);
        reply
    }
}

impl Fake {
    /// The answer to a complete job.
    fn multiply_tiles(&self, job_id: u64, header: &JobHeader, parts: &Parts) -> Reply<TileAnswer> {
        let refuse = |kind: FailureKind| {
            Reply::from(vec![TileAnswer { job_id, body: Some(tile_answer::Body::Failure(failure(kind))) }])
        };
        let mode = self.spend();
        match mode {
            Mode::DropStreamOnce => return Reply::hang_up(),
            Mode::ForgetOnce => self.0.matrices.lock().unwrap().clear(),
            Mode::FailOnce(kind) => return refuse(kind),
            Mode::AlwaysUnavailable => return refuse(FailureKind::Unavailable),
            Mode::Malformed => return refuse(FailureKind::Malformed),
            Mode::Silent => return Reply::nothing(),
            _ => {}
        }
        let Some((tiling, matrix)) = self.matrix(&header.matrix_id) else {
            return refuse(FailureKind::MatrixAbsent);
        };
        let (ring, n, vectors) = (&self.0.ring, self.0.ring.n(), header.vectors as usize);
        let mut inputs = Inputs::new(ring, vectors, tiling.blocks());
        for (v, first, bytes) in parts {
            let count = (bytes.len() - wire::HEADER) * 8 / ring.params().bits() as usize / n;
            let mut words = vec![0; count * n];
            wire::decode(ring.params(), wire::Kind::Ntt, bytes, &mut words).unwrap();
            words.chunks_exact(n).enumerate().for_each(|(j, w)| inputs.set(*v, first + j, w));
        }
        let mut answers = Vec::new();
        let half = tiling.tiles().div_ceil(2);
        // The second half first: order must not matter.
        for range in [half..tiling.tiles(), 0..half] {
            if range.is_empty() {
                continue;
            }
            let mut out = vec![0; vectors * range.len() * n];
            product_on_the_fly(ring, &tiling, &matrix, &inputs, range.clone(), &mut out).unwrap();
            let mut useful = Vec::new();
            for (k, poly) in out.chunks_exact_mut(n).enumerate() {
                ring.inverse_residues(poly);
                let rows = tiling.tile_row_range(range.start + k % range.len()).len();
                useful.extend((0..rows).map(|r| poly[tiling.output_coefficient(r)]));
            }
            match mode {
                Mode::ResidueTooLarge => useful[0] = ring.q(),
                Mode::WrongSize => useful.push(0),
                Mode::Lie => useful[0] = (useful[0] + 1) % ring.q(),
                _ => {}
            }
            let mut coefficients = Vec::new();
            wire::encode(ring.params(), wire::Kind::Coefficients, &useful, &mut coefficients);
            if mode == Mode::GarbageBytes {
                coefficients[0] ^= 1;
            }
            let part = AnswerPart {
                first_tile: u32::try_from(range.start).unwrap() + if mode == Mode::WrongTile { 1 << 20 } else { 0 },
                tiles: u32::try_from(range.len()).unwrap(),
                coefficients: coefficients.into(),
                timing: Some(JobTiming { queued_ns: 1, compute_ns: 1000 }),
            };
            let job_id = if mode == Mode::UnknownJob { job_id + 1000 } else { job_id };
            let body = (mode != Mode::EmptyAnswer).then_some(tile_answer::Body::Part(part));
            answers.push(TileAnswer { job_id, body });
            match mode {
                Mode::DuplicateTile => answers.push(answers[0].clone()),
                Mode::TooManyParts => answers.extend(vec![answers[0].clone(); 100]),
                _ => {}
            }
        }
        match &mut *self.0.direct.lock().unwrap() {
            Some(hook) => hook(answers),
            None => answers.into(),
        }
    }
}
