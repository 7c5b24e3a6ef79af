//! The offline half of masked delegation: an int8 matrix times words modulo q, lane by lane.
//!
//! `Y[r][l] = sum_c W[r][c]·B[c][l] mod q`. A word, centred, is cut into signed digits of 16 bits: three of them up to
//! q < 2^47, else four. A digit plane is an exact integer product of 8-bit by 16-bit numbers: |w·digit| <= 2^22, so that
//! 510 columns add up inside 31 bits. Pairs of columns lie side by side, as the instructions that multiply and add
//! pairs want them (vpmaddwd, vpdpwssd). No encoding of weights and no transform.

use crate::{
    Error, Int8Matrix, Ring,
    cpu::{self, DigitPlane, Field, Kernel, Lanes, f64_of},
    gemm::spread,
    ntt::centred_pair,
    wire,
};
use std::ops::Range;

/// Bits of a digit.
const DIGIT: u32 = 16;
/// Pairs of columns in one pass, at most: their digits (96 or 128 bytes each) stay in the first-level cache. At most 255.
const PASS: usize = 192;

/// A matrix B of words modulo q, [cols][lanes], cut into digits.
pub struct Digits {
    q: u64,
    cols: usize,
    lanes: usize,
    /// 3 or 4.
    digits: usize,
    /// [lanes/8][cols/2][digits]; an odd last column has zeros beside it.
    planes: Vec<DigitPlane>,
}

/// Digits of a centred word: |x| < q/2 <= 2^46 leaves the third within 2^14 and a carry.
fn digits_of(q: u64) -> usize {
    if q < 1 << 47 { 3 } else { 4 }
}

impl Digits {
    /// Lanes come in groups of so many.
    pub const LANES: usize = 8;

    /// Zeros.
    ///
    /// # Errors
    /// [`Error::Shape`] if `lanes` is no positive multiple of 8 or there is no column.
    pub fn new(ring: &Ring, cols: usize, lanes: usize) -> Result<Self, Error> {
        if cols == 0 || lanes == 0 || !lanes.is_multiple_of(Self::LANES) {
            return Err(Error::Shape(format!(
                "{cols} columns of {lanes} lanes, expected a multiple of {}",
                Self::LANES
            )));
        }
        let digits = digits_of(ring.q());
        let planes = vec![DigitPlane([0; 16]); lanes / Self::LANES * cols.div_ceil(2) * digits];
        Ok(Self { q: ring.q(), cols, lanes, digits, planes })
    }

    /// Memory of so many words.
    pub fn bytes_for(ring: &Ring, cols: usize, lanes: usize) -> usize {
        lanes.div_ceil(Self::LANES) * cols.div_ceil(2) * digits_of(ring.q()) * size_of::<DigitPlane>()
    }

    /// Columns of W, rows of B.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Lanes of B.
    pub fn lanes(&self) -> usize {
        self.lanes
    }

    /// Sets whole rows of B from row `first` on; words are in [0, q), `words` is [count][lanes].
    ///
    /// # Errors
    /// [`Error::Shape`] if that is not whole rows that are there.
    pub fn set(&mut self, first: usize, words: &[u64]) -> Result<(), Error> {
        let count = words.len() / self.lanes;
        if words.len() != count * self.lanes || first.checked_add(count).is_none_or(|end| end > self.cols) {
            return Err(Error::Shape(format!(
                "{} words from row {first} on into {} rows of {}",
                words.len(),
                self.cols,
                self.lanes
            )));
        }
        match self.digits {
            3 => self.write::<3>(first, words),
            _ => self.write::<4>(first, words),
        }
        Ok(())
    }

    fn write<const P: usize>(&mut self, first: usize, words: &[u64]) {
        let (q, pairs) = (self.q, self.cols.div_ceil(2));
        let blocks = self.planes.as_chunks_mut::<P>().0;
        let mut rows = words.chunks_exact(self.lanes);
        let mut at = first;
        while let Some(row) = rows.next() {
            let both = if at.is_multiple_of(2) { rows.next() } else { None };
            for (t, a) in row.as_chunks::<8>().0.iter().enumerate() {
                let block = &mut blocks[t * pairs + at / 2];
                match both {
                    Some(b) => set_pair(q, block, a, b[8 * t..8 * t + 8].as_array().expect("eight lanes")),
                    None => set_column(q, block, at % 2, a),
                }
            }
            at += 1 + usize::from(both.is_some());
        }
    }

