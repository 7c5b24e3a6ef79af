//! `cpu/avx512.rs` has the properties of `kernels::conformance`, executed instruction by instruction in emulation.
//!
//! What this cannot show: that a compiler and a processor do the same, and what a compiler makes of plain loops when it
//! may use AVX-512 (`fold`, `ones`). Every process compares that with the portable code when it starts (`selftest`).

use kernels_emulated::{Isa, conformance, isa::Kind};

#[test]
fn avx512_emulated_not_on_silicon() {
    let isa = Isa::avx512().expect("emulation is there on every machine");
    assert_eq!(isa.kind(), Kind::Avx512);
    eprintln!("AVX-512 EMULATED: every instruction of cpu/avx512.rs is a Rust function here");
    conformance::all(isa);
}

#[test]
fn the_fastest_is_chosen_after_a_comparison() {
    let asked = std::env::var("BIFROST_ISA").unwrap_or_else(|_| "avx512".into());
    assert_eq!(Isa::detect().expect("nothing differs").name(), asked);
}
