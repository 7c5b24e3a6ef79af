//! Hugging Face directories, made from the tiny GGUF files.

use super::{load, quiet, refusal, tiny};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};
use trusted_runtime::{
    linear::{Call, Linear},
    model::{
        self, Weights,
        load::gguf::{Gguf, Value as Meta},
    },
};

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
fn write_directory(dir: &Path, gguf: &Gguf, family: &str, store: Store) {
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
    for (name, info) in gguf.tensors() {
        let (shape, values) = (info.shape.clone(), gguf.weights(name).unwrap());
        if family != "gpt2" {
            let values = match name.as_str() {
                n if n.contains("attn_q.") && family == "llama" => halves(&shape, &values, 4),
                n if n.contains("attn_k.") && family == "llama" => halves(&shape, &values, 2),
                n if n.contains("norm") && family == "gemma3" => values.iter().map(|v| v - 1.0).collect(),
                _ => values,
            };
            let name = rename(
                name,
                &[
                    ("attn_q_norm", "self_attn.q_norm"),
                    ("attn_k_norm", "self_attn.k_norm"),
                    ("token_embd", "model.embed_tokens"),
                    ("output_norm", "model.norm"),
                    ("blk.", "model.layers."),
                    ("attn_norm", "input_layernorm"),
                    (
                        "ffn_norm",
                        if family == "gemma3" { "pre_feedforward_layernorm" } else { "post_attention_layernorm" },
                    ),
                    ("post_attention_norm", "post_attention_layernorm"),
                    ("post_ffw_norm", "post_feedforward_layernorm"),
                    ("attn_output", "self_attn.o_proj"),
                    ("attn_q.", "self_attn.q_proj."),
                    ("attn_k.", "self_attn.k_proj."),
                    ("attn_v.", "self_attn.v_proj."),
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
    if family == "gpt2" {
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
    write_json(dir, "config.json", &config(family));
    write_json(dir, "tokenizer.json", &tokenizer(gguf, family));
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

/// What config.json says of a tiny model. GGUF stores epsilons as f32, whose exact values these are.
fn config(family: &str) -> Value {
    let epsilon = f64::from(1e-5f32);
    let mut common = json!({"model_type": family, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 3, "intermediate_size": 176, "max_position_embeddings": 256, "vocab_size": 260,
        "rms_norm_eps": f64::from(1e-6f32), "tie_word_embeddings": false, "eos_token_id": [258, 256]});
    let mut with = |more: Value| {
        common.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        common.clone()
    };
    match family {
        "llama" => with(json!({"rms_norm_eps": epsilon, "head_dim": 16, "rope_theta": 100000.0, "hidden_act": "silu"})),
        "qwen3" => with(json!({"head_dim": 32, "rope_theta": 1e6, "hidden_act": "silu", "use_sliding_window": false,
            "max_window_layers": 28, "sliding_window": null, "layer_types": ["full_attention", "full_attention", "full_attention"]})),
        "gemma3" => with(json!({"model_type": "gemma3_text", "head_dim": 32, "num_hidden_layers": 7,
            "num_key_value_heads": 1, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0, "query_pre_attn_scalar": 32, "sliding_window": 8,
            "sliding_window_pattern": 6, "attn_logit_softcapping": null, "final_logit_softcapping": null})),
        _ => json!({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 256, "n_inner": 256,
            "vocab_size": 260, "layer_norm_epsilon": epsilon, "activation_function": "gelu_new", "eos_token_id": 258}),
    }
}

fn tokenizer(gguf: &Gguf, family: &str) -> Value {
    let Some(Meta::Texts(tokens)) = gguf.get("tokenizer.ggml.tokens") else { panic!("no tokens") };
    let vocab: BTreeMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (t.as_str(), i)).collect();
    let added: Vec<Value> = (256..260)
        .map(|id| json!({"id": id, "content": tokens[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}))
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let pre = match family {
        "llama" => json!({"type": "Sequence", "pretokenizers": [digits, byte_level]}),
        _ => byte_level.clone(),
    };
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": []}})
}

pub(crate) fn logits(model: &model::Model, linear: &dyn Linear, prompt: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    model.forward_all(linear, &Call::default(), prompt, &mut model.new_cache(), &mut out).unwrap();
    out
}

#[test]
fn directories_give_the_same_model_as_gguf() {
    for name in ["llama", "qwen3", "gemma3", "gpt2"] {
        let path = tiny(&format!("tiny-{name}.gguf"));
        let original = model::load_float(&path.display().to_string(), &quiet).unwrap();
        let gguf = Gguf::parse(name, std::fs::read(&path).unwrap()).unwrap();
        let prompt = "naïve <|im_start|>user 123";
        let tokens = original.tokenizer.encode(prompt);
        for store in [Store::Single, Store::Sharded] {
            let dir = tempfile::tempdir().unwrap();
            write_directory(dir.path(), &gguf, name, store);
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
fn sentence_piece_tokenizers_spell_with_words_and_bytes() {
    let gguf = Gguf::parse("tiny", std::fs::read(tiny("tiny-llama.gguf")).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_directory(dir.path(), &gguf, "llama", Store::Single);
    let mut vocab: BTreeMap<String, usize> = (0..256).map(|b| (format!("<0x{b:02X}>"), b)).collect();
    vocab.extend([("\u{2581}", 256), ("a", 257), ("\u{2581}a", 258)].map(|(text, id)| (text.to_owned(), id)));
    let added = json!({"id": 259, "content": "\u{2581}\u{2581}", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false});
    let space = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let decoders = [space("\u{2581}", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let mut words = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [added],
        "normalizer": space(" ", "\u{2581}"), "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": ["\u{2581} a"]}});
    write_json(dir.path(), "tokenizer.json", &words);
    let t = load(dir.path()).unwrap().tokenizer;
    assert_eq!(t.kind(), "SentencePiece BPE (tokenizer.json)");
    assert_eq!(t.encode("a a\né"), [257, 258, 10, 0xc3, 0xa9]);
    assert_eq!(t.decode(&[257, 258, 10, 0xc3, 0xa9, 259, 256]), "a a\né   ");
    // Llama 2's, which takes the first space away again.
    words["decoder"]["decoders"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    write_json(dir.path(), "tokenizer.json", &words);
    assert!(refusal(dir.path()).contains("decoder \"Sequence\" is not supported"));
}

/// Llama 3's factors are a rule in config.json and a tensor in GGUF.
#[test]
fn stretched_rotations_are_the_same_from_both_formats() {
    let gguf = Gguf::parse("tiny", std::fs::read(tiny("tiny-llama.gguf")).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    write_directory(dir.path(), &gguf, "llama", Store::Single);
    let source = dir.path().display().to_string();
    let prompt: Vec<u32> = (40..100).collect();
    let run = |source: &str| {
        let m = model::load_float(source, &quiet).unwrap();
        logits(&m.model, &m.linear, &prompt)
    };
    let plain = run(&source);
    // 64 positions first: the shortest of eight wavelengths, 2·pi, is kept, the longest stretched, two are between.
    let rule = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64});
    let mut scaled = config("llama");
    scaled["rope_scaling"] = rule.clone();
    write_json(dir.path(), "config.json", &scaled);
    let stretched = run(&source);
    assert_ne!(plain, stretched);
    let mut newer = config("llama");
    newer["rope_theta"] = Value::Null;
    newer["rope_parameters"] = rule;
    newer["rope_parameters"]["rope_theta"] = json!(100000.0);
    write_json(dir.path(), "config.json", &newer);
    assert_eq!(run(&source), stretched);
    // Wavelength of pair i: 2·pi·100000^(i/8); the rule by hand.
    #[expect(clippy::cast_possible_truncation, reason = "GGUF stores these factors as f32")]
    let factors: Vec<f32> = (0..8)
        .map(|i| {
            let wave = std::f64::consts::TAU * 100000f64.powf(f64::from(i) / 8.0);
            let smooth = ((64.0 / wave - 1.0) / 3.0).clamp(0.0, 1.0);
            (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32
        })
        .collect();
    assert_eq!((factors[0], factors[7]), (1.0, 8.0));
    let file = dir.path().join("m.gguf");
    let bytes = super::gguf(&tiny("tiny-llama.gguf"), |_, t| {
        drop(t.insert("rope_freqs.weight".to_owned(), (vec![8], factors.clone())));
    });
    std::fs::write(&file, bytes).unwrap();
    let other = run(&file.display().to_string());
    let worst = other.iter().zip(&stretched).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{worst}");
}

#[test]
fn bad_directories_are_named() {
    let gguf = Gguf::parse("tiny", std::fs::read(tiny("tiny-llama.gguf")).unwrap()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let fresh = || write_directory(at, &gguf, "llama", Store::Single);
    fresh();
    let mut bad = config("llama");
    bad["intermediate_size"] = json!(180);
    write_json(at, "config.json", &bad);
    assert_eq!(
        refusal(at),
        "FILE/model.safetensors: tensor model.layers.0.mlp.gate_proj.weight has shape [176, 64], expected [180, 64]"
    );
    bad = config("llama");
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
    let mut wrong = tokenizer(&gguf, "llama");
    wrong["decoder"] = json!({"type": "Metaspace"});
    write_json(at, "tokenizer.json", &wrong);
    assert_eq!(
        refusal(at),
        "FILE/tokenizer.json: decoder \"Metaspace\" is not supported, expected \"ByteLevel\" or SentencePiece's without a first space"
    );
    // A token right behind the vocabulary is a larger sibling's, and its text is text; one further on is another model's.
    let mut sibling = tokenizer(&gguf, "llama");
    let mut image = sibling["added_tokens"][3].clone();
    (image["id"], image["content"]) = (json!(260), json!("<img>"));
    sibling["added_tokens"].as_array_mut().unwrap().push(image);
    write_json(at, "tokenizer.json", &sibling);
    let letters: Vec<u32> = "<img>".bytes().map(u32::from).collect();
    assert_eq!(load(at).unwrap().tokenizer.encode("<img>"), letters);
    wrong = tokenizer(&gguf, "llama");
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
