//! Buffers for input ciphertexts, reused from job to job, as far as they are small: the pages of a large one cost
//! little beside its job, and much beside the matrices if they were kept.

use crate::backend::Matrix;
use kernels::Inputs;
use std::{
    collections::HashMap,
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::OwnedSemaphorePermit;

/// Bytes kept for later jobs at most, in all and in one buffer.
const KEEP: usize = 16 << 20;
const KEEP_EACH: usize = 4 << 20;

/// What buffers have in common that can stand for each other: modulus, vectors, matrix columns, tile columns.
type Shape = (u64, usize, usize, usize);

/// Free buffers by shape.
#[derive(Default)]
pub struct Pool {
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    by_shape: HashMap<Shape, Vec<Inputs>>,
    bytes: usize,
}

/// A buffer on loan, with the share of its stream's memory that it takes.
pub struct Loan {
    inputs: Option<Inputs>,
    shape: Shape,
    pool: Arc<Pool>,
    _memory: OwnedSemaphorePermit,
}

impl Pool {
    /// A buffer for `vectors` inputs of a matrix; what it holds is arbitrary. `memory` is given back with it.
    pub fn take(self: &Arc<Self>, vectors: usize, matrix: &Matrix, memory: OwnedSemaphorePermit) -> Loan {
        let (ring, tiling) = (matrix.ring(), matrix.tiling());
        let shape = (ring.q(), vectors, tiling.cols(), tiling.tile_cols());
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let reused = free.by_shape.get_mut(&shape).and_then(Vec::pop);
        if let Some(inputs) = &reused {
            free.bytes -= inputs.bytes();
        }
        drop(free);
        let inputs = reused.unwrap_or_else(|| Inputs::for_tiling(ring, tiling, vectors));
        Loan { inputs: Some(inputs), shape, pool: Arc::clone(self), _memory: memory }
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
        let bytes = inputs.bytes();
        if bytes > KEEP_EACH {
            return;
        }
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.bytes + bytes > KEEP {
            // Shapes that nobody asks for any more must not take the place of those in use.
            *free = Free::default();
        }
        free.bytes += bytes;
        free.by_shape.entry(self.shape).or_default().push(inputs);
    }
}
