//! The wire parser against hostile bytes, and the values that pin formats and transforms.

use kernels::{
    Error, Inputs, Isa, Params, Ring, Tiling,
    conformance::{self, Numbers},
    params::DEFAULT,
    product,
    wire::{self, Kind},
};
use proptest::prelude::*;

fn params() -> Params {
    DEFAULT.check().expect("the default is checked")
}

fn message(kind: Kind, count: usize) -> Vec<u8> {
    let mut bytes = vec![];
    wire::encode(&params(), kind, &Numbers(5).residues(count, params().q()), &mut bytes);
    bytes
}

/// The reason why 9 coefficients cannot be read from `bytes`.
fn refusal(bytes: &[u8]) -> String {
    match wire::decode(&params(), Kind::Coefficients, bytes, &mut [0; 9]) {
        Err(Error::Wire(reason)) => reason,
        other => panic!("{other:?} from {bytes:02x?}"),
    }
}

#[test]
fn each_corrupted_field_is_named() {
    let good = message(Kind::Coefficients, 9);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        refusal(&bytes)
    };
    for at in 0..4 {
        assert!(with(at, 0).starts_with("magic is "), "byte {at}");
    }
    assert_eq!(refusal(&message(Kind::Ntt, 9)), "kind is 1, expected 2");
    assert_eq!(with(4, 3), "kind is 3, expected 2");
    assert_eq!(with(5, 50), "50 bits a word, expected 51");
    assert_eq!(with(6, 1), "reserved bytes are [01, 00], expected zeros");
    assert_eq!(with(7, 255), "reserved bytes are [00, ff], expected zeros");
    assert_eq!(with(8, 8), "8 residues, expected 9");
    assert_eq!(with(15, 128), "9223372036854775817 residues, expected 9");
    for len in 0..wire::HEADER {
        assert_eq!(refusal(&good[..len]), format!("{len} bytes, a header has 16"));
    }
    for len in wire::HEADER..good.len() {
        assert_eq!(refusal(&good[..len]), format!("{} bytes of residues, expected 58", len - wire::HEADER));
    }
    let longer: Vec<u8> = good.iter().copied().chain([0]).collect();
    assert_eq!(refusal(&longer), "59 bytes of residues, expected 58");
    // 9 words of 51 bits leave the last five bits of the last byte.
    for bit in 3..8 {
        assert_eq!(with(73, good[73] | 1 << bit), "unused bits of the last byte are not zero", "bit {bit}");
    }
    for word in 0..9 {
        for value in [params().q(), (1 << 51) - 1] {
            let mut words = Numbers(5).residues(9, params().q());
            words[word] = value;
            let mut bytes = vec![];
            wire::encode(&params(), Kind::Coefficients, &words, &mut bytes);
            assert_eq!(refusal(&bytes), format!("residue {value} is not below q = {}", params().q()));
        }
    }
}

#[test]
fn mutated_messages_are_refused_or_mean_other_words() {
    let (good, mut numbers) = (message(Kind::Coefficients, 9), Numbers(6));
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=numbers.below(3) {
            match numbers.below(4) {
                0 => bytes.truncate(numbers.below(bytes.len() + 1)),
                1 => bytes.push(numbers.word().to_le_bytes()[0]),
                2 if !bytes.is_empty() => {
                    let at = numbers.below(bytes.len());
                    bytes[at] ^= 1 << numbers.below(8);
                }
                _ if !bytes.is_empty() => {
                    let at = numbers.below(bytes.len());
                    bytes[at] = numbers.word().to_le_bytes()[0];
                }
                _ => {}
            }
        }
        let mut words = [0; 9];
        match wire::decode(&params(), Kind::Coefficients, &bytes, &mut words) {
            Err(Error::Wire(_)) => refused += 1,
            Err(other) => panic!("{other:?}"),
            Ok(()) => {
                // The format is canonical: what is accepted is what would be written.
                let mut again = vec![];
                wire::encode(&params(), Kind::Coefficients, &words, &mut again);
                assert_eq!(again, bytes);
            }
        }
    }
    assert!(refused > 5_000 && refused < 20_000, "{refused}");
}

