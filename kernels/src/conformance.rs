//! The properties that every backend must have. A backend's test calls [`all`].
//!
//! Each function panics with what differed. The data come from a fixed generator, so a failure repeats.

use crate::{
    Digits, Error, Fold, Functional, Inputs, Int8Matrix, IntFunctional, Isa, Params, ParamsLiteral, PinnedTiles, Ring,
    Tiling, answers_on_the_fly, gemm, gemv, matmul, modulus, ntt::NttTable, params, product, rescale, wire,
};

/// Everything below.
pub fn all(isa: Isa) {
    transforms(isa);
    multiplication(isa);
    products(isa);
    integer_products(isa);
    word_products(isa);
    many_vectors(isa);
    lane_products(isa);
    functionals(isa);
    int_functionals(isa);
    rescaling(isa);
    wire_format();
}

/// Test numbers: the same stream for the same seed, by splitmix64 (Steele, Lea, Flood, OOPSLA 2014, figure 17).
/// Everyone can predict it, so it must never stand in for randomness.
pub struct Numbers(pub u64);

impl Numbers {
    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.word() % limit as u64).expect("below a usize")
    }

    /// `n` residues, with the extreme ones among them.
    pub fn residues(&mut self, n: usize, q: u64) -> Vec<u64> {
        (0..n)
            .map(|_| match self.word() % 16 {
                0 => 0,
                1 => q - 1,
                2 => q / 2 + 1,
                _ => self.word() % q,
            })
            .collect()
    }

    /// A matrix, with the extreme weights among its entries.
    pub fn matrix(&mut self, rows: usize, cols: usize) -> Int8Matrix {
        let data = (0..rows * cols)
            .map(|_| match self.word() % 16 {
                0 => i8::MIN,
                1 => i8::MAX,
                _ => self.word().to_le_bytes()[0].cast_signed(),
            })
            .collect();
        Int8Matrix::new(rows, cols, data).expect("the sizes fit")
    }
}

/// The default prime where the security table allows it, the other rings of evaluators, and smaller primes.
pub fn rings() -> Vec<Params> {
    let mut rings: Vec<Params> =
        (11..=15).map(|log_n| ParamsLiteral { log_n, ..params::DEFAULT }.check().expect("a checked default")).collect();
    rings.extend(params::RINGS[..2].iter().map(|ring| ring.check().expect("a checked ring")));
    for (log_n, bits) in [(10, 26), (10, 20), (11, 33), (11, 48), (12, 50)] {
        let step = 2u64 << log_n;
        let top = (1u64 << bits) / step * step + 1;
        let q = (1..).map(|k| top - k * step).find(|&q| modulus::is_prime(q)).expect("there are such primes");
        rings.push(ParamsLiteral { log_n, q }.check().expect("inside the table"));
    }
    rings
}

/// Transforms equal the scalar ones, invert each other, and turn products into negacyclic convolutions.
pub fn transforms(isa: Isa) {
    let mut numbers = Numbers(1);
    for params in rings() {
        let (ring, table, n, q) = (Ring::with_isa(params, isa), NttTable::new(&params), params.n(), params.q());
        for round in 0..3 {
            let a = if round == 0 { vec![q - 1; n] } else { numbers.residues(n, q) };
            let (mut fast, mut slow) = (a.clone(), a.clone());
            ring.forward_residues(&mut fast);
            table.forward_scalar(&mut slow);
            assert!(fast == slow, "{}: forward, N = {n}, q = {q}", isa.name());
            table.inverse_scalar(&mut slow);
            ring.inverse_residues(&mut fast);
            assert!(fast == a && slow == a, "{}: inverse, N = {n}, q = {q}", isa.name());
        }
        // A dense polynomial times a sparse one.
        let a = numbers.residues(n, q);
        let mut b = vec![0; n];
        for _ in 0..5 {
            b[numbers.below(n)] = numbers.word() % q;
        }
        let want = convolution(&a, &b, q);
        let (mut x, mut y, mut z) = (a, b, vec![0; n]);
        ring.forward_residues(&mut x);
        ring.forward_residues(&mut y);
        ring.mul_add(&mut z, &x, &y);
        ring.inverse_residues(&mut z);
        assert!(z == want, "{}: convolution, N = {n}, q = {q}", isa.name());
    }
}