    /// [`Digits::set`] from a wire message of kind lanes, which must hold `count` rows.
    ///
    /// # Errors
    /// [`Error::Wire`] for a bad message, [`Error::Shape`] for rows that are not there.
    pub fn set_from_wire(&mut self, ring: &Ring, first: usize, count: usize, message: &[u8]) -> Result<(), Error> {
        if first.checked_add(count).is_none_or(|end| end > self.cols) {
            return Err(Error::Shape(format!("{count} rows from {first} on, there are {}", self.cols)));
        }
        let message = wire::Message::parse(ring.params(), wire::Kind::Lanes, message, count * self.lanes)?;
        // Two rows a step, beginning at an even one, so that blocks are written once.
        let mut words = vec![0; 2 * self.lanes];
        let mut done = 0;
        while done < count {
            let step = if (first + done).is_multiple_of(2) { 2.min(count - done) } else { 1 };
            let words = &mut words[..step * self.lanes];
            message.read(done * self.lanes, words)?;
            self.set(first + done, words)?;
            done += step;
        }
        Ok(())
    }
}

/// The four digits of a word in [0, q), of its representative in (-q/2, q/2), one above the other in 64 bits.
///
/// With 2^15 added at every place digits carry like unsigned ones, and a flipped top bit takes it off again.
#[inline]
fn digits(q: u64, word: u64) -> u64 {
    const HALVES: u64 = 0x8000_8000_8000_8000;
    let upper = ((q / 2).wrapping_sub(word).cast_signed() >> 63).cast_unsigned();
    word.wrapping_sub(q & upper).wrapping_add(HALVES) ^ HALVES
}

#[expect(clippy::cast_possible_truncation, reason = "one digit of four")]
fn set_column<const P: usize>(q: u64, block: &mut [DigitPlane; P], column: usize, words: &[u64; 8]) {
    for (l, &word) in words.iter().enumerate() {
        let digits = digits(q, word);
        for (p, plane) in block.iter_mut().enumerate() {
            plane.0[2 * l + column] = (digits >> (DIGIT * p as u32)) as u16 as i16;
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "one digit of four")]
fn set_pair<const P: usize>(q: u64, block: &mut [DigitPlane; P], a: &[u64; 8], b: &[u64; 8]) {
    let (a, b) = (a.map(|word| digits(q, word)), b.map(|word| digits(q, word)));
    for (p, plane) in block.iter_mut().enumerate() {
        let shift = DIGIT * p as u32;
        for (out, (a, b)) in plane.0.as_chunks_mut::<2>().0.iter_mut().zip(a.iter().zip(&b)) {
            *out = [(a >> shift) as u16 as i16, (b >> shift) as u16 as i16];
        }
    }
}

/// `out = W[rows]·B[lanes] mod q`, words in [0, q); `out` is [rows.len()][lanes.len()].
///
/// Weights are spread to 16 bits once for all lanes: call it with a few dozen rows, so that these stay in a cache,
/// and with all lanes.
///
/// # Errors
/// [`Error::Shape`] if a size does not fit or `lanes` does not begin and end at multiples of 8.
pub fn matmul(
    ring: &Ring,
    w: &Int8Matrix,
    rows: Range<usize>,
    digits: &Digits,
    lanes: Range<usize>,
    out: &mut [u64],
) -> Result<(), Error> {
    let whole = lanes.start.is_multiple_of(Digits::LANES) && lanes.end.is_multiple_of(Digits::LANES);
    if rows.end > w.rows()
        || digits.cols != w.cols()
        || lanes.end > digits.lanes
        || !whole
        || out.len() != rows.len() * lanes.len()
    {
        return Err(Error::Shape(format!(
            "{}x{} matrix, rows {rows:?}, {}x{} words, lanes {lanes:?}, {} outputs",
            w.rows(),
            w.cols(),
            digits.cols,
            digits.lanes,
            out.len()
        )));
    }
    if !rows.is_empty() && !lanes.is_empty() {
        let q = ring.q();
        assert_eq!(q, digits.q, "the words are of this ring");
        match digits.digits {
            3 => cpu::dispatch(ring.isa(), Matmul::<3> { q, w, rows, digits, lanes, out }),
            _ => cpu::dispatch(ring.isa(), Matmul::<4> { q, w, rows, digits, lanes, out }),
        }
    }
    Ok(())
}

struct Matmul<'a, const P: usize> {
    q: u64,
    w: &'a Int8Matrix,
    rows: Range<usize>,
    digits: &'a Digits,
    lanes: Range<usize>,
    out: &'a mut [u64],
}

