//! The rings that this evaluator computes in, with their tables.

use crate::{Error, header::hex};
use kernels::{Isa, Ring, params::RINGS};

/// One ring for each of [`RINGS`].
#[derive(Clone)]
pub struct Rings(Vec<Ring>);

impl Rings {
    /// All of them, on the best instruction set of this machine.
    ///
    /// # Errors
    /// [`Error::Config`] if `BIFROST_ISA` asks for an instruction set that is not there.
    pub fn new() -> Result<Self, Error> {
        let isa = Isa::detect().map_err(|e| Error::Config(e.to_string()))?;
        let ring = |literal: &kernels::ParamsLiteral| Ok(Ring::with_isa(literal.check()?, isa));
        RINGS.iter().map(ring).collect::<Result<_, kernels::Error>>().map(Self).map_err(|e| Error::Bug(e.to_string()))
    }

    /// The ring with these parameters.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming what was asked for and what there is.
    pub fn find(&self, params_id: &[u8]) -> Result<&Ring, Error> {
        self.0.iter().find(|ring| ring.params().id().0 == params_id).ok_or_else(|| {
            let ours: Vec<_> = self.0.iter().map(|ring| hex(&ring.params().id().0)).collect();
            Error::Mismatch(format!(
                "ring parameters: the runtime has {}, the evaluator has {}",
                hex(&params_id[..params_id.len().min(32)]),
                ours.join(", ")
            ))
        })
    }

    /// The instruction set of all of them.
    pub fn isa(&self) -> Isa {
        self.0.first().map_or(Isa::SCALAR, Ring::isa)
    }
}
