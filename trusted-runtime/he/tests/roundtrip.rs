//! Encrypt, evaluate with `kernels` alone, decrypt: always the integer product.

#![expect(clippy::unwrap_used, reason = "a failed step fails the test")]

use kernels::{Inputs, Int8Matrix, PinnedTiles, Ring, Tiling, answers_on_the_fly, params::RINGS, wire};
use trusted_he::{Answers, Error, MatrixCipher, Scratch, Secret, Unverified, WeightNorms};

/// The narrowest ring, which most models are given.
fn ring() -> Ring {
    Ring::new(RINGS[0].check().unwrap()).unwrap()
}

fn words(seed: u64) -> impl Iterator<Item = u64> {
    let mut s = seed;
    std::iter::from_fn(move || {
        s = s.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (s ^ (s >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    })
}

fn bound(w: &Int8Matrix, tiling: &Tiling) -> WeightNorms {
    let squares = |r: usize| w.row(r).iter().map(|&x| u64::from(x.unsigned_abs()).pow(2)).sum::<u64>();
    WeightNorms {
        tile_l2_squared: (0..tiling.tiles()).map(|i| tiling.tile_row_range(i).map(squares).sum()).max().unwrap(),
        row_l1: (0..w.rows()).map(|r| w.row(r).iter().map(|&x| u64::from(x.unsigned_abs())).sum()).max().unwrap(),
    }
}

/// What an evaluator does, on public data: the useful coefficients of tiles `range`, for every vector.
fn evaluate(
    ring: &Ring,
    tiling: Tiling,
    w: &Int8Matrix,
    inputs: &Inputs,
    range: std::ops::Range<usize>,
    pinned: bool,
) -> Vec<u8> {
    let rows: usize = range.clone().map(|i| tiling.tile_row_range(i).len()).sum();
    let mut useful = vec![0; inputs.vectors() * rows];
    if pinned {
        PinnedTiles::encode(ring, tiling, w).unwrap().answers(ring, inputs, range, &mut useful).unwrap();
    } else {
        answers_on_the_fly(ring, &tiling, w, inputs, range, &mut useful).unwrap();
    }
    let mut bytes = Vec::new();
    wire::encode(ring.params(), wire::Kind::Coefficients, &useful, &mut bytes);
    bytes
}

struct Case {
    rows: usize,
    cols: usize,
    tile: (usize, usize),
    vectors: usize,
    weight: fn(u64) -> i8,
    largest: i64,
}

fn check(case: &Case, pinned: bool) {
    let ring = ring();
    let &Case { rows, cols, tile, vectors, weight, largest } = case;
    let w = Int8Matrix::new(rows, cols, words(1).map(weight).take(rows * cols).collect()).unwrap();
    let tiling = Tiling::new(rows, cols, tile.0, tile.1, ring.n()).unwrap();
    let k = bound(&w, &tiling).largest_log2_t(ring.params()).unwrap();
    let mut scratch = Scratch::new().unwrap();
    let cipher = MatrixCipher::new(&ring, tiling, k, &w, scratch.random(), 2).unwrap();
    // As large as the case asks for, and not so large that a product leaves (-t/2, t/2).
    let l1 = (0..rows).map(|r| w.row(r).iter().map(|w| i64::from(w.unsigned_abs())).sum::<i64>()).max().unwrap();
    let largest = largest.min(((1i64 << (k - 1)) - 1) / l1.max(1));
    assert!(largest > 10, "{rows}x{cols}: t = 2^{k}");
    let span = u64::try_from(2 * largest + 1).unwrap();
    let entry = |z: u64| i32::try_from(i64::try_from(z % span).unwrap() - largest).unwrap();
    let xs: Vec<Vec<i32>> = (0..vectors).map(|v| words(v as u64 + 9).map(entry).take(cols).collect()).collect();

    let mut inputs = Inputs::for_tiling(&ring, &tiling, vectors);
    let mut decryptors = Vec::new();
    for (v, x) in xs.iter().enumerate() {
        let secret = Secret::random(&ring, scratch.random());
        let (encryptor, decryptor) = cipher.begin(secret, x).unwrap();
        while let Some(part) = encryptor.take(3) {
            let (first, mut b) = (part.first(), vec![0; part.len() * ring.n()]);
            part.encrypt(&mut scratch, &mut b).unwrap();
            b.chunks_exact(ring.n()).enumerate().for_each(|(j, b)| inputs.set(v, first + j, b));
        }
        decryptors.push(decryptor);
    }
    let middle = tiling.tiles() / 2;
    let mut answers = Answers::new(&cipher, vectors);
    for range in [middle..tiling.tiles(), 0..middle] {
        if range.is_empty() {
            continue;
        }
        let bytes = evaluate(&ring, tiling, &w, &inputs, range.clone(), pinned);
        let [first_tile, tiles] = [range.start, range.len()].map(|x| u32::try_from(x).unwrap());
        answers.take(&cipher, &Unverified { first_tile, tiles, coefficients: &bytes }).unwrap();
    }
    let answers = answers.verify(&decryptors).unwrap();
    for (v, decryptor) in decryptors.iter().enumerate() {
        for i in 0..tiling.tiles() {
            let mut y = vec![0; tiling.tile_row_range(i).len()];
            decryptor.decrypt_tile(&answers, v, i, &mut scratch, &mut y).unwrap();
            for (y, r) in y.into_iter().zip(tiling.tile_row_range(i)) {
                let want: i64 = w.row(r).iter().zip(&xs[v]).map(|(&w, &x)| i64::from(w) * i64::from(x)).sum();
                assert_eq!(i64::from(y), want, "{rows}x{cols} row {r} vector {v}");
            }
        }
    }
}

fn uniform(z: u64) -> i8 {
    i8::try_from(z % 255).unwrap_or_else(|_| i8::try_from(z % 127).unwrap())
}

#[test]
fn decrypts_to_the_integer_product_for_ragged_and_extreme_shapes() {
    let cases = [
        Case { rows: 5, cols: 7, tile: (2, 3), vectors: 1, weight: uniform, largest: 1 << 20 },
        Case { rows: 1, cols: 3000, tile: (1, 2048), vectors: 2, weight: uniform, largest: 4000 },
        Case { rows: 3000, cols: 1, tile: (2048, 1), vectors: 1, weight: uniform, largest: 1 << 22 },
        Case { rows: 97, cols: 201, tile: (31, 66), vectors: 3, weight: uniform, largest: 50_000 },
        Case { rows: 130, cols: 257, tile: (32, 64), vectors: 1, weight: |_| -127, largest: 40_000 },
        Case { rows: 64, cols: 64, tile: (32, 64), vectors: 1, weight: |_| 0, largest: 1 << 22 },
    ];
    for case in &cases {
        check(case, true);
        check(case, false);
    }
}

#[test]
fn malformed_answers_are_refused_before_anything_is_decrypted() {
    let ring = ring();
    let w = Int8Matrix::new(10, 4, vec![1; 40]).unwrap();
    let tiling = Tiling::new(10, 4, 4, 4, ring.n()).unwrap();
    let mut scratch = Scratch::new().unwrap();
    let cipher = MatrixCipher::new(&ring, tiling, 20, &w, scratch.random(), 1).unwrap();
    let message = |words: &[u64]| {
        let mut bytes = Vec::new();
        wire::encode(ring.params(), wire::Kind::Coefficients, words, &mut bytes);
        bytes
    };
    let take = |first_tile, tiles, coefficients: &[u8]| {
        Answers::new(&cipher, 1).take(&cipher, &Unverified { first_tile, tiles, coefficients })
    };
    let refused = |first_tile, tiles, coefficients: &[u8]| match take(first_tile, tiles, coefficients) {
        Err(Error::Answer(why)) => why,
        _ => panic!("accepted {first_tile} {tiles}"),
    };
    assert!(take(1, 2, &message(&[0; 6])).is_ok());
    assert!(refused(0, 0, &[]).contains("0 tiles from 0, there are 3"));
    assert!(refused(2, 2, &message(&[0; 8])).contains("2 tiles from 2"));
    assert!(refused(u32::MAX, u32::MAX, &[]).contains("there are 3"));
    let expected = format!("expected {}", wire::encoded_len(ring.params(), 4));
    assert!(refused(0, 1, &message(&[0; 5])).contains(&expected));
    assert!(refused(0, 1, &message(&[0; 3])).contains("for 4 rows of 1 vectors"));
    assert!(refused(0, 1, &message(&[0, 0, 0, ring.q()])).contains("is not below q"));
    let mut kind = message(&[0; 4]);
    kind[4] = 1;
    assert!(refused(0, 1, &kind).contains("kind is 1"));
    let mut answers = Answers::new(&cipher, 1);
    let part = message(&[0; 6]);
    let part = Unverified { first_tile: 1, tiles: 2, coefficients: &part };
    answers.take(&cipher, &part).unwrap();
    assert!(matches!(answers.take(&cipher, &part), Err(Error::Answer(why)) if why == "answers tile 1 twice"));
    assert!(matches!(answers.verify(&[]), Err(Error::Misuse(_))), "incomplete answers are not checked");
}

#[test]
fn ten_thousand_lies_about_encrypted_products_are_all_found() {
    let ring = ring();
    let (rows, cols) = (150, 130);
    let w = Int8Matrix::new(rows, cols, words(3).map(uniform).take(rows * cols).collect()).unwrap();
    let tiling = Tiling::new(rows, cols, 32, 64, ring.n()).unwrap();
    let mut scratch = Scratch::new().unwrap();
    let cipher = MatrixCipher::new(&ring, tiling, 24, &w, scratch.random(), 1).unwrap();
    let x: Vec<i32> = words(4).map(|z| i32::try_from(z % 2001).unwrap() - 1000).take(cols).collect();
    // Two jobs over the same matrix, so that a lie can be the honest answer to another question.
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let secret = Secret::random(&ring, scratch.random());
        let (encryptor, decryptor) = cipher.begin(secret, &x).unwrap();
        let mut inputs = Inputs::for_tiling(&ring, &tiling, 1);
        while let Some(part) = encryptor.take(1) {
            let (j, mut b) = (part.first(), vec![0; ring.n()]);
            part.encrypt(&mut scratch, &mut b).unwrap();
            inputs.set(0, j, &b);
        }
        let mut honest = vec![0; rows];
        answers_on_the_fly(&ring, &tiling, &w, &inputs, 0..tiling.tiles(), &mut honest).unwrap();
        jobs.push((decryptor, honest));
    }
    let verdict = |job: usize, words: &[u64]| {
        let mut bytes = Vec::new();
        wire::encode(ring.params(), wire::Kind::Coefficients, words, &mut bytes);
        let mut answers = Answers::new(&cipher, 1);
        let tiles = u32::try_from(tiling.tiles()).unwrap();
        answers.take(&cipher, &Unverified { first_tile: 0, tiles, coefficients: &bytes }).unwrap();
        answers.verify(std::slice::from_ref(&jobs[job].0)).map(drop)
    };
    let q = ring.q();
    let mut random = words(5);
    let mut draw = |limit: u64| random.next().unwrap() % limit;
    for round in 0..10_000 {
        let job = usize::try_from(draw(2)).unwrap();
        let mut lie = jobs[job].1.clone();
        let row = usize::try_from(draw(rows as u64)).unwrap();
        match round % 6 {
            0 => lie[row] ^= 1 << draw(50),
            1 => lie[row] = draw(q),
            2 => lie = jobs[1 - job].1.clone(),
            3 => lie.iter_mut().for_each(|y| *y = kernels::modulus::mul(*y, 2 + draw(1000), q)),
            4 => lie.swap(row, (row + 1 + usize::try_from(draw(rows as u64 - 1)).unwrap()) % rows),
            _ => lie.rotate_left(1 + usize::try_from(draw(rows as u64 - 1)).unwrap()),
        }
        lie.iter_mut().for_each(|y| *y %= q);
        if lie != jobs[job].1 {
            assert!(matches!(verdict(job, &lie), Err(Error::Forged(_))), "round {round}");
        }
        if round % 1000 == 999 {
            verdict(job, &jobs[job].1).unwrap();
            cipher.refresh(&w, scratch.random(), 1);
            verdict(job, &jobs[job].1).unwrap();
        }
    }
}
