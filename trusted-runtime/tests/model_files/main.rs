//! Model files as the world delivers them: Hugging Face directories, corrupt files, wrong ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod directories;
mod writer;

use directories::logits;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use trusted_runtime::{
    Error,
    model::{
        self, LoadOptions, Weights,
        load::gguf::{Gguf, Value as Meta},
    },
};
use writer::gguf;

fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/testdata/tiny").join(name)
}

fn quiet(_: &str, _: u64, _: u64) {}

fn load(path: &Path) -> Result<model::LoadedModel, Error> {
    model::load(&path.display().to_string(), Weights::W8, &quiet)
}

fn refusal(path: &Path) -> String {
    match load(path) {
        Ok(_) => panic!("{} was accepted", path.display()),
        Err(Error::Model(message)) => message.replace(&path.display().to_string(), "FILE"),
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn refused_models_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let base = tiny("tiny-llama.gguf");
    type Meta_ = BTreeMap<String, Meta>;
    type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;
    let refused = |edit: &dyn Fn(&mut Meta_, &mut Tensors)| {
        std::fs::write(&file, gguf(&base, edit)).unwrap();
        refusal(&file)
    };
    std::fs::write(&file, gguf(&base, |_, _| {})).unwrap();
    load(&file).unwrap();

    let set = |key: &'static str, value: Meta| {
        move |m: &mut Meta_, _: &mut Tensors| drop(m.insert(key.to_owned(), value.clone()))
    };
    assert_eq!(
        refused(&set("general.architecture", Meta::Text("mamba".to_owned()))),
        "FILE: unknown architecture \"mamba\", expected one of: llama, qwen3, gemma3, gpt2"
    );
    assert_eq!(
        refused(&|m, _| drop(m.remove("llama.block_count"))),
        "FILE: metadata key llama.block_count is missing, expected an integer of at most 2^32"
    );
    assert_eq!(
        refused(&set("llama.attention.head_count_kv", Meta::Int(3))),
        "FILE: 4 heads do not divide among 3 key/value heads"
    );
    assert_eq!(
        refused(&set("llama.expert_count", Meta::Int(8))),
        "FILE: metadata key llama.expert_count is 8, expected 0 (no experts)"
    );
    assert_eq!(
        refused(&set("llama.rope.scaling.type", Meta::Text("yarn".to_owned()))),
        "FILE: rope scaling \"yarn\" is not supported, expected none"
    );
    let unknown = refused(&set("tokenizer.ggml.pre", Meta::Text("gpt-99".to_owned())));
    assert!(unknown.starts_with("FILE: unknown pre-tokenizer \"gpt-99\""), "{unknown}");
    assert_eq!(
        refused(&set("tokenizer.ggml.model", Meta::Text("bert".to_owned()))),
        "FILE: tokenizer model \"bert\" is not supported, expected \"gpt2\" (byte-level BPE) or \"llama\" (SentencePiece BPE)"
    );
    assert_eq!(
        refused(&set("tokenizer.ggml.model", Meta::Text("llama".to_owned()))),
        "FILE: metadata key tokenizer.ggml.add_space_prefix is not false: a space in front of every prompt is not supported"
    );
    assert_eq!(
        refused(&set("tokenizer.ggml.eos_token_id", Meta::Int(260))),
        "FILE: metadata key tokenizer.ggml.eos_token_id is 260, expected a token below 260"
    );
    let template = refused(&set("tokenizer.chat_template", Meta::Text("{% if %}".to_owned())));
    assert!(template.starts_with("FILE: chat template: syntax error"), "{template}");

    assert_eq!(
        refused(&|_, t| drop(t.remove("blk.1.ffn_up.weight"))),
        "FILE: tensor blk.1.ffn_up.weight is missing, expected shape [176, 64]"
    );
    assert_eq!(
        refused(&|_, t| drop(t.insert("blk.0.attn_k.weight".to_owned(), (vec![64, 32], vec![0.0; 2048])))),
        "FILE: tensor blk.0.attn_k.weight has shape [64, 32], expected [32, 64]"
    );
    assert_eq!(
        refused(&|_, t| t.get_mut("blk.2.ffn_down.weight").unwrap().1[77] = f32::NAN),
        "FILE: tensor blk.2.ffn_down.weight holds NaN at index 77, expected finite weights"
    );
    assert_eq!(
        refused(&|_, t| t.get_mut("output_norm.weight").unwrap().1[3] = f32::INFINITY),
        "FILE: tensor output_norm.weight holds inf at index 3, expected finite weights"
    );
    assert_eq!(
        refused(&|_, t| drop(t.insert("blk.0.attn_q.bias".to_owned(), (vec![64], vec![0.0; 64])))),
        "FILE: tensor blk.0.attn_q.bias has no place in this architecture"
    );

    let wrong = LoadOptions { source: &base.display().to_string(), expected_sha256: Some("00"), progress: &quiet };
    let error = model::load_with(&wrong, Weights::W8).err().unwrap().to_string();
    assert!(error.contains("tiny-llama.gguf: sha256 is ") && error.ends_with(", expected 00"), "{error}");
    let summary = model::inspect(wrong.source, &quiet).unwrap();
    let right = LoadOptions { expected_sha256: summary.sha256.as_deref(), ..wrong };
    assert_eq!(model::load_with(&right, Weights::W8).unwrap().sha256, summary.sha256);
    let absent = refusal(&dir.path().join("absent.gguf"));
    assert!(absent.starts_with("FILE: No such file"), "{absent}");
    let bare = refusal(dir.path());
    assert_eq!(bare, "FILE/config.json is missing: not a Hugging Face model directory");
    let unknown = model::load("synthetic:gpt-5", Weights::W8, &quiet).err().unwrap().to_string();
    assert!(unknown.starts_with("unknown synthetic model \"gpt-5\", expected one of: gpt2-124m"), "{unknown}");
}

