//! Everything that a runtime has sent and that must never come twice.
//!
//! Ciphertexts are compared as bytes. Padded vectors are compared by what a pad that is used twice would show: `x + R`
//! and `x' + R` differ by `x - x'`, which is small in every column, and two pads of their own do not.

use super::meddling::{WIRE_BITS, WIRE_HEADER};
use bytes::Bytes;
use proto::v1::{BulkJob, OnlineJob, TileJob, bulk_job, tile_job};
use std::collections::{HashMap, HashSet};

/// The degree of the ring, and the lanes in which the public polynomials are sent.
const N: usize = 2048;

/// What a runtime has sent.
#[derive(Default)]
pub struct Record {
    /// Polynomials of encrypted activations, rows of encrypted masks.
    ciphertexts: HashSet<Bytes>,
    /// The public polynomial of each column, as this runtime first sent it.
    public: HashMap<u32, Bytes>,
    /// Bits of a word and padded vectors, by matrix.
    padded: HashMap<Bytes, (u32, Vec<Vec<u32>>)>,
    sent: Sent,
    repeated: Vec<String>,
}

/// How much of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Polynomials of encrypted activations.
    pub polynomials: u64,
    /// Padded vectors.
    pub vectors: u64,
    /// Rows of encrypted masks.
    pub rows: u64,
    /// Rows that are public polynomials.
    pub public: u64,
}

/// The lanes of each job of one bulk stream.
#[derive(Default)]
pub(super) struct Lanes(HashMap<u64, usize>);

impl Record {
    /// How much was sent so far.
    pub(super) fn sent(&self) -> Sent {
        self.sent
    }

    pub(super) fn direct(&mut self, job: &TileJob) {
        if let Some(tile_job::Body::Part(part)) = &job.body {
            for polynomial in part.blocks[WIRE_HEADER..].chunks(N / 8 * usize::from(part.blocks[WIRE_BITS])) {
                self.sent.polynomials += 1;
                self.ciphertext("a polynomial of activations", polynomial);
            }
        }
    }

    pub(super) fn bulk(&mut self, lanes: &mut Lanes, job: &BulkJob) {
        match &job.body {
            Some(bulk_job::Body::Header(header)) => {
                lanes.0.insert(job.job_id, header.lanes as usize);
            }
            Some(bulk_job::Body::Rows(rows)) => {
                // Lanes are a multiple of eight, so a row is whole bytes.
                let words = &rows.words[WIRE_HEADER..];
                for (col, row) in (rows.first_col..).zip(words.chunks(words.len() / rows.cols.max(1) as usize)) {
                    if lanes.0.get(&job.job_id) == Some(&N) && self.is_public(col, row) {
                        self.sent.public += 1;
                        continue;
                    }
                    self.sent.rows += 1;
                    self.ciphertext("a row of masks", row);
                }
            }
            _ => {}
        }
    }

    /// Whether this row of a job of N lanes is the public polynomial of its column. That is the same for every matrix and
    /// sent before any mask of the column is, so the first one that comes is it. A batch of N lanes looks alike otherwise.
    fn is_public(&mut self, col: u32, row: &[u8]) -> bool {
        self.public.entry(col).or_insert_with(|| Bytes::copy_from_slice(row)) == row
    }

    /// Another runtime begins, with public polynomials of its own.
    pub(super) fn another_runtime(&mut self) {
        self.public.clear();
    }

    pub(super) fn online(&mut self, job: &OnlineJob) {
        let id = Bytes::copy_from_slice(&job.matrix_id);
        let (_, known) = self.padded.entry(id).or_insert((job.word_bits, Vec::new()));
        for vector in job.words.chunks(job.words.len() / job.vectors.max(1) as usize) {
            self.sent.vectors += 1;
            known.push(unpacked(job.word_bits as usize, vector));
        }
    }

    fn ciphertext(&mut self, what: &str, bytes: &[u8]) {
        if !self.ciphertexts.insert(Bytes::copy_from_slice(bytes)) {
            self.repeated.push(format!("{what} of {} bytes", bytes.len()));
        }
    }

