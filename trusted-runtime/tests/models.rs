//! Models against references: tiny random ones that are committed, and SmolLM2 where it is on the disk.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};
use trusted_runtime::{
    Error,
    linear::{Call, Linear, LinearId, local::LocalLinear},
    model::{
        self, FloatModel, Model, Part, Weights,
        fidelity::{self, Fidelity, Passage},
        kv::{KvPool, Plaintext, Salt, Shape},
        load::{dequant, gguf::Gguf},
    },
    planner,
};

/// Families that have a tiny model.
const TINY: [&str; 4] = ["gpt2", "llama", "qwen3", "gemma3"];

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/testdata")
}

fn tiny(name: &str) -> String {
    testdata().join("tiny").join(format!("tiny-{name}.gguf")).display().to_string()
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(testdata().join(name)).unwrap()).unwrap()
}

fn quiet(_: &str, _: u64, _: u64) {}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|v| u32::try_from(v.as_u64().unwrap()).unwrap()).collect()
}

fn argmax(logits: &[f32]) -> u32 {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
    u32::try_from(best).unwrap()
}

/// Greedy tokens after `prompt`, and the logits of the first and of the last step.
fn greedy(model: &Model, linear: &dyn Linear, prompt: &[u32], n: usize) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let (call, mut cache, mut logits) = (Call::default(), model.new_cache(), Vec::new());
    model.forward(linear, &call, prompt, &mut cache, &mut logits).unwrap();
    let first = logits.clone();
    let mut tokens = vec![argmax(&logits)];
    while tokens.len() < n {
        model.forward(linear, &call, &tokens[tokens.len() - 1..], &mut cache, &mut logits).unwrap();
        tokens.push(argmax(&logits));
    }
    (tokens, first, logits)
}

/// Largest distance of the listed (id, logit) pairs from `logits`.
fn distance(logits: &[f32], pairs: &Value) -> f64 {
    let pairs = pairs.as_array().unwrap().iter();
    pairs
        .map(|p| (f64::from(logits[usize::try_from(p[0].as_u64().unwrap()).unwrap()]) - p[1].as_f64().unwrap()).abs())
        .fold(0.0, f64::max)
}

fn numbered(values: &Value) -> Value {
    values.as_array().unwrap().iter().cloned().enumerate().map(|(i, v)| serde_json::json!([i, v])).collect()
}

fn matches_tiny_references(name: &str, m: &FloatModel) {
    for p in json("tiny/tiny_refs.json")["models"][name]["prompts"].as_array().unwrap() {
        let prompt = m.tokenizer.encode(p["text"].as_str().unwrap());
        assert_eq!(prompt, ids(&p["prompt_ids"]), "{name}");
        let expected = ids(&p["f64_ids"]);
        assert!(expected.len() == 16 || m.tokenizer.is_eog(expected[expected.len() - 1]), "{name}");
        let (tokens, first, last) = greedy(&m.model, &m.linear, &prompt, expected.len());
        assert_eq!(tokens, expected, "{name}");
        assert!(distance(&first, &p["top5_f64"]) < 1e-3);
        assert!(distance(&first, &numbered(&p["logits_first8_f64"])) < 1e-3);
        assert!(distance(&last, &numbered(&p["logits_last_step_first8_f64"])) < 1e-3);
    }
}

#[test]
fn tiny_models_match_their_references() {
    for name in TINY {
        let m = model::load_float(&tiny(name), &quiet).unwrap();
        matches_tiny_references(name, &m);
    }
}

#[test]
fn one_call_with_many_positions_equals_many_calls() {
    for name in TINY {
        let m = model::load_float(&tiny(name), &quiet).unwrap();
        let prompt = m.tokenizer.encode("the quick brown fox jumps over the lazy dog");
        let (call, vocab) = (Call::default(), m.model.config().vocab);
        let (mut all, mut one) = (Vec::new(), Vec::new());
        m.model.forward_all(&m.linear, &call, &prompt, &mut m.model.new_cache(), &mut all).unwrap();
        let mut cache = m.model.new_cache();
        for (i, token) in prompt.iter().enumerate() {
            m.model.forward(&m.linear, &call, &[*token], &mut cache, &mut one).unwrap();
            assert_eq!(one, &all[i * vocab..(i + 1) * vocab], "{name} position {i}");
        }
        assert_eq!(cache.len(), prompt.len());
    }
}

