//! Which matrices are resident, in which form, and under which budget.

use crate::{
    Error,
    backend::{Matrix, bytes_for},
    cache::Cache,
    header::{MatrixSpec, short},
    metrics,
};
use kernels::{Int8Matrix, MatrixId, Ring, Tiling};
use proto::v1::Residency;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::watch;

/// The resident matrices of this process.
pub struct Store {
    budget: u64,
    cache: Option<Cache>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    matrices: HashMap<MatrixId, Entry>,
    /// Bytes of ready matrices and of reservations.
    used: u64,
}

enum Entry {
    Ready(Arc<Matrix>),
    /// Somebody is receiving or encoding it; the channel closes when that ends, well or not.
    Arriving(watch::Receiver<()>),
}

/// What [`Store::claim`] grants.
pub enum Claim {
    /// It is resident already.
    Ready(Arc<Matrix>),
    /// Somebody else is at it: wait for the channel to close and claim again.
    Wait(watch::Receiver<()>),
    /// Memory is reserved: bring the content.
    Slot(Slot),
}

/// A reservation for one matrix, given back on drop unless the matrix arrived.
pub struct Slot {
    store: Arc<Store>,
    spec: MatrixSpec,
    residency: Residency,
    reserved: u64,
    /// Closes the channel of those who wait.
    _arriving: watch::Sender<()>,
}

impl Store {
    /// An empty store of at most `budget` bytes.
    pub fn new(budget: u64, cache: Option<Cache>) -> Arc<Self> {
        Arc::new(Self { budget, cache, held: Mutex::default() })
    }

    /// Bytes allowed.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Bytes held or reserved.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// A resident matrix.
    pub fn matrix(&self, id: &MatrixId) -> Option<Arc<Matrix>> {
        match self.lock().matrices.get(id) {
            Some(Entry::Ready(matrix)) => Some(Arc::clone(matrix)),
            _ => None,
        }
    }

