//! Model files as the world delivers them: Hugging Face directories, corrupt files, wrong ones.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};
use trusted_runtime::{
    Error,
    linear::{Call, Linear},
    model::{
        self, LoadOptions, Weights,
        load::gguf::{Gguf, Value as Meta},
    },
};

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

// ---- a GGUF writer, for making bad files

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

/// A GGUF file with the metadata of `base` changed by `edit` and the F32 tensors it then lists.
fn gguf(
    base: &Path,
    edit: impl Fn(&mut BTreeMap<String, Meta>, &mut BTreeMap<String, (Vec<usize>, Vec<f32>)>),
) -> Vec<u8> {
    let parsed = Gguf::parse("base", std::fs::read(base).unwrap()).unwrap();
    let mut meta = parsed.metadata().clone();
    let mut tensors: BTreeMap<_, _> = parsed
        .tensors()
        .iter()
        .map(|(name, info)| (name.clone(), (info.shape.clone(), parsed.weights(name).unwrap())))
        .collect();
    edit(&mut meta, &mut tensors);
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((meta.len() as u64).to_le_bytes());
    for (key, value) in &meta {
        text(&mut out, key);
        let array = |out: &mut Vec<u8>, tag: u32, n: usize| {
            out.extend(9u32.to_le_bytes());
            out.extend(tag.to_le_bytes());
            out.extend((n as u64).to_le_bytes());
        };
        match value {
            Meta::Int(v) => {
                out.extend(11u32.to_le_bytes());
                out.extend(i64::try_from(*v).unwrap().to_le_bytes());
            }
            Meta::Float(v) => {
                out.extend(12u32.to_le_bytes());
                out.extend(v.to_le_bytes());
            }
            Meta::Bool(v) => {
                out.extend(7u32.to_le_bytes());
                out.push(u8::from(*v));
            }
            Meta::Text(v) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, v);
            }
            Meta::Ints(v) => {
                array(&mut out, 11, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::Floats(v) => {
                array(&mut out, 12, v.len());
                v.iter().for_each(|v| out.extend(v.to_le_bytes()));
            }
            Meta::Texts(v) => {
                array(&mut out, 8, v.len());
                v.iter().for_each(|v| text(&mut out, v));
            }
        }
    }
    let mut data = Vec::new();
    for (name, (shape, values)) in &tensors {
        text(&mut out, name);
        out.extend(u32::try_from(shape.len()).unwrap().to_le_bytes());
        shape.iter().rev().for_each(|d| out.extend((*d as u64).to_le_bytes()));
        out.extend(0u32.to_le_bytes());
        out.extend((data.len() as u64).to_le_bytes());
        values.iter().for_each(|v| data.extend(v.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
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
        "FILE: unknown architecture \"mamba\", expected one of: llama, gpt2"
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
        refused(&set("tokenizer.ggml.model", Meta::Text("llama".to_owned()))),
        "FILE: tokenizer model \"llama\" is not supported, expected \"gpt2\" (byte-level BPE)"
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

// ---- Hugging Face directories

/// How values are stored.
#[derive(Clone, Copy, PartialEq)]
enum Store {
    Single,
    Sharded,
}

fn transposed(shape: &[usize], values: &[f32]) -> (Vec<usize>, Vec<f32>) {
    let (rows, cols) = (shape[0], shape[1]);
    let out = (0..rows * cols).map(|i| values[(i % rows) * cols + i / rows]).collect();
    (vec![cols, rows], out)
}

/// Undoes the converter's interleaving: row j of a head goes to half j % 2, place j / 2.
fn halves(shape: &[usize], values: &[f32], heads: usize) -> Vec<f32> {
    let (rows, cols) = (shape[0], shape[1]);
    let dim = rows / heads;
    let mut out = vec![0f32; values.len()];
    for row in 0..rows {
        let (head, j) = (row / dim, row % dim);
        let to = head * dim + (j % 2) * dim / 2 + j / 2;
        out[to * cols..(to + 1) * cols].copy_from_slice(&values[row * cols..(row + 1) * cols]);
    }
    out
}

fn rename(name: &str, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(name.to_owned(), |n, (from, to)| n.replace(from, to))
}

/// Writes the model of a tiny GGUF file the way Hugging Face would.
fn write_directory(dir: &Path, gguf: &Gguf, llama: bool, store: Store) {
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (name, info) in gguf.tensors() {
        let (shape, values) = (info.shape.clone(), gguf.weights(name).unwrap());
        if llama {
            let values = match name.as_str() {
                n if n.contains("attn_q.") => halves(&shape, &values, 4),
                n if n.contains("attn_k.") => halves(&shape, &values, 2),
                _ => values,
            };
            let name = rename(
                name,
                &[
                    ("token_embd", "model.embed_tokens"),
                    ("output_norm", "model.norm"),
                    ("blk.", "model.layers."),
                    ("attn_norm", "input_layernorm"),
                    ("ffn_norm", "post_attention_layernorm"),
                    ("attn_output", "self_attn.o_proj"),
                    ("attn_q", "self_attn.q_proj"),
                    ("attn_k", "self_attn.k_proj"),
                    ("attn_v", "self_attn.v_proj"),
                    ("ffn_", "mlp."),
                ],
            );
            let name = if name == "output.weight" { "lm_head.weight".to_owned() } else { name };
            let name = if name.contains("mlp.") { name.replace(".weight", "_proj.weight") } else { name };
            tensors.push((name, shape, values));
        } else {
            let linear = ["attn_qkv", "attn_output", "ffn_up", "ffn_down"].iter().any(|l| name.contains(l));
            let (shape, values) =
                if linear && shape.len() == 2 { transposed(&shape, &values) } else { (shape, values) };
            let name = rename(
                name,
                &[
                    ("token_embd", "wte"),
                    ("position_embd", "wpe"),
                    ("output_norm", "ln_f"),
                    ("blk.", "h."),
                    ("attn_norm", "ln_1"),
                    ("ffn_norm", "ln_2"),
                    ("attn_qkv", "attn.c_attn"),
                    ("attn_output", "attn.c_proj"),
                    ("ffn_up", "mlp.c_fc"),
                    ("ffn_down", "mlp.c_proj"),
                ],
            );
            tensors.push((format!("transformer.{name}"), shape, values));
        }
    }
    if !llama {
        tensors.push(("transformer.h.0.attn.bias".to_owned(), vec![1], vec![1.0]));
    }
    let shards = if store == Store::Single { 1 } else { 3 };
    let mut map = BTreeMap::new();
    for shard in 0..shards {
        let file = if shards == 1 {
            "model.safetensors".to_owned()
        } else {
            format!("model-{:05}-of-00003.safetensors", shard + 1)
        };
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
            .iter()
            .enumerate()
            .filter(|(i, _)| i % shards == shard)
            .map(|(_, (n, s, v))| (n.clone(), s.clone(), v.iter().flat_map(|v| v.to_le_bytes()).collect()))
            .collect();
        let views = bytes.iter().map(|(n, s, b)| (n.clone(), TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
        std::fs::write(dir.join(&file), safetensors::serialize(views, None).unwrap()).unwrap();
        map.extend(bytes.iter().map(|(n, _, _)| (n.clone(), file.clone())));
    }
    if store == Store::Sharded {
        write_json(dir, "model.safetensors.index.json", &json!({"metadata": {}, "weight_map": map}));
    }
    write_json(dir, "config.json", &config(llama));
    write_json(dir, "tokenizer.json", &tokenizer(gguf, llama));
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}";
    write_json(
        dir,
        "tokenizer_config.json",
        &json!({"chat_template": template, "eos_token": {"content": "<|im_end|>"}}),
    );
}

fn write_json(dir: &Path, name: &str, value: &Value) {
    std::fs::write(dir.join(name), serde_json::to_vec(value).unwrap()).unwrap();
}

fn config(llama: bool) -> Value {
    // GGUF stores 1e-5 as f32, whose exact value this is.
    let epsilon = f64::from(1e-5f32);
    if llama {
        json!({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "num_hidden_layers": 3, "intermediate_size": 176, "max_position_embeddings": 256, "vocab_size": 260,
            "rms_norm_eps": epsilon, "rope_theta": 100000.0, "hidden_act": "silu", "tie_word_embeddings": false,
            "eos_token_id": [258, 256]})
    } else {
        json!({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "n_inner": 256,
            "vocab_size": 260, "layer_norm_epsilon": epsilon, "activation_function": "gelu_new", "eos_token_id": 258})
    }
}

fn tokenizer(gguf: &Gguf, llama: bool) -> Value {
    let Some(Meta::Texts(tokens)) = gguf.get("tokenizer.ggml.tokens") else { panic!("no tokens") };
    let vocab: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (t.as_str(), i)).collect();
    let added: Vec<Value> = (256..260)
        .map(|id| json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let pre =
        if llama { json!({"type": "Sequence", "pretokenizers": [digits, byte_level]}) } else { byte_level.clone() };
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []}})
}

fn logits(model: &model::Model, linear: &dyn Linear, prompt: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    model.forward_all(linear, &Call::default(), prompt, &mut model.new_cache(), &mut out).unwrap();
    out
}

#[test]
fn directories_give_the_same_model_as_gguf() {
    for (name, llama) in [("tiny-llama.gguf", true), ("tiny-gpt2.gguf", false)] {
        let path = tiny(name);
        let original = model::load_float(&path.display().to_string(), &quiet).unwrap();
        let gguf = Gguf::parse(name, std::fs::read(&path).unwrap()).unwrap();
        let prompt = "naïve <|im_start|>user 123";
        let tokens = original.tokenizer.encode(prompt);
        for store in [Store::Single, Store::Sharded] {
            let dir = tempfile::tempdir().unwrap();
            write_directory(dir.path(), &gguf, llama, store);
            let source = dir.path().display().to_string();
            let copy = model::load_float(&source, &quiet).unwrap();
            assert_eq!(copy.tokenizer.encode(prompt), tokens);
            assert_eq!(copy.tokenizer.decode(&tokens), original.tokenizer.decode(&tokens));
            assert!(copy.tokenizer.is_eog(258) && copy.tokenizer.is_eog(256) && !copy.tokenizer.is_eog(257));
            assert_eq!(
                logits(&copy.model, &copy.linear, &tokens),
                logits(&original.model, &original.linear, &tokens),
                "{name}"
            );
            assert_eq!(copy.chat.unwrap().render(&[("a", "b")]).unwrap(), "a:b<|im_end|>");
            let quantized = model::load(&source, Weights::W8, &quiet).unwrap();
            let reference = load(&path).unwrap();
            assert_eq!(quantized.linears.len(), reference.linears.len());
            for (a, b) in quantized.linears.iter().zip(&reference.linears) {
                assert!(a.id == b.id && a.int8 == b.int8 && a.scales == b.scales, "{}", a.id);
            }
            let hash = model::inspect(&source, &quiet).unwrap().sha256;
            assert_eq!(hash, quantized.sha256);
        }
    }
}

#[test]
fn bad_directories_are_named() {
    let gguf = Gguf::parse("tiny", std::fs::read(tiny("tiny-llama.gguf")).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let fresh = || write_directory(at, &gguf, true, Store::Single);
    fresh();
    let mut bad = config(true);
    bad["intermediate_size"] = json!(180);
    write_json(at, "config.json", &bad);
    assert_eq!(
        refusal(at),
        "FILE/model.safetensors: tensor model.layers.0.mlp.gate_proj.weight has shape [176, 64], expected [180, 64]"
    );
    bad = config(true);
    bad["num_hidden_layers"] = json!(4);
    write_json(at, "config.json", &bad);
    assert_eq!(
        refusal(at),
        "FILE/model.safetensors: tensor model.layers.3.self_attn.q_proj.weight is missing, expected shape [64, 64]"
    );
    bad["num_hidden_layers"] = json!(2);
    write_json(at, "config.json", &bad);
    assert_eq!(
        refusal(at),
        "FILE/model.safetensors: tensor model.layers.2.input_layernorm.weight has no place in this architecture"
    );
    std::fs::write(at.join("config.json"), "{").unwrap();
    assert!(refusal(at).starts_with("FILE/config.json: not JSON"));

    fresh();
    let mut wrong = tokenizer(&gguf, true);
    wrong["decoder"] = json!({"type": "Metaspace"});
    write_json(at, "tokenizer.json", &wrong);
    assert_eq!(refusal(at), "FILE/tokenizer.json: decoder \"Metaspace\" is not supported, expected \"ByteLevel\"");
    wrong = tokenizer(&gguf, true);
    wrong["added_tokens"][3]["id"] = json!(300);
    wrong["added_tokens"][3]["content"] = json!("<extra>");
    write_json(at, "tokenizer.json", &wrong);
    let error = refusal(at);
    assert!(error.starts_with("FILE/tokenizer.json: "), "{error}");

    fresh();
    let weights = std::fs::read(at.join("model.safetensors")).unwrap();
    for cut in [0, 7, 8, 100, weights.len() / 2, weights.len() - 1] {
        std::fs::write(at.join("model.safetensors"), &weights[..cut]).unwrap();
        let error = refusal(at);
        assert!(error.starts_with("FILE/model.safetensors: "), "{cut}: {error}");
    }
    std::fs::remove_file(at.join("model.safetensors")).unwrap();
    assert!(refusal(at).starts_with("FILE/model.safetensors: No such file"));
    write_json(at, "model.safetensors.index.json", &json!({"weight_map": {"a": "../../x.safetensors"}}));
    assert!(refusal(at).contains("expected a .safetensors file of the same directory"));
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