#[test]
fn inputs_from_the_wire_are_those_that_were_set() {
    let ring = Ring::new(params()).unwrap();
    for tile_cols in [64, 50] {
        let tiling = Tiling::new(40, 150, 20, tile_cols, ring.n()).unwrap();
        let w = Numbers(7).matrix(40, 150);
        let words = Numbers(8).residues(3 * ring.n(), ring.q());
        let (mut set, mut read) = (Inputs::for_tiling(&ring, &tiling, 1), Inputs::for_tiling(&ring, &tiling, 1));
        words.chunks(ring.n()).enumerate().for_each(|(j, b)| set.set(0, j, b));
        for part in [0..1, 1..3] {
            let mut bytes = vec![];
            wire::encode(&params(), Kind::Ntt, &words[part.start * ring.n()..part.end * ring.n()], &mut bytes);
            read.set_from_wire(0, part.start, part.len(), &bytes).unwrap();
            assert!(read.set_from_wire(1, 0, part.len(), &bytes).is_err(), "no such vector");
            assert!(read.set_from_wire(0, 3, part.len(), &bytes).is_err(), "no such block");
            assert!(read.set_from_wire(0, 0, part.len() + 1, &bytes).is_err(), "another count");
        }
        let answers = |inputs: &Inputs| {
            let mut out = vec![0; 40];
            kernels::answers_on_the_fly(&ring, &tiling, &w, inputs, 0..2, &mut out).unwrap();
            out
        };
        assert_eq!(answers(&set), answers(&read));
    }
}

fn digest(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    blake3::hash(&bytes).to_hex().to_string()
}

/// What must never change: both sides of the boundary, and every version that says it speaks this protocol,
/// compute exactly this.
#[test]
fn golden_vectors() {
    let mut lines = vec![];
    let pinned = params();
    lines.push(format!("params {}", blake3::Hash::from(pinned.id().0).to_hex()));
    for params in conformance::rings() {
        let ring = Ring::with_isa(params, Isa::detect().unwrap());
        let mut words = Numbers(9).residues(ring.n(), ring.q());
        ring.forward_residues(&mut words);
        lines.push(format!("ntt {} {} {}", ring.n(), ring.q(), digest(&words)));
    }
    let ring = Ring::new(pinned).unwrap();
    let (tiling, w) = (Tiling::new(20, 70, 12, 40, ring.n()).unwrap(), Numbers(10).matrix(20, 70));
    lines.push(format!("matrix {}", blake3::Hash::from(w.id().0).to_hex()));
    let (mut small, mut tile) = (vec![0; ring.n()], vec![0; ring.n()]);
    product::encode_tile(&ring, &tiling, &w, 1, 1, &mut small, &mut tile);
    lines.push(format!("tile {}", digest(&tile)));
    let bytes = message(Kind::Coefficients, 9);
    lines.push(format!("wire {}", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()));
    let found = lines.join("\n") + "\n";
    assert_eq!(found, include_str!("../vectors/golden.txt"), "found:\n{found}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_matrix_and_tiling(rows in 1usize..80, cols in 1usize..200, log_wide in 0u32..11, odd in 0usize..7, seed: u64) {
        let ring = Ring::new(params()).unwrap();
        let wide = ((1 << log_wide) + if log_wide > 2 { odd.saturating_sub(3) } else { 0 }).min(cols);
        let tiling = Tiling::new(rows, cols, (ring.n() / wide).min(rows), wide, ring.n()).unwrap();
        conformance::product_case(&ring, tiling, if seed & 1 == 0 { 1 } else { 2 }, seed);
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(mut bytes in proptest::collection::vec(any::<u8>(), 0..90), header: bool) {
        let good = message(Kind::Coefficients, 9);
        if header && bytes.len() >= wire::HEADER {
            bytes[..wire::HEADER].copy_from_slice(&good[..wire::HEADER]);
            bytes.resize(good.len(), 0);
        }
        let mut words = [0; 9];
        if wire::decode(&params(), Kind::Coefficients, &bytes, &mut words).is_ok() {
            let mut again = vec![];
            wire::encode(&params(), Kind::Coefficients, &words, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
