//! For tests: a kernel of our own, and real quotes.

use crate::{
    configfs::{EVENT_LOG, REPORTS},
    fs::Files,
    rtmr,
};
use rustix::io::Errno;
use sha2::{Digest as _, Sha384};
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// An imitated machine. Clones are the same machine.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine(Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub(crate) struct State {
    /// What stands in `provider`; without one every `mkdir` is ENXIO.
    pub(crate) provider: Option<&'static str>,
    /// Whether configfs has the directory of reports.
    pub(crate) reports: bool,
    /// What the next quotes are; a real one with the report data asked for unless `tampered`.
    pub(crate) quote: Vec<u8>,
    /// The quote's report data is not replaced.
    pub(crate) tampered: bool,
    /// The certificate table; none: no such file.
    pub(crate) auxblob: Option<Vec<u8>>,
    /// Errors that reads of the file return first, in order.
    pub(crate) faults: BTreeMap<&'static str, VecDeque<Errno>>,
    /// Error of every `mkdir`, or of every write to `inblob`.
    pub(crate) mkdir_fault: Option<Errno>,
    pub(crate) write_fault: Option<Errno>,
    /// Another process writes to each entry after we did.
    pub(crate) intruder: bool,
    /// The write is lost on closing, as configfs may do without telling.
    pub(crate) lost_write: bool,
    /// Nothing can be written, as in a container.
    pub(crate) read_only: bool,
    /// Plain files.
    pub(crate) files: BTreeMap<PathBuf, Vec<u8>>,
    pub(crate) entries: BTreeMap<PathBuf, Entry>,
    pub(crate) most_entries: usize,
    pub(crate) made: usize,
    pub(crate) quotes: usize,
    pub(crate) clock: Duration,
    pub(crate) slept: Vec<Duration>,
    seed: u8,
}

#[derive(Debug, Default)]
pub(crate) struct Entry {
    inblob: Vec<u8>,
    generation: u32,
}

impl Machine {
    pub(crate) fn tdx() -> Self {
        let machine = Self::default();
        let mut state = machine.state();
        state.provider = Some("tdx_guest\n");
        state.reports = true;
        state.quote = tdx_v4();
        drop(state);
        machine
    }

    pub(crate) fn snp() -> Self {
        let machine = Self::tdx();
        let mut state = machine.state();
        state.provider = Some("sev_guest\n");
        state.quote = milan();
        state.auxblob = Some(b"a table".to_vec());
        drop(state);
        machine
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub(crate) fn fail(&self, file: &'static str, errors: &[Errno]) {
        self.state().faults.entry(file).or_default().extend(errors);
    }

    pub(crate) fn with_event_log(self, log: &[u8]) -> Self {
        self.state().files.insert(EVENT_LOG.into(), log.to_vec());
        self
    }

    pub(crate) fn with_rtmr3(self) -> Self {
        self.state().files.insert(rtmr::REGISTER.into(), vec![0; 48]);
        self
    }

    pub(crate) fn file(&self, path: &str) -> Option<Vec<u8>> {
        self.state().files.get(Path::new(path)).cloned()
    }
}

impl State {
    fn next_fault(&mut self, file: &str) -> io::Result<()> {
        match self.faults.get_mut(file).and_then(VecDeque::pop_front) {
            Some(errno) => Err(errno.into()),
            None => Ok(()),
        }
    }

    /// `outblob` as report.c and tdx-guest.c have it.
    fn outblob(&mut self, inblob: &[u8]) -> io::Result<Vec<u8>> {
        if inblob.len() != 64 {
            return Err(Errno::INVAL.into());
        }
        self.quotes += 1;
        let mut quote = self.quote.clone();
        let offset = match (quote.len(), quote.first()) {
            (1184, _) => 80,
            (_, Some(5)) => 574,
            _ => 568,
        };
        if let (false, Some(place)) = (self.tampered, quote.get_mut(offset..offset + 64)) {
            place.copy_from_slice(inblob);
        }
        Ok(quote)
    }
}

impl Files for Machine {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        if !path.starts_with(REPORTS) {
            return Ok(());
        }
        if !state.reports {
            return Err(Errno::NOENT.into());
        }
        if let Some(errno) = state.mkdir_fault {
            return Err(errno.into());
        }
        if state.provider.is_none() {
            return Err(Errno::NXIO.into());
        }
        assert!(state.entries.insert(path.into(), Entry::default()).is_none(), "a name was used twice");
        state.made += 1;
        state.most_entries = state.most_entries.max(state.entries.len());
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.state().entries.remove(path).map(|_| ()).ok_or(Errno::NOENT.into())
    }