impl<const P: usize> Kernel for Matmul<'_, P> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let (pairs, count) = (self.w.cols().div_ceil(2), self.rows.len());
        // Rows in fours; the last four may repeat the last row.
        let mut weights = vec![[0i16; 2]; count.next_multiple_of(4) * pairs];
        for (r, out) in weights.chunks_exact_mut(pairs).enumerate() {
            spread(self.w.row(self.rows.start + r.min(count - 1)), out);
        }
        let field = Field::new(l, self.q);
        let scale = Scale::new(l, self.q);
        let pass = pairs.div_ceil(pairs.div_ceil(PASS));
        let mut acc = [[[0i32; 8]; P]; 4];
        // [rows][8 lanes], residues as f64.
        let mut sums = vec![[0f64; Digits::LANES]; count.next_multiple_of(4)];
        let width = self.lanes.len();
        for tile in self.lanes.start / Digits::LANES..self.lanes.end / Digits::LANES {
            let digits = &self.digits.planes.as_chunks::<P>().0[tile * pairs..(tile + 1) * pairs];
            for start in (0..pairs).step_by(pass) {
                let part = start..(start + pass).min(pairs);
                for (four, sums) in weights.chunks_exact(4 * pairs).zip(sums.as_chunks_mut::<4>().0) {
                    let rows = std::array::from_fn(|r| &four[r * pairs..][part.clone()]);
                    l.digit_rows(rows, &digits[part.clone()], &mut acc);
                    for (acc, sums) in acc.iter().zip(sums) {
                        scale.add(l, &field, acc, start == 0, bytemuck::cast_slice_mut(sums));
                    }
                }
            }
            let at = tile * Digits::LANES - self.lanes.start;
            for (sums, out) in sums.iter().zip(self.out.chunks_exact_mut(width)) {
                let blocks: &[L::Block] = bytemuck::cast_slice(sums);
                let out: &mut [L::Block] = bytemuck::cast_slice_mut(&mut out[at..at + Digits::LANES]);
                for (v, out) in blocks.iter().zip(out) {
                    l.store_words(&field, l.load(v), out);
                }
            }
        }
    }
}

/// The places of the digits: 2^16, and 2^32 as a factor modulo q.
struct Scale<V> {
    digit: V,
    two: V,
    two_q: V,
}

impl<V: Copy> Scale<V> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn new<L: Lanes<V = V>>(l: L, q: u64) -> Self {
        let (two, two_q) = centred_pair((1 << (2 * DIGIT)) % q, q);
        Self { digit: l.splat(f64_of(1 << DIGIT)), two: l.splat(two), two_q: l.splat(two_q) }
    }

    /// `sums = sums + acc mod q`, or `acc mod q` if this is the `first`; |sums| <= q/2 and one unit.
    ///
    /// With a = acc[0] + 2^16·acc[1], below 2^48, and b = acc[2] + 2^16·acc[3], the value is a + 2^32·b; and b is
    /// 2^16 times a word's upper part or less, |b| <= 2^16·(q/2^33 + 1), which is below 2q where digits reach that far.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn add<L: Lanes<V = V>, const P: usize>(
        &self,
        l: L,
        f: &Field<V>,
        acc: &[[i32; 8]; P],
        first: bool,
        sums: &mut [L::Block],
    ) {
        for (k, sum) in sums.iter_mut().enumerate() {
            let at = |p: usize| l.load_i32(&acc[p][k * L::WIDTH..]);
            let a = l.mul_add_small(at(1), self.digit, at(0));
            let b = if P == 4 { l.mul_add_small(at(P - 1), self.digit, at(2)) } else { at(2) };
            let v = l.add(l.reduce(f, a), l.mul(f, b, self.two, self.two_q));
            let v = if first { v } else { l.add(v, l.load(sum)) };
            l.store(l.reduce(f, v), sum);
        }
    }
}
