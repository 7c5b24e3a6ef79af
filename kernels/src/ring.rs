//! A ring with its tables and its chosen instruction set: the object on which arithmetic is called.

use crate::{
    Coeff, Error, Isa, Ntt, Params, Poly,
    cpu::{self, Field, Kernel, Lanes},
    ntt::{Forward, Inverse, InverseProduct, NttTable},
};
use std::sync::Arc;

/// Checked parameters, NTT tables and one instruction set. Cheap to clone.
#[derive(Clone)]
pub struct Ring {
    params: Params,
    isa: Isa,
    table: Arc<NttTable>,
}

impl Ring {
    /// The ring on the best instruction set of this machine.
    ///
    /// # Errors
    /// [`Error::Isa`] if `BIFROST_ISA` asks for one that is not there, [`Error::SelfTest`] for one that is wrong.
    pub fn new(params: Params) -> Result<Self, Error> {
        Ok(Self::with_isa(params, Isa::detect()?))
    }

    /// The ring on a given instruction set.
    pub fn with_isa(params: Params, isa: Isa) -> Self {
        Self { params, isa, table: Arc::new(NttTable::new(&params)) }
    }

    /// The same ring on another instruction set.
    pub(crate) fn on(&self, isa: Isa) -> Self {
        Self { isa, ..self.clone() }
    }

    /// The parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Ring degree N.
    pub fn n(&self) -> usize {
        self.params.n()
    }

    /// The prime modulus q.
    pub fn q(&self) -> u64 {
        self.params.q()
    }

    /// Forward transform.
    pub fn forward(&self, mut p: Poly<Coeff>) -> Poly<Ntt> {
        self.forward_residues(p.residues_mut());
        p.into_domain()
    }

    /// Inverse transform.
    pub fn inverse(&self, mut p: Poly<Ntt>) -> Poly<Coeff> {
        self.inverse_residues(p.residues_mut());
        p.into_domain()
    }

    /// The tables.
    pub(crate) fn table(&self) -> &NttTable {
        &self.table
    }

    /// Forward transform in place over one N-word buffer; input and output in [0, q).
    ///
    /// # Panics
    /// If `a` is not N words.
    pub fn forward_residues(&self, a: &mut [u64]) {
        assert_eq!(a.len(), self.n(), "a polynomial has N words");
        cpu::dispatch(self.isa, Forward { table: &self.table, words: a });
    }

    /// Inverse transform in place over one N-word buffer; input and output in [0, q).
    ///
    /// # Panics
    /// If `a` is not N words.
    pub fn inverse_residues(&self, a: &mut [u64]) {
        assert_eq!(a.len(), self.n(), "a polynomial has N words");
        cpu::dispatch(self.isa, Inverse { table: &self.table, words: a });
    }

    /// `out` = the inverse transform of `a·b`, slot by slot; N words each, all in [0, q).
    ///
    /// # Panics
    /// If one is not N words.
    pub fn inverse_product(&self, out: &mut [u64], a: &[u64], b: &[u64]) {
        assert!([out.len(), a.len(), b.len()] == [self.n(); 3], "a polynomial has N words");
        cpu::dispatch(self.isa, InverseProduct { table: &self.table, a, b, out });
    }

    /// `acc = acc + a·b mod q`, slot by slot; all in [0, q). Slices of equal length, a multiple of 8.
    ///
    /// # Panics
    /// If the lengths are not so.
    pub fn mul_add(&self, acc: &mut [u64], a: &[u64], b: &[u64]) {
        self.multiply::<false>(acc, a, b);
    }

    /// `acc = acc - a·b mod q`, slot by slot; all in [0, q). Slices of equal length, a multiple of 8.
    ///
    /// # Panics
    /// If the lengths are not so.
    pub fn mul_sub(&self, acc: &mut [u64], a: &[u64], b: &[u64]) {
        self.multiply::<true>(acc, a, b);
    }

    /// `out = a·b mod q`, slot by slot; all in [0, q). Slices of equal length, a multiple of 8.
    ///
    /// # Panics
    /// If the lengths are not so.
    pub fn mul(&self, out: &mut [u64], a: &[u64], b: &[u64]) {
        assert!(
            out.len() == a.len() && a.len() == b.len() && a.len().is_multiple_of(8),
            "equal lengths, a multiple of 8"
        );
        cpu::dispatch(self.isa, Product { q: self.q(), out, a, b });
    }

    fn multiply<const SUBTRACT: bool>(&self, acc: &mut [u64], a: &[u64], b: &[u64]) {
        assert!(
            acc.len() == a.len() && a.len() == b.len() && a.len().is_multiple_of(8),
            "equal lengths, a multiple of 8"
        );
        cpu::dispatch(self.isa, Multiply::<SUBTRACT> { q: self.q(), acc, a, b });
    }
}

/// `out = a·b mod q`, words in [0, q).
struct Product<'a> {
    q: u64,
    out: &'a mut [u64],
    a: &'a [u64],
    b: &'a [u64],
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.q);
        let out: &mut [L::Block] = bytemuck::cast_slice_mut(self.out);
        let (a, b): (&[L::Block], &[L::Block]) = (bytemuck::cast_slice(self.a), bytemuck::cast_slice(self.b));
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            // Centre one factor, as `Lanes::mul` wants.
            let w = l.reduce(&f, l.load_words(b));
            let product = l.mul(&f, l.load_words(a), w, l.quotient(&f, w));
            l.store_words(&f, product, out);
        }
    }
}

/// `acc = acc ± a·b mod q`, words in [0, q).
struct Multiply<'a, const SUBTRACT: bool> {
    q: u64,
    acc: &'a mut [u64],
    a: &'a [u64],
    b: &'a [u64],
}

impl<const SUBTRACT: bool> Kernel for Multiply<'_, SUBTRACT> {
    type Output = ();

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "must be compiled with the caller's target features")]
    fn run<L: Lanes>(self, l: L) {
        let f = Field::new(l, self.q);
        let acc: &mut [L::Block] = bytemuck::cast_slice_mut(self.acc);
        let (a, b): (&[L::Block], &[L::Block]) = (bytemuck::cast_slice(self.a), bytemuck::cast_slice(self.b));
        for ((acc, a), b) in acc.iter_mut().zip(a).zip(b) {
            // Centre one factor, as `Lanes::mul` wants.
            let w = l.reduce(&f, l.load_words(b));
            let product = l.mul(&f, l.load_words(a), w, l.quotient(&f, w));
            let c = l.load_words(acc);
            let sum = if SUBTRACT { l.sub(c, product) } else { l.add(c, product) };
            l.store_words(&f, l.reduce(&f, sum), acc);
        }
    }
}
