//! Before an instruction set is used, once a process: every kernel on it and on portable code, over the same numbers.
//!
//! The conformance suite shows the code right on the machines of its authors. This shows, in a few milliseconds, that
//! compiler and processor of this machine agree, also on the plain loops that the compiler vectorizes by itself. Otherwise
//! the words of a product could be wrong without a sign.

use crate::{
    Digits, Error, Fold, Functional, Inputs, Int8Matrix, IntFunctional, Isa, PinnedTiles, Ring, Tiling,
    answers_on_the_fly,
    conformance::Numbers,
    fold, gemm, gemv,
    isa::Kind,
    matmul,
    ones::{self, centred_ones},
    params, rescale,
};
use std::sync::OnceLock;

/// What is computed, and the computation: words that are equal on every instruction set.
type Operation = (&'static str, fn(&Ring) -> Vec<u64>);

/// Every kernel of the crate.
const OPERATIONS: [Operation; 15] = [
    ("forward transform", |ring| transformed(ring, Ring::forward_residues)),
    ("inverse transform", |ring| transformed(ring, Ring::inverse_residues)),
    ("slot-wise product", slots),
    ("pinned product", pinned),
    ("product on the fly", on_the_fly),
    ("product with integers", integers),
    ("product with padded words", padded_words),
    ("product with many vectors", many_vectors),
    ("product with encrypted words", encrypted_words),
    ("fold of rows", folded),
    ("functional of residues", functional),
    ("functional of integers", int_functional),
    ("scaling up", scaled_up),
    ("scaling down", scaled_down),
    ("centred binomial numbers", binomial),
];

/// Compares an instruction set with portable code, if this process has not done so before.
///
/// # Errors
/// [`Error::SelfTest`] with what differed.
pub(crate) fn check(isa: Isa) -> Result<(), Error> {
    static AVX2: OnceLock<Option<&str>> = OnceLock::new();
    static AVX512: OnceLock<Option<&str>> = OnceLock::new();
    let found = match isa.kind() {
        Kind::Scalar => return Ok(()),
        Kind::Avx2 => &AVX2,
        Kind::Avx512 => &AVX512,
    };
    refuse(isa, *found.get_or_init(|| difference(isa, &OPERATIONS)))
}

/// The first operation whose words are not those of portable code.
fn difference(isa: Isa, operations: &[Operation]) -> Option<&'static str> {
    // They have other numbers of digits and reduce at other times.
    params::RINGS.into_iter().find_map(|literal| {
        let portable = Ring::with_isa(literal.check().expect("the rings are checked by a test"), Isa::SCALAR);
        let ring = portable.on(isa);
        operations.iter().find(|(_, words)| words(&ring) != words(&portable)).map(|(name, _)| *name)
    })
}

fn refuse(isa: Isa, differs: Option<&'static str>) -> Result<(), Error> {
    let slower = |other: &Isa| other.kind() == Kind::Avx2 && isa.kind() == Kind::Avx512;
    let other = Isa::avx2().filter(slower).unwrap_or(Isa::SCALAR).name();
    differs.map_or(Ok(()), |operation| Err(Error::SelfTest { isa: isa.name(), operation, other }))
}

fn transformed(ring: &Ring, transform: fn(&Ring, &mut [u64])) -> Vec<u64> {
    let mut words = Numbers(1).residues(ring.n(), ring.q());
    transform(ring, &mut words);
    words
}

fn slots(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(2);
    let [a, b, mut plus, mut product] = std::array::from_fn(|_| numbers.residues(256, ring.q()));
    let mut minus = plus.clone();
    ring.mul_add(&mut plus, &a, &b);
    ring.mul_sub(&mut minus, &a, &b);
    ring.mul(&mut product, &a, &b);
    [plus, minus, product].concat()
}

/// Five tiles, a group and a single one, of 72 columns in two blocks.
const TILING: (usize, usize, usize, usize) = (76, 72, 16, 64);

