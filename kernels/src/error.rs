//! What can go wrong with public data, by culprit: a bad literal, a bad shape, a bad message.

/// Errors of this crate. All of them name what was found and what was expected.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// A parameter literal that does not describe a secure, NTT-friendly ring.
    #[error("ring parameters: {0}")]
    Params(String),
    /// A matrix, tiling or buffer whose sizes do not fit together.
    #[error("shape: {0}")]
    Shape(String),
    /// Bytes that are not a well-formed message of the wire format.
    #[error("wire format: {0}")]
    Wire(String),
    /// Memory that the system did not give.
    #[error("memory: {0}")]
    Memory(String),
    /// `BIFROST_ISA` asks for an instruction set that is unknown or that this machine does not have.
    #[error("BIFROST_ISA is {value:?}, expected one that this machine has: {available}")]
    Isa {
        /// What was asked for.
        value: String,
        /// What could be, separated by commas.
        available: String,
    },
    /// An instruction set of this machine that computes something else than portable code: a fault of the processor, of
    /// what emulates it, or of this crate. It must not be used.
    #[error(
        "instruction set {isa} computes the {operation} wrongly on this machine, compared with portable code; \
         BIFROST_ISA={other} uses another one"
    )]
    SelfTest {
        /// The instruction set.
        isa: &'static str,
        /// What differed.
        operation: &'static str,
        /// The next slower one that this machine has.
        other: &'static str,
    },
}
