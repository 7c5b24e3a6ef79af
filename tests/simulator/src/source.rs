//! A guest on the simulated platform.

use crate::{Platform, QuoteFlaw, TdReport, runtime_log};
use attest::source::{Collected, Source, SourceError};
use proto::v1::RuntimeEvent;
use std::sync::{Mutex, PoisonError};

/// Quotes of one simulated TD, at once and without a queue.
pub struct SimulatedTdx {
    platform: Platform,
    td: TdReport,
    flaw: Option<QuoteFlaw>,
    log: Mutex<Vec<RuntimeEvent>>,
}

impl SimulatedTdx {
    /// The default TD on this platform.
    #[must_use]
    pub fn new(platform: Platform) -> Self {
        Self::running(platform, TdReport::default())
    }

    /// This TD on this platform. Its report data is replaced in each quote; its RTMR3 is where the register starts.
    #[must_use]
    pub fn running(platform: Platform, td: TdReport) -> Self {
        Self { platform, td, flaw: None, log: Mutex::default() }
    }

    /// The same, with one thing wrong in each quote.
    #[must_use]
    pub fn flawed(self, flaw: QuoteFlaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }

    /// The platform below.
    #[must_use]
    pub fn platform(&self) -> &Platform {
        &self.platform
    }

    /// Extends RTMR3 and remembers with what.
    pub fn extend(&self, name: &str, payload: &[u8]) {
        let event = RuntimeEvent { name: name.to_owned(), payload: payload.to_vec().into() };
        self.log.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl Source for SimulatedTdx {
    fn name(&self) -> &'static str {
        "simulated TDX"
    }

    fn collect(&self, report_data: &[u8; 64]) -> Result<Collected, SourceError> {
        let runtime_log = self.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut td = TdReport { report_data: *report_data, ..self.td.clone() };
        td.rtmrs[3] = runtime_log::replay(td.rtmrs[3], &runtime_log);
        let quote = match self.flaw {
            None => self.platform.quote(&td),
            Some(flaw) => self.platform.flawed_quote(&td, flaw),
        };
        Ok(Collected { platform: proto::v1::Platform::Tdx, quote, runtime_log, ..Collected::default() })
    }
}
