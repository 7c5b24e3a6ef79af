//! Storage that nobody trusts: slots of one size, in memory or in a file.

use crate::Error;
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Where encrypted pages lie. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    place: Place,
    slots: Mutex<Slots>,
}

enum Place {
    /// Memory outside the enclave, or what stands for it.
    Memory(Mutex<Vec<Vec<u8>>>),
    File(File, String),
}

#[derive(Default)]
struct Slots {
    free: Vec<usize>,
    /// Slots ever used.
    used: usize,
    /// Bytes of a slot, from the first one on.
    size: usize,
}

/// A place in a store; given back on drop.
pub(super) struct Slot {
    store: Store,
    index: usize,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.store.slots().free.push(self.index);
    }
}

impl Store {
    /// In memory.
    pub fn memory() -> Self {
        Self::new(Place::Memory(Mutex::default()))
    }

    /// In a file, which is made, or emptied if it exists.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file.
    pub fn file(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path);
        let file = file.map_err(|e| Error::Config(format!("engine.kv_file {name}: {e}")))?;
        Ok(Self::new(Place::File(file, name)))
    }

    fn new(place: Place) -> Self {
        Self(Arc::new(Inner { place, slots: Mutex::default() }))
    }

    /// Writes to a free slot.
    ///
    /// # Errors
    /// [`Error::Platform`] with what the file system says.
    pub(super) fn put(&self, message: &[u8]) -> Result<Slot, Error> {
        let (index, size) = {
            let mut slots = self.slots();
            slots.size = slots.size.max(message.len());
            let fresh = slots.used;
            let index = slots.free.pop().unwrap_or(fresh);
            slots.used += usize::from(index == fresh);
            (index, slots.size)
        };
        // Dropped on an error, which gives the slot back.
        let slot = Slot { store: self.clone(), index };
        match &self.0.place {
            Place::Memory(memory) => {
                let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                let index = slot.index;
                if memory.len() <= index {
                    memory.resize(index + 1, Vec::new());
                }
                memory[index] = message.to_vec();
            }
            Place::File(file, name) => {
                file.write_all_at(message, (index * size) as u64).map_err(|e| {
                    Error::Platform(format!("engine.kv_file {name}: a page of {} bytes: {e}", message.len()))
                })?;
            }
        }
        Ok(slot)
    }

    /// Reads from a slot.
    ///
    /// # Errors
    /// [`Error::Platform`] with what the file system says.
    pub(super) fn get(&self, slot: &Slot, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        match &self.0.place {
            Place::Memory(memory) => {
                let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
                let from = memory.get(slot.index).and_then(|m| m.get(offset..offset + out.len()));
                out.copy_from_slice(from.ok_or_else(|| Error::Platform("a page is missing".into()))?);
                Ok(())
            }
            Place::File(file, name) => {
                let at = (slot.index * self.slots().size + offset) as u64;
                file.read_exact_at(out, at).map_err(|e| Error::Platform(format!("engine.kv_file {name}: {e}")))
            }
        }
    }

    /// For tests of hostile storage: what lies in each slot.
    #[cfg(test)]
    pub(super) fn meddle(&self, with: impl FnOnce(&mut Vec<Vec<u8>>)) {
        if let Place::Memory(memory) = &self.0.place {
            with(&mut memory.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
