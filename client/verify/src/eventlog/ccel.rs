//! The firmware's log: TCG PC Client Platform Firmware Profile 1.06, section 10, with measurement registers in place of
//! PCRs. Index 1 is RTMR0, index 4 is RTMR3. UEFI 2.11, section 38.4.1.

use crate::hex::{Hex, Sha384};

/// Largest log that is read, in bytes. Google's reserves 256 KiB.
pub const MAX_EVENT_LOG: usize = 1 << 20;
/// Most entries that are read.
const MAX_EVENTS: usize = 16_384;
/// Most digests of one entry, and algorithms of the header.
const MAX_ALGORITHMS: usize = 8;
/// Longest digest of an algorithm, in bytes.
const MAX_DIGEST: usize = 64;
/// TCG algorithm registry: SHA-384.
const SHA384: u16 = 0x000c;
/// An entry that says something and extends nothing.
const EV_NO_ACTION: u32 = 3;
/// Memory that was never written.
const UNWRITTEN: u32 = u32::MAX;

/// A log that was taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventLog {
    extensions: Vec<Extension>,
    skipped: usize,
}

/// One extension of a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// 0 to 3.
    pub rtmr: usize,
    /// TCG event type.
    pub kind: u32,
    /// What the register was extended by.
    pub digest: Sha384,
    /// What the guest says it was. Not covered by any measurement unless the digest is of just this.
    pub data: Vec<u8>,
}

/// Why bytes are no event log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventLogError {
    /// Too large.
    #[error("event_log is {found} bytes, expected {MAX_EVENT_LOG} at most")]
    Size {
        /// Bytes there.
        found: usize,
    },
    /// It ends within an entry.
    #[error("event_log ends within {field} at byte {at}")]
    Truncated {
        /// What was being read.
        field: &'static str,
        /// Where it begins.
        at: usize,
    },
    /// The first entry is not the header of a log with a choice of algorithms.
    #[error("event_log begins with {found}, expected a specification id event of version 03")]
    Header {
        /// What is there.
        found: String,
    },
    /// No SHA-384 in the header or in an entry, or one of another length.
    #[error("event_log {place} has no SHA-384 of 48 bytes")]
    NoSha384 {
        /// Where.
        place: String,
    },
    /// A digest of an algorithm that the header does not list.
    #[error("event_log entry {at} has a digest of algorithm {found:#06x}, which its header does not list")]
    Algorithm {
        /// Index of the entry.
        at: usize,
        /// The algorithm.
        found: u16,
    },
    /// A number beyond its cap.
    #[error("event_log {field} is {found}, expected {most} at most")]
    Cap {
        /// What is too large.
        field: &'static str,
        /// How large.
        found: usize,
        /// The cap.
        most: usize,
    },
    /// A register that does not exist.
    #[error("event_log entry {at} is of register index {found}, expected 1 to 4")]
    Register {
        /// Index of the entry.
        at: usize,
        /// The index there.
        found: u32,
    },
}

impl EventLog {
    /// Takes a log apart, up to where it was written.
    ///
    /// # Errors
    /// [`EventLogError`] naming the field.
    pub fn parse(bytes: &[u8]) -> Result<Self, EventLogError> {
        if bytes.len() > MAX_EVENT_LOG {
            return Err(EventLogError::Size { found: bytes.len() });
        }
        let mut cursor = Cursor { bytes, at: 0 };
        let algorithms = header(&mut cursor)?;
        let mut log = Self::default();
        let mut at = 0;
        while !cursor.unwritten() {
            if at == MAX_EVENTS {
                return Err(EventLogError::Cap { field: "number of entries", found: at + 1, most: MAX_EVENTS });
            }
            log.entry(&mut cursor, &algorithms, at)?;
            at += 1;
        }
        Ok(log)
    }

    /// The extensions in order.
    #[must_use]
    pub fn extensions(&self) -> &[Extension] {
        &self.extensions
    }

