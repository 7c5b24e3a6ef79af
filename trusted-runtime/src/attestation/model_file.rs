//! The model as it lies on disk: its digest, and its decryption if it is encrypted.

use super::finish;
use crate::{Error, config::ModelSection};
use aws_lc_rs::digest::{Context, SHA256};
use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    path::Path,
    str::FromStr,
};

/// SHA-256 of the model: of its file, of the name of a synthetic one; for a directory, what `model.sha256` says, which the
/// loader insists on.
///
/// # Errors
/// [`Error::Config`] for a directory without `model.sha256`, [`Error::Platform`] for a file that cannot be read.
pub fn model_digest(model: &ModelSection) -> Result<[u8; 32], Error> {
    if !model.sha256.is_empty() {
        return unhex(&model.sha256).ok_or_else(|| {
            Error::Config(format!("model.sha256 is {:?}, expected 64 hexadecimal digits", model.sha256))
        });
    }
    if model.source.starts_with("synthetic:") {
        let mut hash = Context::new(&SHA256);
        hash.update(model.source.as_bytes());
        return Ok(finish(hash));
    }
    let path = Path::new(&model.source);
    if path.is_dir() {
        return Err(Error::Config(
            "model.sha256 is not set; a directory is attested by the digest it must have".into(),
        ));
    }
    let digest = File::open(path).and_then(|mut file| digest(&mut file));
    digest.map_err(|e| Error::Platform(format!("model {}: {e}", path.display())))
}

/// SHA-256 of a file from its beginning.
pub(super) fn digest(file: &mut File) -> io::Result<[u8; 32]> {
    file.rewind()?;
    let (mut hash, mut chunk) = (Context::new(&SHA256), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(finish(hash)),
            n => hash.update(&chunk[..n]),
        }
    }
}

/// Whether the model is a file encrypted with age.
pub(super) fn encrypted(source: &str) -> bool {
    Path::new(source).extension().is_some_and(|e| e == "age")
}

/// The identity that a released model key is.
///
/// # Errors
/// [`Error::Client`] if it is none.
pub(super) fn identity(key: &[u8]) -> Result<age::x25519::Identity, Error> {
    let text = std::str::from_utf8(key).map_err(|_| Error::Client("the model key is not text".into()))?;
    let line = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#')).unwrap_or_default();
    age::x25519::Identity::from_str(line).map_err(|e| Error::Client(format!("the model key is no age identity: {e}")))
}

/// The plaintext of the encrypted model in `file`.
///
/// # Errors
/// [`Error::Client`] for a key of another model.
pub(super) fn decrypted(
    source: &str,
    file: File,
    identity: &age::x25519::Identity,
) -> Result<impl Read + use<>, Error> {
    let opened = age::Decryptor::new_buffered(BufReader::new(file));
    let opened = opened.and_then(|d| d.decrypt(std::iter::once(identity as &dyn age::Identity)));
    opened.map_err(|e| Error::Client(format!("model {source} does not open with the released key: {e}")))
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(out)
}
