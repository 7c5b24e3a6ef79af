//! What a program may write to its standard output.
//!
//! The quote or report itself, raw; or, and always below Azure's paravisor, lines of text: `bifrost-evidence/1` first,
//! then one field a line, its name, one space and its bytes in hexadecimal. Names are `quote`, `event_log`,
//! `certificates`, `hcl_report`, `tpm_quote`, `tpm_signature` and `pcrs`, as in the message `Evidence`; each at most once,
//! `quote` always, the last four together and only below the paravisor.

use crate::MAX_BLOB;
use attest::source::Collected;
use proto::v1::{AzureEvidence, Platform};
use std::collections::BTreeMap;

/// First line of an answer in text.
pub const HEADER: &str = "bifrost-evidence/1";

const FIELDS: [&str; 7] = ["quote", "event_log", "certificates", "hcl_report", "tpm_quote", "tpm_signature", "pcrs"];
const OF_AZURE: [&str; 4] = ["hcl_report", "tpm_quote", "tpm_signature", "pcrs"];
/// SHA-256 PCRs 0 to 23.
const PCRS: usize = 24 * 32;

/// Why an answer cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Raw bytes where text is needed.
    #[error("first line is not {HEADER}, which platforms below Azure's paravisor need")]
    NoHeader,
    /// Not a line of the form.
    #[error("line {0} is not a field name, a space and hexadecimal digits")]
    Line(usize),
    /// A name that is none.
    #[error("line {0} has an unknown field")]
    Unknown(usize),
    /// Twice.
    #[error("field {0} is there twice")]
    Twice(&'static str),
    /// Missing.
    #[error("field {0} is missing")]
    Missing(&'static str),
    /// Of another platform.
    #[error("field {0} is not of this platform")]
    Foreign(&'static str),
    /// Too many or too few bytes.
    #[error("field {field} has {found} bytes, expected {expected}")]
    Size {
        /// The field.
        field: &'static str,
        /// Bytes that it has.
        found: usize,
        /// Bytes that it may have.
        expected: &'static str,
    },
}

/// Reads a program's answer.
///
/// # Errors
/// [`AnswerError`] with the line or the field.
pub fn parse(platform: Platform, output: Vec<u8>) -> Result<Collected, AnswerError> {
    let azure = matches!(platform, Platform::AzureTdx | Platform::AzureSevSnp);
    if !output.starts_with(HEADER.as_bytes()) {
        if azure {
            return Err(AnswerError::NoHeader);
        }
        sized("quote", &output)?;
        return Ok(Collected { platform, quote: output, ..Collected::default() });
    }
    let mut fields = read_fields(&output)?;
    if !azure && let Some(foreign) = OF_AZURE.into_iter().find(|name| fields.contains_key(name)) {
        return Err(AnswerError::Foreign(foreign));
    }
    let mut required = |name| fields.remove(name).ok_or(AnswerError::Missing(name));
    let quote = required("quote")?;
    let azure = if azure {
        let pcrs = required("pcrs")?;
        if pcrs.len() != PCRS {
            return Err(AnswerError::Size { field: "pcrs", found: pcrs.len(), expected: "768" });
        }
        Some(AzureEvidence {
            hcl_report: required("hcl_report")?.into(),
            tpm_quote: required("tpm_quote")?.into(),
            tpm_signature: required("tpm_signature")?.into(),
            pcrs: pcrs.into(),
        })
    } else {
        None
    };
    let mut optional = |name| fields.remove(name).unwrap_or_default();
    let (event_log, certificates) = (optional("event_log"), optional("certificates"));
    Ok(Collected { platform, quote, event_log, certificates, azure, runtime_log: Vec::new() })
}

fn read_fields(output: &[u8]) -> Result<BTreeMap<&'static str, Vec<u8>>, AnswerError> {
    let mut fields = BTreeMap::new();
    let lines = output.strip_suffix(b"\n").unwrap_or(output).split(|b| *b == b'\n').enumerate();
    for (index, line) in lines {
        let number = index + 1;
        if index == 0 {
            if line != HEADER.as_bytes() {
                return Err(AnswerError::NoHeader);
            }
            continue;
        }
        let space = line.iter().position(|b| *b == b' ').ok_or(AnswerError::Line(number))?;
        let name = FIELDS.into_iter().find(|f| f.as_bytes() == &line[..space]).ok_or(AnswerError::Unknown(number))?;
        let bytes = unhex(&line[space + 1..]).ok_or(AnswerError::Line(number))?;
        sized(name, &bytes)?;
        if fields.insert(name, bytes).is_some() {
            return Err(AnswerError::Twice(name));
        }
    }
    Ok(fields)
}

fn sized(field: &'static str, bytes: &[u8]) -> Result<(), AnswerError> {
    if bytes.len() <= MAX_BLOB {
        return Ok(());
    }
    Err(AnswerError::Size { field, found: bytes.len(), expected: "at most 1048576" })
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}