    /// Entries that extend nothing.
    #[must_use]
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// RTMR0 to RTMR3 after these extensions and no others.
    #[must_use]
    pub fn replay(&self) -> [Sha384; 4] {
        let mut registers = [Hex::ZERO; 4];
        for extension in &self.extensions {
            if let Some(register) = registers.get_mut(extension.rtmr) {
                super::extend(register, &extension.digest);
            }
        }
        registers
    }

    /// TCG_PCR_EVENT2, section 10.2.2.
    fn entry(&mut self, cursor: &mut Cursor<'_>, algorithms: &[(u16, usize)], at: usize) -> Result<(), EventLogError> {
        let index = cursor.u32("register index")?;
        let kind = cursor.u32("event type")?;
        let count = cursor.length("number of digests", MAX_ALGORITHMS)?;
        let mut digest = None;
        for _ in 0..count {
            let found = cursor.u16("digest algorithm")?;
            let Some(&(_, length)) = algorithms.iter().find(|(algorithm, _)| *algorithm == found) else {
                return Err(EventLogError::Algorithm { at, found });
            };
            let bytes = cursor.take("digest", length)?;
            if found == SHA384 {
                digest = bytes.try_into().ok().map(Hex);
            }
        }
        let length = cursor.length("event size", MAX_EVENT_LOG)?;
        let data = cursor.take("event", length)?.to_vec();
        if kind == EV_NO_ACTION {
            self.skipped += 1;
            return Ok(());
        }
        let rtmr = match index {
            1..=4 => usize::try_from(index - 1).unwrap_or_default(),
            found => return Err(EventLogError::Register { at, found }),
        };
        let digest = digest.ok_or_else(|| EventLogError::NoSha384 { place: format!("entry {at}") })?;
        self.extensions.push(Extension { rtmr, kind, digest, data });
        Ok(())
    }
}

