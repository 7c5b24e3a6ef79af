//! Any bytes: refused, or the canonical message of the words they give, whether these are read at once or in parts.
//!
//! Of the input the first two bytes say what is expected: kind, ring and whether to put the right header before the
//! rest, and where to begin to read. Lengths have to agree to the byte, which mutations alone rarely achieve.

#![no_main]

use kernels::{params, wire};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[how, first], rest)) = data.split_first_chunk() else { return };
    let kind = [wire::Kind::Ntt, wire::Kind::Coefficients, wire::Kind::Lanes][usize::from(how % 3)];
    let params = params::RINGS[usize::from(how / 3 % 3)].check().expect("the rings are checked");
    let framed = how >= 128;
    let body = if framed { rest.len() } else { rest.len().saturating_sub(wire::HEADER) };
    let count = body * 8 / params.bits() as usize;
    let mut words = vec![0; count];
    let mut message = vec![];
    if framed {
        wire::encode(&params, kind, &words, &mut message);
        message.truncate(wire::HEADER);
    }
    message.extend(rest);
    if wire::decode(&params, kind, &message, &mut words).is_err() {
        return;
    }
    let mut again = vec![];
    wire::encode(&params, kind, &words, &mut again);
    assert_eq!(again, message);

    let parsed = wire::Message::parse(&params, kind, &message, count).expect("it has been decoded");
    let first = usize::from(first);
    let mut part = vec![0; count.saturating_sub(first)];
    assert_eq!(parsed.read(first, &mut part).is_ok(), first <= count);
    if let Some(expected) = words.get(first..) {
        assert_eq!(part, expected);
    }
    part.resize(part.len() + 1 + first, 0);
    assert!(parsed.read(first, &mut part).is_err(), "there are not so many");
});
