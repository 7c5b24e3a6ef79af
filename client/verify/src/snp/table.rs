//! The certificates that came with a report: the table of the GHCB specification, or PEM.

use super::report::Signer;
use super::x509::Certificate;
use x509_cert::der::pem;

/// The certificates that matter, in DER. Roots are not among them: those are pinned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Of the chip endorsement key.
    pub vcek: Option<Vec<u8>>,
    /// Of the loaded endorsement key.
    pub vlek: Option<Vec<u8>>,
    /// Of AMD's signing key above either.
    pub intermediate: Option<Vec<u8>>,
}

/// Why bytes are no table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Larger than a host may make it.
    #[error("certificate table is {0} bytes, expected 65536 at most")]
    Size(usize),
    /// The table does not end.
    #[error("certificate table has no empty entry at its end within 32 entries")]
    Unterminated,
    /// An entry points elsewhere.
    #[error("certificate table entry {0} points outside the table")]
    Range(usize),
    /// Two entries of one kind.
    #[error("certificate table has two entries for {0}")]
    Twice(&'static str),
    /// Not PEM although it begins like it.
    #[error("certificates are malformed PEM")]
    Pem,
}

impl Table {
    /// Largest table that is read, in bytes.
    pub const LIMIT: usize = 64 << 10;

    /// Reads either form; no bytes are an empty table.
    ///
    /// # Errors
    /// [`TableError`]
    pub fn parse(bytes: &[u8]) -> Result<Self, TableError> {
        if bytes.len() > Self::LIMIT {
            return Err(TableError::Size(bytes.len()));
        }
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        if bytes.starts_with(PEM_BEGIN.as_bytes()) { Self::of_pem(bytes) } else { Self::of_ghcb(bytes) }
    }

    /// The certificate of the key that signs a report.
    #[must_use]
    pub fn endorsement(&self, signer: Signer) -> Option<&[u8]> {
        match signer {
            Signer::Vcek => self.vcek.as_deref(),
            Signer::Vlek => self.vlek.as_deref(),
        }
    }

    /// GHCB specification (AMD 56421), section 4.1.8.1: entries of GUID, offset and length, both little-endian u32, ended
    /// by an entry of zeros; offsets count from the start of the table.
    fn of_ghcb(bytes: &[u8]) -> Result<Self, TableError> {
        let mut table = Self::default();
        for (index, entry) in bytes.chunks_exact(ENTRY).take(MAX_ENTRIES).enumerate() {
            let (guid, rest) = entry.split_at(16);
            let offset = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
            let length = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
            if guid.iter().all(|byte| *byte == 0) {
                return Ok(table);
            }
            let range = usize::try_from(offset).ok().zip(usize::try_from(length).ok());
            let data = range
                .and_then(|(offset, length)| bytes.get(offset..offset.checked_add(length)?))
                .ok_or(TableError::Range(index))?;
            match guid {
                VCEK => put(&mut table.vcek, "VCEK", data)?,
                VLEK => put(&mut table.vlek, "VLEK", data)?,
                ASK => put(&mut table.intermediate, "ASK", data)?,
                _ => {}
            }
        }
        Err(TableError::Unterminated)
    }

    /// As Azure's metadata service hands it out. Which one is which, their names say.
    fn of_pem(bytes: &[u8]) -> Result<Self, TableError> {
        let text = std::str::from_utf8(bytes).map_err(|_| TableError::Pem)?;
        let mut table = Self::default();
        for part in text.split(PEM_BEGIN).skip(1) {
            let document = format!("{PEM_BEGIN}{}\n", part.trim_end());
            let (label, der) = pem::decode_vec(document.as_bytes()).map_err(|_| TableError::Pem)?;
            if label != "CERTIFICATE" {
                continue;
            }
            let Ok(certificate) = Certificate::parse(&der) else { return Err(TableError::Pem) };
            let name = certificate.common_name();
            if name == Signer::Vcek.common_name() {
                put(&mut table.vcek, "VCEK", &der)?;
            } else if name == Signer::Vlek.common_name() {
                put(&mut table.vlek, "VLEK", &der)?;
            } else if name.starts_with("SEV-") {
                put(&mut table.intermediate, "ASK", &der)?;
            }
        }
        Ok(table)
    }
}

fn put(slot: &mut Option<Vec<u8>>, name: &'static str, data: &[u8]) -> Result<(), TableError> {
    match slot.replace(data.to_vec()) {
        Some(_) => Err(TableError::Twice(name)),
        None => Ok(()),
    }
}

const PEM_BEGIN: &str = "-----BEGIN ";
/// Bytes of an entry.
const ENTRY: usize = 24;
/// Entries read at most.
const MAX_ENTRIES: usize = 32;

// GUIDs of GHCB specification table 5, in the byte order of the text form.
/// 63da758d-e664-4564-adc5-f4b93be8accd
const VCEK: &[u8] = &[0x63, 0xda, 0x75, 0x8d, 0xe6, 0x64, 0x45, 0x64, 0xad, 0xc5, 0xf4, 0xb9, 0x3b, 0xe8, 0xac, 0xcd];
/// a8074bc2-a25a-483e-aae6-39c045a0b8a1
const VLEK: &[u8] = &[0xa8, 0x07, 0x4b, 0xc2, 0xa2, 0x5a, 0x48, 0x3e, 0xaa, 0xe6, 0x39, 0xc0, 0x45, 0xa0, 0xb8, 0xa1];
/// 4ab7b379-bbac-4fe4-a02f-05aef327c782
const ASK: &[u8] = &[0x4a, 0xb7, 0xb3, 0x79, 0xbb, 0xac, 0x4f, 0xe4, 0xa0, 0x2f, 0x05, 0xae, 0xf3, 0x27, 0xc7, 0x82];
