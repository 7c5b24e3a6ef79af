//! Worlds that must never be mistaken for one another.

/// What keeps one kind of attestation apart from another: every tag that goes into a hash or onto the wire.
///
/// There is one implementation in this crate, [`Hardware`]. Simulated TEEs have their own, in a crate of their own that no
/// production binary contains.
pub trait Domain: Send + Sync + 'static {
    /// The `mode` inside the binding, and its name in reports.
    const MODE: &'static str;
    /// First field of the binding.
    const TAG: &'static [u8];
    /// ALPN protocol of the connection.
    const ALPN: &'static [u8];
    /// Label of the TLS exporter, RFC 8446 section 7.5.
    const EXPORTER: &'static [u8];
    /// `info` of HPKE, RFC 9180 section 5.1.
    const RELEASE: &'static [u8];
    /// Shown on every screen, in every log and receipt; none for the real thing.
    const BANNER: Option<&'static str>;
}

/// Evidence signed by the makers of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware;

impl Domain for Hardware {
    const MODE: &'static str = "hardware";
    const TAG: &'static [u8] = b"bifrost/attest/v1";
    const ALPN: &'static [u8] = b"bifrost-attest/1";
    const EXPORTER: &'static [u8] = b"EXPORTER-bifrost-attest-v1";
    const RELEASE: &'static [u8] = b"bifrost/key-release/v1";
    const BANNER: Option<&'static str> = None;
}
