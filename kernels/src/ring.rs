//! A ring with its tables and its chosen instruction set: the object on which arithmetic is called.

use crate::{Coeff, Error, Isa, Ntt, Params, Poly, modulus, ntt::NttTable};
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
    /// [`Error::Isa`] if `BIFROST_ISA` asks for one that is not there.
    pub fn new(params: Params) -> Result<Self, Error> {
        Ok(Self::with_isa(params, Isa::detect()?))
    }

    /// The ring on a given instruction set.
    pub fn with_isa(params: Params, isa: Isa) -> Self {
        Self { params, isa, table: Arc::new(NttTable::new(&params)) }
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

    /// Forward transform in place over one N-word buffer; input and output in [0, q).
    pub fn forward_residues(&self, a: &mut [u64]) {
        self.table.forward_scalar(a);
    }

    /// Inverse transform in place over one N-word buffer; input and output in [0, q).
    pub fn inverse_residues(&self, a: &mut [u64]) {
        self.table.inverse_scalar(a);
    }

    /// `acc = acc + a·b mod q`, slot by slot; all in [0, q). Slices of equal length.
    pub fn mul_add(&self, acc: &mut [u64], a: &[u64], b: &[u64]) {
        let q = self.q();
        for ((c, a), b) in acc.iter_mut().zip(a).zip(b) {
            *c = modulus::add(*c, modulus::mul(*a, *b, q), q);
        }
    }

    /// `acc = acc - a·b mod q`, slot by slot; all in [0, q). Slices of equal length.
    pub fn mul_sub(&self, acc: &mut [u64], a: &[u64], b: &[u64]) {
        let q = self.q();
        for ((c, a), b) in acc.iter_mut().zip(a).zip(b) {
            *c = modulus::sub(*c, modulus::mul(*a, *b, q), q);
        }
    }
}
