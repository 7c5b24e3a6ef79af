//! The world that simulated evidence lives in.

use attest::Domain;

/// Evidence of a simulated platform. No tag is shared with [`attest::Hardware`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Simulated;

impl Domain for Simulated {
    const MODE: &'static str = "simulated";
    const TAG: &'static [u8] = b"bifrost-simulated/attest/v1";
    const ALPN: &'static [u8] = b"bifrost-simulated-attest/1";
    const EXPORTER: &'static [u8] = b"EXPORTER-bifrost-simulated-attest-v1";
    const RELEASE: &'static [u8] = b"bifrost-simulated/key-release/v1";
    const BANNER: Option<&'static str> = Some("SIMULATED");
}
