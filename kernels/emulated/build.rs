//! Puts the instructions of `kernels/src/cpu/avx512/emulated.rs` in place of the processor's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=emulated_avx512");
}