/// `a·b` in Z_q[X]/(X^N + 1), by the definition.
pub fn convolution(a: &[u64], b: &[u64], q: u64) -> Vec<u64> {
    let n = a.len();
    let mut out = vec![0; n];
    for (j, &y) in b.iter().enumerate().filter(|(_, y)| **y != 0) {
        for (i, &x) in a.iter().enumerate() {
            let p = modulus::mul(x, y, q);
            let at = &mut out[(i + j) % n];
            *at = if i + j < n { modulus::add(*at, p, q) } else { modulus::sub(*at, p, q) };
        }
    }
    out
}

/// Slot-wise multiply-accumulate against the definition.
pub fn multiplication(isa: Isa) {
    let mut numbers = Numbers(2);
    for params in rings() {
        let (ring, n, q) = (Ring::with_isa(params, isa), params.n(), params.q());
        let [a, b, c] = std::array::from_fn(|_| numbers.residues(n, q));
        let (mut plus, mut minus) = (c.clone(), c.clone());
        ring.mul_add(&mut plus, &a, &b);
        ring.mul_sub(&mut minus, &a, &b);
        let mut product = vec![7; n];
        ring.mul(&mut product, &a, &b);
        let (mut back, mut at_once) = (product.clone(), vec![7; n]);
        ring.inverse_residues(&mut back);
        ring.inverse_product(&mut at_once, &a, &b);
        assert_eq!(back, at_once, "{}: the inverse of a product, N = {n}, q = {q}", isa.name());
        for i in 0..n {
            assert_eq!(product[i], modulus::mul(a[i], b[i], q), "{}: {}·{}", isa.name(), a[i], b[i]);
            let p = modulus::mul(a[i], b[i], q);
            assert_eq!(plus[i], modulus::add(c[i], p, q), "{}: {} + {}·{}", isa.name(), c[i], a[i], b[i]);
            assert_eq!(minus[i], modulus::sub(c[i], p, q), "{}: {} - {}·{}", isa.name(), c[i], a[i], b[i]);
        }
    }
}

/// Pinned and on-the-fly answers are the coefficients of the whole products, for ragged matrices, several
/// vectors, any range of tiles, and tilings that can be sliced or cannot.
pub fn products(isa: Isa) {
    // The other rings of evaluators have room for more sums before they are reduced.
    let ring = |log_n, which| {
        let literal: ParamsLiteral = params::RINGS[which];
        Ring::with_isa(ParamsLiteral { log_n, ..literal }.check().expect("inside the table"), isa)
    };
    let cases = [
        // log_n, rows, cols, tile rows, tile cols
        (11, 70, 130, 32, 64),
        (11, 67, 37, 16, 32),
        (11, 300, 64, 16, 64),
        (11, 5, 40, 5, 16),
        (11, 600, 9, 512, 4),
        (11, 2500, 3, 2048, 1),
        (11, 1100, 3, 1024, 2),
        (11, 9, 1030, 4, 512),
        (11, 9, 1030, 2, 1024),
        (11, 3, 4200, 4, 256),
        (11, 50, 50, 41, 49),
        (11, 7, 13, 7, 13),
        (12, 90, 70, 64, 64),
        (13, 33, 300, 33, 128),
    ];
    for (k, (log_n, rows, cols, tile_rows, tile_cols)) in cases.into_iter().enumerate() {
        for which in [2, k % 2] {
            let ring = ring(log_n, which);
            let tiling = Tiling::new(rows, cols, tile_rows.min(rows), tile_cols, ring.n()).expect("fits");
            product_case(&ring, tiling, 1 + k % 3, k as u64);
        }
    }
    let small = rings().into_iter().find(|p| p.bits() == 20).expect("a small ring");
    let ring = Ring::with_isa(small, isa);
    product_case(&ring, Tiling::new(70, 50, 32, 32, ring.n()).expect("fits"), 2, 99);
}