#[test]
fn variants_of_a_family_that_are_not_computed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let refused = |base: &str, key: &str, value: Meta| {
        let base = tiny(&format!("tiny-{base}.gguf"));
        std::fs::write(&file, gguf(&base, |m, _| drop(m.insert(key.to_owned(), value.clone())))).unwrap();
        refusal(&file)
    };
    let text = |s: &str| Meta::Text(s.to_owned());
    assert_eq!(
        refused("qwen3", "general.architecture", text("qwen3moe")),
        "FILE: unknown architecture \"qwen3moe\", expected one of: llama, qwen3, gemma3, gpt2"
    );
    assert_eq!(
        refused("qwen3", "qwen3.rope.scaling.type", text("yarn")),
        "FILE: rope scaling \"yarn\" is not supported, expected none"
    );
    assert_eq!(
        refused("qwen3", "qwen3.attention.value_length", Meta::Int(64)),
        "FILE: metadata key qwen3.attention.value_length is 64, expected 32 (head_dim)"
    );
    assert_eq!(
        refused("gemma3", "gemma3.final_logit_softcapping", Meta::Float(30.0)),
        "FILE: metadata key gemma3.final_logit_softcapping is 30, expected 0 (no soft cap)"
    );
    assert_eq!(
        refused("gemma3", "gemma3.rope.scaling.type", text("longrope")),
        "FILE: rope scaling \"longrope\" is not supported, expected linear or none"
    );
    assert_eq!(
        refused("gemma3", "gemma3.attention.sliding_window_pattern", Meta::Ints(vec![1; 6])),
        "FILE: 6 layers are described, expected 7"
    );
    assert_eq!(
        refused("gemma3", "gemma3.attention.sliding_window", Meta::Int(0)),
        "FILE: sliding_window is 0, expected at least 1"
    );
    assert_eq!(
        refused("gemma3", "gemma3.rope.freq_base_swa", Meta::Float(0.0)),
        "FILE: local rope base is 0, expected at least 1"
    );
}

/// What a file says about windows and rotations reaches the forward pass, in all of its spellings.
#[test]
fn windows_and_rotations_are_those_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.gguf");
    let base = tiny("tiny-gemma3.gguf");
    let run = |key: &str, value: Meta| {
        std::fs::write(&file, gguf(&base, |m, _| drop(m.insert(format!("gemma3.{key}"), value.clone())))).unwrap();
        let m = model::load_float(&file.display().to_string(), &quiet).unwrap();
        logits(&m.model, &m.linear, &m.tokenizer.encode("more letters than a window of eight"))
    };
    let vocab = 260;
    let plain = run("attention.sliding_window_pattern", Meta::Int(6));
    let listed = Meta::Ints(vec![1, 1, 1, 1, 1, 0, 1]);
    assert_eq!(plain, run("attention.sliding_window_pattern", listed));
    assert_eq!(plain, run("rope.freq_base_swa", Meta::Float(1e4)));
    let wide = run("attention.sliding_window", Meta::Int(9));
    // A window of nine changes nothing for eight positions, and everything after them.
    assert_eq!(plain[..8 * vocab], wide[..8 * vocab]);
    assert!(plain[8 * vocab..].chunks(vocab).zip(wide[8 * vocab..].chunks(vocab)).all(|(a, b)| a != b));
    let all = run("attention.sliding_window_pattern", Meta::Int(1));
    assert_ne!(plain, all);
    assert_ne!(plain, run("rope.freq_base_swa", Meta::Float(1e6)));
}

