//! What a runtime would send, and what it must get back, by the scalar ring.

use crate::harness::Client;
use bytes::Bytes;
use kernels::{Int8Matrix, Isa, Ring, Tiling, modulus, params, wire};
use proto::v1::{
    JobHeader, JobPart, MatrixHeader, Residency, TileAnswer, TileJob, UploadChunk, UploadProgress, tile_answer,
    tile_job, upload_chunk,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

pub(crate) fn scalar_ring() -> Ring {
    Ring::with_isa(params::DEFAULT.check().expect("default"), Isa::SCALAR)
}

/// The generator of Steele, Lea and Flood (OOPSLA 2014), for test data.
pub(crate) struct SplitMix(pub u64);

impl SplitMix {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A matrix with its cut.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) int8: Int8Matrix,
    pub(crate) tiling: Tiling,
}

impl Weights {
    pub(crate) fn random(seed: u64, rows: usize, cols: usize, tile_rows: usize, tile_cols: usize) -> Self {
        let mut random = SplitMix(seed);
        let data = (0..rows * cols).map(|_| random.next().to_le_bytes()[0].cast_signed()).collect();
        Self {
            int8: Int8Matrix::new(rows, cols, data).expect("shape"),
            tiling: Tiling::new(rows, cols, tile_rows, tile_cols, 2048).expect("fits"),
        }
    }

    /// A matrix for jobs that do not care how it is cut.
    pub(crate) fn uncut(seed: u64, rows: usize, cols: usize) -> Self {
        Self::random(seed, rows, cols, 1, cols.min(2048))
    }

    pub(crate) fn header(&self, residency: Residency) -> MatrixHeader {
        let size = |n: usize| u32::try_from(n).expect("small");
        MatrixHeader {
            matrix_id: self.id(),
            name: format!("test.{}x{}", self.tiling.rows(), self.tiling.cols()),
            rows: size(self.tiling.rows()),
            cols: size(self.tiling.cols()),
            tile_rows: size(self.tiling.tile_rows()),
            tile_cols: size(self.tiling.tile_cols()),
            residency: residency.into(),
            params_id: scalar_ring().params().id().0.to_vec().into(),
        }
    }

    pub(crate) fn id(&self) -> Bytes {
        self.int8.id().0.to_vec().into()
    }

    pub(crate) fn rows(&self) -> Vec<u8> {
        self.int8.data().iter().map(|w| w.cast_unsigned()).collect()
    }

    /// Polynomials as a runtime would send them: uniform residues, [vectors][blocks][N].
    pub(crate) fn inputs(&self, ring: &Ring, seed: u64, vectors: usize) -> Vec<u64> {
        let mut random = SplitMix(seed);
        (0..vectors * self.tiling.blocks() * ring.n()).map(|_| random.next() % ring.q()).collect()
    }

    /// The useful coefficients of the products, [vectors][rows].
    pub(crate) fn expected(&self, ring: &Ring, inputs: &[u64], vectors: usize) -> Vec<u64> {
        let (t, n) = (&self.tiling, ring.n());
        let mut out = vec![0; vectors * t.rows()];
        let mut small = vec![0i8; n];
        for tile in 0..t.tiles() {
            let mut sums = vec![0; vectors * n];
            for block in 0..t.blocks() {
                t.tile_coefficients(&self.int8, tile, block, &mut small);
                let mut w: Vec<u64> = small.iter().map(|&x| modulus::from_signed(x.into(), ring.q())).collect();
                ring.forward_residues(&mut w);
                for v in 0..vectors {
                    let at = (v * t.blocks() + block) * n;
                    ring.mul_add(&mut sums[v * n..(v + 1) * n], &w, &inputs[at..at + n]);
                }
            }
            for v in 0..vectors {
                let sum = &mut sums[v * n..(v + 1) * n];
                ring.inverse_residues(sum);
                for (r, row) in t.tile_row_range(tile).enumerate() {
                    out[v * t.rows() + row] = sum[t.output_coefficient(r)];
                }
            }
        }
        out
    }
}

/// Uploads by one call and returns every progress message.
pub(crate) async fn upload(client: &mut Client, chunks: Vec<UploadChunk>) -> Result<Vec<UploadProgress>, Status> {
    let mut progress = client.upload(tokio_stream::iter(chunks)).await?.into_inner();
    let mut all = Vec::new();
    while let Some(message) = progress.message().await? {
        all.push(message);
    }
    Ok(all)
}

/// The messages of an upload: a header, then rows in chunks of a size that divides nothing.
pub(crate) fn chunks(header: MatrixHeader, rows: &[u8]) -> Vec<UploadChunk> {
    let header = UploadChunk { body: Some(upload_chunk::Body::Header(header)) };
    let rows = rows.chunks(99_991).map(|c| UploadChunk { body: Some(upload_chunk::Body::Rows(c.to_vec().into())) });
    std::iter::once(header).chain(rows).collect()
}

