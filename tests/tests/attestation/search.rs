//! Looking for secrets in logs and captures, in every form that they could have there.

use aho_corasick::AhoCorasick;
use anyhow::{Context, ensure};
use e2e::binaries::binary;
use std::{fs, path::Path};

/// Everything that is looked for at once.
pub(super) struct Search {
    needles: Vec<Vec<u8>>,
    automaton: AhoCorasick,
}

/// What is shorter is no secret that could be recognized.
const SHORTEST: usize = 8;

impl Search {
    pub(super) fn of(needles: Vec<Vec<u8>>) -> anyhow::Result<Self> {
        ensure!(needles.iter().all(|needle| needle.len() >= SHORTEST), "a needle of less than {SHORTEST} bytes");
        let automaton = AhoCorasick::new(&needles)?;
        Ok(Self { needles, automaton })
    }

    /// The first of them that is there, to be shown.
    pub(super) fn find(&self, haystack: &[u8]) -> Option<String> {
        let found = self.automaton.find(haystack)?;
        Some(String::from_utf8_lossy(&self.needles[found.pattern().as_usize()]).into_owned())
    }

    /// Each that is there, as often as it is.
    pub(super) fn all(&self, haystack: &[u8]) -> Vec<&[u8]> {
        let found = self.automaton.find_overlapping_iter(haystack);
        found.map(|found| self.needles[found.pattern().as_usize()].as_slice()).collect()
    }
}

/// A secret of bytes as it could be written: as it is, in hexadecimal, in base64 wherever it begins, and as a list of numbers.
pub(super) fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let list = |between: &str| secret.iter().map(u8::to_string).collect::<Vec<_>>().join(between).into_bytes();
    let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let mut all = vec![secret.to_vec(), hex.to_uppercase().into_bytes(), hex.into_bytes(), list(", "), list(",")];
    for shift in 0..3 {
        let text = base64(&[&[0; 2][..shift], secret].concat());
        // Characters that hold bits of neighbours too are theirs.
        let (from, to) = ((8 * shift).div_ceil(6), 8 * (shift + secret.len()) / 6);
        let inner = &text[from..to];
        all.extend([inner.to_owned(), inner.replace('+', "-").replace('/', "_")].map(String::into_bytes));
    }
    all
}

/// RFC 4648 section 4, without padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
    let digit = |i: usize| (0..6).fold(0, |value, at| value << 1 | bit(6 * i + at));
    (0..(8 * bytes.len()).div_ceil(6)).map(|i| char::from(DIGITS[digit(i)])).collect()
}

/// How the beginning of a list of token ids could be written.
pub(super) fn written(ids: &[u64]) -> anyhow::Result<Vec<Vec<u8>>> {
    let ids = &ids[..ids.len().min(8)];
    let mut different = ids.to_vec();
    different.sort_unstable();
    different.dedup();
    ensure!(different.len() > 3, "{ids:?} would be found anywhere");
    let list = |between: &str| ids.iter().map(u64::to_string).collect::<Vec<_>>().join(between).into_bytes();
    let words = |size: usize| ids.iter().flat_map(|id| id.to_le_bytes()[..size].to_vec()).collect();
    Ok(vec![list(", "), list(","), list(" "), words(2), words(4), words(8)])
}

/// What can be known from a tenant's key file, as it could be written: the root secret, and what derives from it.
pub(super) fn keys_of(file: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let bytes: [u8; 32] = unhex(&root(file)?).try_into().map_err(|_| anyhow::anyhow!("a root of 32 bytes"))?;
    let secrets = attest::secrets::Secrets::new(zeroize::Zeroizing::new(bytes), None);
    // Keys of pages and masks are random; this is what goes into the randomness.
    let derived = ["admission", "masks, encryption, sealed pages"].map(|purpose| forms(&*secrets.derive(purpose)));
    Ok([forms(&bytes), derived.concat()].concat())
}

/// The secret of a key file, in hexadecimal.
fn root(file: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find(|l| l.starts_with("root")).context("a root")?;
    Ok(line.split('"').nth(1).context("quoted")?.to_owned())
}

