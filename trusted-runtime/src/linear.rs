//! The ways to compute `y = W·x`, behind one trait. Every implementation over the same quantized
//! matrices computes the same integers and therefore returns the same f32 values, bit for bit.

pub mod delegate;
pub mod direct;
pub mod float;
pub mod integer;
pub mod link;
pub mod local;
pub mod masked;
#[cfg(test)]
pub(crate) mod testing;

use crate::{Error, planner::PlannedMatrix};
use std::{
    fmt,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// A linear group of the operator graph: matrices that read the same input, stacked by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Query, key and value rows, in this order.
    Qkv,
    /// Attention output.
    Output,
    /// Gate rows then up rows (Llama), or up alone (GPT-2).
    GateUp,
    /// Feed-forward down.
    Down,
    /// The LM head.
    Head,
}

/// Names one matrix of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinearId {
    /// Block index; 0 for the head.
    pub layer: u32,
    /// Which group of the block.
    pub group: Group,
}

impl fmt::Display for LinearId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.group {
            Group::Qkv => "qkv",
            Group::Output => "output",
            Group::GateUp => "gate_up",
            Group::Down => "down",
            Group::Head => return f.write_str("head"),
        };
        write!(f, "blk.{}.{name}", self.layer)
    }
}

/// Executes the linear layers of one model.
pub trait Linear: Send + Sync {
    /// `ys[v] = W·xs[v]` for every vector; `xs` is [vectors][cols], `ys` is [vectors][rows] of the
    /// matrix `id`. Biases are the caller's. Blocks until done; call it from a blocking thread.
    ///
    /// # Errors
    /// [`Error::Evaluator`] when delegation fails for good, [`Error::Cancelled`] when `call` was
    /// cancelled; `ys` is unspecified then.
    fn apply(&self, call: &Call, id: LinearId, xs: &[f32], vectors: usize, ys: &mut [f32]) -> Result<(), Error>;
}

fn check_sizes(m: &PlannedMatrix, xs: &[f32], vectors: usize, ys: &[f32]) -> Result<(), Error> {
    let (rows, cols) = (m.matrix.rows, m.matrix.int8.cols());
    if vectors == 0 || xs.len() != vectors * cols || ys.len() != vectors * rows {
        return Err(Error::Bug(format!(
            "{} is {rows}x{cols}: {} inputs and {} outputs for {vectors} vectors",
            m.matrix.id,
            xs.len(),
            ys.len()
        )));
    }
    Ok(())
}

/// A pool of `threads - 1` threads that help the calling one; none for one thread.
fn helpers(threads: usize, name: &'static str) -> Result<Option<rayon::ThreadPool>, Error> {
    if threads < 2 {
        return Ok(None);
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads - 1)
        .thread_name(move |i| format!("{name}-{i}"))
        .build()
        .map(Some)
        .map_err(|e| Error::Platform(format!("{threads} threads for {name} linear layers: {e}")))
}

/// One request as the linear layers see it: whether it is still wanted, and what it has cost.
#[derive(Debug, Default)]
pub struct Call {
    cancelled: AtomicBool,
    stopped: AtomicBool,
    /// Costs so far.
    pub meter: Meter,
}

impl Call {
    /// Asks everything that works for this call to stop.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Cancels because the answer is complete.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.cancel();
    }

    /// Whether [`Call::stop`] was called.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// What delegation has cost. Only grows; take two snapshots and subtract.
#[derive(Debug, Default)]
pub struct Meter {
    /// Wall time of encryption and decryption, nanoseconds; packing ciphertexts into bytes and unpacking them is
    /// part of it, waiting for room towards the socket is not.
    pub crypto_ns: AtomicU64,
    /// Wall time of checks of answers, nanoseconds; part of `crypto_ns`.
    pub verify_ns: AtomicU64,
    /// Wall time that the evaluator reports for products, nanoseconds.
    pub evaluator_ns: AtomicU64,
    /// Wall time spent waiting for answers beyond what the evaluator reports, and for room to send, nanoseconds.
    pub wire_ns: AtomicU64,
    /// Bytes of ciphertexts and of masked vectors sent.
    pub bytes_up: AtomicU64,
    /// Bytes of their products received.
    pub bytes_down: AtomicU64,
    /// Round trips.
    pub round_trips: AtomicU64,
    /// Linear calls repeated after an evaluator failure.
    pub retries: AtomicU64,
    /// Linear calls that were masked.
    pub masked: AtomicU64,
    /// Linear calls that were direct.
    pub direct: AtomicU64,
}

/// A [`Meter`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields of Meter")]
pub struct Cost {
    pub crypto_ns: u64,
    pub verify_ns: u64,
    pub evaluator_ns: u64,
    pub wire_ns: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub round_trips: u64,
    pub retries: u64,
    pub masked: u64,
    pub direct: u64,
}

impl Meter {
    /// The costs at this moment.
    pub fn snapshot(&self) -> Cost {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Cost {
            crypto_ns: get(&self.crypto_ns),
            verify_ns: get(&self.verify_ns),
            evaluator_ns: get(&self.evaluator_ns),
            wire_ns: get(&self.wire_ns),
            bytes_up: get(&self.bytes_up),
            bytes_down: get(&self.bytes_down),
            round_trips: get(&self.round_trips),
            retries: get(&self.retries),
            masked: get(&self.masked),
            direct: get(&self.direct),
        }
    }
}
