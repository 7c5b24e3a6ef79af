//! Logs that are full: `LOG.1`, `LOG.2` and so on, oldest first.

use super::{Floors, Log, LogError, PRIVATE};
use serde::Serialize;
use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// The first line of a log that follows another.
#[derive(Serialize)]
struct Begin {
    floors: Floors,
}

impl Log {
    /// Keeps every other process from writing until it is dropped.
    pub(super) fn alone(&self) -> Result<File, LogError> {
        let path = self.beside(".lock");
        let taken = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE).open(&path);
        let taken = taken.and_then(|file| file.lock().map(|()| file));
        taken.map_err(|error| LogError::Io { path, error })
    }

    /// Puts the log aside if it has so many bytes. Whatever crash comes between the steps, the floors stay: they are in the
    /// log, in the last one aside, or in both.
    pub(super) fn put_aside(&self, largest: u64) -> Result<(), LogError> {
        match fs::metadata(&self.path) {
            Ok(found) if found.len() >= largest => {}
            // Without a log it is the floors of the last one aside that the new one begins with.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.last_aside()?.is_some() => {}
            _ => return Ok(()),
        }
        let begin = serde_json::to_string(&Begin { floors: self.floors()? });
        let begin = begin.map_err(|error| LogError::Line { path: self.path.clone(), line: 0, error })?;
        self.begin_anew(&begin).map_err(|error| self.io(error))
    }

    fn begin_anew(&self, begin: &str) -> io::Result<()> {
        let next = self.beside(".next");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE).open(&next)?;
        file.write_all(format!("{begin}\n").as_bytes())?;
        file.sync_all()?;
        if self.path.exists() {
            let last = self.numbers()?.max().unwrap_or(0);
            fs::rename(&self.path, self.beside(&format!(".{}", last + 1)))?;
        }
        fs::rename(&next, &self.path)?;
        File::open(self.folder())?.sync_all()
    }

    /// The one that was put aside last.
    pub(super) fn last_aside(&self) -> Result<Option<PathBuf>, LogError> {
        let last = self.numbers().map_err(|error| self.io(error))?.max();
        Ok(last.map(|number| self.beside(&format!(".{number}"))))
    }

    /// Numbers of those aside.
    fn numbers(&self) -> io::Result<impl Iterator<Item = u64>> {
        let mut prefix = self.path.file_name().unwrap_or_default().to_owned();
        prefix.push(".");
        let names = match fs::read_dir(self.folder()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            entries => entries?.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<Vec<_>>>()?,
        };
        let number = move |name: OsString| name.to_str()?.strip_prefix(prefix.to_str()?)?.parse().ok();
        Ok(names.into_iter().filter_map(number))
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    pub(super) fn folder(&self) -> &Path {
        self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Floor;

    fn line(endpoint: &str, policy_version: u32, eval_number: u32) -> String {
        format!("{{\"endpoint\":\"{endpoint}\",\"policy_version\":{policy_version},\"eval_number\":{eval_number}}}")
    }

    fn floor(log: &Log, endpoint: &str) -> (u32, u32) {
        let Floor { policy_version, eval_number, .. } = log.floor(endpoint).unwrap();
        (policy_version, eval_number)
    }

    #[test]
    fn floors_go_over_into_the_next_log_and_full_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::at(dir.path().join("log"));
        log.put_aside(1).unwrap();
        assert!(!dir.path().join("log").exists(), "there was nothing to put aside");
        for (round, (endpoint, policy, eval)) in [("a", 7, 19), ("b", 2, 17), ("a", 3, 18)].into_iter().enumerate() {
            log.write(&line(endpoint, policy, eval), false).unwrap().unwrap();
            log.put_aside(1 << 20).unwrap();
            assert!(!dir.path().join(format!("log.{}", round + 1)).exists(), "it is not full");
            log.put_aside(1).unwrap();
            let aside = std::fs::read_to_string(dir.path().join(format!("log.{}", round + 1))).unwrap();
            assert!(aside.ends_with(&format!("{}\n", line(endpoint, policy, eval))), "{aside}");
            assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap().lines().count(), 1);
        }
        assert_eq!((floor(&log, "a"), floor(&log, "b"), floor(&log, "c")), ((7, 19), (2, 19), (0, 19)));
    }

    #[test]
    fn a_crash_between_two_logs_loses_no_floor() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::at(dir.path().join("log"));
        for n in 1..12 {
            log.write(&line("a", n, 10 + n), false).unwrap().unwrap();
            log.put_aside(1).unwrap();
        }
        // The log is gone and the next one not yet there; 10 comes after 9.
        std::fs::rename(dir.path().join("log"), dir.path().join("log.12")).unwrap();
        assert_eq!(floor(&log, "a"), (11, 21));
        log.put_aside(1 << 20).unwrap();
        assert!(dir.path().join("log").exists());
        assert_eq!(floor(&log, "a"), (11, 21));
        // A broken one is no reason to start anew.
        std::fs::remove_file(dir.path().join("log")).unwrap();
        std::fs::write(dir.path().join("log.12"), "{\"floors\": 3}\n").unwrap();
        assert!(log.floor("a").is_err() && log.put_aside(1).is_err());
    }

    #[test]
    fn writers_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::at(dir.path().join("log"));
        std::thread::scope(|s| {
            for t in 0..4 {
                let log = &log;
                s.spawn(move || {
                    for n in 0..25 {
                        let _alone = log.alone().unwrap();
                        log.put_aside(200).unwrap();
                        log.write(&line(&format!("e{t}"), n, t), false).unwrap().unwrap();
                    }
                });
            }
        });
        let lines = log.numbers().unwrap().map(|n| std::fs::read_to_string(log.beside(&format!(".{n}"))).unwrap());
        let all: String = lines.chain([std::fs::read_to_string(dir.path().join("log")).unwrap()]).collect();
        assert_eq!(all.lines().filter(|line| line.contains("endpoint")).count(), 100);
        assert_eq!((0..4).map(|t| floor(&log, &format!("e{t}"))).collect::<Vec<_>>(), [(24, 3); 4]);
    }
}
