//! A bounds-checked reader of little-endian bytes whose errors name the file, the field and the offset.

use crate::Error;

pub(super) struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a str, bytes: &'a [u8]) -> Self {
        Self { file, bytes, at: 0 }
    }

    pub(super) fn file(&self) -> &'a str {
        self.file
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], Error> {
        if n > self.remaining() {
            return Err(Error::Model(format!(
                "{}: file ends inside {what}: {n} bytes expected at offset {}, {} left",
                self.file,
                self.at,
                self.remaining()
            )));
        }
        let taken = &self.bytes[self.at..self.at + n];
        self.at += n;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Error> {
        Ok(self.take(N, what)?.try_into().expect("take returns N bytes"))
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A 64-bit count of at most `most`.
    pub(super) fn count(&mut self, what: &str, most: u64) -> Result<usize, Error> {
        match self.u64(what)? {
            n if n <= most => Ok(usize::try_from(n).expect("counts are bounded by the file or 2^24")),
            n => Err(Error::Model(format!("{}: {what} is {n}, expected at most {most}", self.file))),
        }
    }

    /// A length-prefixed UTF-8 text of at most `most` bytes.
    pub(super) fn text(&mut self, what: &str, most: u64) -> Result<String, Error> {
        let n = self.count(&format!("length of {what}"), most)?;
        let raw = self.take(n, what)?;
        match std::str::from_utf8(raw) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(Error::Model(format!("{}: {what} is not UTF-8", self.file))),
        }
    }
}
