//! The runtime's own extensions of RTMR3, which the firmware's log never shows.

use crate::hex::{Hex, Sha384};
use proto::v1::RuntimeEvent;
use sha2::Digest as _;

/// Most events that are replayed.
pub const MAX_RUNTIME_EVENTS: usize = 64;
/// Longest name of an event, in bytes.
const MAX_NAME: usize = 128;
/// Longest payload of an event, in bytes.
const MAX_PAYLOAD: usize = 4096;

/// Why a runtime log is not replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeLogError {
    /// Too many events.
    #[error("runtime_log has {found} events, expected {MAX_RUNTIME_EVENTS} at most")]
    Count {
        /// Events there.
        found: usize,
    },
    /// An event that is too long.
    #[error(
        "runtime_log event {at} has a name of {name} and a payload of {payload} bytes, expected {MAX_NAME} and {MAX_PAYLOAD} at most"
    )]
    Length {
        /// Index of the event.
        at: usize,
        /// Bytes of its name.
        name: usize,
        /// Bytes of its payload.
        payload: usize,
    },
}

/// What one event extends RTMR3 by: `SHA-384(u32_be(len(name)) || name || u32_be(len(payload)) || payload)`, as
/// `attestation.proto` says.
#[must_use]
pub fn digest(event: &RuntimeEvent) -> Sha384 {
    let mut hash = sha2::Sha384::new();
    for field in [event.name.as_bytes(), &event.payload] {
        hash.update(u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(field);
    }
    Hex(hash.finalize().into())
}

/// RTMR3 after these events and no others.
///
/// # Errors
/// [`RuntimeLogError`] for a log beyond the caps.
pub fn replay(events: &[RuntimeEvent]) -> Result<Sha384, RuntimeLogError> {
    if events.len() > MAX_RUNTIME_EVENTS {
        return Err(RuntimeLogError::Count { found: events.len() });
    }
    let mut register = Hex::ZERO;
    for (at, event) in events.iter().enumerate() {
        let (name, payload) = (event.name.len(), event.payload.len());
        if name > MAX_NAME || payload > MAX_PAYLOAD {
            return Err(RuntimeLogError::Length { at, name, payload });
        }
        super::extend(&mut register, &digest(event));
    }
    Ok(register)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, payload: &'static [u8]) -> RuntimeEvent {
        RuntimeEvent { name: name.to_owned(), payload: payload.into() }
    }

    /// Computed with Python's hashlib: `sha384(pack(">I", 5) + b"model" + pack(">I", 2) + b"\x01\x02")`, and
    /// `sha384(bytes(48) + that)`.
    #[test]
    fn one_event_by_hand() {
        let model = event("model", &[1, 2]);
        assert_eq!(digest(&model).to_string(), DIGEST);
        assert_eq!(replay(&[model]).unwrap().to_string(), REGISTER);
        assert_eq!(replay(&[]).unwrap(), Hex::ZERO);
    }

    #[test]
    fn nothing_moves_between_fields_and_order_counts() {
        assert_ne!(digest(&event("ab", b"c")), digest(&event("a", b"bc")));
        let (a, b) = (event("a", b""), event("b", b""));
        assert_ne!(replay(&[a.clone(), b.clone()]).unwrap(), replay(&[b, a]).unwrap());
    }

    #[test]
    fn long_logs_are_refused() {
        assert_eq!(replay(&vec![event("a", b""); 65]), Err(RuntimeLogError::Count { found: 65 }));
        let long = RuntimeEvent { name: "a".repeat(129), payload: Default::default() };
        assert_eq!(replay(&[long]), Err(RuntimeLogError::Length { at: 0, name: 129, payload: 0 }));
    }

    const DIGEST: &str =
        "24c244d959d375271db292c2f291e6e1f2eb731ab95ba94533772cc4cf7f2c8b815b14ee3c6702ae9ce1cb5300f383d8";
    const REGISTER: &str =
        "a85f81ef1ac2ca0000d3d3c75cbfdda8f7533419464afedaabeb5926160967e6e1773156f9daaae058babe7de992d25b";
}
