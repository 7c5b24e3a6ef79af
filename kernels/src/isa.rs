//! Which instruction set the arithmetic uses: detected once, then carried as a value.

use crate::{Error, selftest};

/// An instruction set. A value other than [`Isa::Scalar`] is only made by detection, so holding one
/// proves that this machine has it (the fields are private to this module).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

/// The implementations there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Portable Rust; the oracle.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, DQ, BW, VL, IFMA and VNNI.
    Avx512,
}

impl Isa {
    /// Portable Rust, on every machine.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The fastest implementation this machine can run, or the one that `BIFROST_ISA` (scalar, avx2, avx512) asks for,
    /// after a comparison with the portable one: a few milliseconds once a process, nothing when it is called again.
    ///
    /// # Errors
    /// [`Error::Isa`] if `BIFROST_ISA` names one that is unknown or that this machine does not have,
    /// [`Error::SelfTest`] if it computes something else than portable code.
    pub fn detect() -> Result<Self, Error> {
        let isa = match std::env::var_os("BIFROST_ISA") {
            Some(name) => Self::named(&name.to_string_lossy())?,
            None => Self::avx512().or_else(Self::avx2).unwrap_or(Self::SCALAR),
        };
        selftest::check(isa)?;
        Ok(isa)
    }

    /// The implementation of that name, if this machine has it.
    fn named(name: &str) -> Result<Self, Error> {
        let available = Self::available();
        available.iter().copied().find(|isa| isa.name() == name).ok_or_else(|| Error::Isa {
            value: name.into(),
            available: available.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", "),
        })
    }

    /// AVX2 and FMA, if this machine has them; not compared with anything.
    pub fn avx2() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return crate::cpu::avx2::Avx2::detect().map(|_| Self(Kind::Avx2));
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// AVX-512 with IFMA and VNNI, if this machine has them; not compared with anything.
    pub fn avx512() -> Option<Self> {
        #[cfg(any(target_arch = "x86_64", emulated_avx512))]
        return crate::cpu::avx512::Avx512::detect().map(|_| Self(Kind::Avx512));
        #[cfg(not(any(target_arch = "x86_64", emulated_avx512)))]
        None
    }

    /// Every implementation this machine can run, the oracle first.
    pub fn available() -> Vec<Self> {
        [Some(Self::SCALAR), Self::avx2(), Self::avx512()].into_iter().flatten().collect()
    }

    /// Which implementation this is.
    pub fn kind(self) -> Kind {
        self.0
    }

    /// "scalar", "avx2" or "avx512".
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Scalar => "scalar",
            Kind::Avx2 => "avx2",
            Kind::Avx512 => "avx512",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_or_refused_with_what_there_is() {
        for isa in Isa::available() {
            assert_eq!(Isa::named(isa.name()).unwrap(), isa);
        }
        for bad in ["mmx", "", "AVX2"] {
            let err = Isa::named(bad).expect_err("refused").to_string();
            assert!(
                err.starts_with(&format!("BIFROST_ISA is {bad:?}, expected one that this machine has: scalar")),
                "{err}"
            );
        }
    }
}
