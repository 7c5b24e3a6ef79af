//! The ways to compute `y = W·x`, behind one trait. Every implementation over the same quantized
//! matrices computes the same integers and therefore returns the same f32 values, bit for bit.

pub mod delegate;
pub mod direct;
pub mod float;
pub mod integer;
pub mod link;
pub mod local;
pub mod masked;
pub mod padded;
pub mod sharded;
#[cfg(test)]
pub(crate) mod testing;

use crate::{Error, planner::PlannedMatrix};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
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

/// One request, or several that share a pass, as the linear layers see it: whether it is still wanted, and what it has
/// cost.
#[derive(Debug, Default)]
pub struct Call {
    cancelled: AtomicBool,
    members: Vec<Arc<Call>>,
    stopped: AtomicBool,
    /// Costs so far.
    pub meter: Meter,
}

impl Call {
    /// The call of a pass that several calls share; it is wanted while one of them is.
    pub fn shared(members: Vec<Arc<Self>>) -> Self {
        Self { members, ..Self::default() }
    }

    /// Charges the members, whose part of the work was as `shares` says; nothing for a call of its own. Each has waited
    /// the whole time; bytes, round trips and retries are divided.
    pub fn settle(&self, shares: &[usize]) {
        let (cost, total) = (self.meter.snapshot(), shares.iter().sum::<usize>().max(1) as u64);
        let mut before = 0;
        for (member, share) in self.members.iter().zip(shares) {
            let after = before + *share as u64;
            // Rounded so that the parts add up.
            let part = |whole: u64| whole * after / total - whole * before / total;
            member.meter.charge(Cost {
                bytes_up: part(cost.bytes_up),
                bytes_down: part(cost.bytes_down),
                round_trips: part(cost.round_trips),
                retries: part(cost.retries),
                ..cost
            });
            before = after;
        }
    }

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
        let members = !self.members.is_empty() && self.members.iter().all(|m| m.is_cancelled());
        members || self.cancelled.load(Ordering::Relaxed)
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
    /// Adds costs that were counted elsewhere.
    fn charge(&self, cost: Cost) {
        for (to, add) in [
            (&self.crypto_ns, cost.crypto_ns),
            (&self.verify_ns, cost.verify_ns),
            (&self.evaluator_ns, cost.evaluator_ns),
            (&self.wire_ns, cost.wire_ns),
            (&self.bytes_up, cost.bytes_up),
            (&self.bytes_down, cost.bytes_down),
            (&self.round_trips, cost.round_trips),
            (&self.retries, cost.retries),
            (&self.masked, cost.masked),
            (&self.direct, cost.direct),
        ] {
            to.fetch_add(add, Ordering::Relaxed);
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_call_is_wanted_while_one_is_and_divides_its_costs() {
        let members: Vec<_> = (0..3).map(|_| Arc::new(Call::default())).collect();
        let call = Call::shared(members.clone());
        call.meter.bytes_up.store(100, Ordering::Relaxed);
        call.meter.wire_ns.store(7, Ordering::Relaxed);
        call.settle(&[1, 5, 1]);
        let costs: Vec<_> = members.iter().map(|m| m.meter.snapshot()).collect();
        assert_eq!(costs.iter().map(|c| c.bytes_up).collect::<Vec<_>>(), [14, 71, 15]);
        assert!(costs.iter().all(|c| c.wire_ns == 7));
        members[..2].iter().for_each(|m| m.cancel());
        assert!(!call.is_cancelled());
        members[2].cancel();
        assert!(call.is_cancelled());
        Call::default().settle(&[1]);
    }
}
