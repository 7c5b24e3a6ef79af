//! The world of simulated hardware, as the runtime and the client see it.

use attest::{
    Domain,
    source::{Source, SourceError},
};
use attest_verify::Anchor;
use client::trust::Trust;
use proto::v1::RuntimeEvent;
use simulator::{Authority, Platform, Simulated, SimulatedTdx, TdReport};
use trusted_runtime::{attestation::World, config::AttestationSection};

/// Simulated hardware. Its tags are the simulator's.
pub struct SimulatedWorld;

impl Domain for SimulatedWorld {
    const MODE: &'static str = Simulated::MODE;
    const TAG: &'static [u8] = Simulated::TAG;
    const ALPN: &'static [u8] = Simulated::ALPN;
    const EXPORTER: &'static [u8] = Simulated::EXPORTER;
    const RELEASE: &'static [u8] = Simulated::RELEASE;
    const BANNER: Option<&'static str> = Simulated::BANNER;
}

impl Anchor for SimulatedWorld {
    fn intel_root() -> Option<Vec<u8>> {
        // Without one nothing is accepted.
        Some(Authority::fixed().map(|authority| authority.root_der().to_vec()).unwrap_or_default())
    }
}

impl Trust for SimulatedWorld {
    const TEST_KEYS: bool = true;
}

impl World for SimulatedWorld {
    fn source(_: &AttestationSection, events: &[RuntimeEvent]) -> Result<Box<dyn Source>, SourceError> {
        let td = match std::env::var(TD).as_deref() {
            Ok("debug") => TdReport::default().debug(),
            Ok("td15") => TdReport::default().td15(),
            Ok(other) => return Err(SourceError::NoTee(format!("{TD} is {other:?}, expected debug or td15"))),
            Err(_) => TdReport::default(),
        };
        let platform = Authority::fixed().and_then(Platform::new).map_err(|e| SourceError::Quote(e.to_string()))?;
        let tdx = SimulatedTdx::running(platform, td);
        for event in events {
            tdx.extend(&event.name, &event.payload);
        }
        Ok(Box::new(tdx))
    }

    fn anywhere(section: &AttestationSection) -> bool {
        section.danger_listen_anywhere
    }
}

/// What kind of TD is simulated, for tests that want a bad one.
const TD: &str = "BIFROST_SIMULATED_TD";