/// One matrix: see [`products`].
///
/// # Panics
/// If a property does not hold.
pub fn product_case(ring: &Ring, tiling: Tiling, vectors: usize, seed: u64) {
    let mut numbers = Numbers(seed);
    let (n, q, name) = (ring.n(), ring.q(), ring.isa().name());
    let w = numbers.matrix(tiling.rows(), tiling.cols());
    let oracle = Ring::with_isa(*ring.params(), Isa::SCALAR);
    let (mut inputs, mut whole) =
        (Inputs::for_tiling(ring, &tiling, vectors), Inputs::new(&oracle, vectors, tiling.blocks()));
    for v in 0..vectors {
        for j in 0..tiling.blocks() {
            let residues = numbers.residues(n, q);
            whole.set(v, j, &residues);
            inputs.set(v, j, &residues);
        }
    }
    // The definition: whole products, transformed back.
    let tiles = tiling.tiles();
    let mut full = vec![0; vectors * tiles * n];
    product::product_on_the_fly(&oracle, &tiling, &w, &whole, 0..tiles, &mut full).expect("fits");
    let mut want = vec![vec![]; vectors];
    for (k, product) in full.chunks_exact_mut(n).enumerate() {
        oracle.inverse_residues(product);
        let rows = tiling.tile_row_range(k % tiles).len();
        want[k / tiles].extend((0..rows).map(|r| product[tiling.output_coefficient(r)]));
    }
    let pinned = PinnedTiles::encode(ring, tiling, &w).expect("fits");
    assert_eq!(pinned.bytes(), PinnedTiles::bytes_for(ring, &tiling));
    for range in [0..tiles, 0..1, tiles - 1..tiles, tiles / 3..tiles, 0..tiles - tiles / 4, 0..0] {
        let rows = match range.is_empty() {
            true => 0..0,
            false => tiling.tile_row_range(range.start).start..tiling.tile_row_range(range.end - 1).end,
        };
        let want: Vec<u64> = want.iter().flat_map(|w| w[rows.clone()].to_vec()).collect();
        let mut got = vec![u64::MAX; want.len()];
        pinned.answers(ring, &inputs, range.clone(), &mut got).expect("fits");
        assert!(got == want, "{name}: pinned {tiling:?} tiles {range:?} of {vectors} vectors");
        got.fill(u64::MAX);
        answers_on_the_fly(ring, &tiling, &w, &inputs, range.clone(), &mut got).expect("fits");
        assert!(got == want, "{name}: on the fly {tiling:?} tiles {range:?} of {vectors} vectors");
    }
    let short = pinned.answers(ring, &inputs, 0..tiles, &mut [0]);
    assert!(matches!(short, Err(Error::Shape(_))) || tiling.rows() * vectors == 1, "{name}: a short output is refused");
    assert!(matches!(pinned.answers(ring, &inputs, 0..tiles + 1, &mut []), Err(Error::Shape(_))));
}

/// int8 by integer products against 64-bit sums.
pub fn integer_products(isa: Isa) {
    let mut numbers = Numbers(3);
    for (rows, cols, vectors) in [(1, 1, 1), (5, 17, 2), (8, 64, 1), (7, 4099, 3), (64, 576, 2)] {
        let w = numbers.matrix(rows, cols);
        // So large that sums leave i32 and wrap, as the definition says.
        let xs: Vec<i32> = (0..vectors * cols)
            .map(|_| match numbers.word() % 8 {
                0 => gemv::LIMIT - 1,
                1 => 1 - gemv::LIMIT,
                _ => i32::try_from(numbers.word() % (1 << 25)).expect("small") - gemv::LIMIT,
            })
            .map(|x| x.max(1 - gemv::LIMIT))
            .collect();
        let range = rows / 3..rows;
        let mut ys = vec![0; vectors * range.len()];
        gemv::gemv(isa, &w, &xs, vectors, range.clone(), &mut ys).expect("fits");
        for v in 0..vectors {
            for (o, r) in range.clone().enumerate() {
                let row = w.row(r).iter().zip(&xs[v * cols..]);
                let sum: i64 = row.map(|(&a, &x)| i64::from(a) * i64::from(x)).sum();
                #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 is the definition")]
                let want = sum as i32;
                assert_eq!(ys[v * range.len() + o], want, "{}: {rows}x{cols}, row {r}", isa.name());
            }
        }
        let out = gemv::gemv(isa, &w, &vec![gemv::LIMIT; cols], 1, 0..1, &mut [0]);
        assert!(matches!(out, Err(Error::Shape(_))), "an entry out of range is refused");
    }
}