/// What HTTP/2 and gRPC write at the beginning of a connection, and in the headers of a request to any of our services: RFC
/// 9113 section 3.4, and strings of RFC 7541 section 5.2, Huffman codes of its appendix B.
pub(super) fn grpc() -> Vec<Vec<u8>> {
    const FIVE: &str = "012aceiost";
    const SIX: &str = " %-./3456789=A_bdfghlmnpru";
    let code = |c: char| match (FIVE.find(c), SIX.find(c), c) {
        (Some(code), ..) => (code, 5),
        (_, Some(code), _) => (0x14 + code, 6),
        (_, _, 'v') => (0x77, 7),
        _ => unreachable!("{c} is in none of our names"),
    };
    let coded = |text: &str| {
        let codes = text.chars().map(code);
        let bits: Vec<usize> =
            codes.flat_map(|(code, length)| (0..length).rev().map(move |at| code >> at & 1)).collect();
        // The last byte has bits of what follows.
        bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |all, bit| all << 1 | u8::from(*bit == 1))).collect()
    };
    vec![b"PRI * HTTP/2.0".to_vec(), coded("application/grpc"), coded("/bifrost.v1.")]
}

/// Pieces of the tensors of a model, as f32, embeddings among them: the first activations there are.
pub(super) fn embeddings(model: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let bytes = fs::read(model)?;
    // The last two thirds of the file are weights.
    let from = bytes.len() / 3;
    let pieces = bytes[from..].chunks_exact(4096).map(|chunk| chunk[..32].to_vec());
    Ok(pieces.filter(|piece| piece.iter().any(|b| *b != piece[0])).collect())
}

/// What a run of a model has inside.
pub(super) struct Inside {
    pub(super) prompt: Vec<u64>,
    /// What went into and came out of linear layers, 32 bytes of each.
    pub(super) activations: Vec<Vec<u8>>,
    /// 32 bytes of each row of integer weights, which an evaluator gets.
    pub(super) weights: Vec<Vec<u8>>,
}

impl Inside {
    /// Of `model` over the chat `prompt` and the tokens `answer`.
    pub(super) fn of(model: &Path, prompt: &str, answer: &[u64]) -> anyhow::Result<Self> {
        let ids = answer.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        let ran = std::process::Command::new(binary("activations")).arg(model).arg(prompt).arg(ids).output()?;
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let text = String::from_utf8(ran.stdout)?;
        let mut lines = text.lines();
        let mut needles = || anyhow::Ok(lines.next().context("a line")?.split(' ').map(unhex).collect::<Vec<_>>());
        let prompt = text.lines().next().context("a prompt")?;
        let (_, activations, weights) = (needles()?, needles()?, needles()?);
        ensure!(activations.len() > 500 && weights.len() > 100, "{} and {}", activations.len(), weights.len());
        Ok(Self { prompt: serde_json::from_str(prompt)?, activations, weights })
    }
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).filter_map(|d| u8::try_from(d).ok()).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn a_secret_is_found_in_every_form_and_nothing_else_is() {
    let secret: Vec<u8> = (0..32).map(|i: u8| i.wrapping_mul(151) ^ 0x5a).collect();
    let search = Search::of(forms(&secret)).unwrap();
    // RFC 4648 section 10.
    assert_eq!(["f", "fo", "foobar"].map(|text| base64(text.as_bytes())), ["Zg", "Zm8", "Zm9vYmFy"]);
    for before in ["", "x", "xy", "xyz"] {
        let text = base64(&[before.as_bytes(), &secret, b"behind"].concat());
        assert!(search.find(format!("key={text}").as_bytes()).is_some(), "{text}");
    }
    for text in [format!("{secret:?}"), secret.iter().map(|b| format!("{b:02X}")).collect()] {
        assert!(search.find(format!("key={text}").as_bytes()).is_some(), "{text}");
    }
    assert_eq!(search.all(&[&[0; 5], &secret[..], &[0; 5]].concat()), [&secret[..]]);
    assert_eq!(search.find(&secret[..31]), None);
    let ids = written(&[9, 8, 7, 6, 5, 4, 3, 2, 1]).unwrap();
    assert!(Search::of(ids).unwrap().find(format!("{:?}", [1, 9, 8, 7, 6, 5, 4, 3, 2, 1]).as_bytes()).is_some());
    assert!(written(&[1, 1, 1, 1, 2, 2, 2, 2]).is_err());
}
