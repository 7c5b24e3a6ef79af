//! Server-sent events out of bytes that arrive in any pieces.

/// The data of events, put together (HTML Living Standard, 9.2.6, as far as `data` goes). Holds generated text, so it
/// has no `Debug`.
#[derive(Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Option<String>,
    /// The last byte was a carriage return, which a line feed may belong to.
    returned: bool,
}

impl Events {
    /// Takes more bytes and gives the data of the events that they complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut complete = Vec::new();
        for byte in bytes {
            let after_return = std::mem::replace(&mut self.returned, *byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => complete.extend(self.end_of_line()),
                byte => self.line.push(*byte),
            }
        }
        complete
    }

    fn end_of_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.data.take();
        }
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[][..],
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => value,
            // Comments and other fields.
            _ => return None,
        };
        let value = String::from_utf8_lossy(value);
        match &mut self.data {
            Some(data) => {
                data.push('\n');
                data.push_str(&value);
            }
            None => self.data = Some(value.into_owned()),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_may_be_split_at_any_byte() {
        let stream = ": keep-alive\n\ndata: {\"text\":\"é\"}\n\nevent: x\r\ndata:a\r\ndata: b\r\n\r\nid: 7\n\ndata\n\ndata: [DONE]\n\n";
        let expected = ["{\"text\":\"é\"}", "a\nb", "", "[DONE]"];
        let bytes = stream.as_bytes();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut events = Events::default();
                let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
                let found: Vec<_> = pieces.into_iter().flat_map(|piece| events.push(piece)).collect();
                assert_eq!(found, expected, "{first} {second}");
            }
        }
    }

    #[test]
    fn what_is_not_complete_is_not_told() {
        let mut events = Events::default();
        assert!(events.push(b"data: {\"a\"").is_empty() && events.push(b": 1}\n").is_empty());
        assert_eq!(events.push(b"\n"), ["{\"a\": 1}"]);
        assert!(events.push(b"\n\n\n").is_empty());
    }
}