/// Products with any 32-bit words wrap as the definition says.
pub fn word_products(isa: Isa) {
    let mut numbers = Numbers(5);
    for (rows, cols, vectors) in [(1, 1, 1), (5, 17, 2), (9, 64, 1), (7, 4099, 3), (64, 576, 9)] {
        let w = numbers.matrix(rows, cols);
        let xs: Vec<u32> = (0..vectors * cols)
            .map(|_| match numbers.word() % 8 {
                0 => 0x7fff_8000,
                1 => 0x8000_7fff,
                2 => u32::MAX,
                _ => u32::try_from(numbers.word() >> 32).expect("32 bits"),
            })
            .collect();
        let range = rows / 3..rows;
        let mut ys = vec![0; vectors * range.len()];
        gemv::gemv_words(isa, &w, &xs, vectors, range.clone(), &mut ys).expect("fits");
        for v in 0..vectors {
            for (o, r) in range.clone().enumerate() {
                let row = w.row(r).iter().zip(&xs[v * cols..]);
                let want =
                    row.fold(0u32, |sum, (&a, &x)| sum.wrapping_add(i32::from(a).cast_unsigned().wrapping_mul(x)));
                assert_eq!(ys[v * range.len() + o], want, "{}: {rows}x{cols}, row {r}", isa.name());
            }
        }
        assert!(gemv::gemv_words(isa, &w, &xs[1..], vectors, range, &mut ys).is_err());
    }
}

/// Products with many vectors at once are those with one after the other, for full and ragged tiles.
pub fn many_vectors(isa: Isa) {
    let mut numbers = Numbers(7);
    for (rows, cols, vectors) in [(1, 1, 1), (5, 17, 7), (67, 64, 8), (9, 577, 17), (6, 2051, 33), (130, 96, 70)] {
        let w = numbers.matrix(rows, cols);
        let xs: Vec<u32> = (0..vectors * cols).map(|_| (numbers.word() >> 32) as u32).collect();
        let narrow: Vec<i32> = xs.iter().map(|x| i32::from((*x & 0xffff) as u16 as i16)).collect();
        for range in [0..rows, rows / 3..rows] {
            let (mut ys, mut want) = (vec![1; vectors * range.len()], vec![0; vectors * range.len()]);
            gemv::gemv_words(isa, &w, &xs, vectors, range.clone(), &mut want).expect("fits");
            let columns = gemm::Columns::words(&xs, cols).expect("whole vectors");
            columns.multiply(isa, &w, range.clone(), &mut ys).expect("fits");
            assert!(ys == want, "{}: {rows}x{cols}, {vectors} vectors of words", isa.name());
            gemv::gemv_words(isa, &w, bytemuck::cast_slice(&narrow), vectors, range.clone(), &mut want).expect("fits");
            let columns = gemm::Columns::narrow(&narrow, cols).expect("whole vectors");
            columns.multiply(isa, &w, range.clone(), &mut ys).expect("fits");
            assert!(ys == want, "{}: {rows}x{cols}, {vectors} narrow vectors", isa.name());
            assert!(columns.multiply(isa, &w, 0..rows + 1, &mut ys).is_err());
        }
        assert!(gemm::Columns::words(&xs[1..], cols).is_err() || cols == 1);
        assert!(gemm::Columns::narrow(&vec![1 << 15; cols], cols).is_err());
    }
}

