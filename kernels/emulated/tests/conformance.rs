//! `cpu/avx512.rs` has the properties of `kernels::conformance`, executed instruction by instruction in emulation.
//!
//! What this cannot show: that a compiler and a processor do the same. Every process compares them with the portable
//! code when it starts (`selftest`).

use kernels_emulated::{Isa, conformance, isa::Kind};

#[test]
fn avx512() {
    let isa = Isa::avx512().expect("emulation is there on every machine");
    assert_eq!(isa.kind(), Kind::Avx512);
    eprintln!("AVX-512 EMULATED: every instruction of cpu/avx512.rs is a Rust function here");
    conformance::all(isa);
}
