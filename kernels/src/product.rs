//! The evaluator's operation: `Out_i = sum_j P_ij · In_j` in R_q, for a matrix cut into tiles P_ij.
//!
//! [`PinnedTiles::answers`] and [`answers_on_the_fly`] give the useful coefficients of the products, one per
//! matrix row, which is what the protocol sends. Where the tiling allows it ([`Tiling::is_sliced`]) they work
//! in the sliced domain (module `slice`), otherwise with whole transforms; the words are the same.
//! [`product_on_the_fly`] gives whole products in NTT form.

mod fly;
mod pinned;

use crate::{Error, Int8Matrix, Ring, Tiling, cpu, modulus, slice, wire};
use memmap2::MmapMut;
use std::ops::{Deref, DerefMut, Range};

pub use fly::answers_on_the_fly;
pub use pinned::PinnedTiles;

/// Input polynomials, `vectors` by `blocks`, in the form that the kernels read.
pub struct Inputs {
    ring: Ring,
    vectors: usize,
    blocks: usize,
    /// The tiling, if the inputs are sliced.
    sliced: Option<Tiling>,
    /// Sliced: [vectors][centred f64, packed][R][padded columns]. Else: [vectors][blocks][N] words in NTT form.
    data: Words,
}

/// Words in pages of their own, which go back to the system at once: an allocator would keep them.
struct Words(MmapMut);

impl Words {
    fn zeroed(len: usize) -> Self {
        Self(MmapMut::map_anon(len * 8).expect("as with every allocation, no memory ends the process"))
    }
}

impl Deref for Words {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        bytemuck::cast_slice(&self.0)
    }
}

impl DerefMut for Words {
    fn deref_mut(&mut self) -> &mut [u64] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

impl Inputs {
    /// Room for `vectors` by `blocks` whole polynomials, for [`product_on_the_fly`].
    pub fn new(ring: &Ring, vectors: usize, blocks: usize) -> Self {
        Self { ring: ring.clone(), vectors, blocks, sliced: None, data: Words::zeroed(vectors * blocks * ring.n()) }
    }

    /// Room for `vectors` inputs of a matrix that is cut like `tiling`, for the `answers` functions. Tilings of
    /// equal columns and equal n_w can share inputs.
    pub fn for_tiling(ring: &Ring, tiling: &Tiling, vectors: usize) -> Self {
        let sliced = tiling.is_sliced(ring.n()).then_some(*tiling);
        let data = Words::zeroed(Self::bytes_for(ring, tiling, vectors) / 8);
        Self { ring: ring.clone(), vectors, blocks: tiling.blocks(), sliced, data }
    }

    /// Memory that [`Inputs::for_tiling`] will need.
    pub fn bytes_for(ring: &Ring, tiling: &Tiling, vectors: usize) -> usize {
        let words = if tiling.is_sliced(ring.n()) {
            2 * (ring.n() / tiling.tile_cols()) * slice::padded(tiling.cols())
        } else {
            tiling.blocks() * ring.n()
        };
        vectors * words * 8
    }

    /// Number of vectors.
    pub fn vectors(&self) -> usize {
        self.vectors
    }

    /// Number of blocks a vector.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Memory held.
    pub fn bytes(&self) -> usize {
        self.data.len() * 8
    }

    /// Sets one polynomial from N residues in NTT form, each in [0, q).
    ///
    /// # Panics
    /// If there is no such vector or block, or `residues` is not N long.
    pub fn set(&mut self, vector: usize, block: usize, residues: &[u64]) {
        if self.sliced.is_some() {
            self.set_in_place(vector, block, &mut residues.to_vec());
        } else {
            self.place(vector, block).copy_from_slice(residues);
        }
    }

    /// [`Inputs::set`] without an allocation; `residues` is used up.
    ///
    /// # Panics
    /// If there is no such vector or block, or `residues` is not N long.
    pub fn set_in_place(&mut self, vector: usize, block: usize, residues: &mut [u64]) {
        assert_eq!(residues.len(), self.ring.n(), "a polynomial has N words");
        let Some(tiling) = self.sliced else {
            self.place(vector, block).copy_from_slice(residues);
            return;
        };
        assert!(vector < self.vectors && block < self.blocks, "vector {vector}, block {block}");
        let len = self.data.len() / self.vectors;
        let ring = self.ring.clone();
        let (centred, packed) = self.data[vector * len..(vector + 1) * len].split_at_mut(len / 2);
        let (centred, packed) = (bytemuck::cast_slice_mut(centred), bytemuck::cast_slice_mut(packed));
        let kernel =
            slice::SliceInput { table: ring.table(), tiling: &tiling, block, words: residues, centred, packed };
        cpu::dispatch(ring.isa(), kernel);
    }

    /// Sets the polynomials of `vector` from `first` on: all that the message (kind NTT) holds.
    ///
    /// # Errors
    /// [`Error::Wire`] if the message is malformed or has another number of polynomials than `count`,
    /// [`Error::Shape`] if they do not fit; then the inputs are arbitrary.
    pub fn set_from_wire(&mut self, vector: usize, first: usize, count: usize, bytes: &[u8]) -> Result<(), Error> {
        if vector >= self.vectors || first.checked_add(count).is_none_or(|end| end > self.blocks) {
            return Err(Error::Shape(format!(
                "{count} blocks from {first} on of vector {vector}, there are {} vectors of {} blocks",
                self.vectors, self.blocks
            )));
        }
        let params = *self.ring.params();
        let message = wire::Message::parse(&params, wire::Kind::Ntt, bytes, count * params.n())?;
        if self.sliced.is_none() {
            let n = self.ring.n();
            let at = (vector * self.blocks + first) * n;
            return message.read(0, &mut self.data[at..at + count * n]);
        }
        let mut words = vec![0; params.n()];
        for block in 0..count {
            message.read(block * params.n(), &mut words)?;
            self.set_in_place(vector, first + block, &mut words);
        }
        Ok(())
    }