/// TCG_PCR_EVENT with a TCG_EfiSpecIDEvent in it, sections 10.2.1 and 10.4.5.1; the algorithms and lengths of digests.
fn header(cursor: &mut Cursor<'_>) -> Result<Vec<(u16, usize)>, EventLogError> {
    const SIGNATURE: &[u8] = b"Spec ID Event03\0";
    const SHA1: usize = 20;
    /// Platform class, version, errata, and the size of an integer.
    const ABOUT: usize = 8;
    cursor.u32("register index")?;
    let kind = cursor.u32("event type")?;
    if kind != EV_NO_ACTION {
        return Err(EventLogError::Header { found: format!("an event of type {kind:#x}") });
    }
    cursor.take("digest", SHA1)?;
    let length = cursor.length("event size", MAX_EVENT_LOG)?;
    let mut event = Cursor { bytes: cursor.take("event", length)?, at: 0 };
    let signature = event.take("signature", SIGNATURE.len())?;
    if signature != SIGNATURE {
        return Err(EventLogError::Header { found: format!("the signature {}", crate::hex::encode(signature)) });
    }
    event.take("platform class", ABOUT)?;
    let count = event.length("number of algorithms", MAX_ALGORITHMS)?;
    let mut algorithms = Vec::with_capacity(count);
    for _ in 0..count {
        let algorithm = event.u16("algorithm")?;
        let length = usize::from(event.u16("digest size")?);
        if length > MAX_DIGEST {
            return Err(EventLogError::Cap { field: "digest size", found: length, most: MAX_DIGEST });
        }
        algorithms.push((algorithm, length));
    }
    if !algorithms.contains(&(SHA384, 48)) {
        return Err(EventLogError::NoSha384 { place: "header".to_owned() });
    }
    Ok(algorithms)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], EventLogError> {
        let end = self.at.checked_add(length);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or(EventLogError::Truncated { field, at: self.at })?;
        self.at += length;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], EventLogError> {
        let at = self.at;
        self.take(field, N)?.try_into().map_err(|_| EventLogError::Truncated { field, at })
    }

    fn u16(&mut self, field: &'static str) -> Result<u16, EventLogError> {
        self.array(field).map(u16::from_le_bytes)
    }

    fn u32(&mut self, field: &'static str) -> Result<u32, EventLogError> {
        self.array(field).map(u32::from_le_bytes)
    }

    fn length(&mut self, field: &'static str, most: usize) -> Result<usize, EventLogError> {
        let found = usize::try_from(self.u32(field)?).unwrap_or(usize::MAX);
        if found > most { Err(EventLogError::Cap { field, found, most }) } else { Ok(found) }
    }

    /// Whether nothing is left, or nothing but memory that was never written. A register index of all ones alone does
    /// not end a log: some firmware writes entries of it that extend nothing.
    fn unwritten(&self) -> bool {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let words: Vec<u32> =
            rest.chunks_exact(4).take(2).filter_map(|word| word.try_into().ok().map(u32::from_le_bytes)).collect();
        match words.as_slice() {
            [] => rest.iter().all(|&byte| byte == u8::MAX),
            [only] => *only == UNWRITTEN,
            [index, kind, ..] => *index == UNWRITTEN && *kind == UNWRITTEN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(entries: &[(u32, u32, &[u8])]) -> Vec<u8> {
        let mut spec = b"Spec ID Event03\0".to_vec();
        spec.extend([0, 0, 0, 0, 0, 2, 0, 2]);
        spec.extend(1u32.to_le_bytes());
        spec.extend([0x0c, 0, 48, 0, 0]);
        let mut bytes = [1u32.to_le_bytes(), 3u32.to_le_bytes()].concat();
        bytes.extend([0; 20]);
        bytes.extend(u32::try_from(spec.len()).unwrap().to_le_bytes());
        bytes.extend(spec);
        for (index, kind, data) in entries {
            bytes.extend(index.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(1u32.to_le_bytes());
            bytes.extend([0x0c, 0]);
            bytes.extend([7; 48]);
            bytes.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
            bytes.extend(*data);
        }
        bytes
    }

    #[test]
    fn entries_that_extend_nothing_are_skipped() {
        let plain = EventLog::parse(&log(&[(1, 8, b"a"), (4, 6, b"b")])).unwrap();
        let with = EventLog::parse(&log(&[(1, 3, b"x"), (1, 8, b"a"), (u32::MAX, 3, b"y"), (4, 6, b"b")])).unwrap();
        assert_eq!(plain.replay(), with.replay());
        assert_eq!(with.skipped(), 2);
        assert_ne!(plain.replay()[0], Hex::ZERO);
        assert_eq!(plain.replay()[1], Hex::ZERO);
        assert_ne!(plain.replay()[3], Hex::ZERO);
    }

    #[test]
    fn unwritten_memory_ends_the_log() {
        let written = log(&[(1, 8, b"a")]);
        for padding in [0, 1, 4, 7, 8, 4096] {
            let padded = [written.clone(), vec![0xff; padding]].concat();
            assert_eq!(EventLog::parse(&padded).unwrap().extensions().len(), 1, "{padding}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(matches!(EventLog::parse(&log(&[(0, 8, b"")])), Err(EventLogError::Register { found: 0, .. })));
        assert!(matches!(EventLog::parse(&log(&[(5, 8, b"")])), Err(EventLogError::Register { found: 5, .. })));
        assert!(matches!(
            EventLog::parse(&log(&[(u32::MAX, 8, b"")])),
            Err(EventLogError::Register { found: u32::MAX, .. })
        ));
        let good = log(&[(1, 8, b"abc")]);
        for length in 0..good.len() {
            let cut = EventLog::parse(good.get(..length).unwrap());
            assert!(cut.is_err() || length == log(&[]).len(), "{length}");
        }
        let mut many = log(&[]);
        let digests = many.len() - 2;
        many[digests - 3] = 0x0b;
        assert!(matches!(EventLog::parse(&many), Err(EventLogError::NoSha384 { .. })));
        assert!(matches!(
            EventLog::parse(&vec![0; MAX_EVENT_LOG + 1]),
            Err(EventLogError::Size { found }) if found == MAX_EVENT_LOG + 1
        ));
    }
}
