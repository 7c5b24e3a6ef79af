//! Threads that help whoever computes an online product: the caller takes rows, too, and nobody is waited for
//! who has not begun.
//!
//! A helper that has nothing to do looks for the next product for a little while, because in decoding one follows
//! another, and then sleeps.

use crate::Error;
use kernels::{Int8Matrix, Isa, gemm::Columns, gemv::Halves};
use std::{
    collections::VecDeque,
    hint::spin_loop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Products with fewer multiply-adds than this are done by the caller alone.
const ALONE: usize = 1 << 20;
/// Multiply-adds in one piece at least, and pieces for each thread at most.
const PIECE: usize = 64 << 10;
const PIECES: usize = 4;
/// Rows in a piece are a multiple of this, as the kernels like them.
const ROWS: usize = 4;
/// From so many vectors on a product with all of them at once is faster.
const MANY: usize = 8;
/// How long a helper looks for the next product before it sleeps, and a caller for the last piece before it yields.
const LOOK: Duration = Duration::from_micros(64);

/// Helpers, shared by all callers.
pub struct Team {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

struct Shared {
    isa: Isa,
    /// Counts the products offered, so that helpers can look without a lock.
    offers: AtomicUsize,
    table: Mutex<Table>,
    wake: Condvar,
}

#[derive(Default)]
struct Table {
    /// Products that may have pieces to take, oldest first.
    products: VecDeque<Arc<Product>>,
    asleep: usize,
    stopped: bool,
}

/// The vectors of a product, made ready once for all pieces.
enum Inputs {
    Few(Halves),
    Many(Columns),
}

/// `y = W·x mod 2^32` for several vectors, in pieces of rows.
pub struct Product {
    weights: Arc<Int8Matrix>,
    inputs: Inputs,
    vectors: usize,
    /// Rows in a piece.
    rows: usize,
    /// The next piece to take, and how many are not finished.
    next: AtomicUsize,
    left: AtomicUsize,
    /// [vectors][rows of the piece] each; one that is missing at the end has panicked.
    pieces: Vec<OnceLock<Vec<u32>>>,
}

impl Team {
    /// Starts the helpers of a team of `threads`, the caller being one of them.
    ///
    /// # Errors
    /// [`Error::Platform`] if a thread cannot be started.
    pub fn start(isa: Isa, threads: usize) -> Result<Self, Error> {
        let shared =
            Arc::new(Shared { isa, offers: AtomicUsize::new(0), table: Mutex::default(), wake: Condvar::new() });
        let helpers = (1..threads)
            .map(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new()
                    .name(format!("online-{i}"))
                    .spawn(move || shared.help())
                    .map_err(|e| Error::Platform(format!("online thread {i} of {threads}: {e}")))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { shared, helpers })
    }

    /// `W·x mod 2^32` for each of the `vectors` in `xs`, [vectors][cols].
    ///
    /// # Errors
    /// [`Error::Bug`] if a thread panicked.
    pub fn multiply(&self, weights: &Arc<Int8Matrix>, xs: &[u32], vectors: usize) -> Result<Arc<Product>, Error> {
        let threads = self.helpers.len() + 1;
        let product = Arc::new(Product::new(Arc::clone(weights), xs, vectors, threads));
        let shared = product.pieces.len() > 1;
        if shared {
            self.shared.offer(&product);
        }
        product.work(self.shared.isa);
        if shared {
            self.shared.withdraw(&product);
            product.wait();
        }
        match product.pieces.iter().all(|piece| piece.get().is_some()) {
            true => Ok(product),
            false => Err(Error::Bug("a thread panicked in an online product".into())),
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.wake.notify_all();
        for helper in self.helpers.drain(..) {
            // A helper's panics were caught and reported.
            let _ = helper.join();
        }
    }
}

impl Product {
    fn new(weights: Arc<Int8Matrix>, xs: &[u32], vectors: usize, threads: usize) -> Self {
        let (rows, work) = (weights.rows(), weights.data().len().saturating_mul(vectors));
        let pieces = if work < ALONE { 1 } else { (work / PIECE).min(if threads > 1 { threads * PIECES } else { 1 }) };
        let each = rows.div_ceil(pieces).next_multiple_of(ROWS);
        let pieces: Vec<_> = (0..rows.div_ceil(each)).map(|_| OnceLock::new()).collect();
        let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(pieces.len()));
        let many = if vectors >= MANY { Columns::words(xs, weights.cols()).ok() } else { None };
        let inputs = many.map_or_else(|| Inputs::Few(Halves::new(xs)), Inputs::Many);
        Self { weights, inputs, vectors, rows: each, next, left, pieces }
    }

    /// Appends the product of one of the vectors, a word a row.
    pub fn append(&self, vector: usize, out: &mut Vec<u32>) {
        for piece in self.pieces.iter().filter_map(OnceLock::get) {
            let rows = piece.len() / self.vectors;
            out.extend_from_slice(&piece[vector * rows..][..rows]);
        }
    }

    /// Computes pieces until none is left to take.
    fn work(&self, isa: Isa) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = self.pieces.get(at) else { return };
            let rows = at * self.rows..((at + 1) * self.rows).min(self.weights.rows());
            let computed = catch_unwind(AssertUnwindSafe(|| {
                let mut words = vec![0; self.vectors * rows.len()];
                match &self.inputs {
                    Inputs::Few(halves) => halves.multiply(isa, &self.weights, rows, &mut words),
                    Inputs::Many(columns) => columns.multiply(isa, &self.weights, rows, &mut words).expect("sizes fit"),
                }
                words
            }));
            match computed {
                // Each index is drawn once.
                Ok(words) => drop(piece.set(words)),
                Err(_) => tracing::error!("bug: a thread panicked in an online product"),
            }
            self.left.fetch_sub(1, Ordering::Release);
        }
    }

    fn can_be_helped(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.pieces.len()
    }

    /// Returns when the pieces that others took are finished, too.
    fn wait(&self) {
        let since = Instant::now();
        while self.left.load(Ordering::Acquire) > 0 {
            if since.elapsed() < LOOK {
                spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Shared {
    fn offer(&self, product: &Arc<Product>) {
        let mut table = self.lock();
        table.products.push_back(Arc::clone(product));
        self.offers.fetch_add(1, Ordering::Release);
        if table.asleep > 0 {
            drop(table);
            self.wake.notify_all();
        }
    }

    fn withdraw(&self, product: &Arc<Product>) {
        self.lock().products.retain(|p| !Arc::ptr_eq(p, product));
    }

    fn help(&self) {
        while let Some(product) = self.next() {
            product.work(self.isa);
        }
    }

    /// A product that can be helped, waiting for one; nothing once the team stops.
    fn next(&self) -> Option<Arc<Product>> {
        loop {
            let seen = self.offers.load(Ordering::Acquire);
            let mut table = self.lock();
            if let Some(product) = table.products.iter().find(|p| p.can_be_helped()) {
                return Some(Arc::clone(product));
            }
            if table.stopped {
                return None;
            }
            drop(table);
            let since = Instant::now();
            while self.offers.load(Ordering::Acquire) == seen && since.elapsed() < LOOK {
                (0..32).for_each(|_| spin_loop());
            }
            table = self.lock();
            if self.offers.load(Ordering::Acquire) == seen && !table.stopped {
                table.asleep += 1;
                table = self.wake.wait(table).unwrap_or_else(PoisonError::into_inner);
                table.asleep -= 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is consistent after every step.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_the_definition_for_any_shape_and_team() {
        for threads in [1, 2, 5] {
            let team = Team::start(Isa::SCALAR, threads).expect("starts");
            for (rows, cols, vectors) in [(1, 1, 1), (3, 7, 2), (1021, 129, 1), (130, 1027, 3), (5000, 33, 2)] {
                let data = (0u32..).map(|i| (i * 31 % 251).to_le_bytes()[0].cast_signed()).take(rows * cols).collect();
                let weights = Arc::new(Int8Matrix::new(rows, cols, data).expect("shape"));
                let xs: Vec<u32> = (0u32..).map(|i| i.wrapping_mul(0x9e37_79b9)).take(vectors * cols).collect();
                let product = team.multiply(&weights, &xs, vectors).expect("no panic");
                let mut found = Vec::new();
                (0..vectors).for_each(|vector| product.append(vector, &mut found));
                let expected: Vec<u32> = xs
                    .chunks_exact(cols)
                    .flat_map(|x| (0..rows).map(|r| dot(weights.row(r), x)).collect::<Vec<_>>())
                    .collect();
                assert!(found == expected, "{rows}x{cols}, {vectors} vectors, {threads} threads");
            }
        }
    }

    fn dot(row: &[i8], x: &[u32]) -> u32 {
        row.iter().zip(x).fold(0, |sum, (&w, &x)| sum.wrapping_add(x.wrapping_mul(i32::from(w).cast_unsigned())))
    }
}
