//! Text where identities and measurements would be.

/// `BIFROST-SIMULATED-` and `name` in ASCII, filled with full stops to `N` bytes, and cut there.
pub(crate) fn marker<const N: usize>(name: &str) -> [u8; N] {
    let mut out = [b'.'; N];
    for (to, from) in out.iter_mut().zip(PREFIX.bytes().chain(name.bytes())) {
        *to = from;
    }
    out
}

const PREFIX: &str = "BIFROST-SIMULATED-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_text_of_the_asked_length() {
        assert_eq!(&marker::<24>("TD"), b"BIFROST-SIMULATED-TD....");
        assert_eq!(&marker::<20>("QE-IS-LONGER"), b"BIFROST-SIMULATED-QE");
    }
}
