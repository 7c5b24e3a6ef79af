//! What a TPM quote says: TPM 2.0 Library Specification, Part 2 (Structures), section 10.12.12, `TPMS_ATTEST`.

/// A quote. Worth as much as its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpmQuote {
    extra_data: Vec<u8>,
    selected: u32,
    digest: [u8; 32],
}

/// Why bytes are no quote over SHA-256 PCRs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TpmError {
    /// Nothing there: without a quote nothing says that the evidence is fresh.
    #[error("tpm quote is missing")]
    Missing,
    /// Larger than the structure can be.
    #[error("tpm quote is {0} bytes, expected 1024 at most")]
    Size(usize),
    /// Ends within a field.
    #[error("tpm quote ends within {0}")]
    Truncated(&'static str),
    /// A field with a value that a quote does not have.
    #[error("tpm quote: {field} is {found:#x}, expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it is.
        found: u64,
        /// What it may be.
        expected: &'static str,
    },
    /// More bytes than the structure has.
    #[error("tpm quote is followed by {0} bytes")]
    Trailing(usize),
}

impl TpmQuote {
    /// Largest quote that is read, in bytes.
    pub const LIMIT: usize = 1024;

    /// # Errors
    /// [`TpmError`]
    pub fn parse(bytes: &[u8]) -> Result<Self, TpmError> {
        if bytes.is_empty() {
            return Err(TpmError::Missing);
        }
        if bytes.len() > Self::LIMIT {
            return Err(TpmError::Size(bytes.len()));
        }
        let mut input = Input(bytes);
        // TPM_GENERATED_VALUE and TPM_ST_ATTEST_QUOTE: made inside a TPM, and a quote.
        input.expect("magic", 4, 0xff54_4347, "0xff544347")?;
        input.expect("type", 2, 0x8018, "0x8018")?;
        input.sized("qualified signer")?;
        let extra_data = input.sized("extra data")?.to_vec();
        // TPMS_CLOCK_INFO and firmwareVersion.
        input.take("clock", 17)?;
        input.take("firmware version", 8)?;
        // TPML_PCR_SELECTION: the bank of SHA-256 and no other.
        input.expect("number of pcr banks", 4, 1, "1")?;
        input.expect("hash of the pcr bank", 2, 0x000b, "0xb (SHA-256)")?;
        input.expect("bytes of the pcr selection", 1, 3, "3")?;
        let mut selected = 0;
        for (index, byte) in input.take("pcr selection", 3)?.iter().enumerate() {
            selected |= u32::from(*byte) << (8 * index);
        }
        let digest = input.sized("pcr digest")?;
        let digest = digest.try_into().map_err(|_| TpmError::Field {
            field: "length of the pcr digest",
            found: u64::try_from(digest.len()).unwrap_or(u64::MAX),
            expected: "0x20",
        })?;
        match input.0.len() {
            0 => Ok(Self { extra_data, selected, digest }),
            more => Err(TpmError::Trailing(more)),
        }
    }

    /// What the caller of the TPM gave it to quote.
    #[must_use]
    pub fn extra_data(&self) -> &[u8] {
        &self.extra_data
    }

    /// Whether the digest covers this PCR.
    #[must_use]
    pub fn covers(&self, index: u8) -> bool {
        index < 24 && self.selected >> index & 1 == 1
    }

    /// SHA-256 of the values of the covered PCRs in order.
    #[must_use]
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Big-endian, with lengths before what they count.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], TpmError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(TpmError::Truncated(field))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, field: &'static str, length: usize) -> Result<u64, TpmError> {
        Ok(self.take(field, length)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn expect(
        &mut self,
        field: &'static str,
        length: usize,
        value: u64,
        expected: &'static str,
    ) -> Result<(), TpmError> {
        match self.number(field, length)? {
            found if found == value => Ok(()),
            found => Err(TpmError::Field { field, found, expected }),
        }
    }

    fn sized(&mut self, field: &'static str) -> Result<&'a [u8], TpmError> {
        let length = usize::try_from(self.number(field, 2)?).unwrap_or(usize::MAX);
        self.take(field, length)
    }
}
