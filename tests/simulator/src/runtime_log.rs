//! RTMR3 of a simulated TD: a register in software.

use proto::v1::RuntimeEvent;
use sha2::{Digest, Sha384};

/// What one event extends the register with: `SHA-384(u32_be(len(name)) || name || u32_be(len(payload)) || payload)`.
#[must_use]
pub fn extension(event: &RuntimeEvent) -> [u8; 48] {
    let mut hash = Sha384::new();
    for field in [event.name.as_bytes(), &event.payload] {
        hash.update(u32::try_from(field.len()).unwrap_or(u32::MAX).to_be_bytes());
        hash.update(field);
    }
    hash.finalize().into()
}

/// `start` after these events, each by `register = SHA-384(register || extension)`.
#[must_use]
pub fn replay<'a>(start: [u8; 48], events: impl IntoIterator<Item = &'a RuntimeEvent>) -> [u8; 48] {
    events.into_iter().fold(start, |register, event| {
        Sha384::new().chain_update(register).chain_update(extension(event)).finalize().into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, payload: &'static [u8]) -> RuntimeEvent {
        RuntimeEvent { name: name.to_owned(), payload: payload.into() }
    }

    #[test]
    fn nothing_moves_between_name_and_payload() {
        assert_ne!(extension(&event("ab", b"c")), extension(&event("a", b"bc")));
    }

    #[test]
    fn the_order_of_events_counts() {
        let (a, b) = (event("model", b"1"), event("config", b"2"));
        assert_eq!(replay([0; 48], []), [0; 48]);
        assert_ne!(replay([0; 48], [&a, &b]), replay([0; 48], [&b, &a]));
        assert_eq!(replay(replay([0; 48], [&a]), [&b]), replay([0; 48], [&a, &b]));
    }
}
