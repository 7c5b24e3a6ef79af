//! Whose signature counts.

/// A domain with the roots that its evidence must lead to.
///
/// There is one implementation in this crate, for [`attest::Hardware`], and it names no root: the makers' own, which are
/// compiled in, are used. A simulated domain has its own in its own crate.
pub trait Anchor: attest::Domain {
    /// DER certificate of the root that TDX quotes and collateral must lead to; `None` for Intel's.
    #[must_use]
    fn intel_root() -> Option<Vec<u8>> {
        None
    }

    /// DER certificates of the roots that SEV-SNP reports must lead to; `None` for AMD's, one for each product.
    #[must_use]
    fn amd_roots() -> Option<Vec<Vec<u8>>> {
        None
    }
}

impl Anchor for attest::Hardware {}
