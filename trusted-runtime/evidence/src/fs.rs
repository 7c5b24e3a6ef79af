//! The little that this crate asks of an operating system, so that tests can imitate a kernel that misbehaves.

use rustix::time::{ClockId, clock_gettime};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read, Write},
    path::Path,
    time::Duration,
};

/// Files, a monotonic clock, sleep and randomness.
pub trait Files: Send + Sync + 'static {
    /// Creates one directory.
    ///
    /// # Errors
    /// The system's.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Removes one directory. In configfs it need not be empty.
    ///
    /// # Errors
    /// The system's.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Whether something is there.
    fn exists(&self, path: &Path) -> bool;

    /// Whether a file can be opened for writing, which is not done.
    ///
    /// # Errors
    /// The system's, if it cannot.
    fn writable(&self, path: &Path) -> io::Result<()>;

    /// The bytes of a file. An interrupted call is an error here and not repeated: whoever asks knows how long to go on.
    ///
    /// # Errors
    /// The system's; [`ErrorKind::FileTooLarge`] if there are more than `cap` bytes.
    fn read(&self, path: &Path, cap: usize) -> io::Result<Vec<u8>>;

    /// Writes to a file that exists, by one call, and closes it, which is when configfs takes the bytes (and keeps to
    /// itself whether that worked).
    ///
    /// # Errors
    /// The system's; [`ErrorKind::WriteZero`] if it took only some of them.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Puts a file with these bytes, readable by its owner alone, in place of what is there, as one step.
    ///
    /// # Errors
    /// The system's.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Time since some moment, never going back.
    fn elapsed(&self) -> Duration;

    /// Waits.
    fn sleep(&self, time: Duration);

    /// Random bytes.
    ///
    /// # Errors
    /// If the system has none.
    fn random(&self, out: &mut [u8]) -> io::Result<()>;
}

/// The machine that this process runs on.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Files for System {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn writable(&self, path: &Path) -> io::Result<()> {
        OpenOptions::new().write(true).open(path).map(|_| ())
    }

    fn read(&self, path: &Path, cap: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let mut bytes = Vec::new();
        let mut part = [0; 16 * 1024];
        loop {
            let n = file.read(&mut part)?;
            if n == 0 {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&part[..n]);
            if bytes.len() > cap {
                return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {cap} bytes")));
            }
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let taken = OpenOptions::new().write(true).open(path)?.write(bytes)?;
        if taken == bytes.len() {
            Ok(())
        } else {
            let text = format!("took {taken} of {} bytes", bytes.len());
            Err(io::Error::new(ErrorKind::WriteZero, text))
        }
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let beside = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(beside, path)
    }

    fn elapsed(&self) -> Duration {
        let now = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn random(&self, out: &mut [u8]) -> io::Result<()> {
        getrandom::fill(out).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_cap_and_no_further() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blob");
        System.replace(&path, &[7; 100]).unwrap();
        assert_eq!(System.read(&path, 100).unwrap(), [7; 100]);
        assert_eq!(System.read(&path, 99).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert_eq!(System.read(&dir.path().join("none"), 1).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn writing_needs_a_file_and_replacing_makes_one_for_its_owner() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        assert_eq!(System.write(&path, b"x").unwrap_err().kind(), ErrorKind::NotFound);
        System.replace(&path, b"abc").unwrap();
        System.write(&path, b"x").unwrap();
        assert_eq!(System.read(&path, 10).unwrap(), b"xbc");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
