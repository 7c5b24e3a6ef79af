//! Noise, measured with the secret in hand; only this module can.

use super::*;
use crate::noise::{ERROR_VARIANCE, WeightNorms};
use kernels::{modulus, params::DEFAULT, product::product_on_the_fly};

/// The noise of every useful coefficient of a whole encrypt and evaluate.
fn measure(ring: &Ring, tiling: Tiling, k: u32, w: &Int8Matrix, x: &[i32]) -> Vec<f64> {
    let mut scratch =
        Scratch { random: Random::from_key([3; 32]), bytes: Vec::new(), poly: Vec::new(), ints: Vec::new() };
    let cipher = MatrixCipher::new(ring, tiling, k, w, &mut scratch.random, 2).unwrap();
    let secret = Secret::random(ring, &mut scratch.random);
    let (encryptor, decryptor) = cipher.begin(secret, x).unwrap();
    let n = ring.n();
    let mut inputs = kernels::Inputs::new(ring, 1, tiling.blocks());
    let mut b = vec![0; n];
    while let Some(part) = encryptor.take(1) {
        let j = part.first();
        part.encrypt(&mut scratch, &mut b).unwrap();
        inputs.set(0, j, &b);
    }
    let mut out = vec![0; tiling.tiles() * n];
    product_on_the_fly(ring, &tiling, w, &inputs, 0..tiling.tiles(), &mut out).unwrap();
    let mut noise = Vec::new();
    for (i, out) in out.chunks_exact_mut(n).enumerate() {
        ring.inverse_residues(out);
        let mask = decryptor.mask(i, &mut scratch);
        for (r, row) in tiling.tile_row_range(i).enumerate() {
            let c = modulus::add(out[tiling.output_coefficient(r)], mask[r], ring.q());
            let y: i128 = w.row(row).iter().zip(x).map(|(&w, &x)| i128::from(w) * i128::from(x)).sum();
            // t·noise = t·c - q·y, centred modulo t·q.
            let (t, q) = (1i128 << k, i128::from(ring.q()));
            let scaled = (t * i128::from(c) - q * y + t * q / 2).rem_euclid(t * q) - t * q / 2;
            noise.push(scaled as f64 / t as f64);
            assert_eq!(i128::from(cipher.grid.decode(c)), y, "tile {i} row {r}");
        }
    }
    noise
}

#[test]
fn measured_noise_follows_the_proxy_and_stays_below_the_bound() {
    let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
    // Extreme weights of one size: every coefficient has the same, known norm.
    let (rows, cols) = (256, 256);
    let mut signs = kernels::conformance::Numbers(12);
    let data = (0..rows * cols).map(|_| if signs.word().is_multiple_of(2) { 127 } else { -127 }).collect();
    let w = Int8Matrix::new(rows, cols, data).unwrap();
    let tiling = Tiling::new(rows, cols, 32, 64, 2048).unwrap();
    let norms = WeightNorms { tile_l2_squared: 32 * 256 * 127 * 127, row_l1: 256 * 127 };
    let k = norms.largest_log2_t(ring.params()).unwrap();
    let x: Vec<i32> = (0..256).map(|i| (i * 7919) % 4001 - 2000).collect();
    let noise = measure(&ring, tiling, k, &w, &x);
    let proxy = (ERROR_VARIANCE * norms.tile_l2_squared as f64).sqrt();
    let std = (noise.iter().map(|x| x * x).sum::<f64>() / noise.len() as f64).sqrt();
    // 256 samples: the relative deviation of an estimated standard deviation is 4.4 %.
    assert!(std > 0.8 * proxy && std < 1.25 * proxy, "std {std:.0}, proxy {proxy:.0}");
    let threshold = ring.q() as f64 / 2f64.powi(i32::try_from(k).unwrap() + 1);
    assert!(threshold > 9.0 * proxy, "2^-60 lies beyond nine deviations");
    assert!(noise.iter().all(|x| x.abs() < 5.5 * proxy + norms.row_l1 as f64 / 2.0), "{noise:?}");
}

#[test]
fn a_block_is_handed_out_once_and_bad_vectors_are_refused() {
    let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
    let w = Int8Matrix::new(2, 10, vec![1; 20]).unwrap();
    let mut scratch = Scratch::new().unwrap();
    let tiling = Tiling::new(2, 10, 2, 3, 2048).unwrap();
    let cipher = MatrixCipher::new(&ring, tiling, 16, &w, scratch.random(), 1).unwrap();
    let mut fresh = || Secret::random(&ring, scratch.random());
    assert!(cipher.begin(fresh(), &[0; 9]).is_err());
    assert!(cipher.begin(fresh(), &[1 << 15; 10]).is_err());
    let x = [5; 10];
    let (encryptor, _) = cipher.begin(fresh(), &x).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| encryptor.take(3).map(|p| p.blocks)).collect();
    assert_eq!(taken, [0..3, 3..4]);
    assert!(encryptor.take(usize::MAX).is_none() && encryptor.take(1).is_none());
}

#[test]
fn two_encryptions_of_one_vector_share_nothing() {
    let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
    let w = Int8Matrix::new(2, 10, vec![1; 20]).unwrap();
    let mut scratch = Scratch::new().unwrap();
    let tiling = Tiling::new(2, 10, 2, 10, 2048).unwrap();
    let cipher = MatrixCipher::new(&ring, tiling, 16, &w, scratch.random(), 1).unwrap();
    let x = [5; 10];
    let mut encrypt = || {
        let secret = Secret::random(&ring, scratch.random());
        let (encryptor, _) = cipher.begin(secret, &x).unwrap();
        let mut b = vec![0; 2048];
        encryptor.take(1).unwrap().encrypt(&mut scratch, &mut b).unwrap();
        b
    };
    let (a, b) = (encrypt(), encrypt());
    assert!(a.iter().zip(&b).filter(|(a, b)| a == b).count() <= 1);
    // A ciphertext is uniform to the eye: the mean of 2048 residues is q/2 within 8 deviations.
    let mean = a.iter().map(|&x| x as f64).sum::<f64>() / 2048.0 / ring.q() as f64;
    assert!((mean - 0.5).abs() < 0.052, "{mean}");
}