    fn exists(&self, path: &Path) -> bool {
        self.state().files.contains_key(path)
    }

    fn writable(&self, path: &Path) -> io::Result<()> {
        let state = self.state();
        match state.files.contains_key(path) {
            true if state.read_only => Err(Errno::ROFS.into()),
            true => Ok(()),
            false => Err(Errno::NOENT.into()),
        }
    }

    fn read(&self, path: &Path, cap: usize) -> io::Result<Vec<u8>> {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "outblob" {
            // A quote takes long: whoever does not wait for its turn gets one now.
            (0..200).for_each(|_| std::thread::yield_now());
        }
        let mut state = self.state();
        state.next_fault(name)?;
        let entry = path.parent().and_then(|p| state.entries.get(p)).map(|e| (e.inblob.clone(), e.generation));
        let bytes = match (entry, name) {
            (None, _) => state.files.get(path).cloned().ok_or(io::Error::from(Errno::NOENT))?,
            (Some((inblob, _)), "outblob") => state.outblob(&inblob)?,
            (Some(_), "auxblob") => state.auxblob.clone().ok_or(io::Error::from(Errno::NOENT))?,
            (Some((_, generation)), "generation") => format!("{generation}\n").into_bytes(),
            (Some(_), "provider") => state.provider.ok_or(io::Error::from(Errno::NXIO))?.into(),
            (Some(_), other) => panic!("no such attribute: {other}"),
        };
        if bytes.len() > cap {
            return Err(io::Error::new(ErrorKind::FileTooLarge, format!("more than {cap} bytes")));
        }
        Ok(bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let (intruder, lost, fault) = (state.intruder, state.lost_write, state.write_fault);
        if let Some(entry) = path.parent().and_then(|p| state.entries.get_mut(p)) {
            assert_eq!(path.file_name().unwrap(), "inblob");
            if bytes.len() > 64 {
                return Err(Errno::FBIG.into());
            }
            if let Some(errno) = fault {
                return Err(errno.into());
            }
            if !lost {
                entry.inblob = bytes.to_vec();
                entry.generation += if intruder { 2 } else { 1 };
            }
            return Ok(());
        }
        let file = state.files.get_mut(path).ok_or(io::Error::from(Errno::NOENT))?;
        if path == Path::new(rtmr::REGISTER) {
            assert_eq!(bytes.len(), 48);
            *file = Sha384::new().chain_update(&*file).chain_update(bytes).finalize().to_vec();
        } else {
            *file = bytes.to_vec();
        }
        Ok(())
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.state().files.insert(path.into(), bytes.to_vec());
        Ok(())
    }

    fn elapsed(&self) -> Duration {
        self.state().clock
    }

    fn sleep(&self, time: Duration) {
        let mut state = self.state();
        state.clock += time;
        state.slept.push(time);
    }

    fn random(&self, out: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        for byte in out {
            state.seed = state.seed.wrapping_mul(5).wrapping_add(13);
            *byte = state.seed;
        }
        state.seed = state.seed.wrapping_add(1);
        Ok(())
    }
}

pub(crate) fn tdx_v4() -> Vec<u8> {
    include_bytes!("../testdata/tdx_quote").to_vec()
}

pub(crate) fn td15ex() -> Vec<u8> {
    include_bytes!("../testdata/tdx_quote_td15ex").to_vec()
}

pub(crate) fn milan() -> Vec<u8> {
    unhex(include_str!("../testdata/report_milan.hex").trim())
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}
