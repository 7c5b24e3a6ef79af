//! The bytes between a runtime and its helper. One request, then the end of the stream; one answer, then the end.
//!
//! | request | bytes |
//! |---|---|
//! | quote | `01`, 64 bytes of report data |
//! | extend RTMR3 | `02`, length (u32, big-endian), a `RuntimeEvent` |
//!
//! An answer is a status byte, a length (u32, big-endian) and a body: `00` with an `Evidence` without values, `01` extended,
//! `02` no register, `03` no TEE and why, `04` failed and why. Texts are UTF-8.

use crate::{
    MAX_BLOB,
    rtmr::{MAX_NAME, MAX_PAYLOAD},
};
use attest::source::Collected;
use prost::Message;
use proto::v1::{Admission, Evidence, RuntimeEvent, RuntimeValues};
use std::io::{self, Read, Write};

/// Most bytes of an event.
const MAX_EVENT: usize = MAX_NAME + MAX_PAYLOAD + 16;
/// Most bytes of an answer: quote, event log and certificates, and the log of RTMR3.
const MAX_ANSWER: usize = 3 * MAX_BLOB + 65_536;
/// Most bytes of an error's text.
const MAX_TEXT: usize = 1024;

/// What a runtime asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A quote over this.
    Quote([u8; 64]),
    /// An extension of RTMR3.
    Extend(RuntimeEvent),
}

/// What the helper answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The quote.
    Quoted(Box<Collected>),
    /// The register is extended, or had been with the same.
    Extended,
    /// There is no such register.
    NoRegister,
    /// There is no TEE.
    NoTee(String),
    /// There is one, and it did not work.
    Failed(String),
}

/// Why bytes are no request or answer.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The stream broke off.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A number that means nothing.
    #[error("kind is {0}, which is none")]
    Kind(u8),
    /// Too long.
    #[error("length is {found}, expected at most {most}")]
    Length {
        /// Bytes announced.
        found: usize,
        /// Bytes allowed.
        most: usize,
    },
    /// Not a message.
    #[error("body: {0}")]
    Body(#[from] prost::DecodeError),
    /// An unknown platform.
    #[error("platform is {0}, which is none")]
    Platform(i32),
    /// More than one message.
    #[error("bytes after the end")]
    Trailing,
}

impl Request {
    /// Writes it.
    ///
    /// # Errors
    /// [`WireError`] of the stream or because an event is too long.
    pub fn write(&self, out: &mut impl Write) -> Result<(), WireError> {
        let mut bytes = Vec::new();
        match self {
            Self::Quote(report_data) => {
                bytes.push(1);
                bytes.extend_from_slice(report_data);
            }
            Self::Extend(event) => {
                bytes.push(2);
                put(&mut bytes, &event.encode_to_vec(), MAX_EVENT)?;
            }
        }
        Ok(out.write_all(&bytes)?)
    }

    /// Reads one and the end of the stream after it.
    ///
    /// # Errors
    /// [`WireError`] for anything else.
    pub fn read(input: &mut impl Read) -> Result<Self, WireError> {
        let request = match byte(input)? {
            1 => {
                let mut report_data = [0; 64];
                input.read_exact(&mut report_data)?;
                Self::Quote(report_data)
            }
            2 => Self::Extend(RuntimeEvent::decode(take(input, MAX_EVENT)?.as_slice())?),
            other => return Err(WireError::Kind(other)),
        };
        end(input)?;
        Ok(request)
    }
}

impl Answer {
    /// Writes it.
    ///
    /// # Errors
    /// [`WireError`] of the stream.
    pub fn write(self, out: &mut impl Write) -> Result<(), WireError> {
        let (status, body) = match self {
            Self::Quoted(collected) => (0, without_values(*collected).encode_to_vec()),
            Self::Extended => (1, Vec::new()),
            Self::NoRegister => (2, Vec::new()),
            Self::NoTee(text) => (3, short(text)),
            Self::Failed(text) => (4, short(text)),
        };
        let mut bytes = vec![status];
        put(&mut bytes, &body, MAX_ANSWER)?;
        Ok(out.write_all(&bytes)?)
    }

    /// Reads one and the end of the stream after it.
    ///
    /// # Errors
    /// [`WireError`] for anything else.
    pub fn read(input: &mut impl Read) -> Result<Self, WireError> {
        let status = byte(input)?;
        let most = match status {
            0 => MAX_ANSWER,
            1 | 2 => 0,
            3 | 4 => MAX_TEXT,
            other => return Err(WireError::Kind(other)),
        };
        let body = take(input, most)?;
        end(input)?;
        let text = || String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).collect();
        Ok(match status {
            0 => Self::Quoted(Box::new(collected(Evidence::decode(body.as_slice())?)?)),
            1 => Self::Extended,
            2 => Self::NoRegister,
            3 => Self::NoTee(text()),
            _ => Self::Failed(text()),
        })
    }
}

fn without_values(collected: Collected) -> Evidence {
    Evidence { values: None, ..collected.evidence(RuntimeValues::default(), Admission::Unspecified) }
}

fn collected(evidence: Evidence) -> Result<Collected, WireError> {
    let platform = evidence.platform.try_into().map_err(|_| WireError::Platform(evidence.platform))?;
    Ok(Collected {
        platform,
        quote: evidence.quote.into(),
        event_log: evidence.event_log.into(),
        runtime_log: evidence.runtime_log,
        certificates: evidence.certificates.into(),
        azure: evidence.azure,
    })
}

fn short(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.truncate(MAX_TEXT);
    bytes
}

fn put(out: &mut Vec<u8>, body: &[u8], most: usize) -> Result<(), WireError> {
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= most);
    let length = length.ok_or(WireError::Length { found: body.len(), most })?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(body);
    Ok(())
}

fn take(input: &mut impl Read, most: usize) -> Result<Vec<u8>, WireError> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let found = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if found > most {
        return Err(WireError::Length { found, most });
    }
    let mut body = vec![0; found];
    input.read_exact(&mut body)?;
    Ok(body)
}

fn byte(input: &mut impl Read) -> Result<u8, WireError> {
    let mut byte = [0];
    input.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn end(input: &mut impl Read) -> Result<(), WireError> {
    if input.read(&mut [0])? == 0 { Ok(()) } else { Err(WireError::Trailing) }
}