/// The product with words modulo q, for odd shapes, extreme numbers, parts of the rows and lanes, and rows that
/// arrive in any order and through the wire.
pub fn lane_products(isa: Isa) {
    let mut numbers = Numbers(6);
    let cases = [(1, 1, 8), (5, 3, 16), (7, 64, 8), (33, 577, 24), (4, 1025, 8), (6, 2500, 16), (3, 4099, 8)];
    for params in rings().into_iter().filter(|p| p.log_n() <= 12) {
        let ring = Ring::with_isa(params, isa);
        let q = ring.q();
        for (k, (rows, cols, lanes)) in cases.into_iter().enumerate() {
            let (w, b) = if k % 2 == 0 {
                let w = Int8Matrix::new(rows, cols, vec![if k == 0 { i8::MAX } else { i8::MIN }; rows * cols]);
                (w.expect("fits"), vec![q - 1; cols * lanes])
            } else {
                (numbers.matrix(rows, cols), numbers.residues(cols * lanes, q))
            };
            let mut digits = Digits::new(&ring, cols, lanes).expect("fits");
            // From the end, in pieces of 1, 2, 3, 1, .. rows; the pieces of two come through the wire.
            let (mut end, mut size) = (cols, 1);
            while end > 0 {
                let first = end.saturating_sub(size);
                let words = &b[first * lanes..end * lanes];
                if size == 2 {
                    let mut message = vec![];
                    wire::encode(ring.params(), wire::Kind::Lanes, words, &mut message);
                    digits.set_from_wire(&ring, first, end - first, &message).expect("well-formed");
                } else {
                    digits.set(first, words).expect("fits");
                }
                (end, size) = (first, size % 3 + 1);
            }
            let range = rows / 4..rows;
            for part in [0..lanes, lanes - 8..lanes] {
                let mut out = vec![0; range.len() * part.len()];
                matmul::matmul(&ring, &w, range.clone(), &digits, part.clone(), &mut out).expect("fits");
                for (o, r) in range.clone().enumerate() {
                    for (p, l) in part.clone().enumerate() {
                        let sum: i128 = w
                            .row(r)
                            .iter()
                            .enumerate()
                            .map(|(c, &w)| i128::from(w) * i128::from(b[c * lanes + l]))
                            .sum();
                        let want = u64::try_from(sum.rem_euclid(i128::from(q))).expect("below q");
                        let found = out[o * part.len() + p];
                        assert_eq!(found, want, "{}: {rows}x{cols}, q = {q}, row {r}, lane {l}", isa.name());
                    }
                }
            }
            assert!(matmul::matmul(&ring, &w, 0..rows, &digits, 0..4, &mut vec![0; rows * 4]).is_err());
            assert!(digits.set(cols, &vec![0; lanes]).is_err());
            assert!(Digits::new(&ring, 3, 12).is_err() && Digits::new(&ring, 0, 8).is_err());
        }
    }
}

/// The integer functional is the definition, for extreme numbers and any length.
pub fn int_functionals(isa: Isa) {
    let p = crate::fold::MERSENNE_61;
    let mut numbers = Numbers(9);
    for len in [1, 7, 1024, 1025, 5000] {
        for extreme in [true, false] {
            let f: Vec<u64> = (0..len).map(|_| if extreme { p - 1 } else { numbers.word() % p }).collect();
            let x: Vec<i32> = (0..len)
                .map(|k| match (extreme, k % 2) {
                    (true, 0) => i32::MIN,
                    (true, _) => i32::MAX,
                    _ => i32::try_from(numbers.word() >> 33).expect("31 bits") - (1 << 30),
                })
                .collect();
            let sum: i128 = f.iter().zip(&x).map(|(&f, &x)| i128::from(f) * i128::from(x) % i128::from(p)).sum();
            let want = u64::try_from(sum.rem_euclid(i128::from(p))).expect("below p");
            assert_eq!(IntFunctional::new(&f).apply(isa, &x), want, "{}: {len} integers", isa.name());
        }
    }
}

