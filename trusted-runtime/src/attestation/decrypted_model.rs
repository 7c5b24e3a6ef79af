//! A decrypted model: an anonymous file in this process's memory, which is overwritten with its end, however that comes.

use rustix::fs::{MemfdFlags, memfd_create};
use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    os::fd::AsRawFd,
};
use zeroize::Zeroizing;

/// A decrypted model. Zeros take its place on drop: whoever still has the file open, or gets its pages next, finds nothing.
pub struct DecryptedModel(File);

impl DecryptedModel {
    /// Nothing yet.
    pub(super) fn new() -> io::Result<Self> {
        memory("model").map(Self)
    }

    /// With everything that `reader` gives.
    ///
    /// # Errors
    /// The reader's; what it gave before is overwritten then.
    pub(super) fn filled(mut self, mut reader: impl Read) -> io::Result<Self> {
        let mut chunk = Zeroizing::new(vec![0; CHUNK]);
        loop {
            match reader.read(&mut chunk) {
                Ok(0) => return Ok(self),
                Ok(n) => self.0.write_all(&chunk[..n])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Where this process can open it while it lives.
    pub(super) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }

    fn overwrite(&mut self) -> io::Result<()> {
        let (zeros, mut left) = (vec![0; CHUNK], self.0.metadata()?.len());
        self.0.rewind()?;
        while left > 0 {
            let piece = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            self.0.write_all(&zeros[..piece])?;
            left -= piece as u64;
        }
        Ok(())
    }
}

impl Drop for DecryptedModel {
    fn drop(&mut self) {
        if let Err(error) = self.overwrite() {
            tracing::error!(%error, "the decrypted model was not overwritten");
        }
    }
}

/// An anonymous file in this process's memory.
pub(super) fn memory(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// Bytes that are written at once.
const CHUNK: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// Not a whole number of chunks.
    const SIZE: usize = 2 * CHUNK + 5;

    /// Through another descriptor of the same file, which outlives the first.
    fn whole(file: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn it_is_overwritten_with_its_end() {
        let plain = DecryptedModel::new().unwrap().filled(&vec![7; SIZE][..]).unwrap();
        let (mut opened, mut copied) = (File::open(plain.path()).unwrap(), plain.0.try_clone().unwrap());
        assert_eq!(whole(&mut opened), vec![7; SIZE]);
        drop(plain);
        assert_eq!(whole(&mut opened), vec![0; SIZE]);
        assert_eq!(whole(&mut copied), vec![0; SIZE]);
    }

    #[test]
    fn half_of_one_is_overwritten_when_the_rest_cannot_be_read() {
        struct Breaks;
        impl Read for Breaks {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("no more"))
            }
        }
        let plain = DecryptedModel::new().unwrap();
        let mut copied = plain.0.try_clone().unwrap();
        let error = plain.filled((&vec![7; SIZE][..]).chain(Breaks)).err().unwrap();
        assert_eq!((error.to_string().as_str(), whole(&mut copied)), ("no more", vec![0; SIZE]));
    }
}
