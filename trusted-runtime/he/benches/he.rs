//! What the enclave's cryptography costs, in forward transforms of the same ring and the same run.

#![expect(clippy::unwrap_used, reason = "a failed step fails the bench")]

use criterion::Criterion;
use kernels::{Inputs, Int8Matrix, PinnedTiles, Ring, Tiling, answers_on_the_fly, params::DEFAULT, wire};
use std::{hint::black_box, time::Instant};
use trusted_he::{Answers, MatrixCipher, Random, Scratch, Secret, Unverified, expand_block};

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

/// One encrypted product of a matrix like GPT-2's attention, from integers to integers: medians of its steps.
fn end_to_end(ring: &Ring, threads: usize) {
    const SIDE: usize = 768;
    let n = ring.n();
    let data = (0..SIDE * SIDE).map(|i| i8::try_from(i * 31 % 255).unwrap_or(-77)).collect();
    let w = Int8Matrix::new(SIDE, SIDE, data).unwrap();
    let tiling = Tiling::new(SIDE, SIDE, 32, 64, n).unwrap();
    let (tiles, blocks) = (tiling.tiles(), tiling.blocks());
    let pinned = PinnedTiles::encode(ring, tiling, &w).unwrap();
    let mut scratches: Vec<Scratch> = (0..threads).map(|_| Scratch::new().unwrap()).collect();
    let cipher = MatrixCipher::new(ring, tiling, 24, &w, scratches[0].random(), threads).unwrap();
    let x: Vec<i32> = (0..SIDE).map(|c| i32::try_from(c * 37 % 101).unwrap() - 50).collect();
    let (mut b, mut useful, mut y) = (vec![0; blocks * n], vec![0; SIDE], vec![0; SIDE]);
    let mut inputs = Inputs::for_tiling(ring, &tiling, 1);
    let (mut sent, mut message) = (Vec::new(), Vec::new());
    let share = tiles.div_ceil(threads).next_multiple_of(PinnedTiles::GROUP);
    let rows = share * tiling.tile_rows();
    let mut steps: [Vec<f64>; 5] = Default::default();
    for _ in 0..101 {
        let start = Instant::now();
        let secret = Secret::random(ring, scratches[0].random());
        let (encryptor, decryptor) = cipher.begin(secret, &x).unwrap();
        std::thread::scope(|scope| {
            for (scratch, out) in scratches.iter_mut().zip(b.chunks_mut(blocks.div_ceil(threads) * n)) {
                // Parts are handed out in order of asking, so each is asked for here.
                let part = encryptor.take(out.len() / n).unwrap();
                let work = move || part.encrypt(scratch, out).unwrap();
                if threads == 1 { work() } else { drop(scope.spawn(work)) }
            }
        });
        sent.clear();
        wire::encode(ring.params(), wire::Kind::Ntt, &b, &mut sent);
        let encrypted = Instant::now();
        inputs.set_from_wire(0, 0, blocks, &sent).unwrap();
        std::thread::scope(|scope| {
            for (k, out) in useful.chunks_mut(rows).enumerate() {
                let (pinned, inputs, range) = (&pinned, &inputs, k * share..((k + 1) * share).min(tiles));
                let work = move || pinned.answers(ring, inputs, range, out).unwrap();
                if threads == 1 { work() } else { drop(scope.spawn(work)) }
            }
        });
        message.clear();
        wire::encode(ring.params(), wire::Kind::Coefficients, &useful, &mut message);
        let evaluated = Instant::now();
        let all = u32::try_from(tiles).unwrap();
        let mut answers = Answers::new(&cipher, 1);
        answers.take(&cipher, &Unverified { first_tile: 0, tiles: all, coefficients: &message }).unwrap();
        let answer = answers.verify(std::slice::from_ref(&decryptor)).unwrap();
        let verified = Instant::now();
        std::thread::scope(|scope| {
            for ((k, out), scratch) in y.chunks_mut(rows).enumerate().zip(&mut scratches) {
                let (answer, decryptor) = (&answer, &decryptor);
                let mut work = move || {
                    for (i, out) in out.chunks_mut(32).enumerate() {
                        decryptor.decrypt_tile(answer, 0, k * share + i, scratch, out).unwrap();
                    }
                };
                if threads == 1 { work() } else { drop(scope.spawn(work)) }
            }
        });
        let done = Instant::now();
        for (times, (from, to)) in steps.iter_mut().zip([
            (start, done),
            (start, encrypted),
            (encrypted, evaluated),
            (evaluated, verified),
            (verified, done),
        ]) {
            times.push((to - from).as_secs_f64() * 1e3);
        }
    }
    for (r, &y) in y.iter().enumerate() {
        let want: i32 = w.row(r).iter().zip(&x).map(|(&w, &x)| i32::from(w) * x).sum();
        assert_eq!(y, want, "row {r}");
    }
    let [total, encrypt, evaluate, verify, decrypt] = steps.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!(
        "{SIDE}x{SIDE} encrypted product: {total:.2} ms (encrypt {encrypt:.2}, evaluate {evaluate:.2}, verify \
         {verify:.2}, decrypt {decrypt:.2}); {threads} threads, medians of 101"
    );
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
    let (encryptor, decryptor) = cipher.begin(Secret::random(&ring, scratch.random()), &x).unwrap();
    encryptor.take(blocks).unwrap().encrypt(&mut scratch, &mut out).unwrap();
    let mut inputs = Inputs::for_tiling(&ring, &tiling, 1);
    out.chunks_exact(n).enumerate().for_each(|(j, b)| inputs.set(0, j, b));
    let mut useful = vec![0; rows];
    answers_on_the_fly(&ring, &tiling, &w, &inputs, 0..1, &mut useful).unwrap();
    let mut message = Vec::new();
    wire::encode(ring.params(), wire::Kind::Coefficients, &useful, &mut message);
    let decryptor = [decryptor];
    let check = || {
        let mut answers = Answers::new(&cipher, 1);
        answers.take(&cipher, &Unverified { first_tile: 0, tiles: 1, coefficients: &message }).unwrap();
        answers.verify(&decryptor).unwrap()
    };
    let verify = median(|| drop(black_box(check())));
    let answer = check();
    let [decryptor] = &decryptor;
    let mut y = vec![0; rows];
    let decrypt = median(|| decryptor.decrypt_tile(&answer, 0, 0, &mut scratch, black_box(&mut y)).unwrap());

    println!("N = {n}, log2 q = {:.1}, {}; medians of 501", ring.params().log2_q(), ring.isa().name());
    println!("{:<46} {:>9} {:>13} {:>7}", "", "us", "forward NTTs", "target");
    for (name, ns, target) in [
        ("forward NTT", forward, ""),
        ("inverse NTT", inverse, ""),
        ("AES-256-CTR, randomness of one block (10.5 KiB)", stream, ""),
        ("one secret (once a vector)", secret, ""),
        ("one encryption, A expanded, secret's share in", encrypt, "4"),
        ("one encryption, A expanded anew from its seed", encrypt + expand, ""),
        ("one decryption (one tile of 32 rows)", decrypt, "2.5"),
        ("one check of an answer (one tile of 32 rows)", verify, ""),
    ] {
        println!("{name:<46} {:>9.2} {:>13.2} {target:>7}", ns / 1e3, ns / forward);
    }

    for threads in [1, 2] {
        end_to_end(&ring, threads);
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