#[test]
fn corrupt_files_are_errors_that_name_the_file() {
    let whole = std::fs::read(tiny("dequant.gguf")).unwrap();
    let model = std::fs::read(tiny("tiny-llama.gguf")).unwrap();
    let parse = |bytes: Vec<u8>| Gguf::parse("some.gguf", bytes).map(|_| ()).map_err(|e| e.to_string());
    let header = model.len() - 171_968 * 4;
    // Every cut is an error: header and data are both checked to the last byte.
    for cut in (0..header).step_by(7).chain(header..header + 64).chain([model.len() - 1]) {
        let error = parse(model[..cut].to_vec()).unwrap_err();
        assert!(error.starts_with("some.gguf: "), "cut at {cut}: {error}");
    }
    // Any flipped byte of the header parses or is an error, but never a panic or a huge allocation.
    let mut refused = 0;
    for at in 0..1200 {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            if let Err(error) = parse(bytes) {
                assert!(error.starts_with("some.gguf: "), "byte {at}: {error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 1000, "only {refused} of 3600 were noticed");
    let patched = |at: usize, with: &[u8]| {
        let mut bytes = whole.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        parse(bytes).unwrap_err()
    };
    assert!(patched(0, b"GGML").starts_with("some.gguf: magic is "));
    assert_eq!(patched(4, &1u32.to_le_bytes()), "some.gguf: GGUF version 1, expected 2 or 3 (little-endian)");
    assert_eq!(
        patched(8, &u64::MAX.to_le_bytes()),
        "some.gguf: tensor count is 18446744073709551615, expected at most 65536"
    );
    assert_eq!(
        patched(16, &(1u64 << 40).to_le_bytes()),
        "some.gguf: metadata count is 1099511627776, expected at most 65536"
    );
    let first = whole.windows(3).position(|w| w == b"F16").unwrap();
    assert!(patched(first + 3, &9u32.to_le_bytes()).contains("\"F16\" has 9 dimensions, expected 1 to 4"));
    assert!(patched(first + 7, &0u64.to_le_bytes()).contains("has a dimension of 0"));
    assert!(patched(first + 7, &u64::MAX.to_le_bytes()).contains("has a dimension of 18446744073709551615"));
    assert!(patched(first + 23, &10u32.to_le_bytes()).contains("has ggml type 10, expected one of: F32"));
    assert!(patched(first + 27, &8u64.to_le_bytes()).contains("is at offset 8, expected a multiple of 32"));
    assert!(patched(first + 27, &(1u64 << 62).to_le_bytes()).contains("but the file has"));
    assert!(patched(first + 27, &256u64.to_le_bytes()).contains("overlap"));
    assert!(patched(first, b"F16\x01\0\0\0").contains("expected") || first > 0);
}

#[test]
fn synthetic_shapes_run_and_repeat() {
    let run = || {
        let m = model::load_float("synthetic:llama-tiny", &quiet).unwrap();
        logits(&m.model, &m.linear, &m.tokenizer.encode("hello"))
    };
    let first = run();
    assert_eq!(first, run());
    assert!(first.iter().all(|l| l.is_finite()) && first.iter().any(|l| l.abs() > 1e-3));
}

#[test]
fn shapes_are_cut_to_layers_of_the_same_weights() {
    let refused = |name: &str| model::load_float(name, &quiet).err().unwrap().to_string();
    for name in ["synthetic:llama-tiny@0", "synthetic:llama-tiny@3", "synthetic:llama-tiny@x"] {
        let (_, cut) = name.split_once('@').unwrap();
        assert_eq!(refused(name), format!("synthetic model llama-tiny cut to \"{cut}\" layers, expected 1 to 2"));
    }
    let all = model::load("synthetic:llama-tiny", Weights::W8, &quiet).unwrap();
    let cut = model::load("synthetic:llama-tiny@1", Weights::W8, &quiet).unwrap();
    assert_eq!((cut.model.config().layers, cut.linears.len()), (1, 5));
    assert!(cut.linears.iter().zip(&all.linears).all(|(a, b)| a.id == b.id && a.int8 == b.int8));
    let large = model::inspect("synthetic:gpt2-1.5b@1", &quiet).unwrap();
    assert_eq!((large.config.layers, large.config.vocab, large.config.d_model), (1, 4096, 1600));
    assert_eq!(large.linear_weights, 12 * 1600 * 1600 + 4096 * 1600);
}
