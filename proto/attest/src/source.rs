//! Where evidence comes from, as the server sees it.

use proto::v1::{Admission, AzureEvidence, Evidence, Platform, RuntimeEvent, RuntimeValues};

/// A way to get the hardware to state something.
///
/// [`Source::collect`] may block for a second and more, and calls must not run at the same time: callers hold one lock.
pub trait Source: Send + Sync + 'static {
    /// Name in logs.
    fn name(&self) -> &'static str;

    /// A fresh statement over `report_data`, by a TEE and nothing weaker.
    ///
    /// # Errors
    /// [`SourceError`] with what to do about it.
    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError>;
}

/// What a [`Source`] returns.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collected {
    /// How `quote` is checked.
    pub platform: Platform,
    /// The statement.
    pub quote: Vec<u8>,
    /// The firmware's event log, or nothing.
    pub event_log: Vec<u8>,
    /// Our own extensions of RTMR3, in order.
    pub runtime_log: Vec<RuntimeEvent>,
    /// SEV-SNP: the certificate table beside the report, or nothing.
    pub certificates: Vec<u8>,
    /// Below Azure's paravisor.
    pub azure: Option<AzureEvidence>,
}

impl Collected {
    /// The message, with the values that the statement is bound to and what the connection is for.
    #[must_use]
    pub fn evidence(self, values: RuntimeValues, admission: Admission) -> Evidence {
        Evidence {
            version: crate::VERSION,
            platform: self.platform.into(),
            quote: self.quote.into(),
            event_log: self.event_log.into(),
            runtime_log: self.runtime_log,
            certificates: self.certificates.into(),
            azure: self.azure,
            values: Some(values),
            refusal: 0,
            admission: admission.into(),
        }
    }
}

/// Why there is no evidence. Never answered with anything weaker.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// This machine is no TEE guest, or its kernel does not say so.
    #[error("no TEE: {0}")]
    NoTee(String),
    /// The TEE is there and its quoting service does not answer as it should.
    #[error("no quote: {0}")]
    Quote(String),
}