#[test]
fn sequences_that_share_a_pass_or_pages_get_what_they_get_alone() {
    for name in TINY {
        let m = model::load_float(&tiny(name), &quiet).unwrap();
        let (call, vocab) = (Call::default(), m.model.config().vocab);
        let encode = |text: &str| m.tokenizer.encode(text);
        let prompts = [
            encode("the quick brown fox jumps over the lazy dog"),
            encode("a"),
            encode("the quick brown fox jumps high"),
        ];
        let alone = |prompt: &[u32]| {
            let mut logits = Vec::new();
            m.model.forward(&m.linear, &call, prompt, &mut m.model.new_cache(), &mut logits).unwrap();
            logits
        };
        let pool = KvPool::new(Shape::of(m.model.config()), 64, Box::new(Plaintext));
        let mut caches = [(); 3].map(|()| pool.cache(Salt::default()));
        let mut logits = Vec::new();
        // Halves of different lengths, then the rest, all in two passes.
        for rest in [false, true] {
            let mut parts: Vec<_> = prompts
                .iter()
                .zip(&mut caches)
                .map(|(p, cache)| match (p.len(), rest) {
                    (1, rest) => (&p[..], cache, rest),
                    (n, false) => (&p[..n / 2], cache, false),
                    (n, true) => (&p[n / 2..], cache, true),
                })
                .filter(|(p, _, rest)| p.len() > 1 || *rest)
                .map(|(tokens, cache, logits)| Part { tokens, cache, logits })
                .collect();
            m.model.forward_parts(&m.linear, &call, &mut parts, &mut logits).unwrap();
            assert_eq!(logits.len(), if rest { 3 * vocab } else { 0 });
        }
        for (prompt, logits) in prompts.iter().zip(logits.chunks_exact(vocab)) {
            assert_eq!(logits, alone(prompt), "{name}");
        }
        // The same beginning again: its full pages are there, for this salt only.
        let longer = encode("the quick brown fox jumps over the lazy cat and sleeps");
        let mut other = pool.cache(Salt::of(&[1; 32], ""));
        assert_eq!(other.reuse(&longer), 0);
        let mut cache = pool.cache(Salt::default());
        let found = cache.reuse(&longer);
        assert!(found >= 32 && found < longer.len(), "{name}: {found} of {}", longer.len());
        m.model.forward(&m.linear, &call, &longer[found..], &mut cache, &mut logits).unwrap();
        assert_eq!(logits, alone(&longer), "{name}");
    }
}

#[test]
fn requests_that_do_not_fit_are_the_clients_fault() {
    let m = model::load_float(&tiny("llama"), &quiet).unwrap();
    let (call, mut cache, mut logits) = (Call::default(), m.model.new_cache(), Vec::new());
    let mut run = |tokens: &[u32]| m.model.forward(&m.linear, &call, tokens, &mut cache, &mut logits);
    let error = run(&[1; 257]).unwrap_err();
    assert!(matches!(error, Error::Client(_)));
    assert_eq!(error.to_string(), "prompt of 257 tokens exceeds the model's context of 256");
    run(&[1; 256]).unwrap();
    assert_eq!(run(&[1]).unwrap_err().to_string(), "sequence of 257 tokens exceeds the model's context of 256");
    let mut cache = m.model.new_cache();
    let mut run = |tokens: &[u32]| m.model.forward(&m.linear, &call, tokens, &mut cache, &mut logits);
    assert_eq!(run(&[]).unwrap_err().to_string(), "the prompt is empty");
    assert_eq!(run(&[260]).unwrap_err().to_string(), "a token id is outside the vocabulary of 260");
    call.cancel();
    assert!(matches!(m.model.forward(&m.linear, &call, &[1], &mut cache, &mut logits), Err(Error::Cancelled)));
    assert!(cache.is_empty());
}

/// Fails at one matrix.
struct Failing<'a>(&'a dyn Linear, LinearId);

impl Linear for Failing<'_> {
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error> {
        if id == self.1 {
            return Err(Error::Evaluator("gone".to_owned()));
        }
        self.0.apply(call, id, xs, vectors, ys)
    }
}

#[test]
fn a_failed_pass_leaves_the_cache_as_it_was() {
    let m = model::load_float(&tiny("llama"), &quiet).unwrap();
    let (call, mut cache, mut logits, mut expected) = (Call::default(), m.model.new_cache(), Vec::new(), Vec::new());
    m.model.forward(&m.linear, &call, &[5, 6, 7], &mut m.model.new_cache(), &mut expected).unwrap();
    m.model.forward(&m.linear, &call, &[5], &mut cache, &mut logits).unwrap();
    for id in m.model.config().linear_ids() {
        let failing = Failing(&m.linear, id);
        assert!(matches!(m.model.forward(&failing, &call, &[9, 9], &mut cache, &mut logits), Err(Error::Evaluator(_))));
        assert_eq!(cache.len(), 1);
    }
    m.model.forward(&m.linear, &call, &[6, 7], &mut cache, &mut logits).unwrap();
    assert_eq!(logits, expected);
}

