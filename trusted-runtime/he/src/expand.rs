//! The uniform polynomials A_j of a matrix: fixed, expanded from a seed, never sent.

use crate::{Error, Random};
use chacha20::{ChaCha20, KeyIvInit, cipher::StreamCipher};
use kernels::{Inputs, Ring};
use zeroize::Zeroizing;

/// One uniform polynomial in NTT form for each input block.
///
/// They are as public as any RLWE matrix A: security does not need them hidden. Every secret is used with
/// all of them once.
pub struct PublicPolys {
    n: usize,
    residues: Vec<u64>,
}

impl PublicPolys {
    /// Draws a seed and expands it.
    pub fn random(ring: &Ring, blocks: usize, random: &mut Random) -> Self {
        let mut seed = [0; 32];
        random.fill(&mut seed);
        Self::expand(ring, &seed, blocks)
    }

    /// Block j from the ChaCha20 stream with key `seed` and nonce j: little-endian 64-bit words, cut to the bits of q,
    /// those not below q skipped.
    pub fn expand(ring: &Ring, seed: &[u8; 32], blocks: usize) -> Self {
        let n = ring.n();
        let mut residues = vec![0; blocks * n];
        for (j, out) in residues.chunks_exact_mut(n).enumerate() {
            expand_block(ring, seed, j as u64, out);
        }
        Self { n, residues }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.residues.len() / self.n
    }

    /// A_j, NTT form.
    pub fn block(&self, j: usize) -> &[u64] {
        &self.residues[j * self.n..(j + 1) * self.n]
    }

    /// All blocks as the one input vector of a product.
    pub(crate) fn inputs(&self, ring: &Ring) -> Inputs {
        let mut inputs = Inputs::new(ring, 1, self.blocks());
        for j in 0..self.blocks() {
            inputs.set(0, j, self.block(j));
        }
        inputs
    }
}

/// `count` uniform residues from a fresh seed, for challenges: the stream of [`expand_block`], block 0.
pub(crate) fn uniform(ring: &Ring, random: &mut Random, count: usize) -> Vec<u64> {
    let mut seed = Zeroizing::new([0; 32]);
    random.fill(seed.as_mut_slice());
    let mut out = vec![0; count];
    expand_block(ring, &seed, 0, &mut out);
    out
}

/// Expands block `j` of `seed` into `out`, N residues in [0, q), NTT form (uniform is uniform in any form).
pub fn expand_block(ring: &Ring, seed: &[u8; 32], j: u64, out: &mut [u64]) {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&j.to_le_bytes());
    let mut stream = ChaCha20::new(seed.into(), &nonce.into());
    let (q, mask) = (ring.q(), (1u64 << ring.params().bits()) - 1);
    let mut bytes = Zeroizing::new([0; 4096]);
    let mut at = 0;
    while at < out.len() {
        stream.write_keystream(bytes.as_mut_slice());
        for word in bytes.as_chunks::<8>().0 {
            let x = u64::from_le_bytes(*word) & mask;
            if x < q && at < out.len() {
                out[at] = x;
                at += 1;
            }
        }
    }
}

impl TryFrom<(&Ring, Vec<u64>)> for PublicPolys {
    type Error = Error;

    /// Takes residues that were expanded elsewhere.
    fn try_from((ring, residues): (&Ring, Vec<u64>)) -> Result<Self, Error> {
        if residues.is_empty() || !residues.len().is_multiple_of(ring.n()) || residues.iter().any(|&x| x >= ring.q()) {
            return Err(Error::Misuse(format!("{} residues are no whole polynomials modulo q", residues.len())));
        }
        Ok(Self { n: ring.n(), residues })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::{ParamsLiteral, params::DEFAULT};

    #[test]
    fn golden_vector() {
        let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
        let a = PublicPolys::expand(&ring, &[0; 32], 2);
        // The ChaCha20 test vector of RFC 8439, A.1 #1: 76 b8 e0 ad a0 f1 3d 90 | 40 5d 6a e5 53 86 bd 28, cut to 51 bits.
        assert_eq!(a.block(0)[0], 0x903d_f1a0_ade0_b876 & ((1 << 51) - 1));
        assert_eq!(a.block(0)[1], 0x28bd_8653_e56a_5d40 & ((1 << 51) - 1));
        let digest = |j: usize| a.block(j).iter().fold(0u64, |h, &x| (h ^ x).wrapping_mul(0x0100_0000_01b3));
        assert_eq!((digest(0), digest(1)), (11_831_934_386_806_790_783, 4_963_255_817_929_755_758));
    }

    #[test]
    fn uniform_below_q_with_rejection() {
        // q just above 2^20: about half of the candidates are rejected.
        let ring = Ring::new(ParamsLiteral { log_n: 11, q: 1_073_153 }.check().unwrap()).unwrap();
        let a = PublicPolys::expand(&ring, &[9; 32], 64);
        let q = ring.q() as f64;
        let mean = a.residues.iter().map(|&x| x as f64 / q).sum::<f64>() / a.residues.len() as f64;
        assert!(a.residues.iter().all(|&x| x < ring.q()) && (mean - 0.5).abs() < 0.005, "{mean}");
    }
}