pub(crate) async fn put(client: &mut Client, weights: &Weights, residency: Residency) -> proto::v1::MatrixState {
    let all = upload(client, chunks(weights.header(residency), &weights.rows())).await.expect("accepted");
    all.last().and_then(|p| p.state.clone()).expect("the last message has the state")
}

/// An open job stream.
pub(crate) struct Stream<J = TileJob, A = TileAnswer> {
    pub(crate) jobs: mpsc::Sender<J>,
    pub(crate) answers: Streaming<A>,
}

impl Stream {
    pub(crate) async fn open(client: &mut Client) -> Result<Self, Status> {
        let (jobs, receiver) = mpsc::channel(256);
        let answers = client.multiply(ReceiverStream::new(receiver)).await?.into_inner();
        Ok(Self { jobs, answers })
    }

    pub(crate) async fn send(&self, job_id: u64, body: tile_job::Body) {
        self.jobs.send(TileJob { job_id, body: Some(body) }).await.expect("the stream is open");
    }

    pub(crate) async fn header(&self, job_id: u64, matrix_id: Bytes, vectors: usize) {
        let vectors = u32::try_from(vectors).expect("small");
        self.send(job_id, tile_job::Body::Header(JobHeader { matrix_id, vectors, deadline_ms: 0 })).await;
    }

    pub(crate) async fn part(&self, job_id: u64, part: JobPart) {
        self.send(job_id, tile_job::Body::Part(part)).await;
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> (u64, tile_answer::Body) {
        let answer = self.answers.message().await.expect("the stream goes on").expect("an answer");
        (answer.job_id, answer.body.expect("a body"))
    }

    /// The next answer, which must be a failure: job, kind, message.
    pub(crate) async fn failure(&mut self) -> (u64, proto::v1::FailureKind, String) {
        match self.answer().await {
            (job, tile_answer::Body::Failure(f)) => (job, f.kind(), f.message),
            (job, tile_answer::Body::Part(_)) => panic!("job {job} was answered"),
        }
    }
}

/// Cuts the inputs of a job into parts of `count` blocks, in an order that is not the natural one.
pub(crate) fn parts(ring: &Ring, tiling: &Tiling, inputs: &[u64], vectors: usize, count: usize) -> Vec<JobPart> {
    let n = ring.n();
    let mut all = Vec::new();
    for vector in 0..vectors {
        for first in (0..tiling.blocks()).step_by(count) {
            let count = count.min(tiling.blocks() - first);
            let at = (vector * tiling.blocks() + first) * n;
            let mut blocks = Vec::new();
            wire::encode(ring.params(), wire::Kind::Ntt, &inputs[at..at + count * n], &mut blocks);
            let [vector, first_block] = [vector, first].map(|x| u32::try_from(x).expect("small"));
            all.push(JobPart { vector, first_block, blocks: blocks.into() });
        }
    }
    all.reverse();
    all
}

/// Puts the parts of an answer together; checks that they cover every tile once and that the last one alone
/// carries the timing.
#[derive(Default)]
pub(crate) struct Assembly {
    seen: Vec<bool>,
    words: Vec<u64>,
}

impl Assembly {
    /// Takes a part; the words [vectors][rows] once the job is complete.
    pub(crate) fn take(
        &mut self,
        ring: &Ring,
        tiling: &Tiling,
        vectors: usize,
        part: &proto::v1::AnswerPart,
    ) -> Option<Vec<u64>> {
        self.seen.resize(tiling.tiles(), false);
        self.words.resize(vectors * tiling.rows(), 0);
        let (first, count) = (part.first_tile as usize, part.tiles as usize);
        for seen in &mut self.seen[first..first + count] {
            assert!(!*seen, "a tile came twice");
            *seen = true;
        }
        let start = tiling.tile_row_range(first).start;
        let rows = tiling.tile_row_range(first + count - 1).end - start;
        let mut words = vec![0; vectors * rows];
        wire::decode(ring.params(), wire::Kind::Coefficients, &part.coefficients, &mut words).expect("well-formed");
        for (v, words) in words.chunks_exact(rows).enumerate() {
            self.words[v * tiling.rows() + start..][..rows].copy_from_slice(words);
        }
        let complete = self.seen.iter().all(|&s| s);
        assert_eq!(complete, part.timing.is_some(), "the last part carries the timing");
        complete.then(|| std::mem::take(&mut self.words))
    }
}

pub(crate) fn hello() -> proto::v1::HelloRequest {
    proto::v1::HelloRequest {
        version: proto::VERSION.into(),
        protocol: proto::PROTOCOL,
        params_id: scalar_ring().params().id().0.to_vec().into(),
    }
}
