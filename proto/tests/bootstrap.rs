//! The committed generated code is what the `.proto` files say. Run with `BIFROST_REGENERATE=1` to rewrite it.
use std::{fs, path::Path};

const FILES: [&str; 3] = ["v1/common.proto", "v1/evaluator.proto", "v1/inference.proto"];

#[test]
fn generated_code_is_current() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = tempfile::tempdir().expect("temporary directory");
    let descriptors = protox::compile(FILES.map(|f| root.join(f)), [root]).expect("the proto files compile");
    tonic_prost_build::configure().bytes(".").out_dir(out.path()).compile_fds(descriptors).expect("code generation");
    let fresh = fs::read_to_string(out.path().join("bifrost.v1.rs")).expect("one generated file");
    let committed = root.join("src/gen/bifrost.v1.rs");
    if std::env::var_os("BIFROST_REGENERATE").is_some() {
        fs::create_dir_all(committed.parent().expect("parent")).expect("directory");
        fs::write(&committed, &fresh).expect("write generated code");
    }
    let held = fs::read_to_string(&committed).expect("committed generated code");
    assert!(held == fresh, "src/gen is stale: run BIFROST_REGENERATE=1 cargo test -p proto");
}
