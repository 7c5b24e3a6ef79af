//! Every backend of this machine has the properties of `kernels::conformance`, and the pinned values hold.

use kernels::{Isa, conformance};

#[test]
fn scalar() {
    conformance::all(Isa::SCALAR);
}

#[test]
fn avx2() {
    match Isa::avx2() {
        Some(isa) => conformance::all(isa),
        None => eprintln!("this machine has no AVX2: nothing to check"),
    }
}

#[test]
fn avx512() {
    match Isa::avx512() {
        Some(isa) => conformance::all(isa),
        None => eprintln!("this machine has no AVX-512: only the emulated one is checked (package kernels-emulated)"),
    }
}
