//! Buffers for input ciphertexts, reused from job to job: megabytes that are not allocated per job.

use kernels::{Inputs, Ring};
use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes kept for later jobs at most.
const KEEP: usize = 256 << 20;

/// Free buffers by shape (vectors, blocks).
pub struct Pool {
    ring: Ring,
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    by_shape: HashMap<(usize, usize), Vec<Inputs>>,
    bytes: usize,
}

/// A buffer on loan, with the share of its stream's memory that it takes.
pub struct Loan {
    inputs: Option<Inputs>,
    pool: Arc<Pool>,
    _memory: OwnedSemaphorePermit,
}

impl Pool {
    /// An empty pool.
    pub fn new(ring: Ring) -> Arc<Self> {
        Arc::new(Self { ring, free: Mutex::default() })
    }

    /// Memory that a buffer of this shape stands for.
    pub fn bytes_for(&self, vectors: usize, blocks: usize) -> usize {
        vectors * blocks * self.ring.n() * 8
    }

    /// A buffer of this shape; what it holds is arbitrary. `memory` is given back with it.
    pub fn take(self: &Arc<Self>, vectors: usize, blocks: usize, memory: OwnedSemaphorePermit) -> Loan {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let reused = free.by_shape.get_mut(&(vectors, blocks)).and_then(Vec::pop);
        if reused.is_some() {
            free.bytes -= self.bytes_for(vectors, blocks);
        }
        drop(free);
        let inputs = reused.unwrap_or_else(|| Inputs::new(&self.ring, vectors, blocks));
        Loan { inputs: Some(inputs), pool: Arc::clone(self), _memory: memory }
    }
}

impl Deref for Loan {
    type Target = Inputs;

    fn deref(&self) -> &Inputs {
        self.inputs.as_ref().expect("taken only on drop")
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut Inputs {
        self.inputs.as_mut().expect("taken only on drop")
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(inputs) = self.inputs.take() else { return };
        let shape = (inputs.vectors(), inputs.blocks());
        let bytes = self.pool.bytes_for(shape.0, shape.1);
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + bytes <= KEEP {
            free.bytes += bytes;
            free.by_shape.entry(shape).or_default().push(inputs);
        }
    }
}