#[test]
fn every_tensor_type_is_bit_exact() {
    let bytes = std::fs::read(testdata().join("tiny/dequant.gguf")).unwrap();
    let golden = Gguf::parse("dequant.gguf", bytes).unwrap();
    let mut checked = 0;
    for (name, info) in golden.tensors().iter().filter(|(name, _)| !name.ends_with(".f32")) {
        let expected = golden.weights(&format!("{name}.f32")).unwrap();
        let found = golden.weights(name).unwrap();
        assert_eq!(format!("{:?}", info.kind), *name);
        assert_eq!(found.len(), expected.len());
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(a.to_bits(), b.to_bits(), "{name} weight {i}: {a} and {b}");
        }
        checked += 1;
    }
    assert_eq!(checked, 10);
    assert_eq!(dequant::dequantize(dequant::TensorType::F32, &1.5f32.to_le_bytes()), [1.5]);
}

/// A file where `bifrost model fetch` keeps it.
fn cached(file: &str) -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let user = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let cache = set("BIFROST_CACHE").or_else(|| Some(user()?.join("bifrost/models")));
    cache.unwrap_or_default().join(file)
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|v| v == "1")
}

/// Says that a test did nothing, past the capture of passed tests' output: a skip must be seen.
fn skip(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = std::io::stderr().write_all(format!("SKIPPED {test}: {why}\n").as_bytes());
}

/// SmolLM2's file; `None`, said loudly, when it is not there.
fn smollm2() -> Option<String> {
    let path = cached("SmolLM2-135M-Instruct.Q4_1.gguf");
    if path.is_file() {
        return Some(path.display().to_string());
    }
    let why = format!("{} is absent; run `bifrost model fetch smollm2-135m`", path.display());
    assert!(!is_set("BIFROST_REQUIRE_SMOLLM2"), "SmolLM2 is required here (BIFROST_REQUIRE_SMOLLM2=1): {why}");
    skip(&why);
    None
}

/// Gemma 3 270M's file, if it is asked for: 3 GB of memory and a minute are too much for every run.
fn gemma3() -> Option<String> {
    if !is_set("BIFROST_TEST_GEMMA3") {
        skip("BIFROST_TEST_GEMMA3=1 is not set; it needs `bifrost model fetch gemma3-270m` and 3 GB of memory");
        return None;
    }
    let path = cached("gemma-3-270m-q4_k_m.gguf");
    assert!(path.is_file(), "{} is absent; run `bifrost model fetch gemma3-270m`", path.display());
    Some(path.display().to_string())
}