/// Two vectors with a whole group and with a part of it.
fn pinned(ring: &Ring) -> Vec<u64> {
    let (tiling, w, inputs) = tiled(ring, 2);
    let tiles = PinnedTiles::encode(ring, tiling, &w).expect("memory for five tiles");
    let (mut whole, mut part) = (vec![0; 2 * 76], vec![0; 2 * 32]);
    tiles.answers(ring, &inputs, 0..5, &mut whole).expect("sizes that fit");
    tiles.answers(ring, &inputs, 1..3, &mut part).expect("sizes that fit");
    [whole, part].concat()
}

/// One vector with a pair of tiles and a single one.
fn on_the_fly(ring: &Ring) -> Vec<u64> {
    let (tiling, w, inputs) = tiled(ring, 1);
    let mut out = vec![0; 44];
    answers_on_the_fly(ring, &tiling, &w, &inputs, 2..5, &mut out).expect("sizes that fit");
    out
}

fn tiled(ring: &Ring, vectors: usize) -> (Tiling, Int8Matrix, Inputs) {
    let mut numbers = Numbers(3);
    let (rows, cols, tile_rows, tile_cols) = TILING;
    let tiling = Tiling::new(rows, cols, tile_rows, tile_cols, ring.n()).expect("sizes that fit");
    let w = numbers.matrix(rows, cols);
    let mut inputs = Inputs::for_tiling(ring, &tiling, vectors);
    for k in 0..2 * vectors {
        inputs.set_in_place(k / 2, k % 2, &mut numbers.residues(ring.n(), ring.q()));
    }
    (tiling, w, inputs)
}

/// Rows that are no multiple of four, columns that are no multiple of 32.
const SHAPE: (usize, usize) = (7, 427);

fn integers(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(4);
    let w = numbers.matrix(SHAPE.0, SHAPE.1);
    let limit = gemv::LIMIT - 1;
    let xs: Vec<i32> = low_words(&mut numbers, 2 * SHAPE.1)
        .into_iter()
        .map(|x| if x % 8 == 0 { limit } else { x.cast_signed() % gemv::LIMIT })
        .collect();
    let mut ys = vec![0; 2 * SHAPE.0];
    gemv::gemv(ring.isa(), &w, &xs, 2, 0..SHAPE.0, &mut ys).expect("sizes that fit");
    ys.into_iter().map(|y| y.cast_unsigned().into()).collect()
}

fn padded_words(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(5);
    let w = numbers.matrix(SHAPE.0, SHAPE.1);
    let xs = low_words(&mut numbers, 2 * SHAPE.1);
    let mut ys = vec![0; 2 * SHAPE.0];
    gemv::gemv_words(ring.isa(), &w, &xs, 2, 0..SHAPE.0, &mut ys).expect("sizes that fit");
    ys.into_iter().map(u64::from).collect()
}

fn many_vectors(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(9);
    let w = numbers.matrix(SHAPE.0, SHAPE.1);
    let mut out = Vec::new();
    // One, two and four planes.
    for vectors in [1, 8, 17] {
        let xs = low_words(&mut numbers, vectors * SHAPE.1);
        let narrow: Vec<i32> = xs.iter().map(|x| (x % (1 << 16)).cast_signed() - (1 << 15)).collect();
        let columns = [gemm::Columns::words(&xs, SHAPE.1), gemm::Columns::narrow(&narrow, SHAPE.1)];
        for columns in columns.map(|c| c.expect("sizes that fit")) {
            let mut ys = vec![0; vectors * SHAPE.0];
            columns.multiply(ring.isa(), &w, 0..SHAPE.0, &mut ys).expect("sizes that fit");
            out.extend(ys.into_iter().map(u64::from));
        }
    }
    out
}