/// Scaling up rounds to a nearest integer; scaling down inverts it under any noise that leaves the exact one right.
pub fn rescaling(isa: Isa) {
    let mut numbers = Numbers(8);
    for params in rings().into_iter().filter(|p| p.bits() > 34) {
        let ring = Ring::with_isa(params, isa);
        let q = ring.q();
        for log2_t in [1, 7, 25, 26, 31, 32].into_iter().filter(|k| k + 6 < params.bits()) {
            let t = 1i128 << log2_t;
            let count = 256;
            let mut ints: Vec<u32> =
                (0..count).map(|_| (numbers.word() & (u64::MAX >> 32)).try_into().expect("32 bits")).collect();
            ints[..4].copy_from_slice(&[0, u32::MAX, 1 << (log2_t - 1), (1 << (log2_t - 1)) - 1]);
            let (a, sums) = (numbers.residues(count, q), numbers.residues(count, q));
            let mut scaled = sums.clone();
            rescale::scale_up(&ring, log2_t, &ints, &a, &mut scaled);
            for i in 0..count {
                let x = i128::from(ints[i]) % t;
                // t·(what was added - q/t·x), centred modulo t·q.
                let added = i128::from(scaled[i]) - i128::from(sums[i]) - i128::from(a[i]);
                let off = (t * added - i128::from(q) * x).rem_euclid(t * i128::from(q));
                let off = off.min(t * i128::from(q) - off);
                assert!(2 * off <= t, "{}: t = 2^{log2_t}, x = {x}, q = {q}", isa.name());
            }
            // Noise up to q/2t less a 2^-18th of q/t, around what was scaled up.
            let half = u64::try_from(u128::from(q) >> (log2_t + 1)).expect("below q");
            let limit = half - (q >> log2_t >> 18) - 2;
            let noisy: Vec<u64> = scaled
                .iter()
                .zip(&sums)
                .map(|(&x, &s)| {
                    let noise = match numbers.word() % 4 {
                        0 => limit,
                        1 => q - limit,
                        _ => numbers.word() % limit,
                    };
                    modulus::add(modulus::sub(x, s, q), noise, q)
                })
                .collect();
            let mut out = vec![0; count];
            rescale::scale_down(&ring, log2_t, &noisy, &a, &mut out);
            for i in 0..count {
                assert_eq!(i128::from(out[i]), i128::from(ints[i]) % t, "{}: t = 2^{log2_t}, q = {q}", isa.name());
            }
        }
    }
}

/// Functionals over rows and over words are the sums that they say.
pub fn functionals(isa: Isa) {
    let mut numbers = Numbers(7);
    for params in rings() {
        let ring = Ring::with_isa(params, isa);
        let q = ring.q();
        for (rows, lanes) in [(1, 8), (9, 16), (2300, 8)] {
            let (factors, words) = if rows == 9 {
                (numbers.residues(rows, q), numbers.residues(rows * lanes, q))
            } else {
                (vec![q - 1; rows], vec![q - 1; rows * lanes])
            };
            let mut fold = Fold::new(lanes);
            let cut = rows / 3;
            fold.add(&ring, &factors[cut..], &words[cut * lanes..]);
            let mut other = Fold::new(lanes);
            other.add(&ring, &factors[..cut], &words[..cut * lanes]);
            fold.merge(&ring, other);
            let want: Vec<u64> = (0..lanes)
                .map(|l| {
                    let terms = factors.iter().enumerate().map(|(i, &f)| modulus::mul(f, words[i * lanes + l], q));
                    terms.fold(0, |sum, x| modulus::add(sum, x, q))
                })
                .collect();
            assert!(fold.finish(&ring) == want, "{}: fold of {rows} rows, q = {q}", isa.name());
        }
        let (f, x) = (numbers.residues(5000 / 8 * 8, q), numbers.residues(3000 / 8 * 8, q));
        let functional = Functional::new(&ring, &f);
        let terms = f[1600..].iter().zip(&x).map(|(&f, &x)| modulus::mul(f, x, q));
        let want = terms.fold(0, |sum, x| modulus::add(sum, x, q));
        assert_eq!(functional.apply(&ring, 1600, &x), want, "{}: functional, q = {q}", isa.name());
    }
}

/// What was written is read, whole and in parts, for every ring and ragged counts.
pub fn wire_format() {
    let mut numbers = Numbers(4);
    for params in rings() {
        for count in [0, 1, 7, 8, 9, 63, 64, 65, params.n()] {
            let words = numbers.residues(count, params.q());
            let mut bytes = vec![7];
            wire::encode(&params, wire::Kind::Coefficients, &words, &mut bytes);
            let bytes = &bytes[1..];
            assert_eq!(bytes.len(), wire::encoded_len(&params, count));
            let mut back = vec![0; count];
            wire::decode(&params, wire::Kind::Coefficients, bytes, &mut back).expect("well-formed");
            assert!(back == words, "{count} words of {} bits", params.bits());
            let message = wire::Message::parse(&params, wire::Kind::Coefficients, bytes, count).expect("well-formed");
            for first in 0..count.min(20) {
                let mut part = vec![0; (count - first).min(11)];
                message.read(first, &mut part).expect("inside");
                assert!(part == words[first..first + part.len()], "part from {first} of {count}");
            }
        }
    }
}
