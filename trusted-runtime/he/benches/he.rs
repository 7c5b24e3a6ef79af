//! What the enclave's cryptography costs, in forward transforms of the same ring and the same run.

#![expect(clippy::unwrap_used, reason = "a failed step fails the bench")]

use criterion::Criterion;
use kernels::{Int8Matrix, Ring, Tiling, params::DEFAULT, wire};
use std::{hint::black_box, time::Instant};
use trusted_he::{MatrixCipher, Random, Scratch, Secret, Unverified, expand_block};

/// Median time of `f` in nanoseconds.
fn median(mut f: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..501)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64() * 1e9
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let ring = Ring::new(DEFAULT.check().unwrap()).unwrap();
    let n = ring.n();
    // As many blocks as one vector has in the largest matrices, and one tile of 32 rows.
    let (rows, cols, blocks) = (32, 64 * 16, 16);
    let w = Int8Matrix::new(rows, cols, vec![3; rows * cols]).unwrap();
    let tiling = Tiling::new(rows, cols, 32, 64, n).unwrap();
    let mut scratch = Scratch::new().unwrap();
    let cipher = MatrixCipher::new(&ring, tiling, 30, &w, scratch.random(), 1).unwrap();
    let x = vec![1234; cols];
    let mut out = vec![0; blocks * n];

    let mut poly = vec![1; n];
    let forward = median(|| ring.forward_residues(black_box(&mut poly)));
    let inverse = median(|| ring.inverse_residues(black_box(&mut poly)));
    let secret = median(|| drop(black_box(Secret::random(&ring, scratch.random()))));
    let mut a = vec![0; n];
    let expand = median(|| expand_block(&ring, &[1; 32], 7, black_box(&mut a)));
    let mut random = Random::from_os().unwrap();
    let mut bytes = vec![0; 10_752];
    let stream = median(|| random.fill(black_box(&mut bytes)));
    let encrypt = median(|| {
        let secret = Secret::random(&ring, scratch.random());
        let (encryptor, _) = cipher.begin(secret, &x).unwrap();
        encryptor.take(blocks).unwrap().encrypt(&mut scratch, black_box(&mut out)).unwrap();
    }) / blocks as f64;
    let mut message = Vec::new();
    wire::encode(ring.params(), wire::Kind::Coefficients, &vec![5; rows], &mut message);
    let answer = Unverified { first_tile: 0, tiles: 1, coefficients: &message }.check(&cipher, 1).unwrap();
    let (_, decryptor) = cipher.begin(Secret::random(&ring, scratch.random()), &x).unwrap();
    let mut y = vec![0; rows];
    let decrypt = median(|| decryptor.decrypt_tile(&answer, 0, 0, &mut scratch, black_box(&mut y)).unwrap());

    println!("N = {n}, log2 q = {:.1}, {}; medians of 501", ring.params().log2_q(), ring.isa().name());
    println!("{:<46} {:>9} {:>13} {:>7}", "", "us", "forward NTTs", "target");
    for (name, ns, target) in [
        ("forward NTT", forward, ""),
        ("inverse NTT", inverse, ""),
        ("ChaCha20, randomness of one block (10.5 KiB)", stream, ""),
        ("one secret (once a vector)", secret, ""),
        ("one encryption, A expanded, secret's share in", encrypt, "4"),
        ("one encryption, A expanded anew from its seed", encrypt + expand, ""),
        ("one decryption (one tile of 32 rows)", decrypt, "2.5"),
    ] {
        println!("{name:<46} {:>9.2} {:>13.2} {target:>7}", ns / 1e3, ns / forward);
    }

    let mut c = Criterion::default().configure_from_args();
    c.bench_function("encrypt 16 blocks", |b| {
        b.iter(|| {
            let (encryptor, _) = cipher.begin(Secret::random(&ring, scratch.random()), &x).unwrap();
            encryptor.take(blocks).unwrap().encrypt(&mut scratch, black_box(&mut out)).unwrap();
        });
    });
    c.bench_function("decrypt one tile", |b| {
        b.iter(|| decryptor.decrypt_tile(&answer, 0, 0, &mut scratch, black_box(&mut y)).unwrap());
    });
    c.final_summary();
}
