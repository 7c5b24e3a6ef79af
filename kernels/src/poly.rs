//! Polynomials whose type says which domain their numbers are in.

use std::marker::PhantomData;
use zeroize::Zeroize;

/// Coefficients of 1, X, .., X^(N-1).
pub enum Coeff {}
/// Values at the odd powers of psi, in bit-reversed order.
pub enum Ntt {}

/// An element of Z_q[X]/(X^N + 1): N residues in [0, q), in domain `D`.
///
/// Neither `Debug` nor `Clone`: in the enclave such a polynomial may be a secret.
pub struct Poly<D> {
    residues: Vec<u64>,
    domain: PhantomData<D>,
}

impl<D> Poly<D> {
    /// The zero polynomial of degree below `n`.
    pub fn zero(n: usize) -> Self {
        Self::from_residues(vec![0; n])
    }

    /// Takes residues that the caller has reduced to [0, q).
    pub fn from_residues(residues: Vec<u64>) -> Self {
        Self { residues, domain: PhantomData }
    }

    /// The residues, in the order of the domain.
    pub fn residues(&self) -> &[u64] {
        &self.residues
    }

    /// The residues, to write; values must stay in [0, q).
    pub fn residues_mut(&mut self) -> &mut [u64] {
        &mut self.residues
    }

    pub(crate) fn into_domain<E>(self) -> Poly<E> {
        Poly::from_residues(self.residues)
    }
}

impl<D> Zeroize for Poly<D> {
    fn zeroize(&mut self) {
        self.residues.zeroize();
    }
}