    fn place(&mut self, vector: usize, block: usize) -> &mut [u64] {
        assert!(vector < self.vectors && block < self.blocks, "vector {vector}, block {block}");
        let n = self.ring.n();
        let at = (vector * self.blocks + block) * n;
        &mut self.data[at..at + n]
    }

    /// A whole polynomial.
    fn poly(&self, n: usize, v: usize, j: usize) -> &[u64] {
        &self.data[(v * self.blocks + j) * n..(v * self.blocks + j + 1) * n]
    }

    /// The centred and the packed slices of a vector, [R][padded columns] each.
    #[inline]
    fn slices(&self, v: usize) -> (&[f64], &[f64]) {
        let len = self.data.len() / self.vectors;
        let (centred, packed) = self.data[v * len..(v + 1) * len].split_at(len / 2);
        (bytemuck::cast_slice(centred), bytemuck::cast_slice(packed))
    }
}

/// Whole products, each tile encoded when it is used: `out` is [vectors][tiles.len()][N] in NTT form, every
/// value in [0, q). `inputs` come from [`Inputs::new`].
///
/// # Errors
/// [`Error::Shape`] if a size does not fit.
pub fn product_on_the_fly(
    ring: &Ring,
    tiling: &Tiling,
    w: &Int8Matrix,
    inputs: &Inputs,
    tiles: Range<usize>,
    out: &mut [u64],
) -> Result<(), Error> {
    check(tiling, w)?;
    check_inputs(ring, tiling, inputs, &tiles, false)?;
    if out.len() != inputs.vectors * tiles.len() * ring.n() {
        return Err(Error::Shape(format!("{} tiles into {} words", tiles.len(), out.len())));
    }
    let (n, count) = (ring.n(), tiles.len());
    let (mut small, mut tile) = (vec![0i8; n], vec![0u64; n]);
    out.fill(0);
    for (o, i) in tiles.enumerate() {
        for j in 0..tiling.blocks() {
            encode_tile(ring, tiling, w, i, j, &mut small, &mut tile);
            for v in 0..inputs.vectors {
                ring.mul_add(&mut out[(v * count + o) * n..(v * count + o + 1) * n], &tile, inputs.poly(n, v, j));
            }
        }
    }
    Ok(())
}

/// Encodes one tile: `out = NTT(P_ij)`, values in [0, q). `small` and `out` have N entries.
pub fn encode_tile(
    ring: &Ring,
    tiling: &Tiling,
    w: &Int8Matrix,
    i: usize,
    j: usize,
    small: &mut [i8],
    out: &mut [u64],
) {
    tiling.tile_coefficients(w, i, j, small);
    for (o, &x) in out.iter_mut().zip(small.iter()) {
        *o = modulus::from_signed(i64::from(x), ring.q());
    }
    ring.forward_residues(out);
}

/// Rows of the matrix in output tiles `tiles`.
fn rows_of(tiling: &Tiling, tiles: &Range<usize>) -> usize {
    tiles.clone().map(|i| tiling.tile_row_range(i).len()).sum()
}

fn check(tiling: &Tiling, w: &Int8Matrix) -> Result<(), Error> {
    if (tiling.rows(), tiling.cols()) != (w.rows(), w.cols()) {
        return Err(Error::Shape(format!(
            "tiling of {}x{} for a matrix of {}x{}",
            tiling.rows(),
            tiling.cols(),
            w.rows(),
            w.cols()
        )));
    }
    Ok(())
}

fn check_inputs(
    ring: &Ring,
    tiling: &Tiling,
    inputs: &Inputs,
    tiles: &Range<usize>,
    answers: bool,
) -> Result<(), Error> {
    if inputs.ring.params() != ring.params() {
        return Err(Error::Shape("inputs of another ring".into()));
    }
    if inputs.blocks != tiling.blocks() {
        return Err(Error::Shape(format!("{} input blocks, the tiling has {}", inputs.blocks, tiling.blocks())));
    }
    let wanted = answers && tiling.is_sliced(ring.n());
    let fits = |t: Tiling| (t.cols(), t.tile_cols()) == (tiling.cols(), tiling.tile_cols());
    if inputs.sliced.is_some() != wanted || !inputs.sliced.is_none_or(fits) {
        return Err(Error::Shape("inputs are laid out for another tiling".into()));
    }
    if tiles.end > tiling.tiles() {
        return Err(Error::Shape(format!("tiles {tiles:?} of {}", tiling.tiles())));
    }
    Ok(())
}

fn check_answers(
    ring: &Ring,
    tiling: &Tiling,
    inputs: &Inputs,
    tiles: &Range<usize>,
    out: &[u64],
) -> Result<(), Error> {
    check_inputs(ring, tiling, inputs, tiles, true)?;
    let rows = rows_of(tiling, tiles);
    if out.len() != inputs.vectors * rows {
        return Err(Error::Shape(format!("{} vectors by {rows} rows into {} words", inputs.vectors, out.len())));
    }
    Ok(())
}

/// The useful coefficients of whole products in NTT form: `product` is overwritten.
fn extract(ring: &Ring, tiling: &Tiling, tile: usize, product: &mut [u64], out: &mut [u64]) {
    ring.inverse_residues(product);
    for (r, word) in out[..tiling.tile_row_range(tile).len()].iter_mut().enumerate() {
        *word = product[tiling.output_coefficient(r)];
    }
}