/// Compares a model with its committed references: tokens of all vectors, greedy ids, logits within 1e-3 of float64,
/// the residual stream after every block within `residual`. Returns the largest difference of logits.
fn matches_references(m: &FloatModel, refs: &Value, residual: f64) -> f64 {
    let vectors = refs["tokenizer"]["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 24);
    for v in vectors {
        let text = v["text"].as_str().unwrap();
        assert_eq!(m.tokenizer.encode(text), ids(&v["ids"]), "{text:?}");
    }
    let mut worst = 0f64;
    for p in refs["prompts"].as_array().unwrap() {
        let prompt = ids(&p["prompt_ids"]);
        if let Some(messages) = p["messages"].as_array() {
            let messages: Vec<(&str, &str)> =
                messages.iter().map(|m| (m["role"].as_str().unwrap(), m["content"].as_str().unwrap())).collect();
            assert_eq!(m.chat.as_ref().unwrap().render(&messages).unwrap(), p["prompt"].as_str().unwrap());
        }
        match p["prompt"].as_str() {
            Some(text) => assert_eq!(m.tokenizer.encode(text), prompt),
            None => assert_eq!(&m.tokenizer.encode(fidelity::TEXT)[..prompt.len()], prompt),
        }
        let expected = ids(&p["ids"]);
        let (tokens, first, _) = greedy(&m.model, &m.linear, &prompt, expected.len());
        worst = worst.max(distance(&first, &p["top5_first"]));
        // Of all logits, as no list of them is.
        let norm = first.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        let apart = (norm - p["logits_l2"].as_f64().unwrap()).abs() / (first.len() as f64).sqrt();
        assert!(apart < 1e-3, "the root mean square of all logits differs by {apart}");
        assert_eq!(tokens, expected);
    }
    for r in refs["layers"].as_array().unwrap() {
        let prompt = ids(&r["prompt_ids"]);
        let d = m.model.config().d_model;
        m.model
            .observe(&m.linear, &prompt, &mut m.model.new_cache(), &mut |l, x| {
                let last = &x[x.len() - d..];
                let wrong = distance(last, &numbered(&r["layers"][l]["last_first8"]));
                assert!(wrong < residual, "block {l}: {wrong}");
            })
            .unwrap();
        let mut logits = Vec::new();
        m.model.forward(&m.linear, &Call::default(), &prompt, &mut m.model.new_cache(), &mut logits).unwrap();
        worst = worst.max(distance(&logits, &numbered(&r["logits_first16"])));
    }
    assert!(worst <= 1e-3, "largest logit difference {worst}");
    worst
}

#[test]
fn smollm2_matches_its_references() {
    let Some(path) = smollm2() else { return };
    let m = model::load_float(&path, &quiet).unwrap();
    assert_eq!(m.tokenizer.eog().collect::<Vec<u32>>(), [0, 2, 4]);
    let worst = matches_references(&m, &json("smollm2_refs.json"), 1e-3);
    eprintln!("smollm2: largest logit difference {worst:.1e}");
}

#[test]
fn gemma3_matches_its_references() {
    let Some(path) = gemma3() else { return };
    let m = model::load_float(&path, &quiet).unwrap();
    // <eos> and <end_of_turn>; </s>, where llama.cpp stops as well, is a word of this vocabulary.
    assert_eq!(m.tokenizer.eog().collect::<Vec<u32>>(), [1, 106]);
    let text = "  two  spaces\n\nand\ttabs, na\u{ef}vet\u{e9} \u{1f980} <b>bold</b>";
    assert_eq!(m.tokenizer.decode(&m.tokenizer.encode(text)), text);
    let worst = matches_references(&m, &json("gemma3_refs.json"), 5e-3);
    eprintln!("gemma3: largest logit difference {worst:.1e}");
}

#[test]
fn smollm2_keeps_its_choices_as_integers() {
    let Some(path) = smollm2() else { return };
    let m = model::load_float(&path, &quiet).unwrap();
    let prompts = fidelity::questions(&m.tokenizer, m.chat.as_ref()).unwrap();
    let written = fidelity::write(&m.model, &m.linear, &prompts, fidelity::WRITTEN, &quiet).unwrap();
    let w8 = measure(&path, &m, Weights::W8, &written);
    let w16 = measure(&path, &m, Weights::W16, &written);
    assert_eq!(w8.positions, 672);
    // 647 of 672 where this was written; int8 rows have a signal-to-noise ratio of 40 dB here and no clipping of the
    // scales improves it.
    assert!(w8.agreement() >= 0.96, "{w8:?}");
    assert!((w8.perplexity / w8.reference_perplexity - 1.0).abs() < 0.01, "{w8:?}");
    assert_eq!(w16.agreements, w16.positions, "{w16:?}");
}

/// Fidelity of the integer semantics, printed.
fn measure(source: &str, float: &FloatModel, weights: Weights, passages: &[Passage]) -> Fidelity {
    let linears = model::load(source, weights, &quiet).unwrap().linears;
    let ring = planner::choose_ring(&linears).unwrap();
    let plan = planner::plan(&ring, linears).unwrap();
    let local = LocalLinear::new(ring, Arc::new(plan), 2).unwrap();
    let f = fidelity::compare(&float.model, passages, &local, &quiet).unwrap();
    eprintln!(
        "{}: {source}: {:.2} % of {} positions agree, perplexity {:.3} against {:.3}, largest logit difference {:.3}",
        weights.name(),
        100.0 * f.agreement(),
        f.positions,
        f.perplexity,
        f.reference_perplexity,
        f.max_logit_difference
    );
    f
}

#[test]
fn integer_weights_follow_the_float_model() {
    for name in TINY {
        let float = model::load_float(&tiny(name), &quiet).unwrap();
        let text = float.tokenizer.encode(fidelity::TEXT);
        let text = fidelity::read(&float.model, &float.linear, &text, &quiet).unwrap();
        let [w8, w16] = [Weights::W8, Weights::W16].map(|w| measure(&tiny(name), &float, w, &text));
        assert!(w8.positions > 3000 && w8.agreement() > 0.9, "{w8:?}");
        assert!(w16.agreement() > 0.99 && w16.max_logit_difference < w8.max_logit_difference / 10.0, "{w16:?}");
        let prompts = [float.tokenizer.encode("the quick"), float.tokenizer.encode("a")];
        let written = fidelity::write(&float.model, &float.linear, &prompts, 100, &quiet).unwrap();
        let same = fidelity::compare(&float.model, &written, &float.linear, &quiet).unwrap();
        assert_eq!((same.positions, same.agreements, same.max_logit_difference), (200, 200, 0.0));
    }
}

#[test]
fn quantized_and_float_models_agree_on_shapes() {
    for name in TINY {
        for weights in [Weights::W8, Weights::W16] {
            let m = model::load(&tiny(name), weights, &quiet).unwrap();
            let mut found: Vec<LinearId> = m.linears.iter().map(|q| q.id).collect();
            found.sort_unstable();
            let mut expected = m.model.config().linear_ids();
            expected.sort_unstable();
            assert_eq!(found, expected);
            for q in &m.linears {
                assert_eq!((q.rows, q.cols()), m.model.config().linear_shape(q.id.group), "{}", q.id);
            }
        }
    }
}
