//! The little of DER that the SGX extension of a PCK certificate needs, X.690.

/// One element: tag, length (X.690 section 8.1.3), content.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut out = vec![tag];
    match significant {
        [] => out.push(0),
        [short] if *short < 0x80 => out.push(*short),
        long => {
            out.push((1..=8).zip(long).fold(0x80, |_, (count, _)| 0x80 | count));
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(content);
    out
}

/// A SEQUENCE of elements.
pub(crate) fn sequence(elements: &[Vec<u8>]) -> Vec<u8> {
    element(0x30, &elements.concat())
}

/// A non-negative INTEGER in as few bytes as it takes, X.690 section 8.3.
pub(crate) fn integer(value: u16) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    match bytes {
        [0, low] if low < 0x80 => element(0x02, &[low]),
        [high, _] if high < 0x80 => element(0x02, &bytes),
        [high, low] => element(0x02, &[0, high, low]),
    }
}

/// An OCTET STRING.
pub(crate) fn octets(value: &[u8]) -> Vec<u8> {
    element(0x04, value)
}

/// An ENUMERATED of one byte; `value` is below 128.
pub(crate) fn enumerated(value: u8) -> Vec<u8> {
    element(0x0a, &[value])
}

/// A BOOLEAN.
pub(crate) fn boolean(value: bool) -> Vec<u8> {
    element(0x01, &[if value { 0xff } else { 0 }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_short_or_counted() {
        assert_eq!(element(4, &[]), [4, 0]);
        assert_eq!(element(4, &[7; 127])[..2], [4, 127]);
        assert_eq!(element(4, &[7; 128])[..3], [4, 0x81, 128]);
        assert_eq!(element(4, &[7; 300])[..4], [4, 0x82, 1, 44]);
    }

    #[test]
    fn integers_are_minimal_and_not_negative() {
        assert_eq!(integer(0), [2, 1, 0]);
        assert_eq!(integer(127), [2, 1, 127]);
        assert_eq!(integer(128), [2, 2, 0, 128]);
        assert_eq!(integer(0x8000), [2, 3, 0, 0x80, 0]);
    }
}