fn encrypted_words(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(6);
    let (w, lanes) = (numbers.matrix(SHAPE.0, SHAPE.1), 2 * Digits::LANES);
    let mut digits = Digits::new(ring, SHAPE.1, lanes).expect("sizes that fit");
    digits.set(0, &numbers.residues(SHAPE.1 * lanes, ring.q())).expect("sizes that fit");
    let mut out = vec![0; SHAPE.0 * lanes];
    matmul::matmul(ring, &w, 0..SHAPE.0, &digits, 0..lanes, &mut out).expect("sizes that fit");
    out
}

fn folded(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(7);
    let mut fold = Fold::new(16);
    fold.add(ring, &numbers.residues(11, ring.q()), &numbers.residues(11 * 16, ring.q()));
    fold.finish(ring)
}

fn functional(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(8);
    let [f, x] = std::array::from_fn(|_| numbers.residues(256, ring.q()));
    vec![Functional::new(ring, &f).apply(ring, 0, &x)]
}

fn int_functional(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(9);
    let f = numbers.residues(203, fold::MERSENNE_61);
    let x: Vec<i32> = low_words(&mut numbers, 203).into_iter().map(u32::cast_signed).collect();
    vec![IntFunctional::new(&f).apply(ring.isa(), &x)]
}

/// t = 2^26, as large as a layer's.
const LOG2_T: u32 = 26;

fn scaled_up(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(10);
    let [addend, mut sums] = std::array::from_fn(|_| numbers.residues(256, ring.q()));
    rescale::scale_up(ring, LOG2_T, &low_words(&mut numbers, 256), &addend, &mut sums);
    sums
}

fn scaled_down(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(11);
    let [a, b] = std::array::from_fn(|_| numbers.residues(256, ring.q()));
    let mut out = vec![0; 256];
    rescale::scale_down(ring, LOG2_T, &a, &b, &mut out);
    out.into_iter().map(u64::from).collect()
}

fn binomial(ring: &Ring) -> Vec<u64> {
    let mut numbers = Numbers(12);
    let bytes: Vec<u8> = (0..ones::GROUP_BYTES).map(|_| numbers.word().to_le_bytes()[0]).collect();
    let mut out = vec![0; ones::GROUP];
    centred_ones(ring, &bytes, &mut out);
    out
}

/// Words of 32 bits, with the extreme ones among them.
fn low_words(numbers: &mut Numbers, count: usize) -> Vec<u32> {
    let word = |x: u64| match x % 16 {
        0 => 0x7fff_8000,
        1 => 0x8000_7fff,
        2 => u32::MAX,
        _ => u32::try_from(x >> 32).expect("32 bits"),
    };
    (0..count).map(|_| word(numbers.word())).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the comparison finds on this thread, without what the process remembers.
    pub(crate) fn found(isa: Isa) -> Option<&'static str> {
        difference(isa, &OPERATIONS)
    }

    #[test]
    fn every_instruction_set_of_this_machine_passes() {
        for isa in Isa::available() {
            assert_eq!(found(isa), None, "{}", isa.name());
            assert_eq!(check(isa), Ok(()));
        }
        assert!(Isa::available().contains(&Isa::detect().expect("nothing differs")));
    }

    #[test]
    fn the_first_difference_is_refused_by_name() {
        let wrong: [Operation; 3] = [
            ("right one", slots),
            ("wrong one", |ring| vec![u64::from(ring.isa() == Isa::SCALAR)]),
            ("later one", |ring| vec![u64::from(ring.isa() == Isa::SCALAR)]),
        ];
        for isa in Isa::available().into_iter().filter(|&isa| isa != Isa::SCALAR) {
            let differs = difference(isa, &wrong);
            assert_eq!(differs, Some("wrong one"));
            let error = refuse(isa, differs).expect_err("refused").to_string();
            let start = format!("instruction set {} computes the wrong one wrongly on this machine", isa.name());
            assert!(error.starts_with(&start), "{error}");
            let other = if isa.kind() == Kind::Avx512 && Isa::avx2().is_some() { "avx2" } else { "scalar" };
            assert!(error.ends_with(&format!("BIFROST_ISA={other} uses another one")), "{error}");
        }
    }
}
