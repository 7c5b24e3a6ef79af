//! How something comes to be almost right.

/// With one bit of the last byte turned, if `wanted`: in what is signed, the signature is at the end.
pub(crate) fn spoiled(mut bytes: Vec<u8>, wanted: bool) -> Vec<u8> {
    if let (true, Some(last)) = (wanted, bytes.last_mut()) {
        *last ^= 1;
    }
    bytes
}
