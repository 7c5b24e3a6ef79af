//! Models and what they are known to answer.

use proto::v1::{self, generate_request::Input};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// A tiny model of random weights with reference answers.
pub struct Tiny {
    /// "gpt2" or "llama".
    pub name: String,
    /// The GGUF file.
    pub path: PathBuf,
    /// Prompts with the greedy continuation of the f64 reference.
    pub prompts: Vec<Reference>,
}

/// One prompt of `tiny_refs.json`.
#[derive(Deserialize)]
pub struct Reference {
    /// As text.
    pub text: String,
    /// As tokens.
    pub prompt_ids: Vec<u32>,
    /// Greedy continuation in f64.
    pub f64_ids: Vec<u32>,
    /// The smallest distance between the best two logits of any step.
    pub min_margin: f64,
}

#[derive(Deserialize)]
struct References {
    models: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    file: String,
    prompts: Vec<Reference>,
}

/// The tiny model `name`.
///
/// # Panics
/// If the test data lack it.
pub fn tiny(name: &str) -> Tiny {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tiny");
    let text = fs::read_to_string(dir.join("tiny_refs.json")).expect("tests/testdata/tiny/tiny_refs.json");
    let mut refs: References = serde_json::from_str(&text).expect("tiny_refs.json");
    let entry = refs.models.remove(name).unwrap_or_else(|| panic!("tiny_refs.json has no model {name}"));
    let path = dir.join(&entry.file);
    assert!(path.is_file(), "{} is missing", path.display());
    Tiny { name: name.to_owned(), path, prompts: entry.prompts }
}

/// A copy in `dir` of a tiny model, with a chat template, which none of them has.
///
/// # Panics
/// If it cannot be read or written.
pub fn chatty(name: &str, dir: &Path) -> PathBuf {
    const KEY: &str = "tokenizer.chat_template";
    const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: ";
    // Tensor data are aligned to 32 bytes: so is what is put in front of them.
    const HEAD: usize = 8 + KEY.len() + 4 + 8;
    let mut template = TEMPLATE.to_owned();
    let padding = (HEAD + template.len() + 4).next_multiple_of(32) - HEAD - template.len() - 4;
    template.push_str(&format!("{{#{}#}}", " ".repeat(padding)));
    let bytes = fs::read(tiny(name).path).expect("a tiny model");
    // GGUF, "File structure": magic, version, tensors (u64), metadata entries (u64), then the entries.
    let (head, rest) = bytes.split_at(24);
    let entries = u64::from_le_bytes(head[16..].try_into().expect("eight bytes"));
    let size = |n: usize| (n as u64).to_le_bytes();
    let mut entry = [&size(KEY.len())[..], KEY.as_bytes()].concat();
    // 8: a string.
    entry.extend([&8u32.to_le_bytes()[..], &size(template.len()), template.as_bytes()].concat());
    let path = dir.join(format!("chatty-{name}.gguf"));
    let whole = [&head[..16], &(entries + 1).to_le_bytes(), &entry, rest].concat();
    fs::write(&path, whole).expect("a file in the test's directory");
    path
}

/// A greedy request for exactly `max_tokens` tokens after `prompt`.
pub fn greedy(prompt: &[u32], max_tokens: u32, protocol: v1::Protocol) -> v1::GenerateRequest {
    v1::GenerateRequest {
        input: Some(Input::TokenIds(v1::TokenIds { ids: prompt.to_vec() })),
        max_tokens,
        protocol: protocol.into(),
        ignore_eos: true,
        ..Default::default()
    }
}

/// SmolLM2-135M-Instruct and prompts for it.
pub struct SmolLm2 {
    /// What `--model` takes: the file.
    pub path: PathBuf,
    /// Prompts as tokens, shortest first.
    pub prompts: Vec<Vec<u32>>,
}

/// SmolLM2 from the user's cache, fetched if need be; `None`, said loudly, when it cannot be had.
///
/// # Panics
/// If it cannot be had and `BIFROST_REQUIRE_SMOLLM2` is 1, if the test data lack its prompts, or a fetched file is not where it should be.
pub fn smollm2() -> Option<SmolLm2> {
    match fetched() {
        Ok(model) => Some(model),
        Err(reason) if std::env::var_os("BIFROST_REQUIRE_SMOLLM2").is_some_and(|v| v == "1") => {
            panic!("SmolLM2 is required here (BIFROST_REQUIRE_SMOLLM2=1) and cannot be had: {reason}")
        }
        Err(reason) => {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            // Past the capture of passed tests' output: a skip must be seen.
            let line = format!("SKIPPED {test}: SmolLM2 cannot be had here: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            None
        }
    }
}

fn fetched() -> Result<SmolLm2, String> {
    #[derive(Deserialize)]
    struct Prompts {
        prompts: Vec<Prompt>,
    }
    #[derive(Deserialize)]
    struct Prompt {
        prompt_ids: Vec<u32>,
    }
    let out = crate::binaries::run("bifrost", &["model", "fetch", "smollm2-135m"]);
    if !out.status.success() {
        let text = String::from_utf8_lossy(&out.stderr);
        let last = text.lines().rev().find(|l| !l.trim().is_empty());
        return Err(last.unwrap_or("bifrost model fetch gave no reason").to_owned());
    }
    let entry = client::model::entry("smollm2-135m").expect("it was fetched by this name");
    let file = client::model::cache_dir().expect("it was fetched into it").join(entry.file);
    let refs = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/smollm2_refs.json");
    let text = fs::read_to_string(refs).expect("tests/testdata/smollm2_refs.json");
    let refs: Prompts = serde_json::from_str(&text).expect("smollm2_refs.json");
    let mut prompts: Vec<_> = refs.prompts.into_iter().map(|p| p.prompt_ids).collect();
    prompts.sort_by_key(Vec::len);
    Ok(SmolLm2 { path: file, prompts })
}