    /// # Errors
    /// What came twice.
    pub(super) fn nothing_came_twice(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.repeated.is_empty(), "came twice: {}", self.repeated.join(", "));
        for (bits, vectors) in self.padded.values() {
            for (i, vector) in vectors.iter().enumerate() {
                let twice = vectors[..i].iter().position(|earlier| same_pad(*bits, earlier, vector));
                anyhow::ensure!(
                    twice.is_none(),
                    "vector {i} of {} columns has the pad of vector {twice:?}",
                    vector.len()
                );
            }
        }
        Ok(())
    }
}

/// Words of so many bits, the lowest bits first.
fn unpacked(bits: usize, bytes: &[u8]) -> Vec<u32> {
    let bit = |at: usize| u32::from(bytes[at / 8] >> (at % 8) & 1);
    (0..8 * bytes.len() / bits).map(|word| (0..bits).map(|i| bit(word * bits + i) << i).sum()).collect()
}

/// Whether most columns differ by little, modulo 2^bits. Of random words a quarter does. Activations are far below an
/// eighth of the modulus, which must hold them times a whole row of weights.
fn same_pad(bits: u32, one: &[u32], other: &[u32]) -> bool {
    let (mask, near) = (u32::MAX >> (32 - bits), 1 << (bits - 3));
    let most = one.len() / 4;
    let mut far = 0;
    for (a, b) in one.iter().zip(other) {
        let apart = a.wrapping_sub(*b).wrapping_add(near) & mask;
        far += usize::from(apart > 2 * near);
        if far > most {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers without order (splitmix64, Vigna 2015).
    fn words(seed: u64, count: usize) -> Vec<u32> {
        let mix = |i: usize| {
            let mut z = (seed << 32 | i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            u32::try_from((z ^ (z >> 31)) >> 32).expect("32 bits are left")
        };
        (0..count).map(mix).collect()
    }

    fn online(record: &mut Record, pad: &[u32], activations: &[u32]) {
        let words = pad.iter().zip(activations).flat_map(|(r, x)| (r.wrapping_add(x % (1 << 22))).to_le_bytes());
        let words = words.collect::<Vec<_>>().into();
        record.online(&OnlineJob { job_id: 0, matrix_id: vec![7; 32].into(), vectors: 1, words, word_bits: 32 });
    }

    #[test]
    fn a_pad_that_is_used_twice_is_seen_whatever_it_covers() {
        let mut record = Record::default();
        for i in 0..100 {
            online(&mut record, &words(i, 64), &words(1000 + i, 64));
        }
        record.nothing_came_twice().expect("pads of their own");
        online(&mut record, &words(31, 64), &words(2000, 64));
        let error = record.nothing_came_twice().expect_err("pad 31 came again").to_string();
        assert!(error.contains("vector 100 of 64 columns has the pad of vector Some(31)"), "{error}");
    }

    #[test]
    fn rows_of_masks_must_differ_and_public_polynomials_need_not() {
        let rows = |job_id, words: &[u8]| BulkJob {
            job_id,
            body: Some(bulk_job::Body::Rows(proto::v1::BulkRows {
                first_col: 0,
                cols: 2,
                words: [&[0; WIRE_HEADER], words].concat().into(),
            })),
        };
        let header = |job_id, lanes| BulkJob {
            job_id,
            body: Some(bulk_job::Body::Header(proto::v1::BulkHeader { lanes, ..Default::default() })),
        };
        let (mut record, mut lanes) = (Record::default(), Lanes::default());
        for (id, count) in [(1, 2048), (2, 2048), (3, 32), (4, 32), (5, 2048)] {
            record.bulk(&mut lanes, &header(id, count));
        }
        for (id, words) in [(1, b"aabb"), (2, b"aabb"), (3, b"aabb"), (4, b"ccdd"), (5, b"eeff")] {
            record.bulk(&mut lanes, &rows(id, words));
        }
        record.nothing_came_twice().expect("rows of their own");
        assert_eq!((record.sent().rows, record.sent().public), (6, 4));
        // A full batch has as many lanes as the public polynomials, and counts like any other.
        record.bulk(&mut lanes, &rows(5, b"ggff"));
        let error = record.nothing_came_twice().expect_err("ff came again").to_string();
        assert_eq!(error, "came twice: a row of masks of 2 bytes");
        record.another_runtime();
        record.bulk(&mut lanes, &rows(1, b"hhii"));
        record.bulk(&mut lanes, &rows(2, b"hhii"));
        assert_eq!((record.sent().rows, record.sent().public), (8, 8));
    }
}