    /// The matrix of `spec` if it is resident or can be made so from the disk cache. Blocks; CPU-heavy.
    ///
    /// # Errors
    /// [`Error::Peer`] if the id is resident with another shape or cut.
    pub fn lookup(self: &Arc<Self>, spec: &MatrixSpec) -> Result<Option<Arc<Matrix>>, Error> {
        if let Some(matrix) = self.matrix(&spec.id) {
            same_cut(&matrix, spec)?;
            return Ok(Some(matrix));
        }
        let Some(int8) = self.cache.as_ref().and_then(|c| c.load(&spec.id)) else { return Ok(None) };
        match self.claim(spec) {
            Ok(Claim::Ready(matrix)) => Ok(Some(matrix)),
            Ok(Claim::Wait(_)) => Ok(None),
            Ok(Claim::Slot(slot)) => {
                metrics::cache_loaded(int8.data().len());
                slot.encode(int8).map(Some)
            }
            // The upload that follows is refused with the figures.
            Err(Error::Exhausted(_)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// [`Store::lookup`] for many matrices, on up to `threads` threads, answered in order.
    ///
    /// # Errors
    /// The first of theirs.
    pub fn lookup_all(
        self: &Arc<Self>,
        specs: &[MatrixSpec],
        threads: usize,
    ) -> Result<Vec<Option<Arc<Matrix>>>, Error> {
        let next = AtomicUsize::new(0);
        let found: Vec<_> = specs.iter().map(|_| OnceLock::new()).collect();
        std::thread::scope(|scope| {
            let work = || {
                while let Some(at) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&at| at < specs.len()) {
                    // Each index is drawn once.
                    let _ = found[at].set(self.lookup(&specs[at]));
                }
            };
            let here = threads.min(specs.len());
            for _ in 1..here {
                scope.spawn(work);
            }
            work();
        });
        found.into_iter().map(|cell| cell.into_inner().unwrap_or(Ok(None))).collect()
    }

    /// Reserves memory for a matrix, or says who has it.
    ///
    /// A wish for `pinned` that does not fit is granted as `fallback`; no wish means pinned if it fits.
    ///
    /// # Errors
    /// [`Error::Exhausted`] naming budget, used and needed; [`Error::Peer`] if the id is resident with another cut.
    pub fn claim(self: &Arc<Self>, spec: &MatrixSpec) -> Result<Claim, Error> {
        let mut held = self.lock();
        match held.matrices.get(&spec.id) {
            Some(Entry::Ready(matrix)) => {
                same_cut(matrix, spec)?;
                return Ok(Claim::Ready(Arc::clone(matrix)));
            }
            Some(Entry::Arriving(end)) => return Ok(Claim::Wait(end.clone())),
            None => {}
        }
        let free = self.budget.saturating_sub(held.used);
        let [pinned, fallback] =
            [Residency::Pinned, Residency::Fallback].map(|r| bytes_for(&spec.ring, &spec.tiling, r));
        let (residency, reserved) = if spec.wish != Residency::Fallback && pinned <= free {
            (Residency::Pinned, pinned)
        } else if fallback <= free {
            if spec.wish == Residency::Pinned {
                tracing::warn!(
                    matrix = spec.name,
                    "pinned needs {pinned} bytes, {free} of {} are free: held as fallback",
                    self.budget
                );
            }
            (Residency::Fallback, fallback)
        } else {
            return Err(Error::Exhausted(format!(
                "matrix {:?}: memory budget is {} bytes, used {}, needed {fallback}",
                spec.name, self.budget, held.used
            )));
        };
        let (sender, receiver) = watch::channel(());
        held.used += reserved;
        held.matrices.insert(spec.id, Entry::Arriving(receiver));
        Ok(Claim::Slot(Slot { store: Arc::clone(self), spec: spec.clone(), residency, reserved, _arriving: sender }))
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Every critical section leaves the map and the sum consistent at each step.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Checks the hash, writes the disk cache, encodes and publishes. Blocks; CPU-heavy.
    ///
    /// # Errors
    /// [`Error::Peer`] if the content does not have the announced hash.
    pub fn fill(self, int8: Int8Matrix) -> Result<Arc<Matrix>, Error> {
        let found = int8.id();
        if found != self.spec.id {
            return Err(Error::Peer(format!(
                "matrix {:?}: the rows hash to {}.., announced was {}..",
                self.spec.name,
                short(&found),
                short(&self.spec.id)
            )));
        }
        if let Some(cache) = &self.store.cache {
            cache.store(&self.spec.id, &int8);
        }
        self.encode(int8)
    }

    /// Encodes and publishes content whose hash was checked.
    fn encode(mut self, int8: Int8Matrix) -> Result<Arc<Matrix>, Error> {
        let spec = &self.spec;
        let matrix =
            Arc::new(Matrix::new(&spec.ring, (spec.id, spec.name.clone()), spec.tiling, int8, self.residency)?);
        let mut held = self.store.lock();
        held.used = held.used - self.reserved + matrix.bytes();
        self.reserved = 0;
        held.matrices.insert(spec.id, Entry::Ready(Arc::clone(&matrix)));
        metrics::resident(self.residency, matrix.bytes());
        drop(held);
        Ok(matrix)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.reserved > 0 {
            let mut held = self.store.lock();
            held.used -= self.reserved;
            held.matrices.remove(&self.spec.id);
        }
    }
}

/// Two headers with one id must cut the matrix in the same way.
fn same_cut(matrix: &Matrix, spec: &MatrixSpec) -> Result<(), Error> {
    let (a, b) = ((matrix.tiling(), matrix.ring()), (&spec.tiling, &spec.ring));
    if a.0 == b.0 && a.1.params() == b.1.params() {
        return Ok(());
    }
    let show = |(t, ring): (&Tiling, &Ring)| {
        let (q, rows, cols) = (ring.q(), t.rows(), t.cols());
        format!("{rows}x{cols} in tiles of {}x{} modulo {q}", t.tile_rows(), t.tile_cols())
    };
    Err(Error::Peer(format!("matrix {:?} is resident as {}, the header says {}", spec.name, show(a), show(b))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::params::RINGS;

    const BIG: usize = 16 * 128;

    fn store(budget: u64) -> Arc<Store> {
        Store::new(budget, None)
    }

    fn ring(which: usize) -> Ring {
        Ring::new(RINGS[which].check().expect("checked")).expect("ring")
    }

    fn matrix(seed: i8, wish: Residency) -> (MatrixSpec, Int8Matrix) {
        let int8 = Int8Matrix::new(16, 128, vec![seed; BIG]).expect("shape");
        let tiling = Tiling::new(16, 128, 16, 128, 2048).expect("fits");
        (MatrixSpec { id: int8.id(), name: format!("m{seed}"), ring: ring(0), tiling, wish }, int8)
    }

    fn slot(claim: Result<Claim, Error>) -> Slot {
        match claim {
            Ok(Claim::Slot(slot)) => slot,
            Ok(_) => panic!("no slot"),
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn pinned_degrades_to_fallback_and_then_is_refused() {
        let store = store(8 * BIG as u64 + BIG as u64 + 100);
        for (seed, residency, used) in [(1, Residency::Pinned, 8 * BIG), (2, Residency::Fallback, 9 * BIG)] {
            let (spec, int8) = matrix(seed, Residency::Pinned);
            let held = slot(store.claim(&spec)).fill(int8).expect("hash");
            assert_eq!((held.residency(), store.used()), (residency, used as u64));
        }
        let err = store.claim(&matrix(3, Residency::Unspecified).0).err().expect("over budget");
        assert_eq!(
            err,
            Error::Exhausted(format!("matrix \"m3\": memory budget is 18532 bytes, used 18432, needed {BIG}"))
        );
    }

    #[test]
    fn a_dropped_slot_gives_its_memory_back_and_wakes_the_waiting() {
        let store = store(1 << 20);
        let (spec, int8) = matrix(1, Residency::Fallback);
        let first = slot(store.claim(&spec));
        let Ok(Claim::Wait(waiting)) = store.claim(&spec) else { panic!("the second waits") };
        assert!(store.lookup(&spec).expect("lookup").is_none(), "not visible while arriving");
        let wrong = Int8Matrix::new(16, 128, vec![9; BIG]).expect("shape");
        let err = first.fill(wrong).err().expect("wrong hash");
        assert!(err.to_string().contains("the rows hash to"), "{err}");
        assert!(waiting.has_changed().is_err(), "closed");
        assert_eq!(store.used(), 0);
        slot(store.claim(&spec)).fill(int8).expect("hash");
        assert_eq!(store.used(), BIG as u64);
    }

    #[test]
    fn another_cut_of_a_resident_matrix_is_refused() {
        let store = store(1 << 20);
        let (mut spec, int8) = matrix(1, Residency::Fallback);
        slot(store.claim(&spec)).fill(int8).expect("hash");
        spec.tiling = Tiling::new(16, 128, 8, 128, 2048).expect("fits");
        for err in [store.claim(&spec).err(), store.lookup(&spec).err()] {
            let (err, q) = (err.expect("other cut").to_string(), spec.ring.q());
            let both =
                format!("16x128 in tiles of 16x128 modulo {q}, the header says 16x128 in tiles of 8x128 modulo {q}");
            assert!(err.contains(&both), "{err}");
        }
        let (mut spec, _) = matrix(1, Residency::Fallback);
        spec.ring = ring(2);
        let err = store.claim(&spec).err().expect("another ring").to_string();
        assert!(
            err.ends_with("modulo 35184368877569, the header says 16x128 in tiles of 16x128 modulo 2251799813554177"),
            "{err}"
        );
    }
}
